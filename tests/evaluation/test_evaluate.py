import json
import sys
from datetime import datetime, timezone

import pytest
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from llama_index.core.retrievers import BaseRetriever as LlamaRetriever
from llama_index.core.schema import NodeWithScore, TextNode

from hybridmem.errors import ConfigError, MissingExtraError
from hybridmem.evaluation.evaluate import Case, System, evaluate, load_cases, load_corpus, result_id

CASES = [
    Case("one", {"a": 1.0}, category="easy"),
    Case("two", {"b": 1.0}, category="easy"),
    Case("three", {"c": 1.0, "d": 1.0}, category="hard"),
]


def always(*ids):
    return lambda query: list(ids)


def test_functions_side_by_side():
    report = evaluate({"good": always("a", "b", "c"), "bad": always("z", "a")}, CASES, ks=(1, 3))
    assert report.metrics == ("recall@1", "recall@3", "hit@1", "hit@3", "mrr@10", "ndcg@10")
    assert report.mean("good", "recall@1") == pytest.approx((1 + 0 + 0) / 3)
    assert report.mean("good", "recall@3") == pytest.approx((1 + 1 + 0.5) / 3)
    assert report.mean("good", "mrr@10") == pytest.approx((1 + 1 / 2 + 1 / 3) / 3)
    assert report.mean("good", "recall@3", category="hard") == 0.5
    assert report.gain("bad", "recall@3").mean == pytest.approx((1 + 0 + 0) / 3 - (1 + 1 + 0.5) / 3)
    assert report.gain("good", "recall@3").mean == 0.0
    assert report.gain("good", "recall@3", over="bad").mean == 0.5
    low, high = report.latency("good")
    assert 0.0 <= low <= high


def test_cases_without_an_answer_are_left_out_and_said():
    report = evaluate(always("a"), [*CASES, Case("nothing"), Case("zero", {"a": 0.0})])
    assert (len(report.cases), report.unjudged) == (3, 2)
    assert "2 cases name nothing relevant, left out" in str(report)


def test_progress_counts_over_all_systems():
    seen = []
    evaluate({"x": always("a"), "y": always("b")}, CASES, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(number, 6) for number in range(1, 7)]


def test_outputs(tmp_path):
    report = evaluate({"good": always("a", "b", "c"), "a|b": always("z")}, CASES, ks=(1, 3), baseline="a|b")
    text = str(report)
    assert "good" in text
    assert "recall@3" in text
    assert "easy (2)" in text
    assert "good: at most 3 results for a question" in text
    data = json.loads(report.to_json(tmp_path / "report.json"))
    assert json.loads((tmp_path / "report.json").read_text()) == data
    assert data["cases"] == 3
    assert data["categories"] == {"easy": 2, "hard": 1}
    assert data["systems"]["good"]["categories"]["easy"]["recall@1"] == 0.5
    assert data["systems"]["good"]["metrics"]["mrr@10"]["mean"] == pytest.approx((1 + 1 / 2 + 1 / 3) / 3)
    markdown = report.to_markdown(tmp_path / "report.md")
    assert "| a\\|b |" in markdown
    assert markdown == (tmp_path / "report.md").read_text()
    picture = report.plot(tmp_path / "report.png")
    assert picture.read_bytes().startswith(b"\x89PNG")
    plain = evaluate(always("a"), [Case("one", {"a": 1.0})], ks=(1,))
    assert plain.plot(tmp_path / "plain.png").stat().st_size > 1000
    assert plain.to_markdown().startswith("| system |")
    assert "easy" not in str(plain)


