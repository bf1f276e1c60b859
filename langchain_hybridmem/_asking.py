"""One question to a fusion, step by step: which arms to ask, then the pure fusion, then documents.

The steps are a generator that yields the jobs to run and receives their outcomes, so that sync and async code differ
only in how jobs are run.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from langchain_core.documents import Document
from langchain_core.runnables import RunnableConfig

from hybridmem.core.fanout import Job, OnError, Outcome, apply_policy, arun, run
from hybridmem.core.types import ArmList, Ranking
from hybridmem.errors import ArmError, ConfigError
from hybridmem.fusion.explain import Explanation, Trace
from hybridmem.fusion.recipe import Fusion
from langchain_hybridmem._arms import Arm, Brought, Request, Wish
from langchain_hybridmem._conversion import DocumentReader, IdKey, to_document, with_metadata
from langchain_hybridmem._runs import RunManager, child_config

__all__ = ["Asked", "Found", "Panel", "adrive", "ask", "drive"]

DEEPER = 4
ROUNDS = 6
"""How often the arms are asked deeper when dedup or a filter leaves fewer than k: ×4 each time."""


class Panel(NamedTuple):
    """What is asked, as it was set up: arms or a memory, and how their answers are fused."""

    fusion: Fusion
    arms: tuple[Arm, ...] = ()
    memory: Any = None
    recipe: Fusion | None = None
    """What a memory is asked to rank by; None: its own recipe."""
    id_key: IdKey = None
    on_error: OnError = "raise"
    timeout: float | Mapping[str, float] | None = None
    clock: Callable[[], float] | None = None

    def timeout_of(self, arm: str) -> float | None:
        """How long this arm may take."""
        return self.timeout.get(arm) if isinstance(self.timeout, Mapping) else self.timeout


class Asked(NamedTuple):
    """One question with everything that was said in the call or set up before it."""

    query: str
    run: RunManager
    config: RunnableConfig
    is_async: bool = False
    explain: bool = False
    k: int | None = None
    filter: Any = None
    search_kwargs: Mapping[str, Mapping[str, Any]] = {}
    with_scores: bool = True
    receipts: bool = False
    as_of: Any = None
    namespace: str | None = None
    min_confidence: float | None = None

    @property
    def more(self) -> dict[str, Any]:
        """What every arm must understand, when it is said at all."""
        said = {"as_of": self.as_of, "namespace": self.namespace, "min_confidence": self.min_confidence}
        return {name: value for name, value in said.items() if value is not None}


class Found(NamedTuple):
    """The documents, and the explanation when it was asked for."""

    documents: list[Document]
    explanation: Explanation | None = None


Steps = Generator[list[Job], list[Outcome], Found]


def drive(steps: Steps, /, *, limit: int | None) -> Found:
    """Run the steps, arms in threads where that pays."""
    try:
        jobs = next(steps)
        while True:
            jobs = steps.send(run(jobs, limit=limit))
    except StopIteration as done:
        found: Found = done.value
        return found


async def adrive(steps: Steps, /, *, limit: int | None) -> Found:
    """Run the steps on the event loop."""
    try:
        jobs = next(steps)
        while True:
            jobs = steps.send(await arun(jobs, limit=limit))
    except StopIteration as done:
        found: Found = done.value
        return found


def ask(panel: Panel, asked: Asked, /) -> Steps:
    """The steps of a question, to arms or to a memory."""
    return _ask_arms(panel, asked) if panel.memory is None else _ask_memory(panel, asked)


# --- arms


def _ask_arms(panel: Panel, asked: Asked) -> Steps:
    """Ask every arm that has a weight; ask deeper while dedup or a filter leaves fewer than k and an arm has more."""
    fusion, k = panel.fusion, asked.k
    weights = fusion.weights_for([arm.name for arm in panel.arms])
    skipped = {arm.name: "weight 0" for arm, weight in zip(panel.arms, weights, strict=True) if weight == 0}
    pending = [arm for arm in panel.arms if arm.name not in skipped]
    brought: dict[str, Brought] = {}
    depth = None if k is None else fusion.depth_for(k)
    now = None if panel.clock is None else panel.clock()
    for _ in range(ROUNDS):
        requests = {arm.name: _request(arm, asked, depth) for arm in pending}
        outcomes = yield [_job(panel, asked, arm, requests[arm.name]) for arm in pending]
        failed = _settle(outcomes, panel.on_error)
        failed.update(_read(outcomes, requests, brought, panel.on_error))
        skipped.update({name: why for name, why in failed.items() if name not in brought})
        answer = _Answer(panel, asked, brought, skipped, now)
        if depth is None or k is None or len(answer.ranking.keys) >= k or not answer.thinned:
            break
        wider = depth
        pending = [arm for arm in pending if _has_more(arm, asked, brought, wider)]
        if not pending:
            break
        depth *= DEEPER
    return answer.found()


def _request(arm: Arm, asked: Asked, depth: int | None) -> Request:
    own = asked.search_kwargs.get(arm.name, {})
    config = child_config(asked.config, asked.run, arm.place, arm=arm.name)
    return arm.request(Wish(depth, asked.filter, True, asked.more, own), config)


def _job(panel: Panel, asked: Asked, arm: Arm, request: Request) -> Job:
    call = request.acall if asked.is_async else request.call
    return Job(arm.name, partial(call, asked.query), panel.timeout_of(arm.name), arm.pace, asked.is_async)


def _settle(outcomes: Sequence[Outcome], on_error: OnError, *, wrap: bool = True) -> dict[str, str]:
    """The failure policy; a setting that an arm refuses is the caller's mistake and is never skipped."""
    for outcome in outcomes:
        if isinstance(outcome.error, ConfigError):
            raise outcome.error
    return apply_policy(outcomes, on_error=on_error, wrap=wrap)


