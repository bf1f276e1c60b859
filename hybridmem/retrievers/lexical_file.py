"""A shelf in one file: a checksummed picture of everything, and after it a line for each later change.

```
magic · sizes and digests as a JSON line · things (compressed JSON lines) · index (bytes) · journal lines
```

A change is one line appended and flushed; a line that a crash cut off was never acknowledged and is dropped. When
the journal has grown, the picture is written anew beside the old file and put in its place in one step.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date, datetime
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from hybridmem.errors import ConfigError, CorruptStoreError
from hybridmem.indexes.bm25.index import BM25Index
from hybridmem.indexes.bm25.storage import write_file

__all__ = ["Keeper", "Kept", "Row", "Step"]

T = TypeVar("T")
_MAGIC = b"hybridmem shelf 1\n"
_ROOM = 1_000
"""So many journal entries, or half of all things, before the picture is written anew."""

log = logging.getLogger(__name__)


class Row(NamedTuple):
    """A thing under its key, with its searchable fields."""

    key: str
    fields: Mapping[str, str]
    item: Any


class Step(NamedTuple):
    """One change: what came, or what went."""

    rows: list[Row]
    gone: list[str]


class Kept(NamedTuple):
    """What a file holds; `words` is None when the index must be built from the rows."""

    rows: list[Row]
    words: BM25Index | None
    journal: list[Step]


class Keeper(Generic[T]):
    """Keeps a shelf in a file. `write` makes a thing a JSON value, `read` makes it a thing again."""

    def __init__(self, path: str | Path, *, write: Callable[[T], Any], read: Callable[[Any], T]) -> None:
        self.path = Path(path)
        self._write = write
        self._read = read
        self._pending = 0
        self._begun = self.exists

    @property
    def exists(self) -> bool:
        """Whether there is something to read."""
        return self.path.exists()

    # --- writing

    def put(self, rows: Sequence[Row], /) -> None:
        """Note that these things came."""
        self._note({"put": [self._row(row) for row in rows]}, len(rows))

    def remove(self, keys: Sequence[str], /) -> None:
        """Note that these things went."""
        self._note({"gone": list(keys)}, len(keys))

    def is_full(self, things: int, /) -> bool:
        """Whether it is time to write the picture anew."""
        return not self._begun or self._pending > max(_ROOM, things // 2)

    def _note(self, entry: dict[str, Any], count: int) -> None:
        line = _line(entry)  # first of all: what cannot be written is refused before anything changes
        self._pending += count
        if not self._begun:
            return
        with self.path.open("ab") as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())

    def save(self, rows: Sequence[Row], index: Any, /) -> None:
        """Write the picture: all of it, or the old file stays."""
        things = zlib.compress(b"".join(_json(self._row(row)) + b"\n" for row in rows), 1)
        blob = index.to_bytes() if isinstance(index, BM25Index) else b""
        head = {"things": [len(things), _digest(things)], "index": [len(blob), _digest(blob)]}
        text = _json(head)
        write_file(self.path, b"".join((_MAGIC, _digest(text).encode(), b" ", text, b"\n", things, blob)))
        self._pending, self._begun = 0, True

    def print_of(self, fields: Mapping[str, str], item: T, /) -> str:
        """What tells whether a thing is the same as a kept one."""
        return _digest(_json([dict(fields), self._write(item)]))

    def _row(self, row: Row) -> list[Any]:
        return [row.key, dict(row.fields), self._write(row.item)]

    # --- reading

    def load(self, like: Any, /) -> Kept:
        """What the file holds. `like` is an empty index of the wanted kind: a kept one that differs is built anew."""
        data = self.path.read_bytes()
        head, start = self._head(data)
        (size, digest), (index_size, index_digest) = head["things"], head["index"]
        things, blob = data[start : start + size], data[start + size : start + size + index_size]
        if _digest(things) != digest:
            raise CorruptStoreError(f"{self.path} is damaged: the things in it do not fit their checksum")
        rows = [self._unrow(json.loads(line)) for line in zlib.decompress(things).splitlines()]
        index = self._index(blob, like) if _digest(blob) == index_digest else None
        if index is None and isinstance(like, BM25Index):
            log.warning("%s: the index in it does not fit and is built again from its texts", self.path)
        return Kept(rows, index, list(self._journal(data, start + size + index_size)))

    def _head(self, data: bytes) -> tuple[dict[str, Any], int]:
        end = data.find(b"\n", len(_MAGIC))
        digest, _, text = data[len(_MAGIC) : end].partition(b" ")
        if not data.startswith(_MAGIC) or end < 0 or _digest(text).encode() != digest:
            raise CorruptStoreError(f"{self.path} is damaged, or is not a file of a BM25Retriever")
        head: dict[str, Any] = json.loads(text)
        return head, end + 1

    def _index(self, blob: bytes, like: Any) -> BM25Index | None:
        if not isinstance(like, BM25Index) or not blob:
            return None
        try:
            index = BM25Index.from_bytes(blob, analyzer=like.analyzer)
        except (ConfigError, CorruptStoreError):
            return None
        same = (index.k1, index.b, index.weights) == (like.k1, like.b, like.weights)
        return index if same else index.with_curve(k1=like.k1, b=like.b) if index.weights == like.weights else None

    def _journal(self, data: bytes, start: int) -> Iterator[Step]:
        while start < len(data):
            end = data.find(b"\n", start)
            line = data[start : end + 1] if end >= 0 else data[start:]
            entry = _unline(line)
            if entry is None:
                if end >= 0 and end + 1 < len(data):
                    raise CorruptStoreError(f"{self.path} is damaged at byte {start}: a journal line does not fit")
                self._cut(start)
                return
            rows = [self._unrow(row) for row in entry.get("put", ())]
            gone = entry.get("gone", [])
            self._pending += len(rows) + len(gone)
            yield Step(rows, gone)
            start = end + 1

    def _cut(self, size: int) -> None:
        """Take off what a crash left half-written."""
        with self.path.open("r+b") as file:
            file.truncate(size)

    def _unrow(self, value: list[Any]) -> Row:
        key, fields, item = value
        return Row(key, fields, self._read(_revived(item)))


def _line(entry: Mapping[str, Any]) -> bytes:
    text = _json(entry)
    return b"%08x %s\n" % (zlib.crc32(text), text)


def _unline(line: bytes) -> dict[str, Any] | None:
    mark, _, text = line.rstrip(b"\n").partition(b" ")
    if not line.endswith(b"\n") or mark != b"%08x" % zlib.crc32(text):
        return None
    entry: dict[str, Any] = json.loads(text)
    return entry


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def _json(value: Any) -> bytes:
    try:
        return json.dumps(value, default=_plain, separators=(",", ":")).encode()
    except (TypeError, ValueError) as error:
        raise ConfigError(f"cannot be kept in a file: {error}; allowed in metadata: JSON values and times") from error


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return {"__time__": value.isoformat()}
    if isinstance(value, date):
        return {"__date__": value.isoformat()}
    if isinstance(value, set | frozenset):
        return sorted(value)
    if hasattr(value, "item") and not isinstance(value, type):  # a numpy number
        return value.item()
    raise TypeError(f"a {type(value).__name__}")


def _revived(value: Any) -> Any:
    if isinstance(value, list):
        return [_revived(one) for one in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        [(name, text)] = value.items()
        if name == "__time__":
            return datetime.fromisoformat(text)
        if name == "__date__":
            return date.fromisoformat(text)
    return {name: _revived(one) for name, one in value.items()}
