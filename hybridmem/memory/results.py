"""Result of a search, and the reader that gives a fusion access to entries."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from operator import itemgetter
from typing import Any

from hybridmem.core.types import Entry, Memory
from hybridmem.fusion.explain import Explanation, Receipt

__all__ = ["EntryReader", "MemoryStats", "Result"]


@dataclass(frozen=True, slots=True)
class Result:
    """One result of a search: the memory and its score.

    Scores are between 0 and 1 and compare results of one query; they are not probabilities. `receipt` is computed when
    it is read.
    """

    id: str
    score: float
    memory: Memory
    _explain: Callable[[], Explanation] | None = field(default=None, repr=False, compare=False)
    context: tuple[Memory, ...] = field(default=(), repr=False)
    """With `search(context=n)`: up to n turns before and after it in its thread, in reading order."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle without the explanation, which refers to the open memory."""
        return Result, (self.id, self.score, self.memory, None, self.context)

    def __copy__(self) -> Result:
        return self

    def __deepcopy__(self, memo: dict[int, Any], /) -> Result:
        return self

    @property
    def text(self) -> str:
        """The text of the memory."""
        return self.memory.text

    @property
    def explanation(self) -> Explanation | None:
        """The explanation of the search that returned this result."""
        return None if self._explain is None else self._explain()

    @property
    def receipt(self) -> Receipt | None:
        """Why this result has its rank: the contribution of each arm and stage."""
        if self._explain is None:
            return None
        return next((receipt for receipt in self._explain().receipts if receipt.key == self.id), None)

    def to_dict(self) -> dict[str, Any]:
        """The result as JSON-ready data, with its memory and its receipt."""
        receipt = self.receipt
        return {
            "id": self.id,
            "score": self.score,
            "memory": self.memory.to_dict(),
            "receipt": None if receipt is None else receipt.to_dict(),
            "context": [memory.to_dict() for memory in self.context],
        }


@dataclass(frozen=True, slots=True)
class MemoryStats:
    """Counts of one namespace. `print(stats)` prints a line for each."""

    namespace: str
    memories: int
    superseded: int
    threads: int
    sources: int
    links: int
    expiring: int
    """Memories with an `expires_at` in the future."""
    arms: tuple[str, ...]
    embedder: str | None

    def to_dict(self) -> dict[str, Any]:
        """The counts as JSON-ready data."""
        return {**asdict(self), "arms": list(self.arms)}

    def __str__(self) -> str:
        rows = {**asdict(self), "arms": ", ".join(self.arms)}
        return "\n".join(
            f"{name:<10} {value!r}" if name == "namespace" else f"{name:<10} {value}" for name, value in rows.items()
        )


_FIELDS = {name: itemgetter(place) for place, name in enumerate(Entry._fields)}  # faster than getattr


class EntryReader:
    """Reads the fields of entries for a fusion; fields that an entry lacks are read from the store."""

    def __init__(
        self, memories: Callable[[Sequence[str]], list[Memory | None]], vectors: Callable[[Sequence[str]], list[Any]], /
    ) -> None:
        self._memories = memories
        self._vectors = vectors

    def keys(self, items: Sequence[Entry], /) -> list[str]:
        """The ids of the memories."""
        return [item[0] for item in items]

    def column(self, items: Sequence[Entry], name: str, /) -> list[Any]:
        """One field of each memory, or of its metadata."""
        field = _FIELDS.get(name)
        if field is not None:
            return list(map(field, items))
        ids = self.keys(items)
        if name == "vector":
            return self._vectors(ids)
        found = self._memories(ids)
        if name in Memory.__dataclass_fields__:
            return [None if memory is None else getattr(memory, name) for memory in found]
        path = name.removeprefix("metadata.")
        return [None if memory is None else memory.metadata.get(path) for memory in found]
