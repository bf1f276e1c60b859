import json
from dataclasses import replace

import pytest

from hybridmem.core.types import Activation, Ranking
from hybridmem.fusion.explain import ArmShare, Explanation, Receipt, StageStep, Trace
from hybridmem.fusion.recipe import Fusion
from hybridmem.fusion.stages import Conflicts, Diversity, HalfLife, Pack, QualityGate, Rerank, SourceDedup
from tests.support.items import READER, Row, arm

NOW = 1_700_000_000.0
DAY = 86_400.0


def explained(recipe, lists, *, k=None, query="where is the cat", texts=None):
    trace = Trace()
    ranking = recipe.run(lists, reader=READER, query=query, now=NOW, k=k, trace=trace)
    shown = recipe.shares(ranking.scores)
    return trace.explanation(ranking, query=query, lists=lists, shown=shown, texts=texts)


RECIPE = Fusion(
    gate=QualityGate(floor={"vector": 0.5}), dedup=SourceDedup(), boost=HalfLife(half_life=30.0), weights=(0.5, 0.5)
)
ROWS = [
    Row("c1", {"source_id": "doc", "updated_at": NOW - 30 * DAY}),
    Row("c2", {"source_id": "doc", "updated_at": NOW}),
    Row("m3", {"updated_at": "whenever"}),
]
LISTS = [
    arm("bm25", ROWS, [8.0, 6.0, 2.0]),
    arm("vector", [ROWS[0], Row("m4")], [0.9, 0.48]),
    arm("graph", [], skipped="timeout after 2 s"),
]
THREE = Fusion(**{**{f: getattr(RECIPE, f) for f in ("gate", "dedup", "boost")}, "weights": (0.4, 0.4, 0.2)})


def test_a_receipt_holds_ranks_scores_shares_and_steps():
    receipt = explained(THREE, LISTS).receipts[0]
    assert receipt.key == "c1"
    assert receipt.rank == 1
    assert receipt.arms == (
        ArmShare("bm25", 1, 8.0, 0.4 / 61),
        ArmShare("vector", 1, 0.9, 0.4 / 61),
    )
    assert receipt.raw == pytest.approx(0.8 / 61 * 1.5)
    assert receipt.score == 1.0  # above the 1/61 of a result that is first in every arm
    line = str(receipt)
    assert line.startswith("#1 c1 1.000: bm25 #1 (8) +0.006557 vector #1 (0.9) +0.006557")
    assert "; best of source doc;" in line
    assert line.endswith("recency ×1.5 (30 days old)")


def test_why_not_names_the_stage_and_by_how_much():
    told = explained(THREE, LISTS, k=1)
    assert told.why_not("c2") == "c2: dedup: collapsed into c1 of source doc"
    assert told.why_not("m4") == "m4: gated: vector 0.48 < 0.5"
    assert told.why_not("m3") == "m3: rank 2, and only k=1 results are returned"
    assert told.why_not("nobody") == (
        "nobody: found by no arm (bm25: 3 hits, lowest score 2; vector: 2 hits, lowest score 0.48; "
        "graph: skipped: timeout after 2 s)"
    )
    assert told.why_not("c1").startswith("c1 is a result: #1 c1")
    assert Explanation("q").why_not("x") == "x: found by no arm (no arms)"


def test_what_the_arms_could_not_see_is_explained():
    told = Explanation("q", hidden={"old": "it was superseded"}.get)
    assert told.why_not("old") == "old: it was superseded"
    assert told.why_not("new").startswith("new: found by no arm")


def test_of_several_paths_to_a_result_the_strongest_is_kept():
    trace, ranking = Trace(), Ranking(["a"], [0], [1.0])
    best = Activation(0.5, 1, ("s", "related", "a"))
    for activation in (Activation(0.25, 1, ("t", "related", "a")), best, Activation(0.4, 1, ("u", "related", "a"))):
        trace.activated("a", activation)
    assert trace.explanation(ranking, query="q", lists=[], shown=[1.0]).activations == {"a": best}


