"""Receipts of results, explanations of queries, and the trace that collects them while a recipe runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from hybridmem.core import validation
from hybridmem.core.types import Activation, ArmList, Ranking, Reader

if TYPE_CHECKING:
    from hybridmem.fusion.merge import ArmVotes

__all__ = [
    "ArmHit",
    "ArmShare",
    "Explanation",
    "Receipt",
    "StageStep",
    "StepPart",
    "Trace",
]


class ArmHit(NamedTuple):
    """One line of an arm's list: the key, and the raw score where the arm has one."""

    key: str
    score: float | None


@dataclass(frozen=True, slots=True)
class ArmShare:
    """What one arm contributed to a result: its rank and raw score there, and the share of the merged score."""

    arm: str
    rank: int
    score: float | None
    share: float
    note: str = ""

    def __str__(self) -> str:
        raw = "" if self.score is None else f" ({self.score:.4g})"
        note = f" [{self.note}]" if self.note else ""
        return f"{self.arm} #{self.rank}{raw} +{self.share:.4g}{note}"


class StepPart(NamedTuple):
    """One named part of what a stage added to a score, with its description."""

    name: str
    added: float
    text: str


@dataclass(frozen=True, slots=True)
class StageStep:
    """What one stage did to a result: the score before and after, and a description."""

    stage: str
    before: float
    after: float
    text: str = ""
    parts: tuple[StepPart, ...] = ()
    """The named parts of the difference, where the stage has several."""

    def __str__(self) -> str:
        return self.text or f"{self.stage} {self.before:.4g} → {self.after:.4g}"


@dataclass(frozen=True, slots=True)
class Receipt:
    """What each arm and stage did to one result. `score` is the score shown, `raw` the recipe's own number."""

    key: str
    rank: int
    score: float
    raw: float
    arms: tuple[ArmShare, ...] = ()
    steps: tuple[StageStep, ...] = ()
    degraded: bool = False

    def __str__(self) -> str:
        gated = bool(self.steps) and self.steps[0].stage == "gate"
        arms = " ".join(map(str, self.arms)) or ("below the gate in every arm" if gated else "found by no arm")
        steps = "".join(f"; {step}" for step in self.steps)
        weak = "; degraded: nothing passed the gate" if self.degraded else ""
        return f"#{self.rank} {self.key} {self.score:.3f}: {arms}{steps}{weak}"

    def to_dict(self) -> dict[str, Any]:
        """The receipt as JSON-ready data."""
        return asdict(self)

    def _repr_html_(self) -> str:
        from hybridmem.fusion.explain_html import receipt_html

        return receipt_html(self)


