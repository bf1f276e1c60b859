"""The embedder that a command uses: named, recorded, or none."""

import json
import sys


def rows(text):
    return [json.loads(line) for line in text.splitlines()]


MODULE = """
def vowels(texts):
    return [[text.count(letter) + 0.1 for letter in "aeiou"] for text in texts]


class Model:
    def embed_documents(self, texts):
        return vowels(texts)

    def embed_query(self, text):
        return vowels([text])[0]
"""


def test_an_embedder_of_your_own(run, tmp_path, monkeypatch):
    (tmp_path / "my_model.py").write_text(MODULE, encoding="utf-8")
    run("add", "aaaa", "--id", "a", "--embedder", "my_model:Model")
    run("add", "oooo", "--id", "o", "--embedder", "my_model:Model")
    assert rows(run("search", "oo", "--arm", "vector", "--json", "--embedder", "my_model:Model").out)[0]["id"] == "o"
    told = run("search", "oo", code=2).err
    assert "(5 dimensions): name the object in your code with --embedder module:attribute" in told
    for command in ("check", "list", "export", "stats", "namespaces"):
        run(command)  # need no embedder
    run("search", "oooo", "--embedder", "none")
    monkeypatch.setenv("HYBRIDMEM_EMBEDDER", "my_model:Model")
    assert rows(run("search", "oo", "--arm", "vector", "--json").out)[0]["id"] == "o"
    assert "cannot be loaded: No module named 'nowhere'" in run("search", "x", "--embedder", "nowhere:x", code=2).err
    assert "auto, local, none or module:attribute" in run("search", "x", "--embedder", "nonsense", code=2).err


def test_the_recorded_local_embedder_is_used_again(run):
    run("add", "My automobile needs a battery.", "--id", "car", "--embedder", "local")
    run("add", "Taxes rose.", "--id", "tax", "--embedder", "local")
    assert rows(run("search", "vehicle repair", "--json").out)[0]["id"] == "car"


def test_a_recorded_local_embedder_that_is_not_installed(run, monkeypatch):
    run("add", "My automobile needs a battery.", "--id", "car", "--embedder", "local")
    monkeypatch.setitem(sys.modules, "wordllama", None)
    reported = run("search", "battery", code=2).err
    assert "pip install 'hybridmem[local]'; --embedder none searches without vectors" in reported
    assert rows(run("search", "battery", "--embedder", "none", "--json").out)[0]["id"] == "car"
    for command in ("check", "list", "export", "stats", "namespaces", "history car", "show car", "backup copy.db"):
        run(*command.split())  # need no embedder


def test_a_memory_without_vectors_stays_without(run, tmp_path):
    """`auto` does not mix memories with and without vectors; `reindex` adds vectors to all."""
    run("add", "My automobile needs a battery.", "--id", "car", "--embedder", "none")
    run("add", "Taxes rose.", "--id", "tax")
    assert run("search", "vehicle", code=3).err == ""
    assert "embedder     none (`hybridmem reindex --embedder local` adds vectors)" in run("stats").out
    run("reindex", "--embedder", "local")
    assert rows(run("search", "vehicle", "--json").out)[0]["id"] == "car"
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "car.md").write_text("My automobile needs a battery.", encoding="utf-8")
    assert rows(run("search", "vehicle", "--json", "-m", "notes").out)[0]["id"] == "car"  # notes written by hand
