"""The command line as a user types it: real processes where signals and pipes matter, calls elsewhere."""

import io
import json
import os
import pty
import select
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from hybridmem import HybridMemory, load_recipe, save_recipe
from hybridmem.cli.command import ProgressBar
from hybridmem.cli.main import COMMANDS, _subparsers, build_parser, completion_script, main

EMBEDDING = {command.name for command in COMMANDS if command.memory and command.embedder}


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HYBRIDMEM", raising=False)

    def call(*words, code=0):
        plain = [str(word) for word in words]
        quick = ["--embedder", "none"] if plain[0] in EMBEDDING and "--embedder" not in plain else []
        assert main([plain[0], *quick, *plain[1:]]) == code
        return capsys.readouterr()

    return call


def test_add_search_and_why_not(run):
    key = run(
        "add", "Ana has moved to Lisbon.", "--subject", "ana", "--tag", "home", "--metadata", '{"a": 1}'
    ).out.strip()
    run("add", "The cat sleeps.", "--id", "cat")
    shown = run("search", "Where in Lisbon is Ana?", "-k", 3).out
    assert key in shown.splitlines()[0]
    assert "bm25 #1" in shown
    row = json.loads(run("search", "Lisbon", "--json").out.splitlines()[0])
    assert (row["id"], row["receipt"]["rank"]) == (key, 1)
    found, missing = run("search", "Lisbon", "--why-not", "cat", "--why-not", "dog").out.splitlines()
    assert found.startswith("cat: found by no arm")
    assert missing == "dog: there is no such memory"
    assert "no memory 'dog' in the default namespace" in run("show", "dog", code=1).err
    assert "cat" in run("search", "cat", "--arm", "bm25").out
    assert run("search", "Lisbon", "--filter", '{"subject": "ben"}', code=3).out == ""
    assert run("search", "zebra", code=3).out == ""


def test_a_wrong_row_is_named_by_its_place(run, tmp_path):
    good = '{"text": "fine"}'
    for line, why in (
        ('{"txt": "x"}', "in.jsonl:2: there is no 'text', only txt: name it with --text-column"),
        ('{"text": 5}', "in.jsonl:2: Memory.text = 5 is not allowed: a str"),
        ('{"text": "x", "tags": 5}', "in.jsonl:2: Memory.tags must be a sequence of str, not 5"),
    ):
        (tmp_path / "in.jsonl").write_text(f"{good}\n{line}\n", encoding="utf-8")
        assert why in run("import", "in.jsonl", code=2).err


def test_files_as_other_systems_save_them(run, tmp_path):
    (tmp_path / "bom.jsonl").write_bytes(b'\xef\xbb\xbf{"text": "fine", "id": "a"}\r\n')
    assert run("import", "bom.jsonl").out.strip() == "1"
    (tmp_path / "latin.jsonl").write_bytes('{"text": "caf\u00e9"}\n'.encode("latin-1"))
    assert "latin.jsonl is not UTF-8" in run("import", "latin.jsonl", code=2).err


