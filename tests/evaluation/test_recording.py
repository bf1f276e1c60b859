from dataclasses import replace

import pytest

from hybridmem.core.protocols import View
from hybridmem.evaluation.evaluate import Case, evaluate
from hybridmem.evaluation.recording import Curve, memory_curve, memory_recorder, memory_systems, replay, variants
from hybridmem.fusion.recipe import Fusion
from hybridmem.fusion.stages import Conflicts, Pack
from hybridmem.memory.memory import HybridMemory


def vectors(texts):
    return [[1.0 + text.lower().count(letter) for letter in "abcdefghijklmnopqrstuvwxyz"] for text in texts]


TOWNS = ["Lisbon", "Oslo", "Quito", "Hanoi"]
CASES = [Case(f"Was the harbour of {town} open?", {f"a{number}": 1.0}, "towns") for number, town in enumerate(TOWNS)]


@pytest.fixture
def memory():
    with HybridMemory(embedder=vectors) as opened:
        for number, town in enumerate(TOWNS):
            opened.add(f"Have you seen {town}?", id=f"q{number}", thread=town, created_at=f"2024-0{number + 1}-01")
            opened.add(
                "Yes, its harbour was closed.", id=f"a{number}", thread=town, created_at=f"2024-0{number + 1}-01"
            )
        yield opened


def test_a_memory_is_measured_by_arm_fused_and_by_stage(memory):
    report = evaluate(memory, CASES, ks=(1, 3))
    names = [run.name for run in report.runs]
    assert names[:3] == ["bm25", "vector", "fused"]
    assert "without evidence" in names
    assert "without thread evidence" in names
    assert [run.name for run in report.runs if run.arm] == ["bm25", "vector"]
    # the answer does not name the town: only its neighbour, the question, does
    assert report.mean("fused", "recall@3") > report.mean("without evidence", "recall@1")
    assert "fused" in str(report)
    alone = evaluate({"mine": memory}, CASES, ks=(1,), stages=False)
    assert [run.name for run in alone.runs] == ["mine bm25", "mine vector", "mine fused"]


def test_replaying_gives_what_searching_gives(memory):
    record = memory_recorder(memory, depth=100)
    for case in CASES:
        found = [result.id for result in memory.search(case.query, k=5)]
        assert replay(memory.recipe, record(case), query=case.query, k=5) == found


def test_other_constants_answer_as_if_opened_with_them(memory):
    mean = memory._engine.search_view(View()).bm25._state.average
    assert memory_curve(memory) == Curve(1.2, 0.75 * mean / (mean + 12))
    with HybridMemory(embedder=vectors, k1=2.0, b=0.1) as other:
        other.add_many(sorted(memory.list(), key=lambda m: m.id, reverse=True))  # questions before their answers
        assert memory_curve(other) == Curve(2.0, 0.1)
        record, direct = memory_recorder(memory, depth=20, curve=Curve(2.0, 0.1)), memory_recorder(other, depth=20)
        for case in CASES:
            mine, oracle = record(case), direct(case)
            for a, b in zip(mine.lists, oracle.lists, strict=True):
                assert [entry.id for entry in a.items] == [entry.id for entry in b.items]
                assert list(a.scores) == pytest.approx(list(b.scores))
                assert a.baseline == pytest.approx(b.baseline)


def test_variants_leave_one_stage_out():
    recipe = Fusion(complete=True, conflicts=Conflicts(), pack=Pack(), extra=(lambda ranking, _: ranking,))
    assert dict(variants(recipe)) == {
        "without conflicts": replace(recipe, conflicts=None),
        "without complete": replace(recipe, complete=False),
        "without extra": replace(recipe, extra=()),
    }
    assert dict(variants(Fusion())) == {}


def test_as_of_reaches_the_memory(memory):
    systems = memory_systems(memory, stages=False)
    past = Case(CASES[0].query, as_of=memory.history("q0")[0].memory.created_at)
    assert all(list(system.ask(past, 3)) == [] for system in systems)  # in January nothing had been written yet
    assert all(system.dated for system in systems)
