"""The graph in the server: neighbours of the seeds, and names mentioned in texts, as the index in memory has them."""

import pytest

from hybridmem import HybridMemory, Memory
from hybridmem.core.protocols import View
from hybridmem.core.types import Edge
from hybridmem.indexes.graph.index import GraphSettings
from hybridmem.stores.postgres.search.graph import ServerGraph, link_tables
from tests.support.store_histories import embed

NOW = View()

MEMORIES = [
    Memory("Ed Wood is a film that was directed by Tim Burton.", id="film", title="Ed Wood (film)"),
    Memory("An American artist, born in Burbank.", id="director", title="Tim Burton"),
    Memory("A city in California.", id="city", title="Burbank", metadata={"aliases": ["Media capital"]}),
    Memory("I saw [[Ed Wood|that biopic]] in the Média Capital.", id="diary"),
    Memory("She liked that biopic, too.", id="reply"),
    Memory("Another Tim Burton.", id="namesake", title="Tim Burton"),
    *(Memory(f"an unrelated note about gardening {n}", id=f"n{n}") for n in range(60)),
]
QUESTIONS = ("the birthplace of the person who directed the film Ed Wood", "what did she like", "diary biopic saw")


@pytest.fixture
def both(pg_url, schema):
    with HybridMemory(embedder=None) as local, HybridMemory(pg_url, schema=schema, embedder=None) as server:
        for memory in (local, server):
            memory.add_many(MEMORIES)
        yield local, server


def found(memory, question):
    """Results of the default recipe and of the graph arm."""
    fused, arm = memory.search(question, k=8), memory.search_arm("graph", question, k=8)
    return [[(result.id, pytest.approx(result.score, abs=1e-6)) for result in results] for results in (fused, arm)]


@pytest.mark.parametrize("question", QUESTIONS)
def test_the_same_ids_and_scores_as_in_memory(both, question):
    local, server = both
    assert found(server, question) == found(local, question)


@pytest.mark.parametrize("question", QUESTIONS)
def test_the_same_ids_and_scores_as_in_a_folder_of_notes(both, question, tmp_path):
    with HybridMemory(tmp_path, embedder=None) as notes:
        notes.add_many(MEMORIES)
        assert found(both[1], question) == found(notes, question)


@pytest.mark.parametrize("walk", [{"direction": "forward"}, {"direction": "backward"}, {"weights": {"mentions": 0.5}}])
def test_the_server_walks_in_the_direction_and_with_the_weights_of_the_call(both, walk):
    for memory in both:
        memory.link("diary", "reply", "before")
        memory.link("city", "diary", "after", 0.7)
    local, server = (
        [(one.id, pytest.approx(one.score, abs=1e-6)) for one in memory.search_arm("graph", "saw", k=9, **walk)]
        for memory in both
    )
    assert server == local


def test_mentions_are_found(both):
    _, server = both
    assert {"film", "director", "namesake"} <= {result.id for result in server.search(QUESTIONS[0], k=4)}
    assert "film" in [result.id for result in server.search("what did she like", k=4)]  # by the label of a link


def test_names_follow_updates_and_deletes(both):
    for memory in both:
        memory.update("director", title="Timothy")
        memory.forget("namesake")
        memory.add("a late note", id="late", title="gardening 7")
    local, server = both
    for question in (*QUESTIONS, "gardening 7"):
        assert found(server, question) == found(local, question)
    assert "director" not in [result.id for result in server.search(QUESTIONS[0], k=3)]
    assert server.check() == []
    server.store.rebuild()
    assert found(server, QUESTIONS[0]) == found(local, QUESTIONS[0])


def test_erased_names_leave_no_row(both):
    _, server = both
    server.erase("film", "diary")
    with server.store._db.write(alone=True) as conn:
        rows = conn.raw.execute("SELECT id, name FROM names ORDER BY id").fetchall()
    assert ("film", "ed wood") not in rows
    assert all(id_ not in ("film", "diary") for id_, _ in rows)


@pytest.fixture
def memory(pg_url, schema):
    with HybridMemory(pg_url, schema=schema, embedder=embed, pool_size=4) as memory:
        yield memory


def asked_of(space):
    """The statements that a space runs from now on."""
    asked, run = [], space._run
    space._run = lambda statement: asked.append(statement.text) or run(statement)
    return asked


class TestNeighbours:
    def graph(self, memory, links, settings=GraphSettings()):  # noqa: B008
        space = memory._engine.search_view(NOW)
        return ServerGraph("", settings, space._run, items=space.entries, cache=space._cache, beyond_threads=links)

    @pytest.mark.parametrize("hops", [1, 2, 3])
    def test_threads_alone_need_no_recursion(self, memory, hops):
        for n in range(12):
            memory.add(f"turn {n}{'?' * (n % 3 == 0)}", id=f"m{n:02}", thread="t", created_at=1_600_000_000 + n // 2)
        memory.add("alone", id="alone")
        memory.add("turn 4 again", id="next", thread="t", created_at=1_600_000_002, supersedes="m04")
        seeds = {"m03": 1.0, "m09": 0.5, "alone": 0.3, "gone": 1.0}
        ways = [self.graph(memory, more).spread(seeds, hops=hops) for more in (False, True)]
        assert ways[0] == ways[1]
        assert len(ways[0]) >= 2 * hops

    def test_links_are_seen_once_they_are_there(self, memory):
        for n in range(4):
            memory.add(f"turn {n}", id=f"m{n}", thread="t")
        memory.add("far away", id="far")
        space = memory._engine.search_view(NOW)
        asked = asked_of(space)
        assert set(space.graph().spread({"m0": 1.0})) == {"m1", "m2"}
        assert not any("RECURSIVE" in text for text in asked)
        memory.store.link([Edge("m0", "far")])
        space.refresh()
        assert set(space.graph().spread({"m0": 1.0})) == {"m1", "m2", "far"}
        assert set(space.graph().spread({"far": 1.0})) == {"m0", "m1"}

    @pytest.mark.parametrize("fields", [{"entities": ("Ana",)}, {"metadata": {"links": ["m1"]}}])
    def test_entities_and_pointers_are_more(self, memory, fields):
        memory.add("one", id="m0", **fields)
        memory.add("two", id="m1", entities=("Ana",) if "entities" in fields else ())
        assert set(memory._engine.search_view(NOW).graph(threads=False).spread({"m0": 1.0})) == {"m1"}

    def test_what_does_not_count_is_not_looked_for(self, memory):
        memory.add("one", id="m0", entities=("Ana",), thread="t")
        memory.add("two", id="m1", entities=("Ana",), thread="t")
        settings = GraphSettings(explicit=0, metadata=0, shared=0, thread=0)
        assert link_tables(settings) == []
        assert self.graph(memory, False, settings).spread({"m0": 1.0}) == {}