def test_verdicts_on_arms():
    from hybridmem.evaluation.report import Report, Run

    cases = tuple(Case(str(number), {"a": 1.0}) for number in range(40))
    first, last, nothing = [("a", "b")] * 40, [("b", "a")] * 40, [("x",)] * 40

    def run(name, lists, *, arm=False):
        return Run(name, tuple(lists), (0.001,) * 40, arm=arm)

    report = Report(
        cases,
        (run("arm", last, arm=True), run("better", first), run("same", last), run("worse", nothing)),
        metrics=("mrr@10",),
    )
    assert [line.split(" its ")[0] for line in report.verdicts()] == [
        "better beats",
        "same is not clearly different from",
        "worse loses to",
    ]
    assert "better beats its best arm arm: mrr@10 +0.500" in report.to_markdown()
    parts = Report(
        cases,
        (run("whole", first), *(Run(n, tuple(li), (0.001,) * 40, of="whole") for n, li in (
            ("without spread", last), ("without gate", first)))),
        metrics=("mrr@10",),
    )  # fmt: skip
    assert parts.verdicts() == [
        "without spread: mrr@10 -0.500 [-0.500, -0.500] against whole: the stage helps",
        "no change on these cases without gate",
    ]
    with pytest.raises(ConfigError, match="'none' is not in this report: it has arm, better, same, worse"):
        report.mean("none", "mrr@10")
    with pytest.raises(ConfigError, match="'mrr@3' is not in this report: it has mrr@10"):
        report.mean("arm", "mrr@3")
    with pytest.raises(ConfigError, match="'hard' is not in this report: it has none"):
        report.mean("arm", "mrr@10", category="hard")


class Fixed(BaseRetriever):
    docs: list[Document]

    def _get_relevant_documents(self, query, *, run_manager):
        return self.docs


class FixedNodes(LlamaRetriever):
    def _retrieve(self, query_bundle):
        return [NodeWithScore(node=TextNode(id_="a", text="A", metadata={"key": "b"}), score=1.0)]


def test_framework_retrievers():
    documents = [Document("x", id="a"), Document("y", metadata={"key": "b"}), Document("c")]
    systems = {"lc": Fixed(docs=documents), "li": FixedNodes()}
    by_id = evaluate(systems, CASES)
    assert [run.lists[0] for run in by_id.runs] == [("a", "y", "c"), ("a",)]
    by_key = evaluate(systems, CASES, id_key="key")
    assert [run.lists[0] for run in by_key.runs] == [("a", "b", "c"), ("b",)]
    assert evaluate(Fixed(docs=documents), CASES).runs[0].name == "Fixed"


def test_ids_of_results():
    assert result_id("m1") == "m1"
    assert result_id({"id": 7}) == "7"
    assert result_id({"key": "k"}, id_key="key") == "k"
    assert result_id(Document("text", metadata={"id": "m"})) == "m"
    assert result_id(TextNode(id_="n", text="")) == "n"
    with pytest.raises(ConfigError, match="no id in a result of type object"):
        result_id(object())


def test_a_remark_about_several_systems_is_one_line():
    from hybridmem.evaluation.report import Report, Run

    cases = (Case("q", {"a": 1.0}),)
    few, slow = "few results", "slow"
    runs = [
        Run("arm", (("a",),), (0.001,), notes=(few,), arm=True),
        Run("fused", (("a",),), (0.001,), notes=(few,)),
        Run("without gate", (("a",),), (0.001,), notes=(few, slow), of="fused"),
    ]
    report = Report(cases, tuple(runs), metrics=("mrr@10",), unjudged=1)
    assert report.notes() == [
        "arm, fused: few results",
        "without gate: slow",
        "1 case names nothing relevant, left out",
    ]


def test_as_of_reaches_those_who_can():
    day = datetime(2024, 5, 1, tzinfo=timezone.utc)
    seen = []

    def dated(query, as_of=None):
        seen.append(as_of)
        return ["a"]

    report = evaluate({"dated": dated, "plain": always("a")}, [Case("q", {"a": 1.0}, as_of=day), CASES[0]])
    assert seen == [day, None]
    assert report.runs[0].notes == ("at most 1 result for a question, which limits recall beyond that",)
    assert "1 dated cases were asked without it" in report.runs[1].notes[1]


