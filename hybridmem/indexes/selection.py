"""Which rows a set of allowed ids means, remembered for sets that come back."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from hybridmem.indexes.live import State
from hybridmem.indexes.segments import Rows

__all__ = ["Selection", "Selections"]

_KEPT = 16


@dataclass(frozen=True)
class Selection:
    """The rows of a set of ids, as of `size` rows: ascending, some of them perhaps dead by now."""

    allowed: Set[str]
    rows: Rows
    size: int
    epoch: int

    @classmethod
    def of(cls, allowed: Set[str], where: Mapping[str, int], state: State, /) -> Selection:
        """Look up the smaller side in the larger one."""
        if len(allowed) <= len(where):
            found = [where[name] for name in allowed if name in where]
        else:
            found = [row for name, row in where.items() if name in allowed]
        return cls(allowed, np.sort(np.array(found, np.int32)), state.size, state.epoch)

    def extended(self, state: State, /) -> Selection:
        """With the rows that came since."""
        if state.size == self.size:
            return self
        new = [row for row in range(self.size, state.size) if state.ids[row] in self.allowed]
        rows = np.concatenate((self.rows, np.array(new, np.int32))) if new else self.rows
        return Selection(self.allowed, rows, state.size, self.epoch)

    @cached_property
    def mask(self) -> npt.NDArray[np.bool_]:
        """True for each of the rows."""
        mask = np.zeros(self.size, bool)
        mask[self.rows] = True
        return mask

    def fit(self, alive: npt.NDArray[np.bool_] | None, /) -> npt.NDArray[np.bool_]:
        """True for each of the rows that is alive."""
        return self.mask if alive is None else self.mask & alive[: self.size]

    def is_few(self, postings: int, terms: int, /) -> bool:
        """Whether looking these rows up in each term's list is cheaper than walking the lists."""
        return len(self.rows) * terms * 8 < postings


class Selections:
    """The last few selections. Only frozen sets are remembered: another set may have changed since."""

    def __init__(self) -> None:
        self._kept: dict[int, Selection] = {}

    def get(self, allowed: Set[str], /) -> Selection | None:
        """The selection of this very set."""
        found = self._kept.get(id(allowed))
        return found if found is not None and found.allowed is allowed else None

    def keep(self, allowed: Set[str], selection: Selection, /) -> None:
        """Remember it, forgetting the oldest."""
        if not isinstance(allowed, frozenset) or self._kept.get(id(allowed)) is selection:
            return
        kept = dict(list(self._kept.items())[-_KEPT + 1 :])
        kept[id(allowed)] = selection
        self._kept = kept  # swapped whole: readers need no lock
