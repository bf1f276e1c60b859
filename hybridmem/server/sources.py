"""Sources of the inspector: a HybridMemory or a fusion retriever behind one interface."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from itertools import islice
from typing import Any, NamedTuple, Protocol

from hybridmem.core import validation
from hybridmem.core.protocols import View
from hybridmem.core.times import iso
from hybridmem.core.types import Memory
from hybridmem.errors import ConfigError, NotFoundError
from hybridmem.fusion.explain import Explanation
from hybridmem.fusion.recipe import Fusion
from hybridmem.memory.memory import HybridMemory
from hybridmem.retrievers.arms import Explainer, SupportsExplainer
from hybridmem.text.analyzer import Analyzer

__all__ = ["K", "MemorySource", "Query", "RetrieverSource", "Source", "matching_words", "source_of"]

K = 8
"""How many results the page shows at first."""
EXAMPLES = 5
EXAMPLE_MEMORIES = 400
"""How many memories are read to find example questions."""
NEIGHBOURS = 3
"""How many memories of the thread are shown before and after one."""
TIED = 200
"""How many memories of one moment are ordered by their place in the log."""
_WORD = re.compile(r"\w+")
_QUESTION = re.compile(r"[^.?!\n:]*\?")
_OPEN = re.compile(r"(what|when|where|which|who|why|how)\b", re.IGNORECASE)
"""Questions that ask for more than yes or no."""
_ANALYZER = Analyzer()


class Query(NamedTuple):
    """One query of the page: the text and everything else that decides the answer."""

    text: str
    recipe: Fusion
    k: int
    filter: Any = None
    as_of: Any = None
    namespace: str | None = None


class Source(Protocol):
    """Anything that the inspector can show."""

    @property
    def arms(self) -> tuple[str, ...]:
        """The names of the arms."""
        ...

    @property
    def recipe(self) -> Fusion:
        """The recipe at the start."""
        ...

    def start(self, namespace: str | None) -> dict[str, Any]:
        """What the page shows before the first query."""
        ...

    def explain(self, query: Query) -> Explanation:
        """The answer to a query with its receipts and the arms' lists."""
        ...

    def ranking(self, query: Query) -> list[str]:
        """The keys of the results, best first, without an explanation."""
        ...

    def texts(self, explanation: Explanation, query: Query) -> dict[str, str]:
        """The text of everything that an arm or the answer lists."""
        ...

    def details(self, key: str, query: Query, explanation: Explanation) -> dict[str, Any]:
        """Text, fields, history and thread neighbours of a key of an explanation; "" is the text of an unknown key."""
        ...


def source_of(target: HybridMemory | SupportsExplainer, namespaces: Iterable[str] | None) -> Source:
    """The interface for a memory or a retriever; ConfigError for anything else."""
    if isinstance(target, HybridMemory):
        return MemorySource(target, target.recipe, _allowed(target, namespaces))
    if isinstance(target, SupportsExplainer) and not isinstance(target, type):
        explainer = target.explainer()
        if isinstance(explainer.memory, HybridMemory):
            return MemorySource(explainer.memory, explainer.recipe, _allowed(explainer.memory, namespaces))
        return RetrieverSource(explainer)
    kind = type(target).__name__
    raise ConfigError(f"the inspector cannot show a {kind}: a HybridMemory or a FusionRetriever is needed")


def _allowed(memory: HybridMemory, namespaces: Iterable[str] | None) -> tuple[str, ...]:
    return (memory.name,) if namespaces is None else tuple(dict.fromkeys([memory.name, *namespaces]))


@dataclass(frozen=True, slots=True)
class MemorySource:
    """A memory, in the namespaces that the owner of the page allows."""

    memory: HybridMemory
    recipe: Fusion
    namespaces: tuple[str, ...]

    @property
    def arms(self) -> tuple[str, ...]:
        """The arms of the memory."""
        return self.memory.arms

    def start(self, namespace: str | None) -> dict[str, Any]:
        """The number of memories, the namespaces, and example questions."""
        memory = self._view(namespace)
        some = list(islice(memory.store.list(view=View(memory.name), limit=EXAMPLE_MEMORIES), EXAMPLE_MEMORIES))
        return {
            "count": len(memory),
            "unit": "memories",
            "namespaces": list(self.namespaces),
            "namespace": memory.name,
            "examples": example_questions(some),
            "asOf": True,
            "k": K,
        }

    def explain(self, query: Query) -> Explanation:
        """The memory's own explanation."""
        memory = self._view(query.namespace)
        return memory.explain(query.text, k=query.k, filter=query.filter, as_of=query.as_of, recipe=query.recipe)

    def ranking(self, query: Query) -> list[str]:
        """The ids that the memory finds."""
        memory = self._view(query.namespace)
        results = memory.search(query.text, k=query.k, filter=query.filter, as_of=query.as_of, recipe=query.recipe)
        return [result.id for result in results]

    def texts(self, explanation: Explanation, query: Query) -> dict[str, str]:
        """Texts of the results, and of the rest from the store."""
        texts = dict(explanation.texts)
        listed = [hit.key for hits in explanation.hits.values() for hit in hits]
        missing = [key for key in dict.fromkeys([*listed, *explanation.dropped]) if key not in texts]
        memory = self._view(query.namespace)
        rows = memory.store.get(missing, view=View(memory.name, validation.as_of(query.as_of), superseded=True))
        return texts | {key: row.text for key, row in zip(missing, rows, strict=True) if row is not None}

    def details(self, key: str, query: Query, explanation: Explanation) -> dict[str, Any]:  # noqa: ARG002
        """The memory's text, its fields, its versions and the memories around it in its thread."""
        memory = self._view(query.namespace)
        try:
            one = memory.get(key, as_of=query.as_of)
        except NotFoundError:
            return {"text": "", "fields": {}, "history": [], "thread": []}
        history = [
            {"at": iso(version.at), "text": version.memory.text, "status": _status(version.deleted, version.memory)}
            for version in memory.history(key)
        ]
        thread = _thread(memory, one, query.as_of)
        return {"text": one.text, "fields": _fields(one), "history": history, "thread": thread}

    def _view(self, namespace: str | None) -> HybridMemory:
        if namespace is None or namespace == self.memory.name:
            return self.memory
        if namespace not in self.namespaces:
            raise ConfigError(f"namespace {namespace!r} is not one of those that this page may show")
        return self.memory.namespace(namespace)


