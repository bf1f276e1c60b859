"""The commands that read, import and forget memories, their embedders, and output on a terminal."""

import json
import os
import subprocess
import sys

import pytest

from hybridmem import HybridMemory
from hybridmem.cli import output
from hybridmem.cli.main import build_parser, completion_script, main


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in ("HYBRIDMEM", "HYBRIDMEM_EMBEDDER"):
        monkeypatch.delenv(name, raising=False)

    def call(*words, code=0):
        assert main([str(word) for word in words]) == code
        return capsys.readouterr()

    return call


@pytest.fixture
def filled(run):
    run("add", "Ana lives in Porto.", "--id", "porto", "--embedder", "none", "--metadata", '{"lang": "en"}')
    run("add", "Ana has moved to Lisbon.", "--id", "lisbon", "--embedder", "none", "--supersedes", "porto")
    run("add", "Ben drinks tea.", "--id", "tea", "--embedder", "none", "-n", "ben")
    return run


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


def test_stats_and_namespaces(filled):
    figures = json.loads(filled("stats", "--json").out)
    assert {name: figures[name] for name in ("memories", "superseded", "links", "namespaces", "embedder")} == {
        "memories": 1, "superseded": 1, "links": 0, "namespaces": 2, "embedder": None,
    }  # fmt: skip
    assert "memories     1" in filled("stats").out
    assert "embedder     none" in filled("stats").out
    assert filled("namespaces").out.split() == ["1", "(default)", "1", "ben"]
    assert rows(filled("namespaces", "--json").out)[1] == {"namespace": "ben", "memories": 1}


def test_forget_and_erase(filled):
    assert filled("forget", "lisbon").out.strip() == "1"
    assert filled("forget", "lisbon", code=3).out.strip() == "0"
    assert len(rows(filled("history", "lisbon", "--json").out)) == 2
    assert filled("forget", "lisbon", "--erase").out.strip() == "1"
    assert filled("history", "lisbon", code=3).out == ""


def test_sweep_removes_expired_memories(filled):
    filled("add", "The code is 7.", "--id", "code", "--embedder", "none", "--expires-at", "2020-01-01")
    filled("search", "code", "--embedder", "none", code=3)
    assert filled("sweep").out.strip() == "1"
    assert len(rows(filled("history", "code", "--json").out)) == 2
    filled("sweep", "--erase")
    assert filled("history", "code", code=3).out == ""


def test_search_as_json_has_every_field(filled):
    (found,) = rows(filled("search", "Lisbon", "--json", "--embedder", "none").out)
    with HybridMemory("memory.db", embedder=None) as memory:
        fields = set(output.memory_fields(memory.get("lisbon")))
    assert set(found) == fields | {"rank", "score", "receipt"}
    assert (found["rank"], found["supersedes"], found["receipt"]["arms"][0]["arm"]) == (1, "porto", "bm25")


# --- import


def test_unknown_keys_become_metadata(run, tmp_path):
    line = {"_id": "a", "text": "x", "lang": "en", "metadata": {"page": 3}, "timestamp": "2024-05-01"}
    (tmp_path / "in.jsonl").write_text(json.dumps(line), encoding="utf-8")
    run("import", "in.jsonl", "--embedder", "none")
    (shown,) = rows(run("show", "a", "--json").out)
    assert shown["metadata"] == {"lang": "en", "page": 3}
    assert shown["created_at"].startswith("2024-05-01")


def test_tables_and_text(run, tmp_path):
    (tmp_path / "in.csv").write_text('id,body,tags,team\r\n1,"Ana, moved",home; work,\r\n2,Tea,,blue\r\n', "utf-8")
    assert run("import", "in.csv", "--text-column", "body", "--embedder", "none").out.strip() == "2"
    first, second = rows(run("list", "--json").out)
    assert (first["text"], first["tags"], first["metadata"]) == ("Ana, moved", ["home", "work"], {})
    assert second["metadata"] == {"team": "blue"}
    (tmp_path / "in.tsv").write_text("text\tid\nfour\t4\n", "utf-8")
    (tmp_path / "in.txt").write_text("one line\n\nanother line\n", "utf-8")
    assert run("import", "in.tsv", "--embedder", "none").out.strip() == "1"
    assert run("import", "in.txt", "--embedder", "none").out.strip() == "2"
    assert len(rows(run("list", "--json").out)) == 5
    (tmp_path / "wide.csv").write_text("text\na,b\n", "utf-8")
    assert "wide.csv:2: more cells than the header" in run("import", "wide.csv", "--embedder", "none", code=1).err
    message = run("import", "in.csv", "--embedder", "none", code=1).err
    assert "in.csv:2: there is no 'text', only id, body, tags: name it with --text-column" in message


