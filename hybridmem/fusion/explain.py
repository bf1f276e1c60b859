"""Receipts: why each result is there, and why a given one is not. Nothing here runs unless somebody asks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from html import escape
from typing import TYPE_CHECKING, Any, NamedTuple

from hybridmem.core import validation
from hybridmem.core.types import Activation, ArmList, Ranking, Reader

if TYPE_CHECKING:
    from hybridmem.fusion.merge import Opinion

__all__ = ["ArmHit", "ArmShare", "Explanation", "Receipt", "Step", "Trace"]


class ArmHit(NamedTuple):
    """One line of an arm's list: the key, and the raw score where the arm has one."""

    key: str
    score: float | None


@dataclass(frozen=True, slots=True)
class ArmShare:
    """What one arm said of a result: its rank and raw score there, and what that added to the merged score."""

    arm: str
    rank: int
    score: float | None
    share: float
    note: str = ""

    def __str__(self) -> str:
        raw = "" if self.score is None else f" ({self.score:.4g})"
        note = f" [{self.note}]" if self.note else ""
        return f"{self.arm} #{self.rank}{raw} +{self.share:.4g}{note}"


@dataclass(frozen=True, slots=True)
class Step:
    """What one stage did to a result: its score before and after, in the stage's own words."""

    stage: str
    before: float
    after: float
    text: str = ""

    def __str__(self) -> str:
        return f"{self.stage} {self.text or f'{self.before:.4g} → {self.after:.4g}'}"


@dataclass(frozen=True, slots=True)
class Receipt:
    """Why one result is where it is. `score` is what people see, `raw` the number behind it."""

    key: str
    rank: int
    score: float
    raw: float
    arms: tuple[ArmShare, ...] = ()
    steps: tuple[Step, ...] = ()
    degraded: bool = False

    def __str__(self) -> str:
        gated = bool(self.steps) and self.steps[0].stage == "gate"
        found = " ".join(map(str, self.arms)) or ("let in by no arm" if gated else "found by no arm")
        steps = "".join(f"; {step}" for step in self.steps)
        weak = "; degraded: nothing passed the gate" if self.degraded else ""
        return f"#{self.rank} {self.key} {self.score:.3f}: {found}{steps}{weak}"

    def to_dict(self) -> dict[str, Any]:
        """The receipt as plain JSON-ready data."""
        return asdict(self)

    def _repr_html_(self) -> str:
        return f"<code>{escape(str(self))}</code>"


