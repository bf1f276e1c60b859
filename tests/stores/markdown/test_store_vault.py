"""A vault of notes on disk, with the links, tags and names that people write in Obsidian and Foam."""

import unicodedata
from pathlib import Path

import pytest

from hybridmem import HybridMemory

VAULT = {
    "Projects/Atlas.md": "The planner. Led by [[Mira Okafor]], designed in [[Atlas design#Storage|a note]]. #project",
    "People/Mira Okafor.md": "---\naliases: [Mira, The captain]\ntags: [person]\n---\nJoined in 2021. #lisbon",
    "Atlas design.md": "# Storage\n\nSee [the retro](Meetings/2024-05%20retro.md#cache) and ![[Chart of routes]].",
    "Meetings/2024-05 retro.md": "We dropped something that nobody missed.",
    "Charts/Chart of routes.md": "Twelve lines in red.",
    "Files/ana.md": "---\ntitle: Ana Silva\n---\nWorks on tiles.",
    "Files/index.md": "Ask [[ana]] about ceramics, or [Bo](<People/Bo Larsen.md>), not [us](https://x.org/Log.md).",
    "People/Bo Larsen.md": "Paints boats.",
    unicodedata.normalize("NFD", "Cafés/Café Müller.md"): "Open until nine.",
    "Log.md": "Met at the CAFE MULLER, where the captain was late.",
    **{f"Journal/2024-06-{day:02}.md": f"Day {day}: a walk, some reading, rain." for day in range(1, 29)},
}


@pytest.fixture(scope="module")
def vault(tmp_path_factory):
    folder = tmp_path_factory.mktemp("vault")
    for name, text in VAULT.items():
        path = Path(folder, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    with HybridMemory(folder, embedder=None) as memory:
        yield memory


def linked(vault, question, seed):
    """The titles that the graph arm reaches from one note in one hop."""
    found = {one.memory.title: one.receipt.arms[0].note for one in vault.search_arm("graph", question, k=9, hops=1)}
    return {title for title, note in found.items() if note.startswith(f"seed {seed} (bm25 #") and "→" in note}


def test_wikilinks_with_labels_headings_and_folders(vault):
    assert linked(vault, "planner", "Projects/Atlas") == {"Mira Okafor", "Atlas design"}


def test_relative_links_and_embedded_notes(vault):
    assert linked(vault, "storage", "Atlas design") == {"2024-05 retro", "Chart of routes"}


def test_a_note_with_a_title_is_still_linked_by_its_file_and_addresses_are_no_notes(vault):
    assert linked(vault, "ask ceramics", "Files/index") == {"Ana Silva", "Bo Larsen"}


def test_aliases_case_and_unicode_forms_of_names(vault):
    found = linked(vault, "met late", "Log")
    assert {unicodedata.normalize("NFC", title) for title in found} == {"Café Müller", "Mira Okafor"}


def test_tags_of_the_front_matter_and_of_the_text(vault):
    assert vault.get("People/Mira Okafor").tags == ("person", "lisbon")
    assert [one.id for one in vault.search("joined", filter={"tags": {"$contains": "lisbon"}})] == [
        "People/Mira Okafor"
    ]
    assert vault.get("Projects/Atlas").tags == ("project",)


def test_an_edit_moves_the_links(tmp_path):
    (tmp_path / "a.md").write_text("A lantern of [[Bee]].", encoding="utf-8")
    (tmp_path / "Bee.md").write_text("Honey.", encoding="utf-8")
    (tmp_path / "Cee.md").write_text("Salt.", encoding="utf-8")
    with HybridMemory(tmp_path, embedder=None) as memory:
        assert [one.id for one in memory.search_arm("graph", "lantern")] == ["a", "Bee"]
        (tmp_path / "a.md").write_text("A lantern of [[Cee]] by now.", encoding="utf-8")
        memory.store.sync()
        assert [one.id for one in memory.search_arm("graph", "lantern")] == ["a", "Cee"]
