"""Names mentioned in texts: the server finds what the index in memory finds, with the same scores."""

import pytest

from hybridmem import HybridMemory, Memory

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
