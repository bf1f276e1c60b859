"""HTML of explanations: the parts of a score, the tree of activations, and how a real browser lays them out."""

from __future__ import annotations

from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridmem.core.types import Activation
from hybridmem.fusion.explain import ArmShare, Explanation, Receipt, StageStep, StepPart
from hybridmem.fusion.explain_html import ScorePart, fragment, neighbourhood_svg, page, receipt_html, score_parts
from hybridmem.memory.memory import HybridMemory
from tests.support.browser import LAYOUT, open_browser, overlapping, resize, show

SVG = "{http://www.w3.org/2000/svg}"
FOUND = {
    "m40": Activation(0.5, 1, ("m12", "entity Lisbon", "m40")),
    "m41": Activation(0.25, 2, ("m12", "entity Lisbon", "m40", "thread", "m41")),
}


def boxes(svg):
    return {node.get("data-key"): node for node in ET.fromstring(svg).iter(f"{SVG}g") if node.get("data-key")}


def place(svg):
    rects = {key: node.find(f"{SVG}rect") for key, node in boxes(svg).items()}
    return {key: (int(rect.get("x")), int(rect.get("y"))) for key, rect in rects.items()}


def words(svg):
    return " ".join("".join(node.itertext()) for node in ET.fromstring(svg).iter(f"{SVG}text"))


# --- parts of a score

RECEIPT = Receipt(
    "m1",
    1,
    0.5,
    2.0,
    (ArmShare("bm25", 1, 8.0, 1.5), ArmShare("vector", 2, None, 1.0, "a note")),
    (StageStep("dedup", 2.5, 2.5, "kept"), StageStep("substance", 2.5, 1.5), StageStep("boost", 1.5, 2.0, "fresh")),
)


def test_the_parts_add_up_to_the_score_that_is_shown():
    scale = 0.5 / 2.0
    assert score_parts(RECEIPT) == (
        ScorePart("bm25", 1.5 * scale, "rank 1, raw score 8"),
        ScorePart("vector", 1.0 * scale, "rank 2 [a note]"),
        ScorePart("dedup", 0.0, "kept"),
        ScorePart("substance", -1.0 * scale, "2.5 → 1.5"),
        ScorePart("boost", 0.5 * scale, "fresh"),
    )
    assert sum(part.value for part in score_parts(RECEIPT)) == pytest.approx(0.5)


def test_a_stage_with_named_parts_is_several_parts():
    pieces = (StepPart("previous_question", 0.3, "after the question m0"), StepPart("date", 0.1, "date 2025-05-01"))
    receipt = Receipt("m1", 1, 0.5, 1.0, (), (StageStep("evidence", 0.6, 1.0, "…", pieces),))
    assert score_parts(receipt)[:2] == (
        ScorePart("previous question", 0.3 * 0.5, "after the question m0"),
        ScorePart("date", 0.1 * 0.5, "date 2025-05-01"),
    )


def test_what_no_stage_reports_is_a_part_too():
    silent = Receipt("m1", 1, 0.8, 0.4, (ArmShare("bm25", 1, 8.0, 0.3),))
    assert [part.name for part in score_parts(silent)] == ["bm25", "other"]
    assert score_parts(silent)[1].value == pytest.approx(0.8 - 0.3 * 2)
    assert score_parts(Receipt("m1", 1, 0.0, 0.0)) == ()


def test_a_bar_has_a_segment_for_each_gain_and_hatching_for_losses():
    html = receipt_html(RECEIPT, "the <text>")
    # gains 0.375 + 0.25 + 0.125 = 0.75, a loss of 0.25: what is kept is 2/3 of each gain
    for width in (100 * 0.375 / 0.75 * 2 / 3, 100 * 0.25 / 0.75 * 2 / 3, 100 * 0.125 / 0.75 * 2 / 3, 100 * 0.25 / 0.75):
        assert f"width:{width:.2f}%" in html
    assert html.count('<i class="hm-minus"') == 1
    assert "the &lt;text&gt;" in html


