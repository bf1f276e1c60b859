"""What a search gives: results with their memory, score and, when asked, the receipt behind them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

from hybridmem.core.types import Entry, Memory
from hybridmem.fusion.explain import Explanation, Receipt

__all__ = ["EntryReader", "Result"]


@dataclass(frozen=True, slots=True)
class Result:
    """One answer. `score` lies in (0, 1]: the share of the best score possible. `receipt` is made when it is read."""

    id: str
    score: float
    memory: Memory
    _explain: Callable[[], Explanation] | None = field(default=None, repr=False, compare=False)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled without its explanation, which holds the open memory."""
        return Result, (self.id, self.score, self.memory)

    def __copy__(self) -> Result:
        return self

    def __deepcopy__(self, memo: dict[int, Any], /) -> Result:
        return self

    @property
    def text(self) -> str:
        """The memory's text."""
        return self.memory.text

    @property
    def explanation(self) -> Explanation | None:
        """The explanation of the query that found this."""
        return None if self._explain is None else self._explain()

    @property
    def receipt(self) -> Receipt | None:
        """Why this result is where it is: the same fusion again, with its notebook open."""
        if self._explain is None:
            return None
        return next((receipt for receipt in self._explain().receipts if receipt.key == self.id), None)


_FIELDS = {name: itemgetter(place) for place, name in enumerate(Entry._fields)}  # faster than by name


class EntryReader:
    """Reads entries for a fusion; what an entry does not hold is fetched from the store, for these items only."""

    def __init__(
        self, memories: Callable[[Sequence[str]], list[Memory | None]], vectors: Callable[[Sequence[str]], list[Any]], /
    ) -> None:
        self._memories = memories
        self._vectors = vectors

    def keys(self, items: Sequence[Entry], /) -> list[str]:
        """The memories' ids."""
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
