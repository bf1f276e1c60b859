"""The inspector: its door (loopback, token, host), its answers, and the page in a real Chromium."""

import http.client
import json
import time

import pytest
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from hybridmem import Competition, Fusion, HybridMemory, Memory
from hybridmem.errors import ConfigError
from hybridmem.server.inspector import Inspector, recipe_from, settings_of
from tests.support.browser import open_browser

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
                Memory("cat cat cat: nothing but the cat", id="many"),
                Memory("A long tale about one cat, its owner, the house, the garden and the weather", id="tale"),
                Memory("POST /v2/exports <b>fails</b> with E0427", id="ticket"),
            ]
        )
        yield opened


def request(inspector, method, path, body=None, **headers):
    connection = http.client.HTTPConnection("127.0.0.1", inspector.port, timeout=30)
    connection.request(method, path, body, headers)
    answer = connection.getresponse()
    data = answer.read()
    connection.close()
    return answer.status, data, dict(answer.getheaders())


def ask(inspector, action, body):
    status, data, _ = request(inspector, "POST", f"/{inspector.token}/api/{action}", json.dumps(body))
    return status, json.loads(data)


def test_only_the_token_and_the_own_host_are_answered(memory):
    with Inspector(memory) as inspector:
        home = f"/{inspector.token}/"
        status, page, headers = request(inspector, "GET", home)
        assert status == 200
        assert b"hybridmem" in page
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        for path in ("/", "/wrong/", f"{home}../etc/passwd", f"{home}api/search"):
            assert request(inspector, "GET", path)[0] == 404
        assert request(inspector, "GET", home, Host="evil.example")[0] == 404
        assert request(inspector, "POST", f"{home}api/start", "{}", Host="evil.example")[0] == 404
        assert request(inspector, "POST", "/wrong/api/start", "{}")[0] == 404
        assert request(inspector, "POST", f"{home}api/erase", "{}")[0] == 404
        for bare in ("start", "/start", "/api/start", "//api/start"):  # no way around the token
            assert request(inspector, "POST", bare, "{}")[0] == 404
        for size in ("-1", "many", "99999999999"):
            assert request(inspector, "POST", f"{home}api/start", "{}", **{"Content-Length": size})[0] == 404
        assert inspector.url == f"http://127.0.0.1:{inspector.port}{home}"
    with pytest.raises(OSError, match=r".*"):
        request(inspector, "GET", home)


def test_two_inspectors_have_two_tokens_and_a_taken_port_is_told(memory):
    with Inspector(memory) as one, Inspector(memory) as two:
        assert one.token != two.token
        with pytest.raises(ConfigError, match=str(one.port)):
            Inspector(memory, port=one.port)


def test_its_answers(memory):
    with Inspector(memory) as inspector:
        _, start = ask(inspector, "start", {})
        assert start["arms"] == ["bm25", "vector"]
        status, found = ask(inspector, "search", {"query": "cat", "settings": start["settings"]})
        assert status == 200
        assert {row["key"] for row in found["results"]} >= {"ask", "many", "tale"}
        assert found["arms"]["bm25"][0]["score"] > 0
        assert [r["key"] for r in found["results"]] == [r.id for r in memory.search("cat")]
        _, why = ask(inspector, "why", {"query": "cat", "settings": start["settings"], "id": "nobody"})
        assert why["why"] == "nobody: there is no such memory"
        for wrong in (
            {},
            {"query": "cat", "settings": {**start["settings"], "mode": "sum"}},
            [],
            {"query": 1, "settings": 2},
        ):
            status, told = ask(inspector, "search", wrong)
            assert status == 400
            assert told["error"]


def test_sliders_and_recipe_say_the_same():
    recipe = Fusion(weights={"bm25": 0.25, "vector": 0.75})
    settings = settings_of(recipe, ("bm25", "vector"), k=5)
    assert settings["weights"] == {"bm25": 0.25, "vector": 0.75}
    assert (settings["strength"], settings["spread"], settings["floors"]) == (0.0, 0.0, {"bm25": 0.0, "vector": 0.0})
    back = recipe_from(recipe, settings)
    assert (back.mode, back.gate, back.spread) == ("rrf", None, None)
    assert back.boost.strength == 0.0
    gated = recipe_from(recipe, {**settings, "floors": {"bm25": 2.0, "vector": 0}, "spread": 0.5})
    assert gated.gate.floor == {"bm25": 2.0}
    assert gated.spread.strength == 0.5
    assert recipe_from(Fusion(boost=Competition()), settings).boost == Competition()


