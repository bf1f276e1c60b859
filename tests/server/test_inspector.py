"""The inspector's server: which requests it answers, what it answers, and how it bounds connections."""

import http.client
import json
import socket
import time

import pytest

from hybridmem import Fusion, HybridMemory, Memory
from hybridmem.errors import ConfigError
from hybridmem.fusion.explain import Explanation
from hybridmem.retrievers.arms import Explainer
from hybridmem.server import inspector as server
from hybridmem.server.controls import changed_recipe
from hybridmem.server.inspector import Inspector

WORDS = ["cat", "dog", "sofa", "exports"]


def toy(texts):
    return [[float(text.lower().count(word)) for word in WORDS] + [0.2] for text in texts]


@pytest.fixture(scope="module")
def memory():
    with HybridMemory(embedder=toy) as opened:
        opened.add_many(
            [
                Memory("Where does the cat sleep?", id="ask", thread="t"),
                Memory("On the sofa.", id="answer", thread="t"),
                Memory("It likes that place.", id="likes", thread="t"),
                Memory("cat cat cat: nothing but the cat", id="many"),
                Memory("A long tale about one cat, its owner, the house, the garden and the weather", id="tale"),
                Memory("POST /v2/exports <b>fails</b> with E0427", id="ticket", tags=("incident",)),
            ]
        )
        opened.update("many", text="cat cat cat: all of it about the cat")
        opened.namespace("ana").add("Ana's cat is called Pixel.", id="pixel")
        opened.namespace("ben").add("Ben has a cat too.", id="tom")
        yield opened


def request(inspector, method, path, body=None, **headers):
    connection = http.client.HTTPConnection("127.0.0.1", inspector.port, timeout=30)
    connection.request(method, path, body, headers)
    answer = connection.getresponse()
    data = answer.read()
    connection.close()
    return answer.status, data, dict(answer.getheaders())


def post(inspector, action, body):
    raw = body if isinstance(body, bytes) else json.dumps(body)
    status, data, _ = request(inspector, "POST", f"/{inspector.token}/api/{action}", raw)
    return status, json.loads(data)


@pytest.fixture
def page(memory):
    with Inspector(memory) as inspector:
        yield inspector


# --- who is answered


def test_only_the_token_and_the_own_host_are_answered(memory):
    with Inspector(memory) as inspector:
        home = f"/{inspector.token}/"
        status, page, headers = request(inspector, "GET", home)
        assert status == 200
        assert b"hybridmem" in page
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        assert "unsafe" not in headers["Content-Security-Policy"]
        for name in ("inspector.css", "inspector.js", "inspector_draw.js"):
            assert request(inspector, "GET", home + name)[0] == 200
            assert request(inspector, "GET", f"/{name}")[0] == 404
        for path in ("/", "/wrong/", f"{home}../etc/passwd", f"{home}inspector.py", f"{home}api/search", f"/x{home}"):
            assert request(inspector, "GET", path)[0] == 404
        assert request(inspector, "GET", home, Host="evil.example")[0] == 404
        assert request(inspector, "POST", f"{home}api/start", "{}", Host="evil.example")[0] == 404
        assert request(inspector, "POST", "/wrong/api/start", "{}")[0] == 404
        assert request(inspector, "POST", f"{home}api/erase", "{}")[0] == 404
        for bare in ("start", "/start", "/api/start", "//api/start"):
            assert request(inspector, "POST", bare, "{}")[0] == 404
        for size in ("-1", "many", "99999999999"):
            assert request(inspector, "POST", f"{home}api/start", "{}", **{"Content-Length": size})[0] == 404
        assert inspector.url == f"http://127.0.0.1:{inspector.port}{home}"
    with pytest.raises(OSError, match=r".*"):
        request(inspector, "GET", home)


def test_two_inspectors_have_two_tokens_and_a_taken_port_is_an_error(memory):
    with Inspector(memory) as one, Inspector(memory) as two:
        assert one.token != two.token
        with pytest.raises(ConfigError, match=str(one.port)):
            Inspector(memory, port=one.port)


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"\xff\xfe",
        b"[]",
        b"1",
        b"[" * 100_000,
        b'{"query": ' + b'{"a": ' * 50_000,
        b'{"query": "cat", "k": 1e400}',
        b'{"query": "cat", "k": -1e400}',
        b'{"query": "cat", "k": NaN}',
        b'{"query": "cat", "k": Infinity}',
        b'{"query": "cat", "k": ' + b"9" * 5000 + b"}",
        b'{"query": "cat", "k": 0}',
        b'{"query": "cat", "k": 1.5}',
        b'{"query": "cat", "k": "8"}',
        b'{"query": 7}',
        b'{"query": "cat", "changes": [1]}',
        b'{"query": "cat", "changes": {"mode": "sum"}}',
        b'{"query": "cat", "changes": {"weights/bm25": 1e999}}',
        b'{"query": "cat", "base": 3}',
        b'{"query": "cat", "base": {"unknown": 3}}',
        b'{"query": "cat", "filter": {"tags": {"$near": 1}}}',
        b'{"query": "cat", "as_of": "some day"}',
        b'{"query": "cat", "namespace": "ana"}',
        b'{"query": "cat", "namespace": ["ana"]}',
        b"{}",
    ],
)
def test_a_wrong_request_is_a_400_with_a_message(page, body):
    status, answer = post(page, "search", body)
    assert status == 400
    assert answer["error"]
    assert post(page, "start", {})[0] == 200  # and the server goes on


