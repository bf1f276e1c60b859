"""Evidence: what the thread, the speaker and the dates of a candidate add to its merged score; spreading activation.

Every part is a value in [0, 1] for each candidate, and every part has a weight: score + Σ weight · value. A part that
does not apply (no threads, no speaker named, no date named, another language) is 0 for every candidate.

| part | value |
|---|---|
| `window` | how much better the candidate matches together with two turns before and after it than alone (BM25) |
| `thread` | the best merged score in the candidate's thread, minus its own |
| `previous_question` | between people: the merged score of the turn before, when that turn asks a question |
| `speaker` | 1 when the query names the speaker and the text speaks in the first person |
| `date` | nearness of the candidate's date to a date in the query |
| `mention` | the best merged score of what mentions this one by name, 1 for the query (a quarter the other way) |
| `shared_name` | the square of the best merged score of another candidate whose text has a name that this one's has |
| `time_word` | 1 when the query asks when and the text of a turn has a time word |

To add a part, write its function and add one line to `PARTS` and one weight to `Evidence`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hybridmem.core import validation
from hybridmem.core.times import as_datetime
from hybridmem.core.types import Activation, Graph, Ranking
from hybridmem.fusion.explain import StepPart, Trace
from hybridmem.fusion.merge import reorder
from hybridmem.fusion.stages.base import Context
from hybridmem.text.conversation import (
    ASKS,
    FIRST_PERSON,
    TIME_WORD,
    asks_when,
    cues_of,
    is_person,
    named_speakers,
    speaker_of,
)
from hybridmem.text.dates import dates_in

__all__ = ["BACKWARD", "PARTS", "Evidence", "Part", "Spread", "Turns", "previous_positions"]

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]
BACKWARD = 0.25
"""What a mention is worth to the candidate that mentions, compared with the one that is mentioned."""


class Turns:
    """The candidates of one ranking in columns; columns are read when a part first needs them."""

    def __init__(self, ranking: Ranking, context: Context) -> None:
        self.keys, self.items, scores = ranking
        self.scores: Floats = np.array(scores, np.float64)
        self.context = context
        self._columns: dict[str, list[Any]] = {}

    @cached_property
    def rows(self) -> Ints:
        """The row of each candidate in the pool, −1 for what is not in it."""
        ids = [] if self.context.pool is None else self.context.pool.candidates.ids
        row_of = dict(zip(ids, range(len(ids)), strict=True))
        return np.fromiter(map(row_of.get, self.keys, repeat(-1)), np.intp, len(self.keys))

    @cached_property
    def places(self) -> Ints:
        """The position of each row of the pool in the ranking, −1 for none; the last one stands for row −1."""
        size = 0 if self.context.pool is None else len(self.context.pool.candidates.ids)
        places = np.full(size + 1, -1, np.intp)
        places[self.rows] = np.arange(len(self.keys))
        places[size] = -1
        return places

    def column(self, name: str) -> list[Any]:
        """One field of each candidate; cues and speakers are read from the text where the items do not have them."""
        if name not in self._columns:
            self._columns[name] = self.context.reader.column(self.items, name)
            if name in ("cues", "speaker") and None in self.column("cues"):
                self._read_texts()
        return self._columns[name]

    def _read_texts(self) -> None:
        texts = [str(text or "") for text in self.context.reader.column(self.items, "text")]
        speakers = [str(name or "") for name in self.context.reader.column(self.items, "speaker")]
        self._columns["cues"] = list(map(cues_of, texts))
        self._columns["speaker"] = list(map(speaker_of, texts, speakers))

    def has_cue(self, cue: int) -> NDArray[np.bool_]:
        """Which candidates have a cue of `text.conversation`."""
        return (np.array(self.column("cues"), np.int64) & cue) > 0

    def speakers(self) -> list[str | None]:
        """The speaker of each candidate, None where it is unknown or does not count."""
        known = self.known_speakers()
        return [name if name in known else None for name in self.column("speaker")]

    def known_speakers(self) -> set[str]:
        """All speakers: those of the store, or of the candidates where that is unknown."""
        pool = self.context.pool
        return set(self.column("speaker")) - {None} if pool is None or pool.speakers is None else set(pool.speakers)

    def pooled(self, values: Floats) -> Floats:
        """A column of the pool in the order of the ranking, 0 for what is not in the pool."""
        return np.append(values, 0.0)[self.rows]


class Part(NamedTuple):
    """The value of one part for each candidate, and its description of the one at a position."""

    values: Floats
    describe: Callable[[int], str]
    path: Callable[[int], tuple[str, ...] | None] | None = None
    """The path on which a candidate receives its value from another, for the picture of the neighbourhood."""


def window(turns: Turns) -> Part | None:
    """max(0, X − B): X is the BM25 score of the window, B that of the candidate, each divided by the best one."""
    pool = turns.context.pool
    if pool is None or pool.candidates.window is None or "bm25" not in pool.candidates.scores:
        return None  # without the words of a candidate alone there is nothing to compare its window with
    windows = np.nan_to_num(np.array(pool.candidates.window, np.float64), nan=0.0)
    alone = np.array(pool.candidates.scores["bm25"], np.float64)
    if windows.max(initial=0.0) <= 0.0:
        return None
    gain = windows / windows.max() - (alone / alone.max() if alone.max() > 0.0 else 0.0)
    return Part(turns.pooled(np.maximum(gain, 0.0)), lambda _: "nearby turns")


def thread(turns: Turns) -> Part | None:
    """The best merged score in the thread − the candidate's own; 0 without a thread."""
    threads = turns.column("thread")
    best: dict[Any, float] = dict(zip(reversed(threads), reversed(turns.scores.tolist()), strict=True))
    if best.keys() == {None}:
        return None
    own = np.where([name is None for name in threads], np.inf, turns.scores)
    values = np.array([best[name] for name in threads]) - own
    return Part(np.maximum(values, 0.0), lambda i: f"thread {threads[i]}")


