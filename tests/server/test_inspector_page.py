"""The inspector page in a real Chromium: asking, dragging, explaining, cases, recipes, at three widths."""

import itertools
import json
import math
import time
from urllib.parse import quote

import pytest
from langchain_core.documents import Document
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from hybridmem import Fusion, HybridMemory, Memory, SourceDedup
from hybridmem.server.controls import changed_recipe
from hybridmem.server.inspector import Inspector
from langchain_hybridmem import BM25Retriever, FusionRetriever
from tests.support.browser import CONTRAST, LAYOUT, open_browser, overlapping, resize

WORDS = ["cat", "dog", "sofa", "exports", "lisbon", "sleep"]
TURNS = [
    ("ask", "Ana: Where does Pixel the cat sleep these days?"),
    ("answer", "Ben: On the blue sofa, of course."),
    ("reply", "Ana: The old dog will not like that."),
]


def toy(texts):
    return [[float(text.lower().count(word)) for word in WORDS] + [0.2] for text in texts]


@pytest.fixture(scope="module")
def memory():
    with HybridMemory(embedder=toy) as opened:
        opened.add_many([Memory(text, id=key, thread="chat", tags=("home",)) for key, text in TURNS])
        opened.add_many(
            [
                Memory("cat cat cat: nothing but the cat", id="many"),
                Memory("A long tale about one cat, its owner, the house, the garden and the weather " * 3, id="tale"),
                Memory("POST /v2/exports <b>fails</b> with E0427", id="ticket", tags=("incident",)),
                Memory("Ana lives in Porto.", id="porto"),
                Memory("The dog and the cat sleep, the cat on the sofa and the dog below it.", id="both"),
                Memory("Nobody in Lisbon owns a dog as loud as this one.", id="lisbon"),
                Memory("Averyverylongwordwithoutanyspace" * 6, id="id-without-any-space-" * 5),
            ]
        )
        opened.update("porto", text="Ana has moved to Lisbon with her cat.")
        yield opened


@pytest.fixture(scope="module")
def driver():
    with open_browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def inspector(memory):
    with Inspector(memory) as opened:
        yield opened