def test_bad_input():
    with pytest.raises(ConfigError, match="one of ks = 0 is not allowed"):
        evaluate(always("a"), CASES, ks=(0,))
    with pytest.raises(ConfigError, match="no systems"):
        evaluate({}, CASES)
    with pytest.raises(ConfigError, match="none of the 1 cases"):
        evaluate(always("a"), [Case("q")])
    with pytest.raises(ConfigError, match="baseline 'y': must be one of x"):
        evaluate({"x": always("a")}, CASES, baseline="y")
    with pytest.raises(ConfigError, match="is a int"):
        evaluate({"x": 3}, CASES)


def test_cases_from_jsonl(tmp_path):
    path = tmp_path / "cases.jsonl"
    path.write_text(
        '{"query": "one", "relevant": ["a", "b"]}\n\n'
        '{"query": "two", "relevant": {"a": 2}, "category": "hard", "as_of": "2024-05-01T12:00:00Z", "id": 5}\n'
        '{"query": "three"}\n'
    )
    assert load_cases(path) == [
        Case("one", {"a": 1.0, "b": 1.0}),
        Case("two", {"a": 2.0}, "hard", datetime(2024, 5, 1, 12, tzinfo=timezone.utc), "5"),
        Case("three"),
    ]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "cases.jsonl:1: not JSON"),
        ("[1]", "must be a JSON object"),
        ('{"relevant": ["a"]}', "query is None"),
        ('{"query": "q", "relevant": "a"}', "relevant is 'a'"),
        ('{"query": "q", "relevant": {"a": "high"}}', "grades must be numbers"),
        ('{"query": "q", "as_of": "soon"}', "as_of is 'soon'"),
    ],
)
def test_broken_jsonl_names_the_line(tmp_path, line, message):
    path = tmp_path / "cases.jsonl"
    path.write_text(line)
    with pytest.raises(ConfigError, match=message):
        load_cases(path)


@pytest.mark.parametrize("layout", ["qrels.tsv", "qrels/test.tsv"])
def test_beir_folder(tmp_path, layout):
    key = "id" if layout == "qrels.tsv" else "_id"
    (tmp_path / "corpus.jsonl").write_text(f'{{"{key}": "d1", "title": "T", "text": "one"}}\n')
    (tmp_path / "queries.jsonl").write_text(
        f'{{"{key}": "q1", "text": "what", "category": "c"}}\n{{"{key}": "q2", "text": "x"}}\n'
    )
    qrels = tmp_path / layout
    qrels.parent.mkdir(exist_ok=True)
    qrels.write_text("query-id\tcorpus-id\tscore\nq1\td1\t2\n\n")
    assert load_cases(tmp_path) == [Case("what", {"d1": 2.0}, "c", id="q1"), Case("x", id="q2")]
    assert list(load_corpus(tmp_path)) == [{"id": "d1", "title": "T", "text": "one"}]


def test_broken_folders(tmp_path):
    with pytest.raises(ConfigError, match="neither"):
        load_cases(tmp_path)
    (tmp_path / "qrels.tsv").write_text("header\nq1 d1 1\n")
    with pytest.raises(ConfigError, match=r"qrels.tsv:2: 'q1 d1 1'"):
        load_cases(tmp_path)
    (tmp_path / "qrels.tsv").write_text("header\n")
    with pytest.raises(ConfigError, match="cannot read"):
        load_cases(tmp_path)
    (tmp_path / "corpus.jsonl").write_text('{"text": "one"}\n')
    with pytest.raises(ConfigError, match="a document needs an id; it has text"):
        list(load_corpus(tmp_path))


def test_ready_systems_and_odd_functions():
    class Odd:
        __signature__ = "none that can be read"

        def __call__(self, query):
            return ["a"]

    ready = System("ready", lambda case, k: ["a"] * k, arm=True)
    report = evaluate({"": ready, "odd": Odd()}, CASES)
    assert [(run.name, run.arm) for run in report.runs] == [("ready", True), ("odd", False)]
    assert "odd is not clearly different from its best arm ready" in str(report)


def test_a_picture_needs_matplotlib(tmp_path, monkeypatch):
    report = evaluate(always("a"), CASES)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'hybridmem\[plot\]'"):
        report.plot(tmp_path / "report.png")