def test_idle_connections_are_bounded_and_do_not_lock_people_out(page, monkeypatch):
    monkeypatch.setattr(server, "MAX_WAITING", 4)
    idle = [socket.create_connection(("127.0.0.1", page.port), timeout=30) for _ in range(12)]
    try:
        assert post(page, "start", {})[0] == 200
        closed = 0
        deadline = time.monotonic() + 20
        while closed < 12 - 4 and time.monotonic() < deadline:
            closed = 0
            for connection in idle:
                connection.setblocking(False)
                try:
                    closed += connection.recv(1) == b""
                except BlockingIOError:
                    continue
        assert closed >= 12 - 4
    finally:
        for connection in idle:
            connection.close()


# --- what is answered


def test_the_start_has_arms_controls_and_examples(page):
    _, start = post(page, "start", {})
    assert start["arms"] == ["bm25", "vector"]
    assert start["count"] == 6
    assert start["namespaces"] == [""]
    assert start["examples"] == ["Where does the cat sleep?"]
    assert start["groups"][0]["id"] == "merge"


def test_a_search_has_the_memory_s_ranking_and_every_arm(page, memory):
    _, answer = post(page, "search", {"query": "cats on exports", "k": 4})
    explained = memory.explain("cats on exports", k=4)
    assert [one["key"] for one in answer["results"]] == [receipt.key for receipt in explained.receipts]
    for one, receipt in zip(answer["results"], explained.receipts, strict=True):
        assert sum(value for _, value, _ in one["parts"]) == pytest.approx(receipt.score)
    for arm in answer["arms"]:
        assert [hit["key"] for hit in arm["hits"]] == [hit.key for hit in explained.hits[arm["name"]]]
        assert all(hit["key"] in answer["texts"] for hit in arm["hits"])
        for hit in arm["hits"]:
            assert (hit["reason"] is None) == (hit["key"] in {one["key"] for one in answer["results"]})
    assert {"cat", "exports"} <= set(answer["words"])
    assert "on" not in answer["words"]


def test_settings_of_the_page_change_the_answer(page, memory):
    _, one = post(page, "search", {"query": "cat", "k": 1})
    assert len(one["results"]) == 1
    _, filtered = post(page, "search", {"query": "cat exports", "filter": {"tags": {"$contains": "incident"}}})
    assert [row["key"] for row in filtered["results"]] == ["ticket"]
    _, past = post(page, "search", {"query": "cat", "as_of": "2001-01-01T00:00:00"})
    assert past["results"] == []
    changes = {"weights/vector": 0, "spread": False}
    _, words = post(page, "search", {"query": "cat", "changes": changes})
    expected = memory.search("cat", recipe=_changed(memory, changes))
    assert [row["key"] for row in words["results"]] == [result.id for result in expected]
    _, plain = post(page, "search", {"query": "cat", "base": {"hybridmem": 1, "c": 20}})
    expected = memory.search("cat", recipe=Fusion(c=20))
    assert [row["key"] for row in plain["results"]] == [result.id for result in expected]


def _changed(memory, changes):
    return changed_recipe(memory.recipe, changes, memory.arms)


def test_namespaces_are_those_that_the_owner_names(memory):
    with Inspector(memory, namespaces=["ana"]) as inspector:
        _, start = post(inspector, "start", {"namespace": "ana"})
        assert (start["namespaces"], start["count"]) == (["", "ana"], 1)
        _, answer = post(inspector, "search", {"query": "cat", "namespace": "ana"})
        assert [row["key"] for row in answer["results"]] == ["pixel"]
        status, answer = post(inspector, "search", {"query": "cat", "namespace": "ben"})
        assert status == 400
        for action in ("start", "why"):
            assert post(inspector, action, {"query": "cat", "key": "tom", "namespace": "ben"})[0] == 400
        _, answer = post(inspector, "why", {"query": "cat", "key": "tom"})
        assert "Ben" not in json.dumps(answer)


