import math
from datetime import datetime, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridmem.core.types import Candidates, MentionLink, Ranking, SharedName
from hybridmem.errors import ConfigError
from hybridmem.fusion.explain import Trace
from hybridmem.fusion.recipe import Fusion
from hybridmem.fusion.stages.base import Context, Pool
from hybridmem.fusion.stages.evidence import PARTS, Evidence, Turns, mention, shared_name
from hybridmem.text.conversation import ASKS, FIRST_PERSON, TIME_WORD
from tests.support.items import READER, Row, arm

NOW = datetime(2023, 8, 16, tzinfo=timezone.utc).timestamp()
OFF = dict.fromkeys(PARTS, 0.0)


def ranking(*rows):
    """Rows of (key, score, fields)."""
    keys, scores = [key for key, _, _ in rows], [score for _, score, _ in rows]
    return Ranking(keys, [Row(key, {"cues": 0, **fields}) for key, _, fields in rows], scores)


def pool(ids="", *, speakers=(), **columns):
    given = {"scores": {}, "baseline": {}, **columns}
    return Pool([Row(key) for key in ids], Candidates(list(ids), **given), speakers)


def added(before, query="", *, only=None, of=None, trace=None):
    """What the parts (or one of them at weight 1) add to each key."""
    stage = Evidence() if only is None else Evidence(**{**OFF, only: 1.0})
    after = stage(before, Context(query, NOW, READER, pool=of, trace=trace))
    old = dict(zip(before.keys, before.scores, strict=True))
    return {key: score - old[key] for key, score in zip(after.keys, after.scores, strict=True)}


def test_the_window_adds_what_it_matches_better_than_the_turn_alone():
    of = pool("abc", scores={"bm25": [4.0, 1.0, 0.0]}, window=[6.0, 3.0, math.nan])
    rows = ranking(("a", 0.9, {}), ("b", 0.5, {}), ("c", 0.4, {}))
    # a: 6/6 − 4/4 = 0; b: 3/6 − 1/4; c has no neighbours
    assert added(rows, only="window", of=of) == pytest.approx({"a": 0.0, "b": 0.25, "c": 0.0})
    better_alone = pool("ab", scores={"bm25": [4.0, 3.0]}, window=[6.0, 3.0])
    # b: 3/6 − 3/4 is below 0 and takes nothing away
    assert added(ranking(("a", 0.9, {}), ("b", 0.5, {})), only="window", of=better_alone) == pytest.approx(
        {"a": 0.0, "b": 0.0}
    )
    unmatched = pool("abc", scores={"bm25": [0.0] * 3}, window=[2.0, 1.0, math.nan])
    assert added(rows, only="window", of=unmatched) == pytest.approx({"a": 1.0, "b": 0.5, "c": 0.0})
    for nothing in (None, pool("abc"), pool("abc", scores={"bm25": [0.0] * 3}, window=[math.nan] * 3)):
        assert set(added(rows, only="window", of=nothing).values()) == {0.0}


def test_a_thread_adds_the_distance_to_its_best_turn():
    rows = ranking(
        ("a", 0.9, {"thread": "t"}), ("b", 0.8, {}), ("c", 0.3, {"thread": "t"}), ("d", 0.0, {"thread": "u"})
    )
    assert added(rows, only="thread") == pytest.approx({"a": 0.0, "b": 0.0, "c": 0.9 - 0.3, "d": 0.0})
    assert set(added(ranking(("a", 0.9, {}), ("b", 0.1, {})), only="thread").values()) == {0.0}


def test_an_answer_gains_the_score_of_the_question_before_it():
    rows = ranking(
        ("q", 0.8, {"cues": ASKS, "speaker": "ana"}),
        ("s", 0.7, {"speaker": "ana"}),
        ("r", 0.2, {"speaker": "ben"}),
        ("x", 0.1, {"speaker": "assistant"}),
    )
    of = pool("qsrx", previous=[-1, -1, 0, 0])
    assert added(rows, only="previous_question", of=of) == pytest.approx({"q": 0, "s": 0, "r": 0.8, "x": 0})
    of = pool("qsrx", previous=[-1, -1, 1, -1])  # the turn before does not ask
    assert set(added(rows, only="previous_question", of=of).values()) == {0.0}
    for nothing in (None, pool("qsrx"), pool("qsrx", previous=[-1] * 4)):
        assert set(added(rows, only="previous_question", of=nothing).values()) == {0.0}