@dataclass(frozen=True, slots=True)
class Explanation:
    """The explanation of one query: a receipt for each result, and `why_not(id)` for any other id."""

    query: str
    receipts: tuple[Receipt, ...] = ()
    arms: Mapping[str, str] = field(default_factory=dict)
    """What each arm returned: "20 hits", or why it was skipped."""
    dropped: Mapping[str, str] = field(default_factory=dict)
    gated: Mapping[str, str] = field(default_factory=dict)
    activations: Mapping[str, Activation] = field(default_factory=dict)
    texts: Mapping[str, str] = field(default_factory=dict)
    metadata: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """The metadata of the documents or nodes that the arms listed; a HybridMemory keeps its fields itself."""
    hits: Mapping[str, Sequence[ArmHit]] = field(default_factory=dict)
    """Each arm's list before the gate, best first."""
    confidence: float | None = None
    """Between 0 and 1, where it is known: how likely it is that anything relevant was found."""
    remarks: tuple[str, ...] = ()
    """What happened to the whole ranking, such as k not being filled after dedup."""
    hidden: Callable[[str], str | None] | None = field(default=None, repr=False, compare=False)
    """Why an id was not searched at all (superseded, forgotten, filtered); None when it was."""

    def refused(self, least: float, /) -> Explanation:
        """The explanation of the same query with `min_confidence` above its confidence: no results."""
        reason = f"confidence {self.confidence or 0.0:.3f} is below min_confidence {least:.3f}"
        dropped = {**self.dropped, **{receipt.key: reason for receipt in self.receipts}}
        return replace(self, receipts=(), dropped=dropped, remarks=(*self.remarks, reason))

    def why_not(self, key: str, /) -> str:
        """One line: the stage that dropped this id and by how much, or that no arm found it."""
        validation.text("id", key, "a text")
        for receipt in self.receipts:
            if receipt.key == key:
                return f"{key} is a result: {receipt}"
        if key in self.dropped:
            return f"{key}: {self.dropped[key]}"
        if key in self.gated:
            return f"{key}: {self.gated[key]}"
        reason = None if self.hidden is None else self.hidden(key)
        if reason is not None:
            return f"{key}: {reason}"
        arms = "; ".join(f"{arm}: {what}" for arm, what in self.arms.items())
        return f"{key}: found by no arm ({arms or 'no arms'})"

    def __repr__(self) -> str:
        left = len(self.dropped) + len(self.gated)
        return f"<Explanation of {self.query!r}: {len(self.receipts)} results, {left} left out; print shows them>"

    def __str__(self) -> str:
        lines = [f"{self.query!r}: {len(self.receipts)} results ({self._arms_line()})"]
        lines += [f"({remark})" for remark in self.remarks]
        lines += [f"{receipt}{self._text(receipt.key, 60)}" for receipt in self.receipts]
        return "\n".join(lines)

    def _arms_line(self) -> str:
        return ", ".join(f"{arm}: {what}" for arm, what in self.arms.items())

    def _text(self, key: str, width: int) -> str:
        text = " ".join(self.texts.get(key, "").split())
        cut = text if len(text) <= width else text[: width - 1] + "…"
        return f"\n    {cut}" if cut else ""

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON-ready data."""
        return {
            "query": self.query,
            "arms": dict(self.arms),
            "results": [receipt.to_dict() for receipt in self.receipts],
            "dropped": {**self.gated, **self.dropped},
            "confidence": self.confidence,
            "remarks": list(self.remarks),
        }

    def _repr_html_(self) -> str:
        from hybridmem.fusion.explain_html import fragment

        return fragment(self)

    def to_html(self) -> str:
        """A complete HTML page: the receipts, and a drawing of the activated part of the graph."""
        from hybridmem.fusion.explain_html import page

        return page(self)


class Trace:
    """Collects what arms and stages do to each key while a recipe runs with tracing enabled."""

    def __init__(self) -> None:
        self._arms: dict[str, dict[str, ArmShare]] = {}
        self._steps: dict[str, list[StageStep]] = {}
        self._notes: dict[tuple[str, str], str] = {}
        self._dropped: dict[str, str] = {}
        self._gated: dict[str, list[str]] = {}
        self._activations: dict[str, Activation] = {}
        self._fallback: str | None = None
        self._remarks: list[str] = []
        self._hits: dict[str, tuple[ArmHit, ...]] = {}
        self._parts: dict[tuple[str, str], list[StepPart]] = {}

    def listed(self, lists: Sequence[ArmList], reader: Reader, /) -> None:
        """Record each arm's list as it entered the fusion."""
        for arm in lists:
            keys = reader.keys(arm.items)
            scores = [None] * len(keys) if arm.scores is None else map(float, arm.scores)
            self._hits[arm.name] = tuple(map(ArmHit, keys, scores))

    def gated(self, arm: str, low: Mapping[str, tuple[float, float]], /) -> None:
        """Record keys below their arm's floor: key → (score, floor)."""
        for key, (score, floor) in low.items():
            self._gated.setdefault(key, []).append(f"{arm} {score:.4g} < {floor:.4g}")

    def fell_back(self, arm: str | None, /) -> None:
        """Record that nothing passed the gate and that this arm's ungated list is used instead."""
        self._fallback = arm

    def merged(self, votes: Sequence[ArmVotes], shares: Sequence[Sequence[float]], /) -> None:
        """Record the share of each arm for each key."""
        for (arm, keys, scores, _), share in zip(votes, shares, strict=True):
            notes = arm.notes or {}
            for place, key in enumerate(keys):
                score = None if scores is None else float(scores[place])
                entry = ArmShare(arm.name, place + 1, score, share[place], notes.get(key, ""))
                self._arms.setdefault(key, {}).setdefault(arm.name, entry)

    def note(self, stage: str, key: str, text: str, /) -> None:
        """Describe what a stage did to a key, in place of the bare numbers; several texts are joined.

        An empty text leaves the stage out of the key's receipt, for changes that mean nothing to a reader.
        """
        earlier = self._notes.get((stage, key))
        self._notes[stage, key] = ", ".join(part for part in (earlier, text) if part)

    def part(self, stage: str, key: str, part: StepPart, /) -> None:
        """Record one named part of what a stage added to a key; it is described in the receipt too."""
        self._parts.setdefault((stage, key), []).append(part)
        self.note(stage, key, f"{part.text} +{part.added:.3g}")

    def drop(self, stage: str, key: str, reason: str, /) -> None:
        """Record that a stage removed this key; without a stage the reason stands alone."""
        self._dropped[key] = f"{stage}: {reason}" if stage else reason

    def remark(self, text: str, /) -> None:
        """Describe what a stage did to the ranking as a whole."""
        self._remarks.append(text)

    def activated(self, key: str, activation: Activation, /) -> None:
        """Record the path along which spreading activated this key; of several, the one of the highest value."""
        known = self._activations.get(key)
        if known is None or activation.value > known.value:
            self._activations[key] = activation

    def best_rank(self, key: str, /) -> str:
        """The best rank of this key in any arm, as text to append: " (bm25 #1)"."""
        best = min(self._arms.get(key, {}).values(), key=lambda share: share.rank, default=None)
        return "" if best is None else f" ({best.arm} #{best.rank})"

    def path_keys(self) -> list[str]:
        """Every key on the recorded paths, for drawings."""
        return list(dict.fromkeys(key for activation in self._activations.values() for key in activation.path[::2]))

    def step(self, stage: str, before: Ranking, after: Ranking, /) -> None:
        """Record the difference between the rankings before and after a stage, of any kind."""
        old = dict(zip(before.keys, before.scores, strict=True))
        for key, score in zip(after.keys, after.scores, strict=True):
            previous, text = old.pop(key, 0.0), self._notes.get((stage, key))
            parts = tuple(self._parts.get((stage, key), ()))
            if text or (text is None and score != previous):
                self._steps.setdefault(key, []).append(StageStep(stage, previous, score, text or "", parts))
        for key, score in old.items():
            self._dropped.setdefault(key, f"{stage}: left out at score {score:.4g}")

    def _gate_steps(self, key: str) -> tuple[StageStep, ...]:
        """The gates that removed a key which a later stage added again."""
        reasons = () if key in self._arms else self._gated.get(key, ())
        return tuple(StageStep("gate", 0.0, 0.0, f"gate: {reason}") for reason in reasons)

    def explanation(
        self,
        ranking: Ranking,
        /,
        *,
        query: str,
        lists: Sequence[ArmList],
        shown: Sequence[float],
        degraded: bool = False,
        texts: Mapping[str, str] | None = None,
        hidden: Callable[[str], str | None] | None = None,
    ) -> Explanation:
        """The explanation: a receipt for each result of the ranking, and the reason why each other key is not in it."""
        rows = zip(ranking.keys, ranking.scores, shown, strict=True)
        receipts = tuple(
            Receipt(
                key,
                rank,
                seen,
                raw,
                tuple(self._arms.get(key, {}).values()),
                (*self._gate_steps(key), *self._steps.get(key, ())),
                degraded or self._fallback is not None,
            )
            for rank, (key, raw, seen) in enumerate(rows, start=1)
        )
        kept = set(ranking.keys)
        return Explanation(
            query=query,
            receipts=receipts,
            arms={arm.name: _arm_summary(arm) for arm in lists},
            dropped={key: reason for key, reason in self._dropped.items() if key not in kept},
            gated={key: f"gated: {', '.join(why)}" for key, why in self._gated.items() if key not in self._arms},
            activations=dict(self._activations),
            texts=dict(texts or {}),
            remarks=tuple(self._remarks),
            hits=dict(self._hits),
            hidden=hidden,
        )


def _arm_summary(arm: ArmList) -> str:
    if arm.skipped is not None:
        return f"skipped: {arm.skipped}"
    last = f", lowest score {arm.scores[-1]:.4g}" if arm.scores else ""
    hits = "1 hit" if len(arm.items) == 1 else f"{len(arm.items)} hits"
    return f"{hits}{last}" if arm.items else "no hits"