def test_any_terminal_and_none_at_all(run, tmp_path):
    run("add", "Die schöne Müllerin 🎶", "--id", "m")
    words = [sys.executable, "-m", "hybridmem", "search", "Müllerin", "--embedder", "none"]
    ascii_only = {**os.environ, "PYTHONIOENCODING": "ascii"}
    shown = subprocess.run(words, capture_output=True, cwd=tmp_path, env=ascii_only, check=True).stdout
    assert b"M\\xfcllerin" in shown
    shown = subprocess.run([*words, "--json"], capture_output=True, cwd=tmp_path, env=ascii_only, check=True).stdout
    assert json.loads(shown)["text"] == "Die schöne Müllerin 🎶"
    closed = "import os, sys; os.close(1); os.execv(sys.argv[1], sys.argv[1:])"
    done = subprocess.run([sys.executable, "-c", closed, *words], capture_output=True, cwd=tmp_path, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


def test_the_module_runs_as_the_command_does(tmp_path):
    command = Path(sys.executable).with_name("hybridmem")
    for words in (
        ["--version"],
        ["--help"],
        ["search", "cat", "-m", "no.db"],
        ["nonsense"],
        ["add", "cat", "--id", "c"],
    ):
        as_command, as_module = (
            subprocess.run([*start, *words], capture_output=True, text=True, cwd=tmp_path, check=False)
            for start in ([command], [sys.executable, "-m", "hybridmem"])
        )
        assert (as_module.returncode, as_module.stdout, as_module.stderr) == (
            as_command.returncode, as_command.stdout, as_command.stderr,
        )  # fmt: skip


def test_import_export_and_back(run, tmp_path):
    lines = [{"id": f"m{i}", "text": f"memory number {i}", "timestamp": "2024-05-01", "title": None} for i in range(30)]
    (tmp_path / "in.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n\n", encoding="utf-8")
    assert run("import", "in.jsonl").out.strip() == "30"
    run("export", "-o", "all.jsonl")
    assert run("export").out.splitlines() == (tmp_path / "all.jsonl").read_text("utf-8").splitlines()
    run("import", "all.jsonl", "-m", "copy.db")
    with HybridMemory("copy.db", embedder=None) as copy:
        assert len(copy) == 30
        assert copy.get("m3").created_at.year == 2024
    (tmp_path / "empty.jsonl").write_text("", encoding="utf-8")
    assert run("import", "empty.jsonl").out.strip() == "0"
    assert "cannot read nowhere.jsonl" in run("import", "nowhere.jsonl", "-m", "fresh.db", code=2).err
    assert not (tmp_path / "fresh.db").exists()


def test_a_folder_of_notes_is_imported(run, tmp_path):
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "cat.md").write_text("---\ntags: [pet]\n---\nThe cat sleeps.\n", encoding="utf-8")
    assert run("import", "notes", "-m", "m.db").out.strip() == "1"
    assert "The cat sleeps." in run("search", "cat", "-m", "m.db").out


def test_standard_input(run, monkeypatch, tmp_path):
    for command, given, out in (
        (["import", "-"], '{"text": "the cat"}\n', "1"),
        (["add", "-", "--id", "x"], "the dog", "x"),
        (["health", "-"], 'cat\n{"query": "dog"}\n', None),
    ):
        monkeypatch.setattr(sys, "stdin", io.StringIO(given))
        shown = run(*command).out.strip()
        assert shown == out if out else "bm25" in shown


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["search", "x", "-m", "nowhere.db"], "there is no memory at 'nowhere.db'"),
        (["search", "x", "--filter", "{"], "is not JSON"),
        (["add", " \n"], "the text is empty"),
        (["search", "x", "--recipe", "nonsense"], "'nonsense' is neither a file nor a name"),
        (["import", "bad.jsonl"], "bad.jsonl:2: not JSON"),
        (["import", "list.jsonl"], "list.jsonl:1: '[]' must be a JSON object"),
        (["import", "nowhere.jsonl"], "nowhere.jsonl"),
        (["eval", "nowhere.jsonl"], "nowhere.jsonl"),
        (["eval", "strange.jsonl"], "1 of 1 relevant ids are not in this memory, such as 'zebra'"),
        (["eval", "strange.jsonl", "--against", "nonsense"], "'nonsense' is neither a file nor a name"),
        (["tune", "strange.jsonl", "-o", "nowhere/r.json"], "there is no folder 'nowhere'"),
        (["tune", "known.jsonl", "--json", "nowhere/r.json"], "--json 'nowhere/r.json': there is no folder 'nowhere'"),
        (["eval", "known.jsonl", "--json", "nowhere/r.json"], "--json 'nowhere/r.json': there is no folder 'nowhere'"),
        (["eval", "known.jsonl", "--html", "nowhere/r.html"], "--html 'nowhere/r.html': there is no folder 'nowhere'"),
        (["eval", "known.jsonl", "--markdown", "."], "--markdown '.' is a folder: name a file"),
        (["eval", "known.jsonl", "--plot", "r.docx"], "--plot 'r.docx' ends with '.docx': name a file with .png, .svg"),
        (["export", "-o", "nowhere/x.jsonl"], "--output 'nowhere/x.jsonl': there is no folder 'nowhere'"),
        (["tune", "known.jsonl"], "1 cases with relevant ids are too few for folds=5"),
        (
            ["tune", "known.jsonl", "--metric", "p@3", "--folds", "2"],
            "1 cases with relevant ids are too few for folds=2",
        ),
        (["health", "bad.jsonl"], "bad.jsonl:1: query is None"),
        (["health", "nowhere.txt"], "cannot read nowhere.txt"),
        (["health", "empty.txt"], "empty.txt holds no question"),
        (["calibrate", "known.jsonl"], "1 questions are too few for rate=0.05"),
        (["search", "cat", "--min-confidence", "7"], "min_confidence = 7.0 is not allowed"),
    ],
)
def test_errors_are_one_clear_line(run, tmp_path, words, message):
    run("add", "the cat", "--id", "cat")
    (tmp_path / "bad.jsonl").write_text('{"text": "a"}\n{"text": \n', encoding="utf-8")
    (tmp_path / "list.jsonl").write_text("[]\n", encoding="utf-8")
    (tmp_path / "empty.txt").write_text("\n", encoding="utf-8")
    (tmp_path / "strange.jsonl").write_text('{"query": "cat", "relevant": ["zebra"]}\n', encoding="utf-8")
    (tmp_path / "known.jsonl").write_text('{"query": "cat", "relevant": ["cat"]}\n', encoding="utf-8")
    told = run(*words, code=2).err
    assert message in told
    assert told.count("\n") == 1
    assert "Traceback" not in told


