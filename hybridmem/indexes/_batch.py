"""Changes of one batch, merged by id: what a vector index has to do for each memory."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timezone
from typing import Any, NamedTuple

from hybridmem.indexes.base import Change

__all__ = ["NEVER", "Put", "batch_of", "epoch"]

NEVER = float("-inf")


class Put(NamedTuple):
    """What a batch does to one id: a new vector, no vector any more (`gone`), or only a new time."""

    vector: Any
    updated: float
    gone: bool = False


def batch_of(changes: Iterable[Change], watermark: int, /) -> tuple[dict[str, Put], int]:
    """The last word of the batch on each id, and the watermark after it."""
    batch: dict[str, Put] = {}
    for change in changes:
        watermark = max(watermark, change.seq)
        if change.edge is None:
            batch[change.id] = _merged(batch.get(change.id), _put(change))
    return batch, watermark


def epoch(moment: datetime | None, /) -> float:
    """Seconds since 1970; naive times are UTC, no time is before all others."""
    if moment is None:
        return NEVER
    return (moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)).timestamp()


def _put(change: Change) -> Put:
    if change.memory is None or change.gone:
        return Put(None, NEVER, gone=True)
    lost = change.vector is None and change.text_changed
    return Put(change.vector, epoch(change.memory.updated_at), gone=lost)


def _merged(before: Put | None, put: Put) -> Put:
    """A later change of the same batch; one that only brings a new time leaves the vector as the batch had it."""
    if before is None or put.gone or put.vector is not None:
        return put
    return before if before.gone else before._replace(updated=put.updated)
