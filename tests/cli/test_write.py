"""The commands that forget and sweep, and imports of every format."""

import json
from datetime import datetime


def rows(text):
    return [json.loads(line) for line in text.splitlines()]


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


def test_a_whole_namespace_is_forgotten_or_erased(filled):
    assert "give --all" in filled("forget", code=2).err
    assert "give --all" in filled("forget", "lisbon", "--all", code=2).err
    assert filled("forget", "--all").out.strip() == "2"
    assert filled("list", code=3).out == ""
    assert len(rows(filled("history", "lisbon", "--json").out)) == 2
    filled("forget", "--all", "--erase")
    assert filled("history", "lisbon", code=3).out == ""
    assert rows(filled("list", "--json", "-n", "ben").out)[0]["text"] == "Ben drinks tea."


def test_expiry_duplicates_and_the_time_of_an_event(run, tmp_path):
    run("add", "The code is 7.", "--id", "code", "--embedder", "none", "--ttl", "3600", "--event-at", "2024-05-01")
    (shown,) = rows(run("show", "code", "--json").out)
    assert shown["event_at"].startswith("2024-05-01")
    hours = datetime.fromisoformat(shown["expires_at"]) - datetime.fromisoformat(shown["created_at"])
    assert round(hours.total_seconds()) == 3600
    assert run("add", "the  CODE is 7.", "--embedder", "none", "--on-duplicate", "skip").out.strip() == "code"
    run("add", "the code is 7.", "--embedder", "none", "--on-duplicate", "merge", "--tag", "door")
    assert rows(run("show", "code", "--json").out)[0]["tags"] == ["door"]
    (tmp_path / "in.txt").write_text("The code is 7.\nTea\ntea\n", "utf-8")
    run("import", "in.txt", "--embedder", "none", "--on-duplicate", "skip")
    assert sorted(row["text"] for row in rows(run("list", "--json").out)) == ["Tea", "The code is 7."]


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
    (tmp_path / "semicolons.csv").write_text("id;text;price\n7;A price;3,50\n", "utf-8")
    assert run("import", "semicolons.csv", "--embedder", "none").out.strip() == "1"
    assert rows(run("show", "7", "--json").out)[0]["metadata"] == {"price": "3,50"}
    (tmp_path / "wide.csv").write_text("text\na,b\n", "utf-8")
    assert "wide.csv:2: more cells than the header" in run("import", "wide.csv", "--embedder", "none", code=2).err
    message = run("import", "in.csv", "--embedder", "none", code=2).err
    assert "in.csv:2: there is no 'text', only id, body, tags: name it with --text-column" in message


def test_a_beir_folder(run, tmp_path):
    (tmp_path / "beir" / "qrels").mkdir(parents=True)
    (tmp_path / "beir" / "corpus.jsonl").write_text('{"_id": "d1", "title": "Cats", "text": "They purr."}\n', "utf-8")
    (tmp_path / "beir" / "queries.jsonl").write_text('{"_id": "q1", "text": "Who purrs?"}\n', "utf-8")
    (tmp_path / "beir" / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq1\td1\t1\n", "utf-8")
    assert run("import", "beir", "--embedder", "none").out.strip() == "1"
    assert rows(run("show", "d1", "--json").out)[0]["title"] == "Cats"
    shown = run("eval", "beir", "--embedder", "none").out
    assert "recall@10" in shown
    assert shown.endswith("no case failed: the first 10 results have every relevant memory\n")


def test_a_refused_import_leaves_nothing(run, tmp_path):
    good = "\n".join('{"text": "fine"}' for _ in range(1500))
    (tmp_path / "in.jsonl").write_text(f'{good}\n{{"text": 5}}\n', encoding="utf-8")
    assert "in.jsonl:1501" in run("import", "in.jsonl", "--embedder", "none", code=2).err
    assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"]
    header = '{"kind": "hybridmem", "version": 99}'
    (tmp_path / "in.jsonl").write_text(header, encoding="utf-8")
    run("import", "in.jsonl", "--embedder", "none", code=2)
    assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"]
    run("add", "the cat", "--id", "cat", "--embedder", "none")
    (tmp_path / "in.jsonl").write_text(f'{good}\n{{"text": 5}}\n', encoding="utf-8")
    run("import", "in.jsonl", "--embedder", "none", code=2)
    assert [row["id"] for row in rows(run("list", "--json").out)] == ["cat"]


def test_a_folder_without_notes_is_refused(run, tmp_path):
    (tmp_path / "empty").mkdir()
    message = run("import", "empty", "--embedder", "none", code=2).err
    assert "neither a corpus.jsonl nor a Markdown note in the folder 'empty'" in message
    assert [path.name for path in tmp_path.iterdir()] == ["empty"]