def test_a_beir_folder(run, tmp_path):
    (tmp_path / "beir" / "qrels").mkdir(parents=True)
    (tmp_path / "beir" / "corpus.jsonl").write_text('{"_id": "d1", "title": "Cats", "text": "They purr."}\n', "utf-8")
    (tmp_path / "beir" / "queries.jsonl").write_text('{"_id": "q1", "text": "Who purrs?"}\n', "utf-8")
    (tmp_path / "beir" / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq1\td1\t1\n", "utf-8")
    assert run("import", "beir", "--embedder", "none").out.strip() == "1"
    assert rows(run("show", "d1", "--json").out)[0]["title"] == "Cats"
    assert "recall@10" in run("eval", "beir", "--embedder", "none").out


def test_a_refused_import_leaves_nothing(run, tmp_path):
    good = "\n".join('{"text": "fine"}' for _ in range(1500))
    (tmp_path / "in.jsonl").write_text(f'{good}\n{{"text": 5}}\n', encoding="utf-8")
    assert "in.jsonl:1501" in run("import", "in.jsonl", "--embedder", "none", code=1).err
    assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"]
    header = '{"kind": "hybridmem", "version": 99}'
    (tmp_path / "in.jsonl").write_text(header, encoding="utf-8")
    run("import", "in.jsonl", "--embedder", "none", code=1)
    assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"]
    run("add", "the cat", "--id", "cat", "--embedder", "none")
    (tmp_path / "in.jsonl").write_text(f'{good}\n{{"text": 5}}\n', encoding="utf-8")
    run("import", "in.jsonl", "--embedder", "none", code=1)
    assert [row["id"] for row in rows(run("list", "--json").out)] == ["cat"]


# --- embedders


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
    told = run("search", "oo", code=1).err
    assert "(5 dimensions): name the object in your code with --embedder module:attribute" in told
    for command in ("check", "list", "export", "stats", "namespaces"):
        run(command)  # need no embedder
    run("search", "oooo", "--embedder", "none")
    monkeypatch.setenv("HYBRIDMEM_EMBEDDER", "my_model:Model")
    assert rows(run("search", "oo", "--arm", "vector", "--json").out)[0]["id"] == "o"
    assert "cannot be loaded: No module named 'nowhere'" in run("search", "x", "--embedder", "nowhere:x", code=1).err
    assert "auto, local, none or module:attribute" in run("search", "x", "--embedder", "nonsense", code=1).err


def test_the_recorded_local_embedder_is_used_again(run):
    run("add", "My automobile needs a battery.", "--id", "car", "--embedder", "local")
    run("add", "Taxes rose.", "--id", "tax", "--embedder", "local")
    assert rows(run("search", "vehicle repair", "--json").out)[0]["id"] == "car"


# --- terminal


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("COLUMNS", "60")


def test_colour_and_width_on_a_terminal(run, terminal, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    run("add", "The cat sleeps " + "on the blue sofa " * 12, "--id", "cat", "--embedder", "none")
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


def test_completion_scripts():
    parser = build_parser()
    bash = completion_script("bash", parser)
    assert 'search) words="-h --help -m --memory' in bash
    done = subprocess.run(["bash", "-n"], input=bash, text=True, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    ask = f'{bash}\nCOMP_WORDS=(hybridmem search --why); COMP_CWORD=2; _hybridmem; echo "${{COMPREPLY[@]}}"'
    done = subprocess.run(["bash", "-c", ask], text=True, capture_output=True, check=True)
    assert done.stdout.strip() == "--why-not"
    assert completion_script("zsh", parser).startswith("autoload -U +X bashcompinit")
    assert "complete -c hybridmem -n __fish_use_subcommand -a search" in completion_script("fish", parser)


def test_completion_is_a_command(tmp_path):
    words = [sys.executable, "-m", "hybridmem", "completion", "bash"]
    done = subprocess.run(words, cwd=tmp_path, env=os.environ, text=True, capture_output=True, check=True)
    assert "complete -o filenames -F _hybridmem hybridmem" in done.stdout
