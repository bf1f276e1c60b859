"""What each command of `hybridmem` does. The table at the end is the whole list."""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

from hybridmem.errors import ConfigError
from hybridmem.memory import HybridMemory

__all__ = ["COMMANDS", "Command"]

NOTHING = 3


class Command(NamedTuple):
    """One command: its name, its help with an example, its options, and what it runs."""

    name: str
    help: str
    example: str
    options: Callable[[argparse.ArgumentParser], object]
    run: Callable[[argparse.Namespace], int]
    description: str = ""
    memory: bool = True


def _open(args: argparse.Namespace, *, must_exist: bool = True) -> HybridMemory:
    path = args.memory
    if must_exist:
        _must_exist(path, "add something first, or name one with --memory")
    embedder = None if args.embedder == "none" else args.embedder
    return HybridMemory(path, embedder=embedder, namespace=args.namespace, recipe=args.recipe)


def _must_exist(path: str, advice: str) -> None:
    if "://" not in path and path != ":memory:" and not Path(path).exists():
        raise ConfigError(f"there is no memory at {path!r}: {advice}")


def _progress(label: str) -> Callable[[int, int | None], None]:
    """A line on stderr that counts; quiet when nobody watches, except at the end."""
    started, last = time.monotonic(), [0.0]

    def tell(done: int, total: int | None) -> None:
        now = time.monotonic()
        finished = total is not None and done >= total
        if sys.stderr.isatty() and (finished or now - last[0] > 0.1):  # noqa: PLR2004
            last[0] = now
            of = "" if total is None else f" of {total}"
            rate = done / max(now - started, 1e-9)
            print(f"\r{label}: {done}{of} ({rate:,.0f}/s)", end="\n" if finished else "", file=sys.stderr, flush=True)
        elif not sys.stderr.isatty() and (finished or now - last[0] > 5):  # noqa: PLR2004
            last[0] = now
            print(f"{label}: {done}" + ("" if total is None else f" of {total}"), file=sys.stderr, flush=True)

    return tell


def _json(value: Any) -> None:
    print(json.dumps(value, ensure_ascii=False, default=str))


def _filter(text: str | None) -> Any:
    if text is None:
        return None
    try:
        return json.loads(text)
    except ValueError as error:
        raise ConfigError(f"--filter {text!r} is not JSON: {error}") from error


# --- add, import, export


