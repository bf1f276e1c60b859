"""Several namespaces searched as one."""

import pytest

from hybridmem import HybridMemory
from hybridmem.core.protocols import View
from hybridmem.errors import StoreError
from hybridmem.stores.spanning import SpanningStore, join_id, split_id


@pytest.fixture
def memory():
    with HybridMemory(embedder=None) as opened:
        opened.namespace("users/ana").add_many([{"text": "Ana's cat is called Pixel", "id": "m1", "thread": "t"}])
        opened.namespace("users/bob").add_many([{"text": "Bob's dog is called Rex", "id": "m1", "thread": "t"}])
        opened.namespace("usersx").add("Xaver's cat is called Tom", id="m1")
        yield opened


def ids(memory, query, **how):
    return [split_id(result.id) for result in memory.search(query, **how)]


@pytest.mark.parametrize(("namespace", "id"), [("", ""), ("a:b", "1:2"), ("12", "3"), ("日本", "é")])
def test_ids_are_reversible(namespace, id):
    assert split_id(join_id(namespace, id)) == (namespace, id)


def test_one_list_over_the_namespaces_below_a_prefix(memory):
    users = memory.spanning("users")
    assert ids(users, "cat") == [("users/ana", "m1")]
    assert set(ids(users, "called")) == {("users/ana", "m1"), ("users/bob", "m1")}
    assert ("usersx", "m1") in ids(memory.spanning(), "cat")
    assert len(users) == 2


def test_it_follows_writes_new_namespaces_and_deletions(memory):
    users = memory.spanning("users")
    assert ids(users, "parrot") == []
    memory.namespace("users/eve").add("Eve has a parrot", id="p")
    assert ids(users, "parrot") == [("users/eve", "p")]
    memory.namespace("users/eve").forget("p")
    assert ids(users, "parrot") == []


def test_threads_of_two_namespaces_stay_apart(memory):
    stored = memory.spanning("users").get(join_id("users/ana", "m1"))
    assert stored.thread == join_id("users/ana", "t")


def test_filters_explanations_and_links(memory):
    ana = memory.namespace("users/ana")
    ana.add("She feeds him tuna", id="m2", tags=("food",))
    ana.link("m1", "m2")
    users = memory.spanning("users")
    assert ids(users, "tuna called", filter={"tags": "food"}) == [("users/ana", "m2")]
    assert ids(users, "called", filter={"id": join_id("users/bob", "m1")}) == [("users/bob", "m1")]
    why = users.explain("parrot").why_not(join_id("users/ana", "m1"))
    assert why
    edges = SpanningStore(memory.store, lambda name: True).edges(view=View())
    assert [(split_id(edge.a)[1], split_id(edge.b)[1]) for edge in edges] == [("m1", "m2")]


def test_it_cannot_be_written_to(memory):
    with pytest.raises(StoreError, match="read-only"):
        memory.spanning("users").add("x")
    with pytest.raises(StoreError, match="read-only"):
        memory.spanning("users").forget("x")


def test_changed_namespaces(memory):
    seq = memory.store.last_seq()
    assert memory.store.changed_namespaces(seq) == []
    memory.namespace("users/bob").forget("m1")
    memory.namespace("b").add("x")
    assert memory.store.changed_namespaces(seq) == ["b", "users/bob"]
    assert memory.store.changed_namespaces(0) == ["b", "users/ana", "users/bob", "usersx"]


def test_expired_memories_leave_the_list_namespace_by_namespace():
    now = [0.0]
    with HybridMemory(embedder=None, clock=lambda: now[0]) as memory:
        memory.namespace("users/ana").add("a tea", id="a", ttl=10)
        memory.namespace("users/bob").add("b tea", id="b", ttl=20)
        memory.namespace("users/eve").add("e tea", id="e")
        memory.namespace("other").add("o tea", id="o", ttl=10)
        users = memory.spanning("users")
        left = []
        for now[0] in (5.0, 10.0, 15.0, 20.0):
            left.append({id_ for _, id_ in ids(users, "tea")})
        assert left == [{"a", "b", "e"}, {"b", "e"}, {"b", "e"}, {"e"}]
        memory.namespace("users/eve").add("new tea", id="n", ttl=1)
        assert {id_ for _, id_ in ids(users, "tea")} == {"e", "n"}
        now[0] = 30.0
        assert {id_ for _, id_ in ids(users, "tea")} == {"e"}
        assert [version.deleted for version in memory.namespace("other").history("o")] == [False]
