"""Failed cases: ranks in each arm, what came instead, the reason in words; in tables, JSON and HTML."""

import pytest

from hybridmem import HybridMemory
from hybridmem.evaluation.evaluate import Case, evaluate
from hybridmem.evaluation.report import find_failures
from hybridmem.fusion.explain import Explanation
from langchain_hybridmem import BM25Retriever, FusionRetriever


@pytest.fixture
def memory():
    with HybridMemory(embedder=None) as memory:
        memory.add_many([{"id": f"t{n}", "text": f"tea number {n}"} for n in range(12)])
        memory.add("Coffee is served at noon <b>daily</b>.", id="coffee")
        yield memory


def test_ranks_and_order_of_failures():
    cases = [
        Case("all there", {"a": 1.0}),
        Case("one of two", {"a": 1.0, "z": 2.0}),
        Case("none", {"c": 1.0}),
        Case("not judged", {"a": 0.0}),
    ]
    lists = [["a"], ["a", "b"], ["a", "b", "c"], ["b"]]
    arms = {"x": [["a"], ["b", "z"], ["c"], []]}
    whole, part = find_failures(cases, lists, arms, name="fused", k=2, limit=9)
    assert (whole.case.query, whole.missing, whole.ranks) == ("none", "c", {"x": 1, "fused": 3})
    assert (part.case.query, part.missing, part.ranks) == ("one of two", "z", {"x": 2, "fused": None})
    assert [key for key, _ in whole.instead] == ["a", "b", "c"]
    assert [one.missing for one in find_failures(cases, lists, arms, name="fused", k=2, limit=1)] == ["c"]


def test_a_memory_explains_its_failures(memory):
    cases = [Case("Is there tea?", {"coffee": 1.0}, "drinks"), Case("coffee", {"coffee": 1.0})]
    report = evaluate(memory, cases, failures=5)
    (failure,) = report.failures
    assert failure.ranks == {"bm25": None, "fused": None}
    assert failure.text.startswith("Coffee is served")
    assert len(failure.instead) == 3
    assert failure.why.startswith("found by no arm")
    assert "✗ Is there tea?" in str(report)
    assert "found by no arm" in report.to_markdown()
    assert report.to_dict()["failures"][0]["missing"] == "coffee"
    assert evaluate(memory, cases).failures == ()


def test_the_html_report_is_one_safe_page(memory, tmp_path):
    cases = [Case("Is there <i>tea</i>?", {"coffee": 1.0}, "drinks"), Case("coffee", {"coffee": 1.0}, "drinks")]
    report = evaluate(memory, cases, failures=5)
    page = report.to_html(tmp_path / "report.html")
    assert repr(report).startswith("<Report over 2 cases: bm25, ")
    assert "recall@k: the share of the relevant ids" in page
    assert "– where it is not listed" in page
    assert (tmp_path / "report.html").read_text("utf-8") == page
    assert page.count("<svg") == 1
    assert page.count('class="bar"') == len(report.rows()) - 1
    assert page.count("<details open>") == 1  # the first failed case is open
    bar = f'<i style="width:{100 * report.mean("fused", report.metrics[-1]):.2f}%'
    assert bar in page
    assert "&lt;i&gt;tea&lt;/i&gt;" in page
    assert "<b>daily" not in page
    assert "http" not in page
    assert "<script" not in page
    assert "drinks (2)" in page
    assert report._repr_html_() in page


def test_a_retriever_explains_its_failures():
    arm = BM25Retriever.from_texts(["green tea", "black tea"], metadatas=[{"id": "g"}, {"id": "b"}])
    retriever = FusionRetriever(retrievers={"bm25": arm}, id_key="id", k=1)
    report = evaluate(retriever, [Case("black tea", {"g": 1.0})], id_key="id", failures=1)
    (failure,) = report.failures
    assert failure.ranks == {"bm25": 2, "FusionRetriever": None}
    assert "rank 2, and only k=1 results are returned" in failure.why


def test_an_ablation_without_any_difference_is_named_and_has_no_row(memory):
    report = evaluate(memory, [Case("coffee", {"coffee": 1.0})])
    unchanged = [run.name for run in report.runs if run.of]
    assert len(unchanged) > 3
    assert [row[0] for row in report.rows()[1:]] == [run.name for run in report.systems()]
    assert str(report).count("without") == 1
    assert all(name.removeprefix("without ") in report.verdicts()[-1] for name in unchanged)
    assert set(report.to_dict()["systems"]) == {run.name for run in report.runs}


def test_the_table_fits_the_width_of_a_terminal(memory):
    cases = [Case("Is there tea?", {"coffee": 1.0}, name) for name in ("drinks", "other things", "more", "and more")]
    report = evaluate(memory, cases, failures=2)
    wide, narrow = report.to_text(), report.to_text(width=60)
    assert wide == str(report)
    assert max(map(len, wide.splitlines())) > 80 >= 60 >= max(map(len, narrow.splitlines()))
    assert "recall@10" in narrow
    assert "too wide for this terminal: recall@1, recall@3" in narrow
    assert "other things (1)" in narrow


def test_a_result_of_a_longer_list_is_not_called_unlisted():
    explained = Explanation("q", arms={"bm25": "no hits"}, texts={})
    (failure,) = find_failures(
        [Case("q", {"c": 1.0})], [["a", "b", "c"]], {}, name="fused", k=2, limit=1, explain=lambda *_: explained
    )
    assert failure.why == "rank 3 of 3 results, not listed for k=2"