def test_a_named_speaker_in_the_first_person():
    rows = ranking(
        ("a", 0.3, {"speaker": "ana", "cues": FIRST_PERSON}),
        ("b", 0.2, {"speaker": "ana"}),
        ("c", 0.1, {"speaker": "ben", "cues": FIRST_PERSON}),
    )
    people = pool(speakers={"ana": 5, "ben": 5})
    assert added(rows, "What did Ana buy?", only="speaker", of=people) == {"a": 1.0, "b": 0.0, "c": 0.0}
    assert set(added(rows, "Who bought it?", only="speaker", of=people).values()) == {0.0}
    rare = pool(speakers={"ben": 5})  # "Ana:" begins too few texts to be a speaker
    assert set(added(rows, "What did Ana buy?", only="speaker", of=rare).values()) == {0.0}
    assert set(added(rows, "What did Ana buy?", only="speaker", of=pool()).values()) == {0.0}
    assert added(rows, "What did Ana buy?", only="speaker") == {"a": 1.0, "b": 0.0, "c": 0.0}  # of the candidates


def test_without_cues_the_text_is_read():
    items = [Row("a", {"text": "I bought a hat.", "speaker": "Ana"}), Row("b", {"text": "Ben: I bought it."}), Row("c")]
    rows = Ranking(["a", "b", "c"], items, [0.3, 0.2, 0.1])
    assert added(rows, "What did Ana buy?", only="speaker") == {"a": 1.0, "b": 0.0, "c": 0.0}
    assert added(rows, "What did Ben buy?", only="speaker") == {"a": 0.0, "b": 1.0, "c": 0.0}


def test_a_date_in_the_query():
    day = datetime(2023, 7, 7, 9, tzinfo=timezone.utc)
    rows = ranking(
        ("a", 0.3, {"created_at": day}),
        ("b", 0.2, {"created_at": NOW, "event_at": day.timestamp() + 86_400}),
        ("c", 0.1, {"created_at": NOW}),
        ("d", 0.0, {}),
    )
    trace = Trace()
    expected = {"a": 1.0, "b": 0.8, "c": 0.0, "d": 0.0}
    assert added(rows, "What was said on 7 July 2023?", only="date", trace=trace) == expected
    assert trace._notes["evidence", "a"] == "date 7 July 2023 +1"
    assert trace._notes["evidence", "b"] == "near 7 July 2023 +0.8"
    assert set(added(rows, "What was said?", only="date").values()) == {0.0}


def test_a_time_word_in_a_turn_when_the_query_asks_when():
    rows = ranking(
        ("a", 0.4, {"thread": "t", "cues": TIME_WORD}),
        ("b", 0.3, {"speaker": "ana", "cues": TIME_WORD}),
        ("c", 0.2, {"thread": "t"}),
        ("d", 0.1, {"cues": TIME_WORD}),  # a document
    )
    of = pool(speakers={"ana"})
    assert added(rows, "When was it?", only="time_word", of=of) == pytest.approx({"a": 1, "b": 1, "c": 0, "d": 0})
    assert set(added(rows, "What was it?", only="time_word", of=of).values()) == {0.0}


def test_the_receipt_names_every_part():
    rows = [
        Row("q", {"cues": ASKS, "speaker": "ben", "thread": "t", "created_at": "2023-01-01"}),
        Row("a", {"cues": FIRST_PERSON | TIME_WORD, "speaker": "ana", "thread": "t", "created_at": "2023-07-07"}),
    ]
    columns = Candidates(["q", "a"], {"bm25": [4.0, 1.0]}, {}, window=[4.0, 3.0], previous=[-1, 0])
    trace = Trace()
    recipe = Fusion(mode="convex", evidence=Evidence())
    lists = [arm("bm25", rows, [4.0, 1.0])]
    query = "When did Ana call, on 7 July 2023?"
    got = recipe.run(lists, reader=READER, query=query, now=NOW, trace=trace, pool=Pool(rows, columns, {"ana", "ben"}))
    told = trace.explanation(got, query=query, lists=lists, shown=recipe.shares(got.scores))
    parts = [0.18 * (3 / 4 - 1 / 4), 0.28 * 0.75, 0.15 * 1.0, 0.2, 0.36, 0.15]
    assert got.scores[0] == pytest.approx(0.25 + sum(parts))
    assert str(told.receipts[0].steps[0]) == (
        "nearby turns +0.09, thread t +0.21, after the question q +0.15, "
        "said by ana +0.2, date 7 July 2023 +0.36, says when +0.15"
    )
    assert told.receipts[0].score == 1.0