@dataclass(frozen=True, slots=True)
class RetrieverSource:
    """A fusion retriever of a framework, which explains each query itself."""

    explainer: Explainer

    @property
    def arms(self) -> tuple[str, ...]:
        """The arms of the retriever."""
        return self.explainer.arms

    @property
    def recipe(self) -> Fusion:
        """The retriever's recipe."""
        return self.explainer.recipe

    def start(self, namespace: str | None) -> dict[str, Any]:  # noqa: ARG002  a retriever has no namespaces
        """A retriever does not report its size."""
        unknown: dict[str, Any] = {
            "count": None,
            "unit": "",
            "namespaces": [],
            "namespace": None,
            "examples": [],
            "asOf": False,
        }
        return {**unknown, "k": self.explainer.k or K}

    def explain(self, query: Query) -> Explanation:
        """The retriever's explanation under the query's recipe."""
        return self.explainer.explain(
            query.text, recipe=query.recipe, k=query.k, filter=query.filter, as_of=query.as_of
        )

    def ranking(self, query: Query) -> list[str]:
        """The keys of the results."""
        return [receipt.key for receipt in self.explain(query).receipts]

    def texts(self, explanation: Explanation, query: Query) -> dict[str, str]:  # noqa: ARG002
        """The texts that the arms returned."""
        return dict(explanation.texts)

    def details(self, key: str, query: Query, explanation: Explanation) -> dict[str, Any]:  # noqa: ARG002
        """The text and the metadata that the document came with; a retriever keeps no history."""
        fields = {name: _plain(value) for name, value in explanation.metadata.get(key, {}).items()}
        return {"text": explanation.texts.get(key, ""), "fields": fields, "history": [], "thread": []}


# --- memories as the page shows them


def _status(deleted: bool, memory: Memory) -> str:
    return "forgotten" if deleted else memory.status


def _fields(memory: Memory) -> dict[str, Any]:
    """The status and the fields that differ from their defaults, as JSON-ready values."""
    values = {item.name: getattr(memory, item.name) for item in fields(memory) if item.name != "text"}
    defaults = {item.name: item.default for item in fields(memory) if item.name != "status"}
    return {name: _plain(value) for name, value in values.items() if value and value != defaults.get(name)}


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat(sep=" ", timespec="minutes")
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return ", ".join(map(str, value))
    return value


def _thread(memory: HybridMemory, one: Memory, as_of: Any) -> list[dict[str, Any]]:
    """The memories before and after this one in its thread: by time, then by their place in the log."""
    if one.thread is None:
        return []
    members = list(memory.list(filter={"thread": one.thread}, as_of=as_of, superseded=False))
    at = {member.id: (member.created_at or datetime.min).isoformat() for member in members}  # noqa: DTZ901
    tied = [member.id for member in members if at[member.id] == at.get(one.id)]
    place = {key: memory.history(key)[0].seq for key in tied} if len(tied) <= TIED else {}
    members.sort(key=lambda member: (at[member.id], place.get(member.id, 0), member.id))
    here = next((n for n, member in enumerate(members) if member.id == one.id), None)
    if here is None:
        return []
    around = members[max(0, here - NEIGHBOURS) : here + NEIGHBOURS + 1]
    return [{"id": member.id, "text": member.text, "here": member.id == one.id} for member in around]


def example_questions(memories: Sequence[Memory], /) -> list[str]:
    """Questions that people could ask of these memories: those they contain, then titles, then first words.

    >>> example_questions([Memory("Ana: Where does Pixel sleep?"), Memory("On the sofa", title="Sleep")])
    ['Where does Pixel sleep?', 'Sleep']
    """
    asked = (match.strip() for memory in memories for match in _QUESTION.findall(memory.text))
    complete = [text for text in asked if 4 <= len(text.split()) <= 14]  # noqa: PLR2004
    questions = [text for text in complete if _OPEN.match(text) and len(set(_ANALYZER(text))) > 1] or complete
    titles = [memory.title for memory in memories if memory.title]
    openings = [" ".join(memory.text.split()[:6]) for memory in memories]
    several = dict.fromkeys([*_spread(questions), *_spread(titles)])
    return list(several or dict.fromkeys(_spread(openings)))[:EXAMPLES]


def _spread(texts: Sequence[str]) -> list[str]:
    """A few texts from everywhere in the list."""
    return list(texts[:: max(1, len(texts) // EXAMPLES)])[:EXAMPLES]


def matching_words(query: str, texts: Iterable[str], /) -> list[str]:
    """The words of the texts that share a term with the query, in lower case, to be highlighted.

    >>> matching_words("Where do cats sleep?", ["The cat slept; cats SLEEP."])
    ['cat', 'cats', 'sleep']
    """
    terms = set(_ANALYZER.query(query))
    words = {word.lower() for text in texts for word in _WORD.findall(text)}
    return sorted(word for word in words if terms.intersection(_ANALYZER(word) or _ANALYZER.all_terms(word)))
