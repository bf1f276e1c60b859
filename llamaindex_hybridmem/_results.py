"""Results with receipts: a `NodeWithScore` whose explanation is made when somebody reads it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from llama_index.core.bridge.pydantic import BaseModel
from llama_index.core.schema import BaseNode, NodeWithScore

from hybridmem.fusion.explain import Explanation, Receipt

__all__ = ["FusedNode", "Why", "fused_nodes", "notes_of", "rescored", "scored_nodes"]

_WHY = "_why"
_NAMES = {"node", "score"}
_PYDANTIC = ("__pydantic_fields_set__", "__pydantic_extra__", "__pydantic_private__")
"""Attributes in which pydantic records which fields were set."""
_new = object.__new__
_set_fields, _set_names, _set_extra, _set_private = (
    BaseModel.__dict__[name].__set__ for name in ("__dict__", *_PYDANTIC)
)
"""The setters behind `object.__setattr__` for these names, which cost less."""


class Why:
    """The explanation of one query, shared by its results and made once, when it is first read.

    Copies share it. Pickling makes and stores the explanation, because what makes it holds the arms' lists.
    """

    __slots__ = ("_made", "_make")

    def __init__(self, make: Callable[[], Explanation]) -> None:
        self._make = make
        self._made: Explanation | None = None

    def explanation(self) -> Explanation:
        """The explanation of the whole query."""
        if self._made is None:
            self._made = self._make()
        return self._made

    def __deepcopy__(self, memo: Any) -> Why:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return _finished, (self.explanation(),)


def _finished(explanation: Explanation) -> Why:
    return Why(lambda: explanation)


class FusedNode(NodeWithScore):
    """A fused result: the node as its retriever gave it, and a score in (0, 1].

    The receipt lives on this object alone: the node, its metadata, its hash and every prompt stay as they were.
    """

    @property
    def explanation(self) -> Explanation | None:
        """The explanation of the query that found this."""
        why: Why | None = self.__dict__.get(_WHY)
        return None if why is None else why.explanation()

    @property
    def receipt(self) -> Receipt | None:
        """Why this result is where it is: rank, raw score and share in each arm, and what each stage did."""
        explained = self.explanation
        if explained is None:
            return None
        return next((receipt for receipt in explained.receipts if receipt.key == self.node.id_), None)

    if not TYPE_CHECKING:  # or else every name would be an attribute

        def __getattr__(self, name: str) -> Any:
            """Create pydantic's bookkeeping when it is first read: most results are never copied or dumped."""
            if name not in _PYDANTIC:
                return super().__getattr__(name)
            created = set(_NAMES) if name == "__pydantic_fields_set__" else None
            object.__setattr__(self, name, created)
            return created

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.__dict__.setdefault(_WHY, state["__dict__"].get(_WHY))


def fused_nodes(rows: Iterable[tuple[BaseNode, float]], why: Why, /) -> list[FusedNode]:
    """Results over these nodes with a shared explanation; the input is never changed.

    The explanation is beside the fields, as a cached property would be: not dumped and not compared.
    """
    made: list[FusedNode] = []
    for node, score in rows:
        one = _new(FusedNode)
        _set_fields(one, {"node": node, "score": score, _WHY: why})
        made.append(one)
    return made


def scored_nodes(rows: Iterable[tuple[BaseNode, float | None]], /) -> list[NodeWithScore]:
    """Plain results over these nodes, as LlamaIndex's own retrievers give them.

    What pydantic's `model_construct` does, in a quarter of its time: the nodes were checked when their retriever made
    them, and to check each again costs as much as ranking it.
    """
    made: list[NodeWithScore] = []
    for node, score in rows:
        one = _new(NodeWithScore)
        _set_fields(one, {"node": node, "score": score})
        _set_names(one, _NAMES)
        _set_extra(one, None)
        _set_private(one, None)
        made.append(one)
    return made


def notes_of(results: Sequence[NodeWithScore], /) -> Callable[[], list[str]] | None:
    """What the receipts of an arm's results say, such as a path in the graph; None where they have no receipts."""
    if not results or not isinstance(results[0], FusedNode):
        return None
    return lambda: [_note(one) for one in results]


def _note(result: NodeWithScore) -> str:
    receipt = result.receipt if isinstance(result, FusedNode) else None
    return "" if receipt is None else "; ".join(arm.note for arm in receipt.arms if arm.note)


def rescored(rows: Iterable[tuple[NodeWithScore, float | None]], /) -> list[NodeWithScore]:
    """Copies of results with other scores; each keeps its class, and with it its receipt."""
    pairs = list(rows)
    if all(type(result) is NodeWithScore for result, _ in pairs):
        return scored_nodes([(result.node, score) for result, score in pairs])
    return [result.model_copy(update={"score": score}) for result, score in pairs]