def test_a_fragment_for_notebooks_has_results_legend_and_what_is_left_out():
    html = fragment(
        Explanation(
            "q",
            (RECEIPT,),
            {"bm25": "1 hits"},
            {"m2": "rank 2, and only k=1 results are returned"},
            texts={"m1": "text"},
        )
    )
    assert html.startswith('<div class="hm')
    for piece in (
        "bm25: 1 hits",
        "left out: 1",
        "m2: rank 2, and only k=1 results are returned",
        "fresh",
        "+0.375",
        "-0.250",
    ):
        assert piece in html
    assert "No results." in fragment(Explanation("q"))
    assert "<p>3 of 10 &lt;chunks&gt;</p>" in fragment(Explanation("q", remarks=("3 of 10 <chunks>",)))
    assert "Nothing passed the gate" in receipt_html(Receipt("m1", 1, 0.5, 1.0, degraded=True))


# --- the activated neighbourhood


def test_each_hop_is_drawn_below_and_to_the_right_of_what_activated_it():
    svg = neighbourhood_svg({"m12": 1.0}, FOUND, labels={"m40": "Ana moved to Lisbon"})
    at = place(svg)
    assert at["m12"][0] < at["m40"][0] < at["m41"][0]
    assert at["m12"][1] < at["m40"][1] < at["m41"][1]
    assert "hm-seed" in boxes(svg)["m12"].get("class")
    assert "Ana moved to Lisbon" in "".join(boxes(svg)["m40"].itertext())


def test_keys_values_edges_and_notes_are_written_into_the_boxes():
    text = words(neighbourhood_svg(["m12"], FOUND, notes={"m12": "bm25 #1"}))
    for word in ("m12 bm25 #1", "m40 +0.5", "m41 +0.25", "entity Lisbon: ", "thread: "):
        assert word in text
    assert "m12 seed 0.8" in words(neighbourhood_svg({"m12": 0.8}, FOUND))
    assert "m12 seed" in words(neighbourhood_svg(["m12"], FOUND))


def test_memories_that_activate_each_other_stand_once_and_boxes_never_overlap():
    found = {
        "b": Activation(0.5, 1, ("a", "thread", "b")),
        "a": Activation(0.4, 1, ("b", "thread", "a")),
        "c": Activation(0.3, 1, ("b", "links", "c")),
        "d": Activation(0.2, 2, ("a", "thread", "b", "thread", "d")),
    }
    svg = neighbourhood_svg(["a", "b", "idle"], found)
    assert svg.count('class="hm-edge"') == 3
    assert len({y for _, y in place(svg).values()}) == len(boxes(svg)) == 4  # a seed that activated nothing is left out


def test_only_the_strongest_paths_are_drawn_and_the_rest_is_counted():
    found = {f"n{i}": Activation(1 / i, 1, ("s", "thread", f"n{i}")) for i in range(1, 101)}
    svg = neighbourhood_svg(["s"], found, most=10)
    assert set(boxes(svg)) == {"s", *(f"n{i}" for i in range(1, 11))}
    assert "90 weaker paths are not drawn" in svg


def test_nothing_activated_is_an_empty_drawing():
    assert boxes(neighbourhood_svg({}, {})) == {}


ANYTHING = st.text(st.characters(), max_size=60)  # control characters and lone surrogates too


@given(ANYTHING, ANYTHING, ANYTHING)
def test_any_text_is_drawn_as_text(key, text, label):
    found = {"x": Activation(0.5, 1, (key, label, "x"))}
    svg = neighbourhood_svg([key], found, labels={key: text})
    assert svg.count('class="hm-node') == len({key, "x"})
    ET.fromstring(svg)
    page(Explanation(text, activations=found, texts={key: text})).encode()


