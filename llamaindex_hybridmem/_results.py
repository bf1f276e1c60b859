"""Results that can say why: a `NodeWithScore` whose receipt is made when somebody reads it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from llama_index.core.bridge.pydantic import BaseModel
from llama_index.core.schema import BaseNode, NodeWithScore

from hybridmem.fusion.explain import Explanation, Receipt

__all__ = ["FusedNode", "Why", "fused_nodes", "notes_of", "scored_nodes"]

_WHY = "_why"
_NAMES = {"node", "score"}
_BOOKS = ("__pydantic_fields_set__", "__pydantic_extra__", "__pydantic_private__")
"""Where pydantic keeps which fields were given, and what is no field."""
_new = object.__new__
_set_fields, _set_names, _set_extra, _set_private = (BaseModel.__dict__[name].__set__ for name in ("__dict__", *_BOOKS))
"""What `object.__setattr__` comes to for these names, without the way there."""


class Why:
    """One query's explanation, shared by its results and made at most once, when it is first read.

    Copies share it; pickling it writes down the finished explanation, because a live one holds the arms' lists.
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
        return _told, (self.explanation(),)


def _told(explanation: Explanation) -> Why:
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
            """Open pydantic's books when somebody first looks into them: most results are never copied or dumped."""
            if name not in _BOOKS:
                return super().__getattr__(name)
            opened = set(_NAMES) if name == "__pydantic_fields_set__" else None
            object.__setattr__(self, name, opened)
            return opened

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.__dict__.setdefault(_WHY, state["__dict__"].get(_WHY))


def fused_nodes(rows: Iterable[tuple[BaseNode, float]], why: Why, /) -> list[NodeWithScore]:
    """Results over these nodes that can say why; what came in is never changed.

    The explanation lies beside the fields, as a cached property would: never dumped, never compared.
    """
    made: list[NodeWithScore] = []
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


class _Notes(Mapping[str, str]):
    """What an arm's own receipts say of its results, such as a path in the graph; read only when somebody explains."""

    def __init__(self, nodes: Sequence[NodeWithScore]) -> None:
        self._nodes = {found.node.id_: found for found in nodes if isinstance(found, FusedNode)}

    def __getitem__(self, key: str) -> str:
        receipt = self._nodes[key].receipt
        return "" if receipt is None else "; ".join(arm.note for arm in receipt.arms if arm.note)

    def __iter__(self) -> Iterator[str]:
        return iter(self._nodes)

    def __len__(self) -> int:
        return len(self._nodes)


def notes_of(nodes: Sequence[NodeWithScore], /) -> Mapping[str, str] | None:
    """The notes for an arm's list, when it brought results that can say why."""
    return _Notes(nodes) if nodes and type(nodes[0]) is FusedNode else None