class Page:
    def __init__(self, driver, inspector, *, width=1400, height=900, state=""):
        self.driver, self.inspector = driver, inspector
        resize(driver, width, height)
        driver.get("about:blank")
        driver.get(inspector.url + state)
        self.until(lambda: self.all("#groups .control"))
        if "q=" in state:
            self.until(lambda: self.one("body").get_attribute("data-turn"))

    def one(self, css):
        return self.driver.find_element(By.CSS_SELECTOR, css)

    def all(self, css):
        return self.driver.find_elements(By.CSS_SELECTOR, css)

    def run(self, script, *given):
        return self.driver.execute_script(script, *given)

    def until(self, answer, seconds=30):
        """Ask again until the answer is true: the page works asynchronously, and the machine may be busy."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                if value := answer():
                    return value
            except StaleElementReferenceException:
                pass  # the list was drawn again between two calls
            assert time.monotonic() < deadline, self.one("body").text[:2000]
            time.sleep(0.02)

    def type(self, query):
        box = self.one("#query")
        box.clear()
        box.send_keys(query)
        self.until(lambda: self.run("return current && current.id && JSON.parse(current.id)[0]") == query)

    def order(self):
        return self.run("return [...document.querySelectorAll('#fused .row')].map(row => row.dataset.key)")

    def slide(self, path, value):
        """Move a slider to a value: `input` fires as while a hand drags it."""
        slider = self.one(f"input[data-path='{path}']")
        self.run("arguments[0].value = arguments[1]; arguments[0].dispatchEvent(new Event('input'))", slider, value)

    def check_layout(self, width):
        assert self.run("return document.documentElement.scrollWidth") <= width
        texts = self.run(LAYOUT)
        assert overlapping(texts) == []
        assert not self.one("#error").is_displayed()

    def busy(self):
        """Seconds that the page has computed: scripts, styles and layout."""
        metrics = self.driver.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]
        return next(one["value"] for one in metrics if one["name"] == "TaskDuration")

    def console(self):
        return [entry["message"] for entry in self.driver.get_log("browser")]


def state(**values):
    pairs = {name: value if isinstance(value, str) else json.dumps(value) for name, value in values.items()}
    return "#" + "&".join(f"{name}={quote(value)}" for name, value in pairs.items())


# --- asking


def test_type_and_see_every_arm_beside_the_fused_list(driver, inspector, memory):
    page = Page(driver, inspector)
    page.type("cat sofa exports")
    assert [box.get_attribute("data-arm") for box in page.all(".column.arm")] == ["bm25", "vector"]
    lefts = [box.rect["x"] for box in page.all(".column")]
    assert lefts == sorted(lefts)
    assert len({box.rect["y"] for box in page.all(".column")}) == 1
    assert page.order() == [result.id for result in memory.search("cat sofa exports", k=8)]
    for arm in ("bm25", "vector"):
        rows = page.run(f"return [...document.querySelectorAll('[data-arm={arm}] .row')].map(row => row.dataset.key)")
        assert rows == [result.id for result in memory.search_arm(arm, "cat sofa exports", k=100)]
    assert "cat" in {mark.text.lower() for mark in page.all("#fused mark")}
    assert page.console() == []
    names = page.run("return performance.getEntriesByType('resource').map(entry => entry.name)")
    assert len(names) >= 5
    assert all(name.startswith(inspector.url) for name in names)
    # the text of a memory is text, not markup
    assert "<b>fails</b>" in page.one("#fused .row[data-key=ticket]").text
    assert page.all("#columns b") == []


def test_an_example_question_is_one_click_away(driver, inspector):
    page = Page(driver, inspector)
    example = page.until(lambda: page.all("#welcome .example"))[0]
    assert example.text == "Where does Pixel the cat sleep these days?"
    page.check_layout(1400)
    example.click()
    page.until(page.order)
    assert page.one("#query").get_attribute("value") == "Where does Pixel the cat sleep these days?"


def test_an_empty_memory_is_reported(driver):
    with HybridMemory(embedder=None) as empty, Inspector(empty) as inspector:
        page = Page(driver, inspector, width=390, height=844)
        assert "This memory is empty." in page.until(lambda: page.one("#welcome").text)
        page.check_layout(390)
        page.type("anything")
        page.until(lambda: "Nothing matches" in page.one(".fused").text)


def test_pointing_at_a_hit_marks_it_everywhere_and_draws_its_path(driver, inspector):
    page = Page(driver, inspector, state=state(q="cat sofa exports"))
    key = page.order()[0]
    page.run("arguments[0].scrollIntoView()", page.one(f"#fused .row[data-key={key}]"))
    ActionChains(driver).move_to_element(page.one(f"#fused .row[data-key={key}] .text")).perform()
    page.until(lambda: len(page.all(".row.same")) == len(page.all(f".row[data-key={key}]")))
    assert len(page.all("#wires path:not(.link)")) == len(page.all(f".row[data-key={key}]")) - 1 >= 1
    piece = page.one("#fused .row .bar i")
    ActionChains(driver).move_to_element(piece).perform()
    assert piece.get_attribute("data-part") in page.until(lambda: page.one("#tip").text)
    ActionChains(driver).move_to_element(page.one(".legend [data-name=bm25]")).perform()
    page.until(lambda: page.all("#fused .bar i.dim"))
    assert not page.all("#fused .bar i.dim[data-part=bm25]")
    ActionChains(driver).move_to_element(page.one("h1")).perform()
    page.until(lambda: not page.all("#fused .bar i.dim"))
    page.until(lambda: not page.all("#wires path") and not page.one("#tip").is_displayed())


def test_the_segments_of_a_bar_add_up_to_the_score(driver, inspector, memory):
    page = Page(driver, inspector, state=state(q="cat sofa exports"))
    drawn = page.run(
        "return [...document.querySelectorAll('#fused .row')].map(row => [row.dataset.key, "
        "[...row.querySelectorAll('.bar i:not(.minus)')].reduce((sum, i) => sum + i.getBoundingClientRect().width, 0),"
        "row.querySelector('.bar').getBoundingClientRect().width])"
    )
    scores = {result.id: result.score for result in memory.search("cat sofa exports", k=8)}
    per_score = [width / scores[key] for key, width, _ in drawn]
    assert max(per_score) - min(per_score) < 0.05 * max(per_score)  # one scale for all bars


# --- the recipe


def test_dragging_a_slider_moves_results_and_shows_by_how_much(driver, inspector, memory):
    page = Page(driver, inspector, state=state(q="cat sofa exports"))
    before = page.order()
    thumb = page.one("input[data-path='weights/vector']")
    page.run("arguments[0].scrollIntoView({block: 'center'})", thumb)
    width = thumb.size["width"]
    half = int(width * float(thumb.get_attribute("value")) - width / 2)
    ActionChains(driver).move_to_element_with_offset(thumb, half, 0).click_and_hold().move_by_offset(
        -width, 0
    ).release().perform()
    assert float(thumb.get_attribute("value")) == 0
    changes = {"weights/vector": 0}
    expected = [
        row.id for row in memory.search("cat sofa exports", recipe=changed_recipe(memory.recipe, changes, memory.arms))
    ]
    page.until(lambda: page.order() == expected != before)
    moved = {
        row.get_attribute("data-key"): row.find_element(By.CSS_SELECTOR, ".move").text
        for row in page.all("#fused .row")
    }
    for rank, key in enumerate(expected):
        by = before.index(key) - rank if key in before else None
        assert moved[key] == ("new" if by is None else "" if by == 0 else f"▲{by}" if by > 0 else f"▼{-by}")
    assert "1 changed" in page.one("#changed").text
    assert "weights" in page.run("return decodeURIComponent(location.hash)")
    page.one("#reset").click()
    page.until(lambda: page.order() == before)
    assert page.one("#changed").text == ""


def test_only_the_sliders_of_the_mode_are_shown_and_parts_can_be_switched(driver, inspector):
    page = Page(driver, inspector, state=state(q="cat"))
    assert not page.all("[data-path='c']")
    page.run(
        "const s = document.querySelector('[data-path=mode]'); s.value = 'rrf'; s.dispatchEvent(new Event('change'))"
    )
    page.until(lambda: page.all("[data-path='c']"))
    assert not page.all("[data-path='smooth']")
    first = page.run("return document.querySelector('.group.off input[type=checkbox]').dataset.path")
    page.run(f"document.querySelector(\"[data-path='{first}']\").click()")
    page.until(lambda: "off" not in page.one(f"#group-{first}").get_attribute("class"))
    page.until(lambda: page.all(f"#group-{first} .control"))


def test_a_recipe_is_saved_copied_and_loaded_again(driver, inspector, memory, tmp_path):
    driver.execute_cdp_cmd("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(tmp_path)})
    page = Page(driver, inspector, state=state(q="cat sofa exports"))
    page.slide("weights/bm25", 0.03)
    changes = {"weights/bm25": 0.03}
    wanted = changed_recipe(memory.recipe, changes, memory.arms)
    expected = [row.id for row in memory.search("cat sofa exports", recipe=wanted)]
    page.until(lambda: page.order() == expected)
    page.one("#save").click()
    file = page.until(lambda: next(tmp_path.glob("recipe.json"), None))
    assert json.loads(file.read_text())["weights"]["bm25"] == 0.03
    assert [row.id for row in memory.search("cat sofa exports", recipe=file)] == expected
    page.run("navigator.clipboard.writeText = text => { window.copied = text; return Promise.resolve(); }")
    page.one("#copy").click()
    scope = {}
    exec(page.until(lambda: page.run("return window.copied")), scope)
    assert scope["recipe"] == wanted

    again = Page(driver, inspector, state=state(q="cat sofa exports"))
    again.one("#load").send_keys(str(file))
    again.until(lambda: again.order() == expected)
    assert again.run("return document.querySelector(\"[data-path='weights/bm25']\").value") == "0.03"
    (tmp_path / "wrong.json").write_text('{"hybridmem": 1, "nothing": 3}')
    again.one("#load").send_keys(str(tmp_path / "wrong.json"))
    again.until(lambda: "unknown" in again.one("#error").text)


def test_question_and_recipe_are_in_the_url(driver, inspector, memory):
    changes = {"weights/vector": 0.01}
    given = state(q="cat sofa", k="3", filter='{"tags": {"$contains": "home"}}', changes=changes)
    page = Page(driver, inspector, state=given)
    recipe = changed_recipe(memory.recipe, changes, memory.arms)
    expected = memory.search("cat sofa", k=3, filter={"tags": {"$contains": "home"}}, recipe=recipe)
    page.until(lambda: page.order() == [row.id for row in expected])
    assert page.one("#k").get_attribute("value") == "3"
    page.run(
        "const box = document.getElementById('as-of'); box.value = '2001-01-01T00:00:00'; "
        "box.dispatchEvent(new Event('input'))"
    )
    page.until(lambda: "Nothing matches" in page.one(".fused").text)
    assert driver.title == "cat sofa – hybridmem inspector"
    page.one("#filter").send_keys(" x")
    page.until(lambda: "not JSON" in page.one("#error").text)
    assert page.one("#filter").get_attribute("aria-invalid") == "true"


def test_a_url_with_a_wrong_filter_shows_the_error_and_the_start_page(driver, inspector):
    page = Page(driver, inspector)
    driver.get("about:blank")
    driver.get(inspector.url + state(q="cat", filter="{x"))
    page.until(lambda: "not JSON" in page.one("#error").text)
    assert page.one("#welcome h2").text == "Ask a question"
    page.one("#filter").clear()
    page.one("#filter").send_keys('{"tags": {"$contains": "home"}}')
    page.until(page.order)
    assert not page.one("#error").is_displayed()


def test_a_filter_that_the_server_refuses_shows_the_error_and_the_start_page(driver, inspector):
    page = Page(driver, inspector)
    driver.get("about:blank")
    driver.get(inspector.url + state(q="cat", filter='{"type": {"$near": 1}}'))
    page.until(lambda: "unknown operator '$near'" in page.one("#error").text)
    page.until(lambda: page.one("#welcome h2").text == "Ask a question")


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"namespace": "nobody"}, "namespace 'nobody' is not one"),
        ({"base": {"mode": "sum"}}, "mode 'sum'"),
        ({"changes": {"wheel/speed": 1}}, "no setting 'wheel/speed'"),
        ({"as_of": "soon"}, "as_of soon is not a date"),
    ],
    ids=["namespace", "base", "changes", "as_of"],
)
def test_a_wrong_value_in_the_url_is_reported_and_left_out(driver, inspector, wrong, said):
    page = Page(driver, inspector, state=state(q="cat", **wrong))
    page.until(page.order)
    assert said in page.one("#error").text
    assert next(iter(wrong)) not in driver.current_url
    page.type("exports")
    assert not page.one("#error").is_displayed()


def test_text_from_right_to_left_starts_at_its_own_side(driver):
    with HybridMemory(embedder=None) as memory, Inspector(memory) as inspector:
        memory.add("القطة تنام على الأريكة الزرقاء في لشبونة. " * 5, id="cat")
        page = Page(driver, inspector, state=state(q="القطة"))
        page.until(page.order)
        row = page.one(".arm .row .text")
        assert row.value_of_css_property("direction") == "rtl"
        assert page.run("return getComputedStyle(document.querySelector('#fused .text')).direction") == "rtl"
        mark, box = row.find_element(By.CSS_SELECTOR, "mark").rect, row.rect
        assert mark["x"] + mark["width"] == pytest.approx(box["x"] + box["width"], abs=1)  # the first word is visible


def test_an_unknown_id_is_reported_without_empty_sections(driver, inspector):
    page = Page(driver, inspector, state=state(q="cat", open="nobody"))
    page.until(lambda: page.one("#detail").is_displayed())
    assert page.one("#detail .why").text == "There is no such memory."
    assert page.all("#detail h3") == []


def test_a_filter_that_excludes_everything_is_named(driver, inspector):
    page = Page(driver, inspector, state=state(q="cat", filter='{"type": "nonsense"}'))
    assert page.one(".fused .none").text == "Nothing matches this question under the filter and the time above."


def test_every_part_of_the_default_recipe_has_a_colour_of_its_own(driver, inspector):
    """Hatching means what a part takes away, so that no part that adds may be striped."""
    page = Page(driver, inspector, state=state(q="cat"))
    names = page.run("return ['spread', ...document.querySelectorAll('[data-control^=evidence]')].length")
    assert names == 9
    assert page.run("paint(document.createElement('i'), 'spread'); return colours.size") <= 12
    assert page.all(".striped") == []


def test_the_raw_scores_of_a_column_have_the_same_number_of_decimals(driver, inspector):
    page = Page(driver, inspector)
    digits = "return [[11.93, 8.2, 0.343, null], [0.417, 0.34, -0.03], [120.4, 3], [0, null], [0.00012]].map(decimals)"
    assert page.run(digits) == [1, 3, 0, 0, 4]
    page.type("cat sofa exports")
    shown = page.run("return [...document.querySelectorAll('.arm[data-arm=bm25] .number')].map(one => one.innerText)")
    assert len(shown) > 3
    assert len({len(text.partition(".")[2]) for text in shown}) == 1


@pytest.mark.parametrize("width", [1400, 1179, 1000, 900, 899])
def test_the_arms_are_side_by_side_from_900_px_on(driver, inspector, width):
    page = Page(driver, inspector, width=width, state=state(q="Where do cat and dog sleep?"))
    page.check_layout(width)
    boxes = page.run(
        "return [...document.querySelectorAll('.column')].map(one => one.getBoundingClientRect().toJSON())"
    )
    assert len(boxes) == 3
    if width < 900:
        assert len({box["left"] for box in boxes}) == 1  # one column
        return
    assert len({box["top"] for box in boxes}) == 1
    for left, right in itertools.pairwise(boxes):
        assert left["right"] < right["left"]
        assert min(left["width"], right["width"]) > 150


def test_a_long_text_is_shown_from_where_its_query_words_are(driver, inspector):
    page = Page(driver, inspector)
    shown = "return passage(arguments[0], new Map([['blue', 1], ['sofa', 1]]), ARM_PASSAGE)"
    long = "Ana: Hello Ben, how was your holiday in the north? My cat sleeps on the blue sofa of my aunt now and purrs."
    assert page.run(shown, long) == "…on the blue sofa of my aunt now and purrs."
    assert page.run(shown, "The blue sofa. " + long).startswith("The blue sofa.")
    assert page.run(shown, "She sleeps on the sofa") == "She sleeps on the sofa"  # a short text is whole
    kept = page.run("return excerpt(arguments[0], new Map([['aunt', 1]]))", long)
    assert kept == "Ana: …My cat sleeps on the blue sofa of my aunt now and purrs."  # who says it stays


def test_a_word_of_most_texts_is_highlighted_less_and_does_not_choose_the_passage(driver, inspector):
    page = Page(driver, inspector)
    texts = [f"Ana: turn {n}" for n in range(9)] + ["Ana: Once there was nothing to say here, but Ana saw a heron"]
    weights = page.run("return Object.fromEntries(weighed(['ana', 'heron'], arguments[0]))", texts)
    assert weights["heron"] == 1
    assert weights["ana"] == pytest.approx(1 - math.log(10) / math.log(11))
    assert page.run("return Object.fromEntries(weighed(['ana'], arguments[0]))", texts) == {"ana": 1}  # the only word
    marks = page.run(
        "const box = make('p', {}, ...highlighted(arguments[0][9], weighed(['ana', 'heron'], arguments[0])));"
        "return [...box.querySelectorAll('mark')].map(mark => [mark.textContent, mark.className])",
        texts,
    )
    assert marks == [["Ana", "common"], ["Ana", "common"], ["heron", ""]]


def test_a_line_leads_from_list_to_list_for_every_result(driver, inspector):
    page = Page(driver, inspector, state=state(q="cat sofa exports", k="4"))
    listed = page.run(
        "return [...document.querySelectorAll('#fused .row')].map(row => "
        "document.querySelectorAll(`.row[data-key=${row.dataset.key}]`).length)"
    )
    assert len(listed) == 4
    assert len(page.all("#flow path")) == sum(listed) - 4 > 0
    resize(driver, 390, 844)
    page.until(lambda: not page.one("#flow").is_displayed())


def test_settings_that_few_people_change_are_folded(driver, inspector):
    page = Page(driver, inspector)
    assert page.one("[data-path='weights/bm25']").is_displayed()
    assert not page.one("[data-path=depth]").is_displayed()
    summary = page.one("#group-merge summary")
    assert summary.text == "4 more settings"
    summary.click()
    page.until(lambda: page.one("[data-path=depth]").is_displayed())
    changed = Page(driver, inspector, state=state(q="cat", changes={"depth": 20}))
    changed.until(lambda: changed.one("[data-path=depth]").is_displayed())


# --- why, and why not


@pytest.mark.parametrize(("width", "height"), [(1400, 900), (900, 900), (390, 844)])
def test_a_why_not_from_an_arm_at_every_width(driver, inspector, width, height):
    page = Page(driver, inspector, width=width, height=height, state=state(q="Where do cat and dog sleep?", k="2"))
    page.check_layout(width)
    row = page.all(".arm .row.lost")[0]
    key = row.get_attribute("data-key")
    page.run("arguments[0].scrollIntoView({block: 'center'})", row)
    row.click()
    page.until(lambda: page.one("#detail").is_displayed())
    text = page.one("#detail").text
    assert "not in the results" in text
    assert key in text
    assert "only k=2 results" in text or "gate" in text.lower()
    page.check_layout(width)
    for box in page.all("#detail, #recipe-box"):
        page.run("arguments[0].scrollTop = arguments[0].scrollHeight", box)
    page.check_layout(width)
    page.one("#detail button[aria-label=Close]").click()
    assert not page.one("#detail").is_displayed()
    if width >= 900:
        assert page.one("#recipe").is_displayed()
        assert page.run("return document.documentElement.scrollHeight") <= height  # lists scroll, the page does not
    else:
        page.one("#recipe-box summary").click()
        page.check_layout(width)


def test_the_detail_has_history_and_thread_neighbours_that_open(driver, inspector):
    page = Page(driver, inspector, state=state(q="Ana cat Lisbon", open="porto"))
    text = page.until(lambda: page.one("#detail").text)
    assert "Ana lives in Porto." in text
    assert "Ana has moved to Lisbon with her cat." in text
    page = Page(driver, inspector, state=state(q="cat", open="answer"))
    page.until(lambda: len(page.all("#detail .thread button")) == 3)
    assert page.one("#detail .thread .here").text == TURNS[1][1]
    page.all("#detail .thread button")[2].click()
    page.until(lambda: page.one("#detail .key").text == "reply")


def test_the_keyboard_does_all_of_it(driver, inspector):
    page = Page(driver, inspector)
    page.one("body").send_keys("/")
    page.run("document.activeElement.blur()")
    ActionChains(driver).send_keys("/").send_keys("cat sofa", Keys.ENTER).perform()
    page.until(page.order)

    def focused():
        return page.run(
            "const e = document.activeElement; return [e.closest('.column')?.dataset.arm || '', e.dataset.key]"
        )

    assert page.run("return document.activeElement.id") == "query"
    ActionChains(driver).send_keys(Keys.ARROW_DOWN).perform()
    assert focused() == ["", page.order()[0]]  # from the question to the first result
    page.run("document.querySelector('.arm .row').focus()")
    first = focused()
    assert first[0] == "bm25"
    ActionChains(driver).send_keys(Keys.ARROW_DOWN).perform()
    assert focused() != first
    ActionChains(driver).send_keys(Keys.ARROW_UP, Keys.ARROW_RIGHT).perform()
    assert focused()[0] == "vector"
    ActionChains(driver).send_keys(Keys.ENTER).perform()
    page.until(lambda: page.one("#detail").is_displayed())
    ActionChains(driver).send_keys(Keys.ESCAPE).perform()
    page.until(lambda: not page.one("#detail").is_displayed())
    assert focused()[1] == first[1]  # back on the memory that was explained
    assert len(page.all(".arm .row[tabindex='0']")) == 2  # one stop of the tab key for each list


# --- cases


def test_cases_show_what_fails_and_one_click_explains_it(driver, inspector, memory, tmp_path):
    file, question = tmp_path / "cases.jsonl", "Where does the cat sleep?"
    best = memory.search(question, k=2)[0].id
    cases = [
        {"query": question, "relevant": [best, "ticket"], "category": "sleep"},
        {"query": "which exports fail", "relevant": ["ticket"], "category": "tickets"},
        {"query": "cat", "relevant": ["nobody"]},
    ]
    file.write_text("".join(json.dumps(case) + "\n" for case in cases))
    page = Page(driver, inspector, state=state(k="2"))
    page.one("#load-cases").send_keys(str(file))
    page.until(lambda: page.one("#figures").get_attribute("data-done") == "true")
    assert float(page.all("#figures b")[0].text) == round((1 / 2 + 1 + 0) / 3, 3)
    assert "3 questions, 2 miss" in page.one("#figures").text
    failing = page.until(lambda: page.all("#case-list button"))
    assert [row.get_attribute("class") for row in failing] == ["part", "miss"]
    page.one("#only-failing").click()
    assert len(page.all("#case-list button")) == 3
    assert page.one("#case-list button.hit")
    page.all("#case-list button")[0].click()
    page.until(lambda: page.one("#detail").is_displayed())
    assert page.one("#detail .key").text == "ticket"  # the relevant one that is missing
    assert page.one("#query").get_attribute("value") == question
    page.until(lambda: page.all(".row.gold"))
    page.check_layout(1400)
    page.slide("weights/bm25", 0)
    page.until(lambda: page.one("#changed").text)
    page.until(lambda: page.run("return baseFigures && baseFigures.size === 3"))
    resize(driver, 900, 900)
    page.check_layout(900)
    resize(driver, 390, 844)
    page.check_layout(390)
    (tmp_path / "wrong.jsonl").write_text("no json\n")
    page.one("#load-cases").send_keys(str(tmp_path / "wrong.jsonl"))
    page.until(lambda: page.one("#error").text)


# --- appearance


def test_dark_and_light_are_readable_and_kept(driver, inspector, tmp_path):
    file = tmp_path / "cases.jsonl"
    cases = [{"query": "cat", "relevant": ["many", "nobody"]}, {"query": "dog", "relevant": ["nobody"]}]
    file.write_text("".join(json.dumps(case) + "\n" for case in cases))
    page = Page(driver, inspector, state=state(q="cat sofa", changes={"weights/bm25": 0.03}, open="tale"))
    page.one("#load-cases").send_keys(str(file))
    page.until(lambda: page.one("#figures").get_attribute("data-done") == "true")
    page.until(lambda: page.one("#detail").is_displayed())
    page.run("toast('saved'); fail('wrong'); point('many'); tip(document.querySelector('.bar i'), 500, 300)")
    backs = set()
    for _ in range(2):
        backs.add(page.run("return getComputedStyle(document.body).backgroundColor"))
        texts = page.run(CONTRAST)
        assert {"tale", "wrong", "saved", "1 changed", '{"type": "fact"}', "◐", "cat"} <= {text for text, _ in texts}
        assert [(text, ratio) for text, ratio in texts if ratio < 4.5] == []
        page.one("#theme").click()
    assert len(backs) == 2
    theme = page.run("return document.documentElement.dataset.theme")
    page.one("#theme").click()
    again = Page(driver, inspector)
    assert again.run("return document.documentElement.dataset.theme") != theme
    assert [(text, ratio) for text, ratio in again.run(CONTRAST) if ratio < 4.5] == []
    again.one("#theme").click()
    assert [(text, ratio) for text, ratio in again.run(CONTRAST) if ratio < 4.5] == []


def test_every_control_has_an_accessible_name(driver, inspector):
    Page(driver, inspector, state=state(q="cat sofa exports", open="many"))
    tree = driver.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    roles = {"button", "slider", "checkbox", "combobox", "searchbox", "textbox", "spinbutton", "DateTime", "switch"}
    found = [node for node in tree if node.get("role", {}).get("value") in roles and not node.get("ignored")]
    assert len(found) > 20
    unnamed = [node for node in found if not node.get("name", {}).get("value")]
    assert unnamed == []


def test_a_hundred_hits_an_arm_are_drawn_in_time(driver):
    with HybridMemory(embedder=toy) as large:
        large.add_many(
            Memory(f"cat number {n} sleeps on sofa {n % 7} " + "word " * (n % 30), id=f"m{n}") for n in range(300)
        )
        with Inspector(large) as inspector:
            page = Page(driver, inspector, state=state(q="cat sofa", k="30"))
            driver.execute_cdp_cmd("Performance.enable", {"timeDomain": "threadTicks"})  # CPU time, not the clock's
            spent = []
            for name, value in (("depth", 100), ("weights/bm25", 0.1), ("weights/bm25", 0.3), ("weights/bm25", 0.6)):
                turn, before = page.one("body").get_attribute("data-turn"), page.busy()
                page.slide(name, value)
                page.until(lambda turn=turn: page.one("body").get_attribute("data-turn") != turn)
                spent.append(page.busy() - before)
            driver.execute_cdp_cmd("Performance.disable", {})
            assert [len(box.find_elements(By.CSS_SELECTOR, ".row")) for box in page.all(".column")] == [100, 100, 30]
            assert 0 < min(spent) < 0.2
            page.check_layout(1400)


@pytest.mark.parametrize("width", [1400, 900, 390])
def test_five_arms_fit_and_the_fused_list_stays_in_view(driver, width):
    documents = [Document(page_content=text, id=key) for key, text in TURNS]
    arms = {f"arm {n} of a long name": BM25Retriever.from_documents(documents[n % 3 :]) for n in range(5)}
    with Inspector(FusionRetriever(retrievers=arms)) as inspector:
        page = Page(driver, inspector, width=width, state=state(q="cat sofa dog"))
        assert len(page.all(".column.arm")) == 5
        page.check_layout(width)
        box = page.one(".fused").rect
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= width


def test_remarks_about_the_whole_answer_stand_above_the_results(driver):
    with HybridMemory(embedder=None, recipe=Fusion(dedup=SourceDedup())) as memory:
        memory.add_many(Memory(f"cat number {n}", source_id="one") for n in range(4))
        with Inspector(memory) as inspector:
            page = Page(driver, inspector, state=state(q="cat"))
            assert "1 of 8: 3 chunks collapsed into 1 sources" in page.one(".fused .remark").text
            page.check_layout(1400)


def test_what_goes_wrong_is_shown(driver, memory):
    with Inspector(memory) as inspector:
        page = Page(driver, inspector, state=state(q="cat"))
        page.run("state.changes = {mode: 'sum'}; search()")
        page.until(lambda: "'sum'" in page.one("#error").text)
        page.run("state.changes = {}; search()")
        page.until(lambda: not page.one("#error").is_displayed())
    page.run("search()")
    page.until(lambda: "does not answer" in page.one("#error").text)


def test_namespaces_can_be_chosen_where_there_are_several(driver):
    with HybridMemory(embedder=None) as memory:
        memory.add("the cat of all", id="all")
        memory.namespace("ana").add("the cat of Ana", id="hers")
        with Inspector(memory, namespaces=["ana"]) as inspector:
            page = Page(driver, inspector, state=state(q="cat"))
            assert page.order() == ["all"]
            page.run(
                "const s = document.getElementById('namespace'); s.value = 'ana'; s.dispatchEvent(new Event('change'))"
            )
            page.until(lambda: page.order() == ["hers"])
            page.driver.refresh()
            page.until(lambda: page.order() == ["hers"])
            for width, least in ((1400, 900), (900, 600), (390, 340)):
                resize(driver, width, 800)
                assert page.one("#query").rect["width"] >= least  # the question has a line of its own
                page.check_layout(width)
            resize(driver, 1400, 900)
        with Inspector(memory) as inspector:
            page = Page(driver, inspector, state=state(q="cat"))
            assert not page.one("#namespace-label").is_displayed()