def test_without_a_graph_the_page_has_receipts_alone():
    html = page(Explanation("hello <b>", (Receipt("m1", 1, 0.5, 0.1, (ArmShare("bm25", 1, 2.0, 0.1),)),)))
    assert "<svg" not in html
    assert "neighbourhood" not in html
    assert "rank 1, raw score 2" in html
    assert "hello &lt;b&gt;" in html


# --- in a real browser


@pytest.fixture(scope="module")
def chromium():
    with open_browser() as driver:
        yield driver


@pytest.fixture(scope="module")
def explained():
    with HybridMemory(embedder=None) as memory:
        turns = ["Where did Ana move?", "She moved to Lisbon.", "How nice!", "Visit her in Lisbon?", "In spring then"]
        memory.add_many(
            {"id": f"m{i}", "text": text, "thread": "chat", "entities": ["Lisbon"] if "Lisbon" in text else []}
            for i, text in enumerate(turns)
        )
        return memory.explain("Where is Ana, in Lisbon?")


@pytest.mark.parametrize("width", [1400, 900, 390])
def test_the_page_is_readable_at_every_width(chromium, tmp_path, explained, width):
    resize(chromium, width, 900)
    assert show(chromium, explained.to_html(), tmp_path) == []  # nothing in the console
    chromium.execute_script("for (const box of document.querySelectorAll('details')) box.open = true")
    assert chromium.execute_script("return document.documentElement.scrollWidth") <= width
    texts = chromium.execute_script(LAYOUT)
    assert {"m0", "m1", "m2", "m3", "m4"} <= {text for text, *_ in texts}
    assert overlapping(texts) == []
    assert chromium.execute_script("return performance.getEntriesByType('resource').length") == 0
    smallest = chromium.execute_script(
        "return Math.min(...[...document.querySelectorAll('svg text')].map(e => e.getBoundingClientRect().height))"
    )
    assert smallest >= 10  # pixels: the drawing is not scaled down to nothing
    beside = chromium.execute_script(
        "return document.querySelector('svg').getBoundingClientRect().left"
        " > document.querySelector('ol').getBoundingClientRect().right"
    )
    assert beside == (width == 1400)


def test_a_page_without_a_graph_uses_the_whole_width(chromium, tmp_path):
    resize(chromium, 1400, 900)
    show(chromium, Explanation("q", (RECEIPT,), texts={"m1": "text " * 40}).to_html(), tmp_path)
    left, right = chromium.execute_script(
        "const box = document.querySelector('.hm-result').getBoundingClientRect(); return [box.left, box.right]"
    )
    assert right - left > 900
    assert chromium.execute_script("return document.querySelectorAll('svg, section').length") == 0


def test_hostile_texts_stay_texts_in_a_real_browser(chromium, tmp_path):
    evil = "</title></svg><script>window.pwned=1</script><img src=x onerror='window.pwned=1'>\x00\x07"
    found = {"m1": Activation(0.5, 1, (evil, evil, "m1"))}
    receipts = (Receipt(evil, 1, 1.0, 1.0, (ArmShare(evil, 1, 1.0, 1.0, evil),)),)
    html = Explanation(evil, receipts, activations=found, texts={evil: evil, "m1": evil}).to_html()
    show(chromium, html, tmp_path)
    assert chromium.execute_script("return window.pwned === undefined")
    assert chromium.execute_script("return document.querySelectorAll('.hm-node').length") == 2
    assert chromium.execute_script("return document.querySelectorAll('script, img').length") == 0


def test_a_wide_neighbourhood_stays_readable(chromium, tmp_path):
    resize(chromium, 390, 844)
    found = {f"n{i}": Activation(0.5, 1, (f"s{i % 4}", "links", f"n{i}")) for i in range(30)}
    show(chromium, Explanation("q", activations=found).to_html(), tmp_path)
    texts = chromium.execute_script(LAYOUT)
    assert len([text for text, *_ in texts if text.startswith(("n", "s"))]) >= 34
    assert overlapping(texts) == []