def previous_question(turns: Turns) -> Part | None:
    """The merged score of the turn before, if that asks a question, in a conversation between people."""
    at = previous_positions(turns)
    if at.max(initial=-1) < 0:
        return None
    speakers = turns.column("speaker")
    people = {speaker: is_person(speaker) for speaker in set(speakers)}
    person = np.array([people[speaker] for speaker in speakers])
    applies = (at >= 0) & turns.has_cue(ASKS)[at] & person
    return Part(np.where(applies, turns.scores[at], 0.0), lambda i: f"after the question {turns.keys[at[i]]}")


def previous_positions(turns: Turns) -> Ints:
    """The position of the previous turn of each candidate, −1 where it is not ranked."""
    pool = turns.context.pool
    if pool is None or pool.candidates.previous is None:
        return np.full(len(turns.keys), -1, np.intp)
    previous: Ints = turns.places[np.append(pool.candidates.previous, -1)[turns.rows]]
    return previous


def speaker(turns: Turns) -> Part | None:
    """1 for a turn in the first person by a speaker whom the query names."""
    known = turns.known_speakers()
    named = named_speakers(turns.context.query, known) if known else set()
    if not named:
        return None
    speakers = turns.speakers()
    said = np.array([name in named for name in speakers]) & turns.has_cue(FIRST_PERSON)
    return Part(said.astype(np.float64), lambda i: f"said by {speakers[i]}")


def date(turns: Turns) -> Part | None:
    """The nearness of the candidate's date (`event_at`, else `created_at`) to the dates in the query."""
    named = dates_in(turns.context.query, turns.context.now)
    if not named:
        return None
    events, created = turns.column("event_at"), turns.column("created_at")
    times = [as_datetime(made if event is None else event) for event, made in zip(events, created, strict=True)]
    near = [0.0 if when is None else max(one.nearness(when) for one in named) for when in times]

    def describe(i: int) -> str:
        when = times[i]
        nearest = max(named, key=lambda one: 0.0 if when is None else one.nearness(when))
        return f"date {nearest}" if near[i] == 1.0 else f"near {nearest}"

    return Part(np.array(near), describe)


def time_word(turns: Turns) -> Part | None:
    """1 for a turn of a conversation with a time word, when the query asks when."""
    if not asks_when(turns.context.query):
        return None
    spoken = [t is not None or s is not None for t, s in zip(turns.column("thread"), turns.speakers(), strict=True)]
    return Part((np.array(spoken) & turns.has_cue(TIME_WORD)).astype(np.float64), lambda _: "says when")


def mention(turns: Turns) -> Part | None:
    """The best merged score of what mentions this candidate, times the weight of the name; ¼ backwards.

    The query counts as a text of score 1.
    """
    pool = turns.context.pool
    if pool is None or not pool.candidates.mentions:
        return None
    sources, targets, given, names = zip(*pool.candidates.mentions, strict=True)
    weights: Floats = np.array(given, np.float64)
    asked = np.array(sources) < 0
    source, target = turns.places[list(sources)], turns.places[list(targets)]
    ranked, read = target >= 0, source >= 0
    forward = np.where(ranked & (read | asked), weights * np.where(asked, 1.0, turns.scores[source]), 0.0)
    backward = np.where(ranked & read, BACKWARD * weights * turns.scores[target], 0.0)
    values = np.zeros(len(turns.keys))
    np.maximum.at(values, target[ranked], forward[ranked])
    np.maximum.at(values, source[read], backward[read])

    def path(i: int) -> tuple[str, str, str] | None:
        best = np.flatnonzero((target == i) & (forward == values[i]))
        if not len(best):
            last = np.flatnonzero((source == i) & (backward == values[i]))[0]
            return turns.keys[target[last]], f"is mentioned as {names[last]!r} by", turns.keys[i]
        if asked[best[0]]:
            return None
        return turns.keys[source[best[0]]], f"mentions {names[best[0]]!r}", turns.keys[i]

    def describe(i: int) -> str:
        found = path(i)
        if found is not None:
            return " → ".join(found)
        return f"the query mentions {names[np.flatnonzero(asked & (target == i) & (forward == values[i]))[0]]!r}"

    return Part(np.minimum(values, 1.0), describe, path)


