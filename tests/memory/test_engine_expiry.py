"""Expiry without a sweep: what has expired is in no search, list, count, graph or statistic; the past still has it."""

import itertools
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridmem import HybridMemory
from hybridmem.errors import ConfigError, NotFoundError

START = 1_700_000_000.0


class Clock:
    def __init__(self):
        self.now = START

    def __call__(self):
        return self.now


def opened(path, clock):
    return HybridMemory(path, embedder=None, clock=clock)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture(params=["sqlite", "markdown"])
def memory(request, tmp_path, clock):
    path = tmp_path / "m.db" if request.param == "sqlite" else f"{tmp_path}/notes/"
    with opened(path, clock) as one:
        yield one


def ids(results):
    return [result.id for result in results]


def test_an_expired_memory_is_nowhere_from_that_moment_on(memory, clock):
    memory.add("the cat sleeps", id="a", ttl=10)
    memory.add("the cat eats", id="b", ttl=timedelta(seconds=20))
    memory.add("the cat plays", id="c")
    memory.link("a", "c")
    clock.now = START + 9.999
    assert sorted(ids(memory.search("cat"))) == ["a", "b", "c"]
    assert memory.stats().expiring == 2
    clock.now = START + 10
    assert sorted(ids(memory.search("cat"))) == ["b", "c"]
    assert ids(memory.search_arm("graph", "cat plays")) == ["c", "b"]
    assert [m.id for m in memory.list()] == ["b", "c"]
    assert (len(memory), memory.stats().memories, memory.stats().links) == (2, 2, 0)
    with pytest.raises(NotFoundError):
        memory.get("a")
    with pytest.raises(NotFoundError):
        memory.update("a", text="again")
    assert memory.explain("cat").why_not("a") == "a: it has expired"
    assert memory.history("a")[0].memory.text == "the cat sleeps"
    clock.now = START + 20
    assert [m.id for m in memory.list()] == ["c"]  # a list alone notices it too
    assert memory.check() == []


def test_statistics_are_those_of_a_store_without_it(memory, clock, tmp_path):
    for n in range(4):
        memory.add(f"cat number {n}", id=f"a{n}", ttl=10)
    memory.add("the cat and the dog", id="b")
    memory.add("a dog", id="c")
    clock.now = START + 11
    with opened(tmp_path / "other.db", clock) as other:
        clock.now = START
        other.add("the cat and the dog", id="b")
        other.add("a dog", id="c")
        clock.now = START + 11
        expected = [(r.id, r.score) for r in other.search_arm("bm25", "cat dog")]
        assert [(r.id, r.score) for r in memory.search_arm("bm25", "cat dog")] == expected


def test_as_of_before_its_end_still_sees_it(memory, clock):
    memory.add("the cat", id="a", ttl=10)
    clock.now = START + 100
    assert memory.search("cat") == []
    for moment, found in ((5, ["a"]), (9.5, ["a"]), (10, []), (50, [])):
        assert ids(memory.search("cat", as_of=START + moment)) == found
        assert [m.id for m in memory.list(as_of=START + moment)] == found


def test_a_longer_life_in_time_and_a_second_life(memory, clock):
    memory.add("the cat", id="a", ttl=10)
    clock.now = START + 5
    memory.update("a", expires_at=START + 100)
    clock.now = START + 50
    assert ids(memory.search("cat")) == ["a"]
    clock.now = START + 100
    assert memory.search("cat") == []
    memory.add("the cat", id="a")
    assert ids(memory.search("cat")) == ["a"]
    assert memory.get("a").expires_at is None


def test_sweep_forgets_or_erases(memory, clock):
    memory.add("the cat", id="a", ttl=10)
    memory.add("the dog", id="b")
    assert memory.sweep() == 0
    clock.now = START + 10
    assert memory.sweep() == 1
    assert memory.sweep() == 0  # each is counted once
    assert len(memory.history("a")) == 2
    assert memory.sweep(erase=True) == 1
    assert memory.history("a") == []
    assert memory.sweep(erase=True) == 0
    assert [m.id for m in memory.list()] == ["b"]


def test_a_sweep_counts_what_a_search_has_removed_and_what_expires_again(memory, clock):
    memory.add("the cat", id="a", ttl=10)
    clock.now = START + 10
    assert memory.search("cat") == []
    assert [memory.sweep(), memory.sweep()] == [1, 0]
    memory.add("the cat", id="a", ttl=10)
    memory.add("the dog", id="b", ttl=5)
    memory.erase("b")
    clock.now = START + 20
    assert [memory.sweep(), memory.sweep()] == [1, 0]