def test_notes_of_one_stage_are_joined_and_an_empty_one_leaves_it_out():
    trace = Trace()
    trace.note("spread", "a", "one")
    trace.note("spread", "a", "")
    trace.note("spread", "a", "two")
    trace.note("spread", "b", "")
    before, after = Ranking(["a", "b", "c"], [0, 1, 2], [3, 2, 1]), Ranking(["a", "b", "c"], [0, 1, 2], [6, 4, 2])
    trace.step("spread", before, after)
    told = trace.explanation(after, query="q", lists=[], shown=[1.0, 0.5, 0.25])
    assert [str(receipt).partition(": ")[2] for receipt in told.receipts] == [
        "found by no arm; one, two",
        "found by no arm",  # an empty note leaves the stage out
        "found by no arm; spread 1 → 2",
    ]


def test_an_unreadable_date_is_reported_as_neutral():
    told = explained(Fusion(boost=HalfLife()), [arm("a", [ROWS[2], Row("bare")])])
    assert "recency ×1 (updated_at 'whenever' is not a date)" in str(told.receipts[0])
    assert "recency ×1 (no updated_at)" in str(told.receipts[1])


def test_a_bound_reports_what_it_cut_so_that_the_numbers_add_up():
    rows = [Row("a", {}), Row("b", {}), Row("c", {"updated_at": NOW})]
    told = explained(Fusion(boost=HalfLife(max_shift=0)), [arm("x", rows)])
    assert [receipt.key for receipt in told.receipts] == ["a", "b", "c"]
    assert str(told.receipts[2].steps[0]) == "recency ×2 (0 days old), cut from 0.03175 to 0.01613 (max_shift=0)"
    assert (told.receipts[2].steps[0].before, told.receipts[2].raw) == (1 / 63, 1 / 62)
    assert str(told.receipts[1].steps[0]) == "recency ×1 (no updated_at)"


def test_a_boost_that_changes_nothing_is_left_out():
    rows = [Row("old", {"updated_at": NOW - 5 * 365 * DAY}), Row("new", {"updated_at": NOW - 30 * DAY})]
    told = explained(Fusion(boost=HalfLife(strength=0.05)), [arm("x", rows)])
    texts = {receipt.key: [str(step) for step in receipt.steps] for receipt in told.receipts}
    assert texts == {"old": [], "new": ["recency ×1.025 (30 days old)"]}  # 1 + 0.05 · 0.5


def test_a_degraded_answer_is_reported():
    told = explained(Fusion(gate=QualityGate(floor=5.0)), [arm("a", "x", [1.0]), arm("b", "")])
    assert told.receipts[0].degraded
    assert str(told.receipts[0]).endswith("degraded: nothing passed the gate")
    assert told.arms == {"a": "1 hit, lowest score 1", "b": "no hits"}
    assert not told.gated


def test_notes_of_an_arm_are_shown():
    told = explained(Fusion(), [arm("graph", "x", notes={"x": "seed m1 → m2"})])
    assert str(told.receipts[0].arms[0]) == "graph #1 +0.01639 [seed m1 → m2]"


def test_stages_that_reorder_report_what_they_did():
    rows = [Row("a", {"text": "one two"}), Row("b", {"text": "one two"}), Row("c", {"text": "three four five"})]
    recipe = Fusion(
        rerank=Rerank(scorer=lambda query, texts: [3.0, 2.0, 1.0]),
        diversity=Diversity(balance=0.1),
        conflicts=Conflicts(pairs=lambda keys: [("a", "b")]),
        pack=Pack(tokens=5),
    )
    told = explained(recipe, [arm("x", rows)], k=2)
    assert "rerank 3: #1 → #1" in str(told.receipts[0])
    assert [receipt.key for receipt in told.receipts] == ["a", "b"]
    assert "conflict ×0.3: contradicted by a (0 ≤ 0)" in str(told.receipts[1])
    assert told.why_not("c") == "c: 4 tokens, and 3 of 5 are left"


def test_the_budget_and_k_are_distinguished():
    rows = [
        Row("a", {"text": "x" * 40}),
        Row("b", {"text": "x" * 40}),
        Row("c", {"text": "x"}),
        Row("d", {"text": "x"}),
    ]
    told = explained(Fusion(pack=Pack(tokens=12)), [arm("x", rows)], k=2)
    assert [receipt.key for receipt in told.receipts] == ["a", "c"]
    assert told.why_not("b") == "b: 10 tokens, and 2 of 12 are left"
    assert told.why_not("d") == "d: rank 4, and only k=2 results are returned"