def _read(
    outcomes: Sequence[Outcome], requests: Mapping[str, Request], brought: dict[str, Brought], on_error: OnError
) -> dict[str, str]:
    unreadable: dict[str, str] = {}
    for outcome in outcomes:
        if outcome.error is not None:
            continue
        try:
            brought[outcome.name] = requests[outcome.name].read(outcome.value, outcome.name)
        except ArmError as error:
            if on_error == "raise":
                raise
            unreadable[outcome.name] = str(error)
    return unreadable


def _has_more(arm: Arm, asked: Asked, brought: Mapping[str, Brought], depth: int) -> bool:
    """Whether the arm gave all it was asked for, and may be asked for more."""
    own = asked.search_kwargs.get(arm.name, {})
    return arm.deepens and "k" not in own and arm.name in brought and brought[arm.name].given >= depth


class _Answer:
    """The arms' lists fused, and on demand turned into documents."""

    def __init__(
        self,
        panel: Panel,
        asked: Asked,
        brought: Mapping[str, Brought],
        skipped: Mapping[str, str],
        now: float | None,
    ) -> None:
        nothing = Brought([], None, 0)
        self._panel, self._asked, self._brought = panel, asked, brought
        self._lists = []
        for arm in panel.arms:
            found = brought.get(arm.name, nothing)
            self._lists.append(ArmList(arm.name, found.documents, found.scores, skipped=skipped.get(arm.name)))
        self._reader = DocumentReader.over([arm.items for arm in self._lists], id_key=panel.id_key)
        self._trace = None
        if asked.receipts or asked.explain:
            self._trace = Trace()
            self._lists = [arm._replace(notes=self._notes(arm)) for arm in self._lists]
        self.ranking: Ranking = panel.fusion.run(
            self._lists, reader=self._reader, query=asked.query, now=now, k=asked.k, trace=self._trace
        )

    def _notes(self, arm: ArmList) -> dict[str, str]:
        """What an arm of ours tells of its own results: a graph arm the path that led there."""
        told = [document.metadata.get("hybridmem") for document in arm.items]
        keys = self._reader.keys(arm.items)
        return {
            key: one["line"] for key, one in zip(keys, told, strict=True) if isinstance(one, dict) and "line" in one
        }

    @property
    def thinned(self) -> bool:
        """Whether something after the arms may have left good results out."""
        return self._panel.fusion.dedup is not None or any(found.checked for found in self._brought.values())

    def found(self) -> Found:
        ranking, asked = self.ranking, self._asked
        shown = self._panel.fusion.shares(ranking.scores)
        explanation = self._explanation(shown)
        receipts = explanation.receipts if explanation is not None and asked.receipts else ()
        merged = self._reader.metadata(ranking.keys)
        weak = _degraded(self._panel.fusion, self._lists)
        marked = any(found.marked for found in self._brought.values())
        documents = []
        for place, (key, item) in enumerate(zip(ranking.keys, ranking.items, strict=True)):
            metadata = merged[key]
            if marked:  # what arms of ours put there because we asked
                metadata.pop("score", None)
                metadata.pop("hybridmem", None)
            if asked.with_scores:
                metadata["score"] = shown[place]
            if receipts:
                metadata["hybridmem"] = receipts[place].to_dict()
            if weak:
                metadata["degraded"] = True
            documents.append(with_metadata(item, metadata, id=self._reader.id_of(item)))
        return Found(documents, explanation)

    def _explanation(self, shown: Sequence[float]) -> Explanation | None:
        if self._trace is None:
            return None
        texts: dict[str, str] = {}
        for arm in self._lists:
            texts.update(zip(self._reader.keys(arm.items), self._reader.column(arm.items, "text"), strict=True))
        query = self._asked.query
        return self._trace.explanation(self.ranking, query=query, lists=self._lists, shown=shown, texts=texts)


def _degraded(fusion: Fusion, lists: Sequence[ArmList]) -> bool:
    """Whether no arm's best passed the gate, so that what is shown is the fallback's."""
    gate = fusion.gate
    if gate is None:
        return False
    filled = [arm for arm in lists if arm.items]
    return bool(filled) and not any(
        not arm.scores or max(arm.scores) >= gate.bound(arm.name, max(arm.scores)) for arm in filled
    )


# --- a memory


def _ask_memory(panel: Panel, asked: Asked) -> Steps:
    """Ask a HybridMemory: it has the arms, this retriever only puts its results into documents."""
    memory = panel.memory
    how = {"k": asked.k, "filter": asked.filter, "recipe": panel.recipe, **asked.more}
    how = {name: value for name, value in how.items() if value is not None}
    call = memory.asearch if asked.is_async else memory.search
    jobs = [Job("memory", partial(call, asked.query, **how), panel.timeout_of("memory"), None, asked.is_async)]
    if asked.explain:
        jobs.append(Job("explain", partial(memory.explain, asked.query, **how)))
    outcomes = yield jobs
    failed = _settle(outcomes, panel.on_error, wrap=False)
    results = [] if "memory" in failed else outcomes[0].value
    documents = []
    for result in results:
        more: dict[str, Any] = {"score": result.score} if asked.with_scores else {}
        if asked.receipts and result.receipt is not None:
            more["hybridmem"] = result.receipt.to_dict()
        documents.append(to_document(result.memory, **more))
    if not asked.explain:
        return Found(documents)
    if failed:
        why = next(iter(failed.values()))
        return Found(documents, Explanation(asked.query, arms={"memory": f"skipped: {why}"}))
    return Found(documents, outcomes[1].value)