def shared_name(turns: Turns) -> Part | None:
    """The square of the best merged score of another candidate whose text has the same name, times its weight."""
    pool = turns.context.pool
    if pool is None or not pool.candidates.shared:
        return None
    scores, values = turns.scores.tolist(), [0.0] * len(turns.keys)
    found: dict[int, tuple[int, str]] = {}
    for name, weight, rows in pool.candidates.shared:
        members = sorted((at for at in turns.places[rows].tolist() if at >= 0), key=lambda at: (-scores[at], at))
        for at in members if len(members) > 1 else ():
            other = members[0] if at != members[0] else members[1]
            value = weight * scores[other] ** 2
            if value > values[at]:
                values[at], found[at] = value, (other, name)

    def path(i: int) -> tuple[str, str, str]:
        other, name = found[i]
        return turns.keys[other], f"shares {name!r} with", turns.keys[i]

    return Part(np.minimum(values, 1.0), lambda i: " → ".join(path(i)), path)


PARTS: dict[str, Callable[[Turns], Part | None]] = {
    "window": window,
    "thread": thread,
    "previous_question": previous_question,
    "speaker": speaker,
    "date": date,
    "mention": mention,
    "shared_name": shared_name,
    "time_word": time_word,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """score + Σ weight · evidence of each part; weight 0 switches a part off."""

    window: float = 0.18
    thread: float = 0.28
    previous_question: float = 0.15
    speaker: float = 0.2
    date: float = 0.36
    mention: float = 0.4
    shared_name: float = 0.2
    time_word: float = 0.15

    def __post_init__(self) -> None:
        for item in fields(self):
            validation.number(f"evidence {item.name}", getattr(self, item.name), "a finite weight from 0 up", low=0)

    def __call__(self, ranking: Ranking, context: Context) -> Ranking:
        if not ranking.keys:
            return ranking
        turns = Turns(ranking, context)
        total = turns.scores
        for name, compute in PARTS.items():
            weight = getattr(self, name)
            part = compute(turns) if weight > 0.0 else None
            if part is None:
                continue
            added = weight * part.values
            total = total + added
            if context.trace is not None:
                for i in np.flatnonzero(added > 0.0).tolist():
                    piece = StepPart(name, float(added[i]), part.describe(i))
                    context.trace.part("evidence", ranking.keys[i], piece)
                    path = None if part.path is None else part.path(i)
                    if path is not None:
                        context.trace.activated(ranking.keys[i], Activation(float(added[i]), 1, path))
        return ranking if total is turns.scores else reorder(ranking, total.tolist())


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """score + strength · incoming, where incoming = max over neighbours of (their score · Π edge weight · decay).

    Items that no arm found are added to the ranking. The edges of threads count only with `threads`: `Evidence` covers
    threads better.
    """

    strength: float = 0.5
    hops: int = 2
    decay: float = 0.5
    seeds: int = 20
    threads: bool = False

    def __post_init__(self) -> None:
        validation.number("spread strength", self.strength, "a finite number from 0 up", low=0)
        validation.integer("spread hops", self.hops, "from 1 up", low=1)
        validation.integer("spread seeds", self.seeds, "from 1 up", low=1)
        validation.number("spread decay", self.decay, "above 0 and up to 1", low=0, high=1, above=True)
        validation.flag("spread threads", self.threads)

    def __call__(self, ranking: Ranking, context: Context) -> Ranking:
        keys, items, scores = ranking
        graph = context.graph
        if not keys or graph is None or self.strength == 0:
            return ranking
        seeds = dict(zip(keys[: self.seeds], scores[: self.seeds], strict=True))
        incoming = graph.spread(seeds, hops=self.hops, decay=self.decay, include_seeds=True)
        if not incoming:
            return ranking
        keys, items = self._with_neighbours(ranking, incoming, graph)
        if context.trace is not None:
            self._trace(seeds, [key for key in keys if key in incoming], graph, context.trace)
        strength, get = self.strength, incoming.get
        raised = [score + strength * get(key, 0.0) for key, score in zip(keys, scores)]  # noqa: B905
        raised += [strength * incoming[key] for key in keys[len(scores) :]]
        return reorder(Ranking(keys, items, raised), raised)

    @staticmethod
    def _with_neighbours(ranking: Ranking, incoming: Mapping[str, float], graph: Graph) -> tuple[list[str], list[Any]]:
        """The ranking's keys and items, followed by those that only the graph activated."""
        new = sorted(incoming.keys() - ranking.keys)
        items = graph.items(new)
        if None in items:
            kept = [(key, item) for key, item in zip(new, items, strict=True) if item is not None]
            new, items = [key for key, _ in kept], [item for _, item in kept]
        return ranking.keys + new, ranking.items + items

    def _trace(self, seeds: dict[str, float], targets: list[str], graph: Graph, trace: Trace) -> None:
        for key, activation in graph.paths(seeds, targets, hops=self.hops, decay=self.decay).items():
            seed, *steps = activation.path
            path = " → ".join([f"{seed}{trace.best_rank(seed)}", *steps])
            trace.note("spread", key, f"graph +{self.strength * activation.value:.4g} from {path}")
            trace.activated(key, activation)