def test_any_function_leaves_a_trace():
    def halve(ranking, context):
        keys = ranking.keys[:1]
        return ranking._replace(keys=keys, items=ranking.items[:1], scores=[ranking.scores[0] / 2])

    told = explained(Fusion(extra=(halve,)), [arm("a", "xy")])
    assert told.receipts[0].steps == (StageStep("halve", 1 / 61, 1 / 122),)
    assert str(told.receipts[0].steps[0]) == "halve 0.01639 → 0.008197"
    assert told.why_not("y") == "y: halve: left out at score 0.01613"


def test_a_result_that_no_arm_found_is_reported():
    assert str(Receipt("m", 1, 0.5, 0.1)) == "#1 m 0.500: found by no arm"


def test_a_result_that_was_gated_and_came_back_is_reported():
    def bring_back(ranking, context):
        return ranking._replace(keys=[*ranking.keys, "b"], items=[*ranking.items, Row("b")], scores=[1.0, 0.5])

    recipe = Fusion(gate=QualityGate(floor=0.5), extra=(bring_back,))
    told = explained(recipe, [arm("x", "ab", [0.9, 0.1])])
    assert told.receipts[1].steps == (
        StageStep("gate", 0.0, 0.0, "gate: x 0.1 < 0.5"),
        StageStep("bring_back", 0.0, 0.5),
    )
    assert str(told.receipts[1]).startswith(
        "#2 b 0.500: below the gate in every arm; gate: x 0.1 < 0.5; bring_back 0 → 0.5"
    )
    assert "gate" not in str(told.receipts[0])


def test_the_arms_lists_are_reported_as_they_entered_the_fusion():
    trace = Trace()
    lists = [arm("bm25", "ab", [2.0, 0.5]), arm("vector", "b")]
    ranking = Fusion(gate=QualityGate(floor={"bm25": 1.0})).run(lists, reader=READER, k=2, trace=trace)
    explained = trace.explanation(ranking, query="q", lists=lists, shown=ranking.scores)
    assert explained.hits == {"bm25": (("a", 2.0), ("b", 0.5)), "vector": (("b", None),)}


def test_text_dict_and_html():
    told = explained(THREE, LISTS, k=1, texts={"c1": "a <b>cat</b> " + "purrs " * 30, "m3": ""})
    text = str(told)
    assert text.startswith("'where is the cat': 1 results (bm25: 3 hits")
    assert "…" in text
    data = json.loads(json.dumps(told.to_dict()))
    assert data["results"][0]["arms"][0] == {"arm": "bm25", "rank": 1, "score": 8.0, "share": 0.4 / 61, "note": ""}
    assert data["dropped"]["m3"] == "rank 2, and only k=1 results are returned"
    html = told._repr_html_()
    assert "&lt;b&gt;cat" in html
    assert "<b>cat" not in html
    assert "left out: 3" in html
    assert "left out" not in explained(Fusion(), [arm("a", "x")])._repr_html_()
    assert "c1" in told.receipts[0]._repr_html_()


def test_a_page_of_its_own():
    page = explained(THREE, LISTS, k=1).to_html()
    assert "<html" in page.lower()
    assert "c1" in page


def test_a_confidence_that_is_too_low_leaves_no_results():
    told = replace(explained(Fusion(), [arm("a", "xy")]), confidence=0.25)
    refused = told.refused(0.5)
    assert refused.receipts == ()
    assert refused.why_not("x") == "x: confidence 0.250 is below min_confidence 0.500"
    assert refused.remarks == ("confidence 0.250 is below min_confidence 0.500",)
    assert (told.to_dict()["confidence"], told.refused(0.1).confidence) == (0.25, 0.25)


def test_an_explanation_in_a_shell_is_one_line():
    explanation = explained(RECIPE, LISTS[:2], k=1)
    left = len(explanation.dropped) + len(explanation.gated)
    assert repr(explanation) == f"<Explanation of 'where is the cat': 1 results, {left} left out; print shows them>"
