"""What agents may do with a memory, without any framework: texts, data, limits and refusals."""

import pytest

from hybridmem import HybridMemory
from hybridmem.memory.tools import MemoryTools, ToolInputError, below

NOW = [1_700_000_000.0]


@pytest.fixture
def memory():
    NOW[0] = 1_700_000_000.0
    with HybridMemory(embedder=None, clock=lambda: NOW[0]) as opened:
        yield opened


@pytest.fixture
def tools(memory):
    return MemoryTools(memory=memory)


def test_a_search_has_a_text_and_the_same_as_data(memory, tools):
    memory.add("Ana's cat is called Pixel", id="m1", tags=("pet",), speaker="Ana", title="Cat", expires_at=NOW[0] + 10)
    answer = tools.search("cat")
    assert "[m1, 2023-11-14, Ana] Cat: Ana's cat is called Pixel" in answer.text
    (one,) = answer.data["memories"]
    assert (one["id"], one["title"], one["speaker"], one["tags"]) == ("m1", "Cat", "Ana", ["pet"])
    assert one["created_at"].startswith("2023-11-14T22:13:20")
    assert one["expires_at"].startswith("2023-11-14T22:13:30")
    assert 0 < one["score"] <= 1
    assert tools.search("quantum").text == "Nothing relevant is remembered."


async def test_the_async_twins(tools):
    saved = await tools.asave("Ana likes tea", tags=["drink"], thread="t")
    assert (await tools.asearch("tea")).data["memories"][0]["thread"] == "t"
    assert (await tools.asave("ANA likes  tea", thread="t")).data["id"] == saved.data["id"]
    with pytest.raises(ToolInputError, match="to replace"):
        await tools.asave("x", replaces="m9")
    assert (await tools.aforget(saved.data["id"])).data == {"id": saved.data["id"], "forgotten": True}
    with pytest.raises(ToolInputError, match="there is no memory"):
        await tools.aforget(saved.data["id"])


def test_as_of_and_replaces(tools):
    old = tools.save("Ana lives in Porto").data["id"]
    NOW[0] += 86_400
    new = tools.save("Ana lives in Lisbon", replaces=old).data
    assert new["replaced"] == old
    assert [one["text"] for one in tools.search("Ana lives").data["memories"]] == ["Ana lives in Lisbon"]
    assert "Porto" in tools.search("Ana lives", as_of="2023-11-15").text
    again = tools.save("Ana lives in Lisbon", replaces=new["id"]).data["id"]  # a correction is always recorded
    assert again != new["id"]


def test_why_not(memory, tools):
    memory.add_many([{"text": "Ana likes tea", "id": "tea"}, {"text": "Bob likes chess", "id": "chess"}])
    assert tools.why_not("tea", "tea").data["place"] == 1
    assert tools.why_not("tea", "tea").text == "It is returned: number 1 of 1."
    missing = tools.why_not("tea", "chess")
    assert (missing.data["returned"], missing.data["place"]) == (False, None)
    assert "no such memory" in tools.why_not("tea", "m9").text


def test_pages(memory, tools):
    memory.add_many([{"text": f"note {n}", "id": f"m{n}"} for n in range(5)])
    seen, after = [], None
    for _ in range(4):
        page = tools.list(limit=2, after=after)
        seen.append([one["id"] for one in page.data["memories"]])
        after = page.data["next"]
        if after is None:
            break
    assert seen == [["m0", "m1"], ["m2", "m3"], ["m4"]]
    assert tools.list(limit=2, after="m4").text == "There are no more memories."
    assert MemoryTools(memory=memory.namespace("empty")).list().text == "Nothing relevant is remembered."
    assert tools.get("m1").text == "note 1"
    with pytest.raises(ToolInputError):
        tools.get("m9")


def test_filter_and_confidence_are_the_owners(memory):
    memory.add_many([{"text": "red tea", "tags": ("a",), "id": "1"}, {"text": "green tea", "tags": ("b",), "id": "2"}])
    tools = MemoryTools(memory=memory, filter={"tags": "a"}, k=5)
    assert [one["id"] for one in tools.search("tea").data["memories"]] == ["1"]
    assert [one["id"] for one in tools.list().data["memories"]] == ["1"]
    assert [one["id"] for one in tools.list(after="1").data["memories"]] == []
    assert MemoryTools(memory=memory, min_confidence=1.0).search("tea of entangled bosons").data == {"memories": []}


@pytest.mark.parametrize("wrong", [0, -1, 101])
def test_limits(tools, wrong):
    with pytest.raises(ToolInputError, match="from 1 to 100"):
        tools.search("x", k=wrong)
    with pytest.raises(ToolInputError, match="from 1 to 100"):
        tools.list(limit=wrong)


@pytest.mark.parametrize("ttl", [0, -1, float("inf"), float("nan"), 1e30])
def test_a_lifetime_is_above_zero(tools, ttl):
    with pytest.raises(ToolInputError, match="ttl"):
        tools.save("x", ttl=ttl)


def test_no_session_reaches_into_another():
    names = {below(base, session) for base, session in [("", "a/b"), ("a", "b"), ("", "a%2Fb"), ("a/b", ""), ("", "a")]}
    assert len(names) == 5