def test_notes_stay_until_a_sweep(tmp_path, clock):
    with opened(f"{tmp_path}/notes/", clock) as memory:
        memory.add("the cat", id="a", ttl=10)
        note = next((tmp_path / "notes").glob("*.md"))
        clock.now = START + 10
        assert memory.search("cat") == []
        assert note.exists()
        memory.sweep()
        assert not note.exists()


@pytest.mark.parametrize("ttl", [0, -1, "soon", float("nan"), True, timedelta(0), 1e30, timedelta.max], ids=repr)
def test_a_lifetime_is_a_number_of_seconds_above_0(memory, ttl):
    with pytest.raises(ConfigError, match=r"ttl = .* is not allowed: seconds above 0, 1,000 years at"):
        memory.add("x", ttl=ttl)


KINDS = ("sqlite", "markdown", "postgres")
_numbers = itertools.count()


@pytest.fixture(params=KINDS)
def opener(request, tmp_path_factory):
    """A function that makes an empty store, and returns a function that opens it again."""

    def empty():
        folder, number = tmp_path_factory.mktemp("m"), next(_numbers)
        if request.param == "postgres":
            path, options = request.getfixturevalue("pg_url"), {"schema": request.getfixturevalue("schema")}
        else:
            path, options = folder / "m.db" if request.param == "sqlite" else f"{folder}/notes/", {}
        namespace = f"n{number}" if request.param == "postgres" else ""
        return lambda clock: HybridMemory(path, embedder=None, clock=clock, namespace=namespace, **options)

    return empty


STEPS = st.lists(
    st.tuples(st.sampled_from(["add", "forget", "wait", "sweep", "reopen"]), st.integers(0, 5), st.integers(1, 9)),
    max_size=12,
)


@settings(max_examples=20)
@given(steps=STEPS, moment=st.integers(0, 11))
def test_any_sequence_gives_what_a_model_gives(opener, steps, moment):
    clock, reopened = Clock(), opener()
    memory, model, past = reopened(clock), {}, []
    for verb, key, seconds in steps:
        clock.now += 0.25
        if verb == "add":
            memory.add(f"cat {key}", id=str(key), ttl=seconds)
            model[str(key)] = clock.now + seconds
        elif verb == "forget":
            memory.forget(str(key))
            model.pop(str(key), None)
        elif verb == "wait":
            clock.now += seconds
        elif verb == "sweep":
            memory.sweep()
            assert memory.sweep() == 0
        else:
            memory.close()
            memory = reopened(clock)
        alive = sorted(key for key, end in model.items() if end > clock.now)
        assert sorted(ids(memory.search("cat", k=10))) == alive
        assert [m.id for m in memory.list()] == alive
        past.append((clock.now, alive))
    clock.now += 20
    for at, alive in past[moment : moment + 1]:
        assert sorted(ids(memory.search("cat", k=10, as_of=at))) == alive
    assert memory.check() == []
    memory.close()


TEXTS = st.sampled_from(["a cat", "A  Cat", "a dog"])
ADDS = st.lists(st.tuples(st.sampled_from(["keep", "skip", "merge"]), TEXTS, st.sampled_from(["t", None])), max_size=8)


@settings(max_examples=20)
@given(adds=ADDS)
def test_duplicates_are_kept_skipped_or_merged_on_every_store(opener, adds):
    """The model: for each text (without case and spaces) and thread, the ids that are stored."""
    clock, model, number = Clock(), {}, 0
    with opener()(clock) as memory:
        for mode, text, thread in adds:
            clock.now += 1
            stored = model.setdefault((" ".join(text.casefold().split()), thread), [])
            id_ = memory.add(text, id=f"m{number}", thread=thread, tags=(f"g{number}",), on_duplicate=mode)
            if mode == "keep" or not stored:
                stored.append(f"m{number}")
                assert id_ == f"m{number}"
            else:
                assert id_ in stored
                assert (f"g{number}" in memory.get(id_).tags) == (mode == "merge")
            number += 1
        assert sorted(m.id for m in memory.list()) == sorted(id_ for ids_ in model.values() for id_ in ids_)
