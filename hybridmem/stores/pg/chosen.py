"""Which memories may answer: a filter that stays in the server, or a set of ids that travels there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Set
from functools import cached_property
from typing import Any

from hybridmem.filter_sql import SQL

__all__ = ["Chosen", "restriction"]


class Chosen(Set[str]):
    """The ids that a filter chooses, as a set that is read only when somebody looks inside.

    A search in the server never does: it puts the filter's SQL into its own statement.
    """

    def __init__(self, condition: SQL, load: Callable[[], frozenset[str]], /) -> None:
        self.condition = condition
        self._load = load

    @cached_property
    def _ids(self) -> frozenset[str]:
        return self._load()

    def __contains__(self, id_: object) -> bool:
        return id_ in self._ids

    def __iter__(self) -> Iterator[str]:
        return iter(self._ids)

    def __len__(self) -> int:
        return len(self._ids)

    @classmethod
    def _from_iterable(cls, it: Any) -> frozenset[str]:  # type: ignore[override]
        return frozenset(it)


def restriction(allowed: Set[str] | None, /) -> SQL:
    """What to add behind `memories m … WHERE …`: nothing, a filter over the memory and its body, or a list of ids."""
    if allowed is None:
        return SQL("")
    if isinstance(allowed, Chosen):
        text, parameters = allowed.condition
        return SQL(f" AND EXISTS (SELECT 1 FROM bodies b WHERE b.seq = m.body AND {text})", parameters)  # noqa: S608
    return SQL(" AND m.id = ANY(?::text[])", (list(allowed),))