class Page:
    def __init__(self, driver):
        self.driver = driver

    def one(self, css):
        return self.driver.find_element(By.CSS_SELECTOR, css)

    def until(self, told, seconds=60):
        """Ask again and again: the page may be drawing, and the machine may be busy."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                if answer := told():
                    return answer
            except StaleElementReferenceException:
                pass  # the list was drawn again between two questions
            assert time.monotonic() < deadline, self.driver.page_source[:3000]
            time.sleep(0.05)

    def type(self, query):
        self.until(lambda: self.driver.find_elements(By.CSS_SELECTOR, "#weight-bm25"))
        box = self.one("#query")
        box.clear()
        box.send_keys(query)

    def drag(self, name, value):
        """Move a slider as a hand does: its value changes and `input` is told."""
        script = "arguments[0].value = arguments[1]; arguments[0].dispatchEvent(new Event('input'))"
        self.driver.execute_script(script, self.one(f"#{name}"), value)

    def read_receipt(self):
        """The first result's receipt, unfolded as a person would."""
        if not self.one("#fused > li details").get_attribute("open"):
            self.one("#fused > li summary").click()
        return self.one("#fused > li .receipt").text

    def order(self):
        return [row.get_attribute("data-id") for row in self.driver.find_elements(By.CSS_SELECTOR, "#fused > li")]


def test_type_drag_open_and_ask_in_a_real_browser(memory, tmp_path):
    with Inspector(memory) as inspector, open_browser() as driver:
        page = Page(driver)
        driver.get(inspector.url)
        page.type("cat sofa exports")
        page.until(lambda: len(page.order()) >= 4)
        assert {box.get_attribute("data-arm") for box in driver.find_elements(By.CSS_SELECTOR, "#arms section")} == {
            "bm25",
            "vector",
        }
        before = page.order()

        def expected(bm25, vector):
            settings = settings_of(memory.recipe, memory.arms, k=8)
            moved = {**settings, "spread": 0, "weights": {"bm25": bm25, "vector": vector}}
            return [row.id for row in memory.search("cat sofa exports", recipe=recipe_from(memory.recipe, moved))]

        page.drag("spread", 0)
        for bm25, vector in ((1, 0), (0, 1)):
            page.drag("weight-bm25", 0.5)  # never both at zero on the way
            page.drag("weight-vector", vector)
            page.drag("weight-bm25", bm25)
            page.until(lambda bm25=bm25, vector=vector: page.order() == expected(bm25, vector))
        assert expected(1, 0) != expected(0, 1)
        page.drag("k", 1)
        page.until(lambda: len(page.order()) == 1)
        assert page.order() != before

        page.until(page.read_receipt)
        assert "vector #" in page.read_receipt()
        page.one("#missing").send_keys("many", Keys.ENTER)
        page.until(lambda: "many: " in page.one("#answer").text)
        assert "of k=1" in page.one("#answer").text or "gated" in page.one("#answer").text
        assert not page.one("#wrong").is_displayed()

        # Text of a memory is text, not markup, and nothing is loaded from elsewhere.
        page.drag("k", 8)
        page.until(lambda: "ticket" in page.order())
        assert "<b>fails</b>" in page.one("#fused > li[data-id=ticket]").text
        assert driver.find_elements(By.CSS_SELECTOR, "#fused li b") == []
        names = driver.execute_script("return performance.getEntriesByType('resource').map(e => e.name)")
        assert names
        assert all(name.startswith(inspector.url) for name in names)


def test_what_goes_wrong_is_shown(memory):
    with Inspector(memory) as inspector, open_browser() as driver:
        page = Page(driver)
        driver.get(inspector.url)
        page.type("cat")
        page.until(page.order)
        driver.execute_script("settings.mode = 'sum'; search()")
        page.until(lambda: "'sum' is not known" in page.one("#wrong").text)
        driver.execute_script("settings.mode = 'rrf'; search()")
        page.until(lambda: not page.one("#wrong").is_displayed())
        driver.execute_script("window.fetch = () => Promise.reject(new TypeError('gone')); search()")
        page.until(lambda: "does not answer" in page.one("#wrong").text)
