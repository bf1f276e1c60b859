"""Copying a whole store into another of any kind, resumable and verified by checksum; backup into a SQLite file."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from hybridmem.core import validation
from hybridmem.core.protocols import Progress, Store
from hybridmem.errors import ConfigError, StoreError

__all__ = ["Copied", "backup_to_sqlite", "checksum", "copy_store"]

BATCH = 5_000
Row = Mapping[str, Any]


class Copied(NamedTuple):
    """The result of a copy: the number of log entries, how many existed before, and their checksum."""

    rows: int
    resumed: int
    checksum: str


def copy_store(source: Store, target: Store, /, *, progress: Progress | None = None, batch: int = BATCH) -> Copied:
    """Copy every version, link, vector and setting, with seq and times; a repeated call continues an interrupted copy.

    The target must be empty, or hold the beginning of the same log: then only the rest is copied. Each batch is one
    transaction, and `progress(done, total)` counts committed entries. At the end both logs are compared.

    >>> from hybridmem.stores.sqlite.store import SQLiteStore
    >>> from hybridmem.core.types import Memory
    >>> old, new = SQLiteStore(":memory:"), SQLiteStore(":memory:")
    >>> _ = old.put([Memory("Ana moved to Lisbon", id="m1")])
    >>> copy_store(old, new).rows
    1
    >>> old.close(); new.close()
    """
    if batch < 1:
        raise ConfigError(f"batch = {batch!r} is not allowed: a whole number from 1 up")
    start = target.last_seq()
    resumed = 0
    if start:
        existing, resumed = checksum(target)
        if checksum(source, upto=start) != (existing, resumed):
            raise ConfigError(
                f"the target has {resumed} entries that are not the beginning of the source: copy into an empty store"
            )
    _fill(source, target, start, progress, batch)
    end = target.last_seq()
    (wanted, rows), found = checksum(source, upto=end), checksum(target)
    if found != (wanted, rows):
        raise StoreError(
            f"the copy differs from its source: checksum {found[0]} of {found[1]} entries, not {wanted} of {rows}"
        )
    if progress is not None:
        progress(rows, rows)
    return Copied(rows, resumed, wanted)


def _fill(source: Store, target: Store, start: int, progress: Progress | None, batch: int) -> None:
    total = source.last_seq()
    part: list[Row] = []
    for row in source.export():
        if row["kind"] in ("memory", "edge"):
            if row["seq"] <= start:
                continue
        elif row["kind"] == "hybridmem":
            continue
        part.append(row)
        if len(part) >= batch:
            _send(target, part)
            if progress is not None:
                progress(int(part[-1].get("seq", 0)), total)
            part = []
    if part:
        _send(target, part)


def _send(target: Store, part: Iterable[Row]) -> None:
    target.restore(part, exact=True)


def checksum(store: Store, /, *, upto: int | None = None) -> tuple[str, int]:
    """A fingerprint of the log (memories, versions, vectors, links, times), and how many entries it has."""
    digest, count = hashlib.blake2b(digest_size=16), 0
    for row in _entries(store, upto):
        digest.update(json.dumps(row, sort_keys=True, ensure_ascii=False).encode())
        count += 1
    return digest.hexdigest(), count


def _entries(store: Store, upto: int | None) -> Iterator[Row]:
    for row in store.export():
        if row["kind"] in ("memory", "edge"):
            if upto is not None and row["seq"] > upto:
                return
            yield row


def backup_to_sqlite(store: Store, path: str | Path, /) -> None:
    """Copy a store into a SQLite file, which appears complete or not at all."""
    from hybridmem.stores.sqlite.store import SQLiteStore, part_name, publish, remove_leftovers

    target = os.path.abspath(validation.file_path("path", path, "the name of a file to back up to"))  # noqa: PTH100
    remove_leftovers(target)
    part = Path(part_name(target))
    try:
        with SQLiteStore(part) as copy:
            copy_store(store, copy)
        publish(str(part), target)
    finally:
        for leftover in (part, Path(f"{part}-wal"), Path(f"{part}-shm")):
            with suppress(FileNotFoundError):
                leftover.unlink()
