"""The commands that search, show and list, and their output on a terminal."""

import json
import sys

import pytest

from hybridmem import HybridMemory


def rows(text):
    return [json.loads(line) for line in text.splitlines()]


def test_show_list_and_history(filled):
    assert "text           Ana has moved to Lisbon." in filled("show", "lisbon").out
    (shown,) = rows(filled("show", "porto", "--json").out)
    assert (shown["status"], shown["metadata"]) == ("superseded", {"lang": "en"})
    assert shown["created_at"].startswith("20")
    assert "no memory 'nobody'" in filled("show", "nobody", code=1).err
    assert [line.split()[0] for line in filled("list").out.splitlines()] == ["lisbon"]
    every = filled("list", "--superseded").out.splitlines()
    assert [line.split()[0] for line in every] == ["lisbon", "porto"]
    assert "superseded" in every[1]
    assert len(filled("list", "--superseded", "--limit", 1).out.splitlines()) == 1
    assert rows(filled("list", "--json", "-n", "ben").out)[0]["text"] == "Ben drinks tea."
    assert filled("list", "--filter", '{"type": "x"}', code=3).out == ""
    versions = rows(filled("history", "porto", "--json").out)
    assert [version["status"] for version in versions] == ["active", "superseded"]
    assert [line.split()[2] for line in filled("history", "porto").out.splitlines()] == ["active", "superseded"]
    assert filled("history", "nobody", code=3).out == ""


def test_search_shows_the_turns_around_a_result_and_keeps_the_days_of_a_question(run):
    for n, text in enumerate(["Shall we go out?", "The squid was superb", "I paid with a card"]):
        how = ("--thread", "t", "--created-at", f"2024-05-01T10:0{n}:00Z", "--embedder", "none")
        run("add", text, "--id", f"t{n}", *how)
    shown = run("search", "squid", "-k", 1, "--context", 1, "--embedder", "none").out.splitlines()
    assert shown[-2:] == ["       before  t0  Shall we go out?", "       after   t2  I paid with a card"]
    (row,) = rows(run("search", "squid", "-k", 1, "--context", 1, "--json", "--embedder", "none").out)
    assert [turn["id"] for turn in row["context"]] == ["t0", "t2"]
    run("search", "squid in June 2024", "--time", "strict", "--embedder", "none", code=3)
    found = rows(run("search", "squid in May 2024", "--time", "strict", "--json", "--embedder", "none").out)
    assert found[0]["id"] == "t1"
    for option in (["--context", 1], ["--time", "strict"], ["--min-confidence", 0.5]):
        assert "--arm searches one arm" in run("search", "squid", "--arm", "bm25", *option, code=2).err


def test_stats_and_namespaces(filled):
    figures = json.loads(filled("stats", "--json").out)
    assert {name: figures[name] for name in ("memories", "superseded", "links", "namespaces", "embedder")} == {
        "memories": 1, "superseded": 1, "links": 0, "namespaces": 2, "embedder": None,
    }  # fmt: skip
    assert "memories     1" in filled("stats").out
    assert "embedder     none" in filled("stats").out
    assert filled("namespaces").out.split() == ["1", "(default)", "1", "ben"]
    assert rows(filled("namespaces", "--json").out)[1] == {"namespace": "ben", "memories": 1}


def test_search_as_json_has_every_field(filled):
    (found,) = rows(filled("search", "Lisbon", "--json", "--embedder", "none").out)
    with HybridMemory("memory.db", embedder=None) as memory:
        fields = set(memory.get("lisbon").to_dict())
    assert set(found) == fields | {"rank", "score", "receipt"}
    assert (found["rank"], found["supersedes"], found["receipt"]["arms"][0]["arm"]) == (1, "porto", "bm25")


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("COLUMNS", "60")


def test_colour_and_width_on_a_terminal(run, terminal, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    text = "The cat sleeps " + "on the blue sofa " * 12
    assert run("add", text, "--id", "cat", "--embedder", "none").err == "hybridmem: memory.db is a new memory\n"
    assert run("add", text, "--id", "cat", "--embedder", "none").err == ""
    shown = run("search", "cat", "--embedder", "none").out
    assert "\x1b[1mcat\x1b[0m" in shown
    monkeypatch.setenv("NO_COLOR", "1")
    plain = run("search", "cat", "--embedder", "none").out
    assert "\x1b" not in plain
    assert max(map(len, plain.splitlines())) <= 60
    assert len(plain.splitlines()) > 4
    assert run("list").out.endswith("…\n")
    assert len(run("list").out) <= 61
    assert run("search", "zebra", "--embedder", "none", code=3).out == "no results\n"
    assert run("list", "--filter", '{"type": "x"}', code=3).out == "no memories\n"
    assert run("history", "nobody", code=3).out == "no versions\n"
    assert run("forget", "cat").out == "1 forgotten\n"


def test_long_texts_are_cut_on_a_terminal_and_whole_in_a_pipe(run, terminal, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    text = "The cat sleeps. " + "More about it follows here. " * 40
    run("add", text, "--id", "cat", "--embedder", "none")
    monkeypatch.setenv("NO_COLOR", "1")
    shown = run("search", "cat", "--embedder", "none").out.splitlines()
    assert [line.startswith("     ") for line in shown[1:6]] == [True] * 5
    assert shown[5].endswith(" …")
    assert shown[6].startswith("       bm25 #1")
    assert len(run("show", "cat").out.splitlines()) > len(text) / 60
    monkeypatch.setattr(sys.stdout, "isatty", lambda: False, raising=False)
    assert text.strip() in run("search", "cat", "--embedder", "none").out