@given(
    st.lists(st.floats(0, 1), min_size=1, max_size=8),
    st.sampled_from(["When did Ana call on 7 July 2023?", "What did I say?", "Was sagte sie?", ""]),
)
def test_plain_documents_are_ranked_as_if_there_was_no_evidence(scores, query):
    keys = [f"m{i}" for i in range(len(scores))]
    items = [Row(key, {"text": "I was in Paris last year.", "cues": FIRST_PERSON | TIME_WORD}) for key in keys]
    before = Ranking(keys, items, sorted(scores, reverse=True))
    columns = Candidates(keys, {"bm25": [1.0] * len(keys)}, {"bm25": 0.0})
    assert Evidence()(before, Context(query, NOW, READER, pool=Pool(items, columns, {}))) == before


def test_nothing_ranked_and_bad_weights():
    assert Evidence()(ranking(), Context("q", NOW, READER)) == ranking()
    with pytest.raises(ConfigError, match="evidence thread = -1 is not allowed"):
        Evidence(thread=-1)


def test_a_mention_passes_a_part_of_the_score_on():
    rows = ranking(("a", 0.8, {}), ("b", 0.5, {}), ("c", 0.1, {}))
    links = [MentionLink(0, 2, 1.0, "sea"), MentionLink(1, 2, 1.0, "sea"), MentionLink(2, 1, 0.5, "bee")]
    of, trace = pool("abcx", mentions=[*links, MentionLink(0, 3, 1.0, "ex")]), Trace()  # x is not in the ranking
    # c: mentioned by a; a: mentions c, a quarter of 0.1; b: mentions c as well, more than half of c's score, 0.05
    assert added(rows, only="mention", of=of, trace=trace) == pytest.approx({"a": 0.025, "b": 0.5 * 0.1, "c": 0.8})
    for nothing in (None, pool("abc")):
        assert set(added(rows, only="mention", of=nothing).values()) == {0.0}


def test_the_query_mentions_a_memory_as_a_text_of_score_1():
    rows = ranking(("a", 0.8, {}), ("b", 0.5, {}))
    of = pool("ab", mentions=[MentionLink(-1, 1, 0.5, "bee"), MentionLink(0, 1, 0.5, "bee")])
    assert added(rows, only="mention", of=of) == pytest.approx({"a": 0.25 * 0.5 * 0.5, "b": 1.0 * 0.5})
    part = mention(Turns(rows, Context("q", NOW, READER, pool=of)))
    assert part.path(1) is None  # it comes from no other candidate
    assert part.describe(1) == "the query mentions 'bee'"
    assert part.describe(0) == "b → is mentioned as 'bee' by → a"


def test_texts_that_share_a_name_raise_each_other():
    rows, trace = ranking(("a", 0.8, {}), ("b", 0.5, {}), ("c", 0.1, {})), Trace()
    of = pool(
        "abcx",
        shared=[SharedName("sea", 0.5, [0, 1, 2]), SharedName("bee", 1.0, [2, 3]), SharedName("weak", 0.1, [0, 1])],
    )
    expected = {"a": 0.5 * 0.5**2, "b": 0.5 * 0.8**2, "c": 0.5 * 0.8**2}  # x is not ranked; "weak" adds less than "sea"
    assert added(rows, only="shared_name", of=of, trace=trace) == pytest.approx(expected)
    part = shared_name(Turns(rows, Context("q", NOW, READER, pool=of)))
    assert part.path(2) == ("a", "shares 'sea' with", "c")
    assert part.path(0) == ("b", "shares 'sea' with", "a")
    assert set(added(rows, only="shared_name", of=pool("abc")).values()) == {0.0}