@dataclass(frozen=True, slots=True)
class Explanation:
    """One query, explained: a receipt for each result, and an answer to "why not?" for any other id."""

    query: str
    receipts: tuple[Receipt, ...] = ()
    arms: Mapping[str, str] = field(default_factory=dict)
    """What each arm brought: "20 hits", or why it was skipped."""
    dropped: Mapping[str, str] = field(default_factory=dict)
    gated: Mapping[str, str] = field(default_factory=dict)
    activations: Mapping[str, Activation] = field(default_factory=dict)
    texts: Mapping[str, str] = field(default_factory=dict)
    hits: Mapping[str, Sequence[ArmHit]] = field(default_factory=dict)
    """Each arm's list before the gate, best first."""
    hidden: Callable[[str], str | None] | None = field(default=None, repr=False, compare=False)
    """Why the arms could not even see an id (superseded, forgotten, filtered); None when they could."""

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
        unseen = None if self.hidden is None else self.hidden(key)
        if unseen is not None:
            return f"{key}: {unseen}"
        seen = "; ".join(f"{arm}: {what}" for arm, what in self.arms.items())
        return f"{key}: found by no arm ({seen or 'no arms'})"

    def __str__(self) -> str:
        lines = [f"{self.query!r}: {len(self.receipts)} results ({self._arms_line()})"]
        lines += [f"{receipt}{self._text(receipt.key, 60)}" for receipt in self.receipts]
        return "\n".join(lines)

    def _arms_line(self) -> str:
        return ", ".join(f"{arm}: {what}" for arm, what in self.arms.items())

    def _text(self, key: str, width: int) -> str:
        text = " ".join(self.texts.get(key, "").split())
        cut = text if len(text) <= width else text[: width - 1] + "…"
        return f"\n    {cut}" if cut else ""

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain JSON-ready data."""
        return {
            "query": self.query,
            "arms": dict(self.arms),
            "results": [receipt.to_dict() for receipt in self.receipts],
            "dropped": {**self.gated, **self.dropped},
        }

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{r.rank}</td><td><b>{escape(r.key)}</b><br>{escape(self.texts.get(r.key, ''))}</td>"
            f"<td>{r.score:.3f}</td><td>{_lines(r.arms)}</td><td>{_lines(r.steps)}</td></tr>"
            for r in self.receipts
        )
        head = "".join(f"<th>{name}</th>" for name in ("#", "result", "score", "arms", "stages"))
        lost = "".join(f"<li>{escape(f'{key}: {why}')}</li>" for key, why in {**self.gated, **self.dropped}.items())
        more = f"<details><summary>left out: {lost.count('<li>')}</summary><ul>{lost}</ul></details>" if lost else ""
        return (
            f'<div class="hybridmem"><p><b>{escape(self.query)}</b> — {escape(self._arms_line())}</p>'
            f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>{more}</div>"
        )

    def to_html(self) -> str:
        """A page of its own: the receipts, beside a drawing of the neighbourhood that was activated."""
        from hybridmem.fusion.explain_html import page

        return page(self)


def _lines(parts: Sequence[ArmShare | Step]) -> str:
    return "<br>".join(escape(str(part)) for part in parts)


class Trace:
    """The notebook a fusion writes in while it runs, when somebody asks for receipts."""

    def __init__(self) -> None:
        self._arms: dict[str, dict[str, ArmShare]] = {}
        self._steps: dict[str, list[Step]] = {}
        self._said: dict[tuple[str, str], str] = {}
        self._dropped: dict[str, str] = {}
        self._gated: dict[str, list[str]] = {}
        self._activations: dict[str, Activation] = {}
        self._fallback: str | None = None
        self._hits: dict[str, tuple[ArmHit, ...]] = {}

    def listed(self, lists: Sequence[ArmList], reader: Reader, /) -> None:
        """Record each arm's list as it entered the fusion."""
        for arm in lists:
            keys = reader.keys(arm.items)
            scores = [None] * len(keys) if arm.scores is None else map(float, arm.scores)
            self._hits[arm.name] = tuple(map(ArmHit, keys, scores))

    def gated(self, arm: str, low: Mapping[str, tuple[float, float]], /) -> None:
        """These keys stood below their arm's floor: key → (score, floor)."""
        for key, (score, floor) in low.items():
            self._gated.setdefault(key, []).append(f"{arm} {score:.4g} < {floor:.4g}")

    def fell_back(self, arm: str | None, /) -> None:
        """Nothing passed the gate; this arm's ungated list is used instead."""
        self._fallback = arm

    def merged(self, opinions: Sequence[Opinion], shares: Sequence[Sequence[float]], /) -> None:
        """What each arm added to each key."""
        for (arm, keys, scores, _), share in zip(opinions, shares, strict=True):
            notes = arm.notes or {}
            for place, key in enumerate(keys):
                score = None if scores is None else float(scores[place])
                entry = ArmShare(arm.name, place + 1, score, share[place], notes.get(key, ""))
                self._arms.setdefault(key, {}).setdefault(arm.name, entry)

    def say(self, stage: str, key: str, text: str, /) -> None:
        """A stage's own words about a key, shown in place of the bare numbers; more words are added to the first."""
        said = self._said.get((stage, key))
        self._said[stage, key] = text if said is None else f"{said}, {text}"

    def drop(self, stage: str, key: str, reason: str, /) -> None:
        """A stage left this key out."""
        self._dropped[key] = reason if stage == "pack" else f"{stage}: {reason}"

    def reached(self, key: str, activation: Activation, /) -> None:
        """Spreading reached this key along this path."""
        self._activations[key] = activation

    def found(self, key: str, /) -> str:
        """Where an arm had this key best, to be said beside it: " (bm25 #1)"."""
        best = min(self._arms.get(key, {}).values(), key=lambda share: share.rank, default=None)
        return "" if best is None else f" ({best.arm} #{best.rank})"

    def mentioned(self) -> list[str]:
        """Every key on the activated paths, so that a drawing can name them."""
        return list(dict.fromkeys(key for won in self._activations.values() for key in won.path[::2]))

    def step(self, stage: str, before: Ranking, after: Ranking, /) -> None:
        """Compare a ranking before and after a stage, so that every stage, also a plain function, leaves a trace."""
        old = dict(zip(before.keys, before.scores, strict=True))
        for key, score in zip(after.keys, after.scores, strict=True):
            was, text = old.pop(key, 0.0), self._said.get((stage, key), "")
            if text or score != was:
                self._steps.setdefault(key, []).append(Step(stage, was, score, text))
        for key, score in old.items():
            self._dropped.setdefault(key, f"{stage}: left out at score {score:.4g}")

    def _kept_out(self, key: str) -> tuple[Step, ...]:
        """What arms had found below their floor, and something after them brought in all the same."""
        return () if key in self._arms else tuple(Step("gate", 0.0, 0.0, why) for why in self._gated.get(key, ()))

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
        """Close the notebook: one receipt for each result, and what became of the rest."""
        rows = zip(ranking.keys, ranking.scores, shown, strict=True)
        receipts = tuple(
            Receipt(
                key,
                rank,
                seen,
                raw,
                tuple(self._arms.get(key, {}).values()),
                (*self._kept_out(key), *self._steps.get(key, ())),
                degraded or self._fallback is not None,
            )
            for rank, (key, raw, seen) in enumerate(rows, start=1)
        )
        kept = set(ranking.keys)
        return Explanation(
            query=query,
            receipts=receipts,
            arms={arm.name: _brought(arm) for arm in lists},
            dropped={key: why for key, why in self._dropped.items() if key not in kept},
            gated={key: f"gated: {', '.join(why)}" for key, why in self._gated.items() if key not in self._arms},
            activations=dict(self._activations),
            texts=dict(texts or {}),
            hits=dict(self._hits),
            hidden=hidden,
        )


def _brought(arm: ArmList) -> str:
    if arm.skipped is not None:
        return f"skipped: {arm.skipped}"
    last = f", the last at {arm.scores[-1]:.4g}" if arm.scores else ""
    return f"{len(arm.items)} hits{last}" if arm.items else "no hits"
