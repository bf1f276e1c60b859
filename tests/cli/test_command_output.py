"""Control characters in stored texts, ids, tags and namespaces, and passwords: no command prints them."""

import json
import re
import sys

import pytest

from hybridmem import HybridMemory
from hybridmem.cli.command import one_line, paint, say, visible
from hybridmem.cli.main import COMMANDS, main
from hybridmem.errors import ConfigError
from hybridmem.memory.factory import open_store
from hybridmem.server.inspector import Inspector
from hybridmem.server.mcp import HttpServer

CONTROL = "".join(
    map(chr, [*range(9), *range(11, 32), *range(127, 160), 0x61C, 0x200E, 0x200F, *range(0x2028, 0x202F)])
) + "".join(map(chr, range(0x2066, 0x206A)))
EVIL = "\x1b]0;owned\x07\x1b[2J\x9b31m\x85\u202eevil\u2066\r\x08"
KEY, SPACE = f"id{EVIL}", f"space{EVIL}"

COLOURS = re.compile(r"\x1b\[(?:0|1|2|32|33|36)m")


async def _not_served(server):
    server._socket.close()


def test_visible_escapes_every_control_character():
    assert set(visible(CONTROL)) & set(CONTROL) == set()
    assert visible("a\tb\nc") == "a\tb\nc"
    assert visible("\x1b\x9b\u202e") == "\\x1b\\x9b\\u202e"
    assert one_line("a\nb\tc") == "a\\nb\\tc"
    assert visible("שלום 🎶 naïve") == "שלום 🎶 naïve"


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)


