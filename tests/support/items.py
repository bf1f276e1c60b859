"""Plain items for tests of the fusion: a row with fields, and a reader for it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from hybridmem.core.types import ArmList


@dataclass(frozen=True)
class Row:
    key: str
    fields: dict[str, Any] = field(default_factory=dict)

    @property
    def metadata(self) -> dict[str, Any]:
        return self.fields


class RowReader:
    def keys(self, items: Sequence[Row]) -> list[str]:
        return [item.key for item in items]

    def column(self, items: Sequence[Row], name: str) -> list[Any]:
        return [item.fields.get(name) for item in items]


READER = RowReader()


def arm(name: str, keys: Iterable[str | Row], scores: Sequence[float] | None = None, **more: Any) -> ArmList:
    """An arm that lists these keys; `keys` is a string of one-letter keys or a list of keys or rows."""
    rows = [key if isinstance(key, Row) else Row(key) for key in keys]
    return ArmList(name, rows, scores, **more)