def test_why_has_the_reason_the_fields_the_history_and_the_thread(page):
    _, answer = post(page, "why", {"query": "cat", "key": "many"})
    assert answer["result"]["key"] == "many"
    assert [version["text"] for version in answer["history"]] == [
        "cat cat cat: nothing but the cat",
        "cat cat cat: all of it about the cat",
    ]
    _, answer = post(page, "why", {"query": "cat", "key": "answer"})
    assert [(one["id"], one["here"]) for one in answer["thread"]] == [
        ("ask", False),
        ("answer", True),
        ("likes", False),
    ]
    assert answer["fields"]["thread"] == "t"
    _, answer = post(page, "why", {"query": "cat", "key": "nobody"})
    assert answer["why"] == "nobody: there is no such memory"
    assert (answer["result"], answer["fields"], answer["text"]) == (None, {}, "")


def test_why_not_shows_the_score_that_was_too_low(page):
    _, whole = post(page, "search", {"query": "cat", "k": 3})
    _, answer = post(page, "why", {"query": "cat", "k": 1, "key": whole["results"][2]["key"]})
    assert answer["result"] is None
    assert "only k=1 results" in answer["why"]
    assert answer["wide"]["score"] == pytest.approx(whole["results"][2]["score"])
    assert answer["last"] == pytest.approx(whole["results"][0]["score"])
    assert answer["ranks"]["bm25"][0] >= 1


def test_why_not_shows_a_memory_that_no_arm_lists_and_its_place_further_down():
    with HybridMemory(embedder=None) as memory:
        memory.add_many(Memory("cat " * (9 - n), id=f"m{n}") for n in range(8))
        with Inspector(memory) as inspector:
            asked = {"query": "cat", "k": 2, "changes": {"depth": 2}, "key": "m7"}
            _, answer = post(inspector, "why", asked)
    assert answer["why"].startswith("m7: found by no arm")
    assert (answer["text"], answer["ranks"]["bm25"]) == ("cat cat ", None)
    assert answer["beyond"]["bm25"][0] == 8


def test_cases_are_read_and_measured(page):
    text = (
        '{"query": "Where does the cat sleep?", "relevant": ["ask", "ticket"], "category": "one"}\n'
        '{"query": "exports", "relevant": {"ticket": 2.0}}\n'
        '{"query": "nothing is relevant"}\n'
    )
    _, answer = post(page, "cases", {"text": text})
    assert [case["query"] for case in answer["cases"]] == ["Where does the cat sleep?", "exports"]
    _, figures = post(page, "measure", {"query": "", "k": 2, "cases": answer["cases"]})
    assert figures["measured"] == [
        {"recall": 0.5, "rank": 1.0, "missing": ["ticket"]},
        {"recall": 1.0, "rank": 1.0, "missing": []},
    ]
    for wrong in ("", "no json", '{"query": "x"}', '{"relevant": ["a"]}'):
        assert post(page, "cases", {"text": wrong})[0] == 400
    assert post(page, "measure", {"cases": [{"query": "x"}]})[0] == 400
    assert post(page, "measure", {"cases": 3})[0] == 400


def test_a_recipe_is_saved_and_loaded(page):
    changes = {"weights/vector": 0.25, "mode": "convex", "boost": False}
    _, saved = post(page, "save", {"changes": changes})
    data = json.loads(saved["json"])
    assert (data["mode"], data["weights"]["vector"], "boost" in data) == ("convex", 0.25, False)
    assert "Fusion(" in saved["python"]
    _, loaded = post(page, "search", {"query": "cat", "base": data})
    _, direct = post(page, "search", {"query": "cat", "changes": changes})
    assert loaded["results"] == direct["results"]


# --- what can be shown


class Retriever:
    """A retriever of nobody's framework that explains itself."""

    def explainer(self):
        def explain(query, /, *, recipe, k=None, filter=None, as_of=None):
            if query == "break":
                raise ZeroDivisionError("in an arm")
            return Explanation(query, arms={"one": f"k={k}, c={recipe.c:g}"}, texts={"a": "the text"})

        return Explainer(("one",), Fusion(c=7), explain)


def test_a_retriever_that_explains_itself_is_shown():
    with Inspector(Retriever()) as inspector:
        _, start = post(inspector, "start", {})
        assert (start["arms"], start["count"], start["asOf"]) == (["one"], None, False)
        _, answer = post(inspector, "search", {"query": "cat", "k": 3, "changes": {"c": 9}})
        assert answer["arms"] == [{"name": "one", "note": "k=3, c=9", "count": 0, "hits": []}]
        assert post(inspector, "search", {"query": "break"}) == (500, {"error": "ZeroDivisionError: in an arm"})
        _, answer = post(inspector, "why", {"query": "cat", "key": "a"})
        assert answer["text"] == "the text"
        assert answer["why"] == "a: found by no arm (one: k=8, c=7)"


@pytest.mark.parametrize("wrong", [None, "memory.db", object(), Retriever, HybridMemory])
def test_anything_else_is_refused(wrong):
    with pytest.raises(ConfigError, match="cannot show a"):
        Inspector(wrong)
