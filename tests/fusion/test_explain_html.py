"""The drawing of the activated neighbourhood: what it says, and what a real browser makes of it."""

from __future__ import annotations

from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridmem.core.types import Activation
from hybridmem.fusion.explain import ArmShare, Explanation, Receipt
from hybridmem.fusion.explain_html import neighbourhood_svg, page
from hybridmem.memory.memory import HybridMemory
from tests.support.browser import open_browser, show

SVG = "{http://www.w3.org/2000/svg}"
FOUND = {
    "m40": Activation(0.5, 1, ("m12", "entity Lisbon", "m40")),
    "m41": Activation(0.25, 2, ("m12", "entity Lisbon", "m40", "thread", "m41")),
}


def boxes(svg):
    return {node.get("data-key"): node for node in ET.fromstring(svg).iter(f"{SVG}g") if node.get("data-key")}


def words(svg):
    return " ".join("".join(node.itertext()) for node in ET.fromstring(svg).iter(f"{SVG}text"))


def test_seeds_stand_left_and_each_hop_further_right():
    drawn = boxes(neighbourhood_svg({"m12": 1.0}, FOUND, labels={"m40": "Ana moved to Lisbon"}))
    x = {key: int(node.find(f"{SVG}rect").get("x")) for key, node in drawn.items()}
    assert x["m12"] < x["m40"] < x["m41"]
    assert "hm-seed" in drawn["m12"].get("class")
    assert "Ana moved to Lisbon" in "".join(drawn["m40"].itertext())


def test_keys_values_edges_and_notes_are_told():
    told = words(neighbourhood_svg(["m12"], FOUND, notes={"m12": "bm25 #1"}))
    for word in ("m12 bm25 #1", "m40 +0.5", "m41 +0.25", "entity Lisbon", "thread"):
        assert word in told
    assert "m12 seed 0.8" in words(neighbourhood_svg({"m12": 0.8}, FOUND))
    assert "m12 seed" in words(neighbourhood_svg(["m12"], FOUND))


def test_an_edge_walked_both_ways_is_drawn_once_and_boxes_never_overlap():
    found = {
        "b": Activation(0.5, 1, ("a", "thread", "b")),
        "a": Activation(0.4, 1, ("b", "thread", "a")),
        "c": Activation(0.3, 1, ("b", "links", "c")),
        "d": Activation(0.2, 2, ("a", "thread", "b", "thread", "d")),
    }
    svg = neighbourhood_svg(["a", "b", "idle"], found)
    assert svg.count("hm-line") == 3
    places = {(node.find(f"{SVG}rect").get("x"), node.find(f"{SVG}rect").get("y")) for node in boxes(svg).values()}
    assert len(places) == len(boxes(svg)) == 4  # a seed that activated nothing is not drawn


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
    assert "bm25 #1" in html
    assert "hello &lt;b&gt;" in html


@pytest.fixture(scope="module")
def chromium():
    with open_browser() as driver:
        yield driver


LAYOUT = """
const box = e => { const r = e.getBoundingClientRect(); return [r.left, r.top, r.right, r.bottom]; };
const svg = document.querySelector('svg.hm-graph');
return {
  svg: box(svg),
  boxes: [...svg.querySelectorAll('.hm-node')].map(e => [e.dataset.key, ...box(e.querySelector('rect'))]),
  texts: [...svg.querySelectorAll('.hm-node text')].map(box),
  edges: [...svg.querySelectorAll('path.hm-edge')].map(e => e.getTotalLength()),
  labels: [...svg.querySelectorAll('.hm-label')].map(e => e.firstChild.textContent),
  table: box(document.querySelector('table')),
  fetched: performance.getEntriesByType('resource').map(e => e.name),
  pwned: window.pwned === undefined,
};
"""


def test_a_real_browser_draws_the_neighbourhood_beside_the_receipts(chromium, tmp_path):
    with HybridMemory(embedder=None) as memory:
        turns = ["Where did Ana move?", "She moved to Lisbon.", "How nice!", "Visit her in Lisbon?", "In spring then"]
        memory.add_many(
            {"id": f"m{i}", "text": text, "thread": "chat", "entities": ["Lisbon"] if "Lisbon" in text else []}
            for i, text in enumerate(turns)
        )
        explained = memory.explain("Where is Ana, in Lisbon?")
    assert show(chromium, explained.to_html(), tmp_path) == []  # nothing to complain about in the console
    seen = chromium.execute_script(LAYOUT)
    assert sorted(key for key, *_ in seen["boxes"]) == ["m0", "m1", "m2", "m3", "m4"]
    assert "entity Lisbon" in seen["labels"]
    assert "thread" in seen["labels"]
    assert min(seen["edges"]) > 10
    left, top, right, bottom = seen["svg"]
    for x1, y1, x2, y2 in [place for _, *place in seen["boxes"]] + seen["texts"]:
        assert left <= x1 < x2 <= right + 1
        assert top <= y1 < y2 <= bottom + 1
    assert seen["table"][2] <= left  # beside, not below
    assert seen["fetched"] == []
    hover = chromium.execute_script("return document.querySelector('.hm-node title').textContent")
    assert hover.startswith("m")


def test_hostile_texts_stay_texts_in_a_real_browser(chromium, tmp_path):
    evil = "</title></svg><script>window.pwned=1</script><img src=x onerror='window.pwned=1'>\x00\x07"
    found = {"m1": Activation(0.5, 1, (evil, evil, "m1"))}
    receipts = (Receipt(evil, 1, 1.0, 1.0, (ArmShare(evil, 1, 1.0, 1.0, evil),)),)
    html = Explanation(evil, receipts, activations=found, texts={evil: evil, "m1": evil}).to_html()
    show(chromium, html, tmp_path)
    seen = chromium.execute_script(LAYOUT)
    assert seen["pwned"]
    assert len(seen["boxes"]) == 2
    assert chromium.execute_script("return document.querySelectorAll('script, img').length") == 0


def test_a_wide_neighbourhood_stays_readable(chromium, tmp_path):
    found = {f"n{i}": Activation(0.5, 1, (f"s{i % 4}", "links", f"n{i}")) for i in range(30)}
    show(chromium, Explanation("q", activations=found).to_html(), tmp_path)
    places = [place for _, *place in chromium.execute_script(LAYOUT)["boxes"]]
    assert len(places) == 34
    for n, (x1, y1, x2, y2) in enumerate(places):
        assert not any(x1 < c and a < x2 and y1 < d and b < y2 for a, b, c, d in places[n + 1 :])