def _add_options(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("text", help="what to remember; - reads it from standard input")
    for name in ("id", "title", "subject", "thread", "source-id", "type", "supersedes", "created-at"):
        sub.add_argument(f"--{name}", metavar=name.upper().replace("-", "_"))
    sub.add_argument("--tag", action="append", default=[], dest="tags", metavar="TAG", help="may be repeated")
    sub.add_argument("--metadata", metavar="JSON", help='more fields, such as {"lang": "en"}')


def _add(args: argparse.Namespace) -> int:
    names = ("id", "title", "subject", "thread", "source_id", "type", "supersedes", "created_at", "tags")
    fields = {name: getattr(args, name) for name in names if getattr(args, name)}
    if args.metadata is not None:
        fields["metadata"] = _filter(args.metadata)
    text = sys.stdin.read() if args.text == "-" else args.text
    with _open(args, must_exist=False) as memory:
        print(memory.add(text, **fields))
    return 0


def _import_options(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("source", help="a JSONL file of memories or of `hybridmem export`, a Markdown folder, or -")


def _import(args: argparse.Namespace) -> int:
    source = Path(args.source)
    with _open(args, must_exist=False) as memory:
        if args.source != "-" and source.is_dir():
            from hybridmem.stores.folder import read_notes

            print(len(memory.add_many(read_notes(source), progress=_progress("imported"))))
            return 0
        handle = sys.stdin if args.source == "-" else source.open(encoding="utf-8")
        with handle:
            rows = _rows(handle, args.source)
            first = next(rows, None)
            if first is None:
                print(0)
                return 0
            everything = itertools.chain([first], rows)
            if first.get("kind") == "hybridmem":  # the header of an export
                print(memory.store.restore(everything, progress=_progress("restored")))
            else:
                print(len(memory.add_many(map(_row_memory, everything), progress=_progress("imported"))))
    return 0


def _rows(handle: IO[str], name: str) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(handle, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise ConfigError(f"{name}, line {number} is not JSON: {error}") from error
        if not isinstance(row, dict):
            raise ConfigError(f"{name}, line {number} is a {type(row).__name__}: each line is one JSON object")
        yield row


def _row_memory(row: dict[str, Any]) -> dict[str, Any]:
    """A row as a memory: `timestamp` is its creation, and empty fields are left out."""
    given = {key: value for key, value in row.items() if value is not None}
    if "timestamp" in given:
        given.setdefault("created_at", given.pop("timestamp"))
    return given


def _export_options(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("-o", "--output", default="-", metavar="FILE", help="a JSONL file (standard output)")
    sub.add_argument("--everyone", action="store_true", help="every namespace, not this one alone")


def _export(args: argparse.Namespace) -> int:
    with _open(args) as memory:
        rows = memory.store.export(namespace=None if args.everyone else args.namespace)
        if args.output == "-":
            for row in rows:
                _json(row)
            return 0
        with Path(args.output).open("w", encoding="utf-8") as handle:
            for row in rows:
                handle.write(json.dumps(row, ensure_ascii=False) + "\n")
    return 0


# --- search


def _search_options(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("query")
    sub.add_argument("-k", type=int, default=8, help="how many (8)")
    sub.add_argument("--filter", metavar="JSON", help='such as {"type": "fact"}')
    sub.add_argument("--as-of", metavar="TIME", help="answer from what was stored then")
    sub.add_argument("--arm", choices=("bm25", "vector", "graph"), help="one arm alone, with its raw scores")
    sub.add_argument("--why-not", metavar="ID", help="tell why this memory is not among the results")
    sub.add_argument("--min-confidence", type=float, metavar="P", help="answer nothing rather than noise")
    sub.add_argument("--json", action="store_true", help="one JSON object a line")


def _search(args: argparse.Namespace) -> int:
    how = {"k": args.k, "filter": _filter(args.filter), "as_of": args.as_of}
    with _open(args) as memory:
        if args.why_not is not None:
            print(memory.explain(args.query, **how).why_not(args.why_not))
            return 0
        if args.arm is not None:
            results = memory.search_arm(args.arm, args.query, **how)
        else:
            results = memory.search(args.query, min_confidence=args.min_confidence, **how)
        for rank, result in enumerate(results, start=1):
            receipt = result.receipt
            if args.json:
                told = None if receipt is None else receipt.to_dict()
                _json({"id": result.id, "score": result.score, "text": result.text, "receipt": told})
            else:
                print(f"{rank:>3}  {result.score:.3f}  {result.id}  {' '.join(result.text.split())}")
                if receipt is not None:
                    print(f"       {str(receipt).split(': ', 1)[1]}")
    return 0 if results else NOTHING


# --- measure, tune


def _eval_options(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("cases", help="a JSONL file (query, relevant, category?) or a BEIR-style folder")
    sub.add_argument("--json", metavar="FILE", help="write the figures")
    sub.add_argument("--markdown", metavar="FILE", help="write the table")
    sub.add_argument("--plot", metavar="FILE", help="draw recall curves and categories")


def _eval(args: argparse.Namespace) -> int:
    from hybridmem.evaluate import evaluate, load_cases

    with _open(args) as memory:
        report = evaluate(memory, load_cases(args.cases), progress=_progress("asked"))
    print(report)
    if args.json:
        report.to_json(args.json)
    if args.markdown:
        report.to_markdown(args.markdown)
    if args.plot:
        report.plot(args.plot)
    return 0


def _tune_options(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("cases", help="a JSONL file (query, relevant, category?) or a BEIR-style folder")
    sub.add_argument("-o", "--output", default="recipe.json", metavar="FILE", help="the recipe to write (recipe.json)")


def _tune(args: argparse.Namespace) -> int:
    from hybridmem.evaluate import load_cases
    from hybridmem.recipes import save_recipe
    from hybridmem.tune import tune

    with _open(args) as memory:
        tuned = tune(memory, load_cases(args.cases), progress=_progress("tried"))
    print(tuned)
    if not tuned.accepted:
        return NOTHING
    save_recipe(tuned.recipe, args.output)
    print(f"written to {args.output}: hybridmem search … --recipe {args.output}")
    return 0


def _health_options(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("queries", help="a text file of questions, one a line, or a JSONL file of cases, or -")
    sub.add_argument("-k", type=int, default=8)
    sub.add_argument("--json", action="store_true")


def _health(args: argparse.Namespace) -> int:
    text = sys.stdin.read() if args.queries == "-" else Path(args.queries).read_text(encoding="utf-8")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    queries = [json.loads(line)["query"] if line.startswith("{") else line for line in lines]
    with _open(args) as memory:
        health = memory.health(queries, k=args.k)
    _json(health.to_dict()) if args.json else print(health)
    return 0


# --- upkeep


def _check(args: argparse.Namespace) -> int:
    with _open(args) as memory:
        problems = memory.check()
        count = len(memory)
    for problem in problems:
        print(problem)
    if not problems:
        print(f"all is well: {count} memories")
    return 1 if problems else 0


def _reindex(args: argparse.Namespace) -> int:
    """Open without an embedder, so that another one than the recorded one may take over."""
    chosen = args.embedder
    args.embedder = "none"
    with _open(args) as memory:
        from hybridmem.memory import pick_embedder

        memory.reindex(embedder=None if chosen == "none" else pick_embedder(chosen), progress=_progress("embedded"))
        print(f"indexed {len(memory)} memories with the arms {', '.join(memory.arms)}")
    return 0


def _backup_options(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("target", help="the file to write")


def _backup(args: argparse.Namespace) -> int:
    with _open(args) as memory:
        memory.backup(args.target)
    print(args.target)
    return 0


def _copy_options(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("source", help="a file or a postgresql:// address")
    sub.add_argument("target", help="a file or a postgresql:// address")


def _copy(args: argparse.Namespace) -> int:
    from hybridmem.copying import copy_store
    from hybridmem.opening import open_store

    _must_exist(args.source, "name a file or a postgresql:// address to copy from")
    source = open_store(args.source, clock=time.time)
    try:
        target = open_store(args.target, clock=time.time)
        try:
            done = copy_store(source, target, progress=_progress("copied"))
            before = f", {done.resumed} of them by an earlier run" if done.resumed else ""
            print(f"copied {done.rows} entries{before}; both sides have checksum {done.checksum}")
        finally:
            target.close()
    finally:
        source.close()
    return 0


def _inspect_options(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--port", type=int, default=0, help="a port of the loopback address (any free one)")
    sub.add_argument("--open", action="store_true", help="open the page in a browser")


def _inspect(args: argparse.Namespace) -> int:
    from hybridmem.inspector import Inspector

    with _open(args) as memory, Inspector(memory, port=args.port) as inspector:
        print(f"{inspector.url}\nCtrl-C stops it.", flush=True)
        if args.open:
            import webbrowser

            webbrowser.open(inspector.url)
        inspector.wait()
    return 0


def _none(_sub: argparse.ArgumentParser) -> None:
    """No options of its own."""


COMMANDS = (
    Command("add", "remember one thing", 'hybridmem add "Ana has moved." --subject ana', _add_options, _add),
    Command(
        "import",
        "remember many, from JSONL or a folder of Markdown notes",
        "hybridmem import notes.jsonl",
        _import_options,
        _import,
        "Each JSONL line is an object with `text` and any field of a memory. Memories are written a thousand at a "
        "time: what the progress has counted is kept when the import is interrupted.",
    ),
    Command(
        "search", "search, with a receipt for each result", 'hybridmem search "cat" -k 3', _search_options, _search
    ),
    Command(
        "eval", "measure arms, stages and fusion on your cases", "hybridmem eval cases.jsonl", _eval_options, _eval
    ),
    Command("tune", "find a better recipe, or refuse", "hybridmem tune cases.jsonl -o r.json", _tune_options, _tune),
    Command("health", "which arm earns its place", "hybridmem health questions.txt", _health_options, _health),
    Command("inspect", "a local page to try queries and weights", "hybridmem inspect", _inspect_options, _inspect),
    Command("check", "look for damage", "hybridmem check", _none, _check),
    Command("reindex", "embed and index everything again", "hybridmem reindex --embedder local", _none, _reindex),
    Command("backup", "copy the store while it is in use", "hybridmem backup copy.db", _backup_options, _backup),
    Command("export", "the whole log as JSONL", "hybridmem export -o all.jsonl", _export_options, _export),
    Command(
        "copy",
        "from one store to another, SQLite or PostgreSQL",
        "hybridmem copy memory.db postgresql://localhost/memory",
        _copy_options,
        _copy,
        memory=False,
    ),
)