def test_upkeep(run, tmp_path):
    run("add", "the cat", "--id", "cat")
    assert run("check").out.strip() == "no problems in 1 memories"
    assert json.loads(run("check", "--json").out) == {"memories": 1, "problems": []}
    why = json.loads(run("search", "dog", "--why-not", "cat", "--json", "--embedder", "none").out)
    reason = "cat: found by no arm (bm25: no hits; vector: skipped: no embedder, so only BM25 and graph search)"
    assert why == {"id": "cat", "why_not": reason}
    run("backup", "copy.db")
    assert "cat" in run("search", "cat", "-m", "copy.db").out
    assert "with the arms bm25" in run("reindex").out
    assert "with the arms bm25, vector" in run("reindex", "--embedder", "local").out
    assert run("search", "cat", "--embedder", "local").out
    told = run("copy", "memory.db", "other.db").out
    assert told.startswith("copied ")
    assert "checksum" in told
    assert "by an earlier run" in run("copy", "memory.db", "other.db").out
    assert "cat" in run("search", "cat", "-m", "other.db").out
    assert "no memory at 'missing.db'" in run("copy", "missing.db", "other.db", code=2).err
    assert not (tmp_path / "missing.db").exists()


def test_eval_health_and_tune(run, tmp_path):
    animals = ["cat", "dog", "owl", "cow", "hen"] * 4
    rows = [{"id": f"m{i}", "text": f"the {animal} is number {i}"} for i, animal in enumerate(animals)]
    (tmp_path / "in.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    run("import", "in.jsonl")
    cases = [
        {"query": f"which {row['text'].split()[1]} is {row['text'].split()[-1]}", "relevant": [row["id"]]}
        for row in rows
    ]
    (tmp_path / "cases.jsonl").write_text("\n".join(map(json.dumps, cases)), encoding="utf-8")
    (tmp_path / "in.txt").write_text("Is the kernel patched?\n", encoding="utf-8")
    shown = run("eval", "cases.jsonl", "--json", "r.json", "--markdown", "r.md", "--plot", "r.png").out
    assert "recall@10" in shown
    assert json.loads((tmp_path / "r.json").read_text("utf-8"))
    assert "| " in (tmp_path / "r.md").read_text("utf-8")
    assert (tmp_path / "r.png").stat().st_size > 1000
    assert "bm25" in json.loads(run("health", "cases.jsonl", "--json").out)["arms"]
    assert run("tune", "cases.jsonl", code=3).out  # everything is found already: nothing to gain, so it refuses
    assert not (tmp_path / "recipe.json").exists()
    told = run("tune", "cases.jsonl", "--json", "-", "--metric", "mrr@10", "--force", code=3)
    assert json.loads(told.out)["accepted"] is False
    assert "refused" in told.err
    fitted = json.loads(run("calibrate", "cases.jsonl", "--json").out)
    assert fitted["questions"] == len(cases)
    assert f"--min-confidence {fitted['threshold']:.4f}" in run("calibrate", "cases.jsonl", "--off-topic", "in.txt").out


def test_a_tuned_recipe_is_written_and_compared(run, tmp_path):
    """The relevant memory is the next turn of a thread: only a recipe that follows threads finds it."""
    towns = ["Lisbon", "Oslo", "Quito", "Hanoi", "Perth", "Dakar", "Lima", "Cairo", "Turin", "Kyoto", "Porto", "Delhi"]
    rows = [
        row
        for number, town in enumerate(towns)
        for row in (
            {"id": f"q{number}", "text": f"We went to {town}.", "thread": town},
            {"id": f"a{number}", "text": "Yes, all was closed.", "thread": town},
        )
    ]
    (tmp_path / "in.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    run("import", "in.jsonl")
    cases = [{"query": f"Who saw {town}?", "relevant": [f"a{number}"]} for number, town in enumerate(towns)]
    cases.append({"query": "Who saw Lisbon?", "relevant": ["a0", "gone"]})
    (tmp_path / "cases.jsonl").write_text("\n".join(map(json.dumps, cases)), encoding="utf-8")
    save_recipe(replace(load_recipe("default"), evidence=None), "plain.json")
    told = run("tune", "cases.jsonl", "--recipe", "plain.json", "-o", "tuned.json")
    assert "accepted: a held-out gain of +" in told.out
    assert "1 of 13 relevant ids are not in this memory, such as 'gone'" in told.err
    assert json.loads((tmp_path / "tuned.json").read_text("utf-8"))["depth"] == 50  # as deep as it was measured
    shown = run(
        "eval", "cases.jsonl", "--recipe", "plain.json", "--against", "tuned.json", "--ks", "1,3", "--json", "-"
    ).out
    figures = json.loads(shown)["systems"]
    assert figures["tuned.json"]["metrics"]["recall@3"]["mean"] > figures["fused"]["metrics"]["recall@3"]["mean"]
    markdown = run("eval", "cases.jsonl", "--no-stages", "--markdown", "-").out
    assert markdown.startswith("| system |")
    assert "without" not in markdown


class Screen(io.StringIO):
    def __init__(self, *, watched):
        super().__init__()
        self.watched = watched

    def isatty(self):
        return self.watched


def test_progress_is_a_bar_for_people_and_lines_for_pipes(monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    shown = {}
    for watched in (True, False):
        screen = Screen(watched=watched)
        monkeypatch.setattr(sys, "stderr", screen)
        tell = ProgressBar("asked")
        for done in range(1, 9):
            clock[0] += 0.8
            tell(done, 8)
        with ProgressBar("imported") as quick:
            quick(1000, None)
        shown[watched] = screen.getvalue()
    bars = shown[True].split("\r\x1b[K")
    assert bars[4] == "asked [############............]  50 % 4 of 8 (1/s)"
    assert bars[8] == "asked [########################] 100 % 8 of 8 (1/s)\n"
    assert bars[9].startswith("imported: 1000 (")
    assert bars[9].endswith(")\n")  # an unfinished bar ends its line
    # after a second, then every five, and the end; what takes no second says nothing
    assert shown[False].splitlines() == ["asked: 2 of 8", "asked: 8 of 8"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["serch", "x"], "there is no command 'serch', did you mean 'search'? (hybridmem --help)"),
        (["add", "x", "--tags", "a"], "--tags a, did you mean '--tag'? (hybridmem add --help)"),
        (["xyz"], "the commands are add, import, forget,"),
        (["-m", "x.db", "list"], "-m stands before the command"),
        (["--memory=postgresql://me:hunter2@h/db", "list"], "--memory stands before the command"),
        (["search"], "the following arguments are required: query (hybridmem search --help)"),
        (["search", "x", "-k", "0"], "-k: '0' is not a whole number from 1 up"),
        (["search", "x", "-k", "many"], "-k: 'many' is not a whole number from 1 up"),
        (["list", "--limit", "-3"], "--limit: '-3' is not a whole number from 0 up"),
        (["tune", "cases.jsonl", "--folds", "1"], "--folds: '1' is not a whole number from 2 up"),
        (["eval", "cases.jsonl", "--failures", "-1"], "--failures: '-1' is not a whole number from 0 up"),
        (["inspect", "--port", "x"], "--port: 'x' is not a whole number from 0 up"),
    ],
)
def test_a_mistake_in_the_words_is_one_clear_line(words, message, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(words)
    assert stopped.value.code == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("hybridmem: ")
    assert message in shown.err
    assert shown.err.count("\n") == 1
    assert "hunter2" not in shown.err


def test_the_command_alone_prints_the_help(capsys):
    with pytest.raises(SystemExit) as stopped:
        main([])
    assert stopped.value.code == 2
    assert "examples:" in capsys.readouterr().out


@pytest.mark.parametrize(("words", "shown"), [(["help"], "examples:"), (["help", "add"], "usage: hybridmem add")])
def test_help_is_a_command_too(words, shown, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(words)
    assert stopped.value.code == 0
    assert shown in capsys.readouterr().out


def test_every_option_and_argument_is_described():
    parsers = dict(_subparsers(build_parser()))
    bare = [
        f"{name} {action.dest}"
        for name, sub in parsers.items()
        for action in sub._actions
        if not action.help and name != "completion"
    ]
    assert bare == []
    assert len(parsers) == len(COMMANDS) + 1


def test_every_command_has_help_and_an_example(capsys):
    text = build_parser().format_help()
    for command in COMMANDS:
        assert command.name in text
        with pytest.raises(SystemExit) as stopped:
            main([command.name, "--help"])
        assert stopped.value.code == 0
        shown = capsys.readouterr().out
        assert command.example.split("\n")[0] in shown
    with pytest.raises(SystemExit) as stopped:
        main(["nonsense"])
    assert stopped.value.code == 2
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out.startswith("hybridmem 0.")


AS_TYPED = (  # a shell's background jobs ignore Ctrl-C; what a person types does not
    "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "from hybridmem.cli.main import main; sys.exit(main(sys.argv[1:]))"
)


def start(folder, *words, **more):
    quick = ["--embedder", "none"] if words[0] in EMBEDDING else []
    return subprocess.Popen(
        [sys.executable, "-c", AS_TYPED, words[0], *quick, *words[1:]],
        cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **more,
    )  # fmt: skip


def test_a_pipe_that_closes_early_is_no_error(tmp_path):
    with HybridMemory(tmp_path / "memory.db", embedder=None) as memory:
        memory.add_many([f"the cat {i} " + "purrs " * 200 for i in range(300)])
    process = start(tmp_path, "export")
    assert process.stdout.readline()
    process.stdout.close()
    errors = process.stderr.read()
    process.stderr.close()
    assert process.wait(60) == 0
    assert "Error" not in errors


def test_an_interrupted_import_keeps_what_it_reported(tmp_path):
    path = tmp_path / "many.jsonl"
    with path.open("w", encoding="utf-8") as handle:
        for i in range(100_000):
            handle.write(f'{{"id": "m{i}", "text": "memory number {i} of a long import"}}\n')
    process = start(tmp_path, "import", "many.jsonl")
    reported = 0
    deadline = time.monotonic() + 60
    while reported < 1000 and time.monotonic() < deadline:
        line = process.stderr.readline()
        reported = int(line.split()[-1]) if line.startswith("imported") else reported
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode in (130, 0)
    if process.returncode == 130:
        assert "interrupted; everything reported as done is kept" in errors
    told = [int(line.split()[-1]) for line in errors.splitlines() if line.startswith("imported")]
    with HybridMemory(tmp_path / "memory.db", embedder=None) as memory:
        assert len(memory) >= max([reported, *told])
        assert len(memory) % 1000 == 0
        assert memory.check() == []


def test_the_inspector_serves_until_interrupted(tmp_path):
    with HybridMemory(tmp_path / "memory.db", embedder=None) as memory:
        memory.add("the cat")
    process = start(tmp_path, "inspect", env={**os.environ, "PYTHONUNBUFFERED": "1"})
    assert process.stdout.readline().startswith("http://127.0.0.1:")
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130


# --- completion


def shell(name):
    return pytest.param(name, marks=pytest.mark.skipif(shutil.which(name) is None, reason=f"no {name} here"))


def completed_by_bash(script, line):
    words = " ".join(f"'{word}'" for word in line.split(" "))
    ask = f"COMP_WORDS=({words}); COMP_CWORD={line.count(' ')}; _hybridmem; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    done = subprocess.run(["bash", "-c", f"{script}\n{ask}"], text=True, capture_output=True, check=True)
    return done.stdout


def completed_by_fish(script, line):
    ask = f"{script}\ncomplete -C '{line}'"
    done = subprocess.run(["fish", "--no-config", "-c", ask], text=True, capture_output=True, check=True)
    return done.stdout


def completed_by_zsh(script, line):
    """What an interactive zsh writes on its terminal after the line and a tab."""
    child, terminal = pty.fork()
    if child == 0:
        os.execlpe("zsh", "zsh", "-f", "-i", {**os.environ, "ZDOTDIR": str(script.parent)})
    try:
        os.write(terminal, f"PS1=; source {script}; echo sour''ced\n".encode())
        seen, sent, until = b"", False, time.monotonic() + 20
        while time.monotonic() < until and b"--why-not" not in seen.partition(b"sourced")[2]:
            if select.select([terminal], [], [], 0.2)[0]:
                seen += os.read(terminal, 4096)
            elif b"sourced" in seen and not sent:
                sent = bool(os.write(terminal, f"{line}\t".encode()))
        return seen.partition(b"sourced")[2].decode(errors="replace")
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(terminal)


@pytest.mark.parametrize("name", [shell("bash"), shell("fish")])
def test_completion_in_a_real_shell(name):
    complete = {"bash": completed_by_bash, "fish": completed_by_fish}[name]
    script = completion_script(name, build_parser())
    assert complete(script, "hybridmem sea").split()[0] == "search"
    assert complete(script, "hybridmem search --why").split()[0] == "--why-not"
    assert {"bm25", "vector", "graph"} <= set(complete(script, "hybridmem search --arm ").split())
    assert {"bash", "zsh", "fish"} <= set(complete(script, "hybridmem completion ").split())


@pytest.mark.parametrize("name", [shell("zsh")])
def test_completion_in_zsh(name, tmp_path):
    script = tmp_path / "completion.zsh"
    script.write_text(completion_script(name, build_parser()), encoding="utf-8")
    assert "--why-not" in completed_by_zsh(script, "hybridmem search --why")


def test_completion_is_a_command(tmp_path):
    words = [sys.executable, "-m", "hybridmem", "completion", "bash"]
    done = subprocess.run(words, cwd=tmp_path, env=os.environ, text=True, capture_output=True, check=True)
    assert "complete -o filenames -F _hybridmem hybridmem" in done.stdout
