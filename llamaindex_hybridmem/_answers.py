"""What arms answer: lists of nodes, or an error that says what came instead."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llama_index.core.schema import NodeWithScore

from hybridmem.core.fanout import OnError, Outcome, apply_policy
from hybridmem.errors import ArmError
from llamaindex_hybridmem._results import FusedNode

__all__ = ["nodes_of", "settled"]

_RESULTS = frozenset({NodeWithScore, FusedNode})
"""What retrievers mostly give: known by a look at the type alone."""
_FOLLOWERS = ("_handle_recursive_retrieval", "_ahandle_recursive_retrieval")


def nodes_of(value: Any, arm: str, /) -> list[NodeWithScore]:
    """An arm's answer as a list of nodes; anything else is an error that says so."""
    if type(value) is list and _RESULTS.issuperset(map(type, value)):
        return value
    odd = _oddity(value)
    if odd is not None:
        raise _wrong(arm, odd)
    return list(value)


def _oddity(value: Any) -> str | None:
    """What an arm's answer is when it is not what it should be."""
    if not isinstance(value, list | tuple):
        return "None" if value is None else f"a {type(value).__name__}"
    strange = [item for item in value if not isinstance(item, NodeWithScore)]
    return f"a list with a {type(strange[0]).__name__}" if strange else None


def _wrong(arm: str, odd: str) -> ArmError:
    return ArmError(f"arm {arm!r} returned {odd}: a retriever returns a list of NodeWithScore", arm=arm)


def settled(outcomes: Sequence[Outcome], /, *, on_error: OnError, wrap: bool) -> dict[str, str]:
    """Apply the failure policy; an arm that returned no nodes, over which LlamaIndex stumbles, is told plainly."""
    clear = [_clear(outcome) for outcome in outcomes]
    if on_error == "raise":
        for outcome in clear:
            if isinstance(outcome.error, ArmError):
                raise outcome.error
    return apply_policy(clear, on_error=on_error, wrap=wrap)


def _clear(outcome: Outcome) -> Outcome:
    trace = outcome.error.__traceback__ if isinstance(outcome.error, TypeError | AttributeError) else None
    given: Any = ()
    while trace is not None:
        if trace.tb_frame.f_code.co_name in _FOLLOWERS:
            given = trace.tb_frame.f_locals.get("nodes", ())
        trace = trace.tb_next
    odd = _oddity(given)
    if odd is None:
        return outcome
    error = _wrong(outcome.name, odd)
    error.__cause__ = outcome.error
    return outcome._replace(error=error)