def test_colours_of_paint_are_kept_and_others_escaped(terminal, capsys, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    say(f"{paint('blue', 'cyan')} \x1b[36mtext\x1b[0m")
    assert capsys.readouterr().out == "\x1b[36mblue\x1b[0m \\x1b[36mtext\\x1b[0m\n"


def _hostile(folder):
    for namespace in ("", SPACE):
        with HybridMemory(folder / "memory.db", embedder=None, namespace=namespace) as memory:
            memory.add(
                f"The cat {EVIL} sleeps.", id=KEY, title=EVIL, subject=EVIL, speaker=EVIL, type=EVIL, thread=EVIL,
                source_id=EVIL, tags=[EVIL], entities=[EVIL], metadata={EVIL: EVIL},
            )  # fmt: skip
            memory.add(f"The cat {EVIL} wakes.", id=f"{KEY}2")
            memory.add("A dog barks.", id=f"{KEY}3")
            memory.link(KEY, f"{KEY}2", f"knows{EVIL}")
    cases = [{"query": f"cat {EVIL} {n}", "relevant": [KEY], "category": EVIL} for n in range(20)]
    cases[0]["relevant"] = [f"{KEY}3"]
    cases[1]["relevant"] = [f"gone{EVIL}", KEY]
    (folder / "cases.jsonl").write_text("\n".join(map(json.dumps, cases)), encoding="utf-8")
    (folder / "in.jsonl").write_text(json.dumps({"text": EVIL, "id": f"new{EVIL}"}), encoding="utf-8")
    (folder / "wrong.jsonl").write_text(json.dumps({EVIL: EVIL, "id": f"new{EVIL}"}), encoding="utf-8")


COMMAND_LINES = {
    "add": [
        ["add", EVIL, "--id", f"more{EVIL}", "--embedder", "none"],
        ["add", "x", "--type", "", "--created-at", EVIL],
    ],
    "import": [["import", "in.jsonl", "--embedder", "none"], ["import", "wrong.jsonl"], ["import", EVIL]],
    "search": [
        ["search", "cat", "--embedder", "none"],
        ["search", "cat", "--embedder", "none", "--json"],
        ["search", "cat", "--embedder", "none", "--arm", "bm25"],
        ["search", "cat", "--embedder", "none", "--namespace", SPACE],
        ["search", "cat", "--embedder", "none", "--why-not", f"{KEY}3"],
        ["search", "cat", "--embedder", "none", "--why-not", KEY],
        ["search", "cat", "--embedder", "none", "--why-not", EVIL],
        ["search", "cat", "--embedder", EVIL],
        ["search", "cat", "--recipe", EVIL],
        ["search", "cat", "--filter", EVIL],
    ],
    "forget": [["forget", EVIL], ["forget", KEY]],
    "sweep": [["sweep"]],
    "export": [["export"], ["export", "--everyone"], ["export", "-o", "-"]],
    "show": [["show", KEY], ["show", KEY, "--json"], ["show", EVIL]],
    "list": [["list"], ["list", "--json"], ["list", "--namespace", SPACE], ["list", "--as-of", EVIL]],
    "history": [["history", KEY], ["history", KEY, "--json"], ["history", EVIL]],
    "stats": [["stats"], ["stats", "--json"], ["stats", "--namespace", SPACE], ["stats", "--memory", EVIL]],
    "namespaces": [["namespaces"], ["namespaces", "--json"]],
    "eval": [
        ["eval", "cases.jsonl", "--embedder", "none"],
        ["eval", "cases.jsonl", "--embedder", "none", "--json", "-"],
        ["eval", "cases.jsonl", "--embedder", "none", "--markdown", "-"],
        ["eval", "cases.jsonl", "--embedder", "none", "--html", "-"],
        ["eval", "cases.jsonl", "--embedder", "none", "--against", EVIL],
    ],
    "tune": [
        ["tune", "cases.jsonl", "--embedder", "none", "--json", "-", "--folds", "2", "--repeats", "1"],
        ["tune", "cases.jsonl", "-o", f"{EVIL}/x"],
    ],
    "health": [
        ["health", "cases.jsonl", "--embedder", "none"],
        ["health", "cases.jsonl", "--embedder", "none", "--json"],
    ],
    "calibrate": [["calibrate", "cases.jsonl", "--embedder", "none", "--off-topic", "cases.jsonl"]],
    "inspect": [["inspect", "--embedder", "none"]],
    "mcp": [["mcp", "--embedder", "none", "--http", "0"]],
    "check": [["check"]],
    "reindex": [["reindex", "--embedder", "none"]],
    "backup": [["backup", f"copy{EVIL.replace('/', '')}.db"]],
    "copy": [["copy", "memory.db", "other.db"], ["copy", EVIL, "other.db"]],
    "completion": [["completion", "bash"], ["completion", "fish"]],
}


def test_the_table_has_every_command():
    assert set(COMMAND_LINES) == {command.name for command in COMMANDS} | {"completion"}


@pytest.mark.parametrize("colours", [False, True], ids=["pipe", "terminal"])
@pytest.mark.parametrize("name", COMMAND_LINES)
def test_no_command_prints_control_characters(name, colours, tmp_path, monkeypatch, capsys, request):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HYBRIDMEM", raising=False)
    monkeypatch.setattr(Inspector, "wait", lambda self: None)  # the page would be served until Ctrl-C
    monkeypatch.setattr(HttpServer, "serve", _not_served)
    _hostile(tmp_path)
    if colours:
        request.getfixturevalue("terminal")
    printed = []
    for words in COMMAND_LINES[name]:
        assert main(words) in (0, 1, 2, 3)
        shown = capsys.readouterr()
        if "--json" in words and name not in ("eval", "tune"):
            for line in shown.out.splitlines():
                json.loads(line)
        elif "--json" in words:
            json.loads(shown.out)
        printed += [COLOURS.sub("", shown.out), shown.err]
    text = "".join(printed)
    assert set(text) & set(CONTROL) == set()
    if name in ("search", "export", "show", "list", "history", "stats", "namespaces", "eval", "backup"):
        assert "evil" in text  # shown, not left out
    if name in ("search", "show", "export", "list"):
        assert "\\u009b" in text  # JSON
        assert "\\x9b31m" in text or name == "export"


def test_a_restored_export_has_the_same_characters(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    _hostile(tmp_path)
    assert main(["export", "--memory", "memory.db", "-o", "all.jsonl"]) == 0
    assert main(["import", "all.jsonl", "--memory", "copy.db", "--embedder", "none"]) == 0
    with HybridMemory("copy.db", embedder=None) as memory:
        assert memory.get(KEY).text == f"The cat {EVIL} sleeps."
        assert memory.get(KEY).metadata == {EVIL: EVIL}


ADDRESSES = (
    "mysql://me:hunter2@h/db", "POSTGRESQL://me:hunter2@h/db", "postgresql+psycopg://me:hunter2@h/db",
    "host=localhost password=hunter2", "postgresql://me:hunter2@h/db?nonsense=1",
    "postgresql://me@h/db?passwort=hunter2", "postgresql://me:hunter2@local host:xx/db",
)  # fmt: skip


@pytest.mark.parametrize("address", ADDRESSES)
@pytest.mark.parametrize("name", ["add", "search", "stats", "export", "copy", "eval", "inspect", "reindex"])
def test_no_command_prints_a_password(name, address, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HYBRIDMEM", address)
    (tmp_path / "cases.jsonl").write_text('{"query": "x", "relevant": ["a"]}', encoding="utf-8")
    more = {"add": ["x"], "search": ["x"], "copy": [address, "other.db"], "eval": ["cases.jsonl"]}.get(name, [])
    assert main([name, *more]) == 2
    shown = capsys.readouterr()
    assert shown.err.startswith("hybridmem: ")
    assert "hunter2" not in shown.out + shown.err
    assert [path.name for path in tmp_path.iterdir()] == ["cases.jsonl"]
    with pytest.raises(SystemExit):
        main([name, "--help"])
    assert "hunter2" not in capsys.readouterr().out


def test_an_address_of_another_kind_is_refused_without_its_password():
    for address in ADDRESSES:
        with pytest.raises(ConfigError) as caught:
            open_store(address, clock=lambda: 0.0)
        assert "hunter2" not in str(caught.value) + repr(caught.value)
