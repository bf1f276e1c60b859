"""The `hybridmem` command: its parser, shell completion, exit codes and the handling of errors."""

from __future__ import annotations

import argparse
import contextlib
import difflib
import io
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import NoReturn

from hybridmem import __version__
from hybridmem.cli.command import say, say_error
from hybridmem.cli.measure import MEASURE
from hybridmem.cli.read import READ
from hybridmem.cli.write import WRITE
from hybridmem.errors import ConfigError, HybridMemError

__all__ = ["COMMANDS", "build_parser", "completion_script", "main"]

COMMANDS = (*WRITE, *READ, *MEASURE)
"""The commands in the order of the help."""

DEFAULT_PATH = "memory.db"
EXIT_ERROR = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130

_EPILOG = """\
examples:
  hybridmem add "Ana has moved to Lisbon." --subject ana
  hybridmem search "Where does Ana live?" -k 3
  hybridmem search "Where does Ana live?" --why-not 01HX…
  hybridmem eval cases.jsonl
  hybridmem inspect --open

The memory is the file memory.db in the current folder, or the value of
--memory or HYBRIDMEM: a file, a folder of Markdown notes, or a postgresql://
address. HYBRIDMEM_EMBEDDER is the default of --embedder.

Exit codes: 0 success, 1 error (message on stderr), 2 wrong command, option,
value or file, 3 no results or refused, 130 interrupted.
"""

SHELLS = ("bash", "zsh", "fish")
_BASH = """\
_hybridmem() {{
    local cur="${{COMP_WORDS[COMP_CWORD]}}" last="${{COMP_WORDS[COMP_CWORD-1]}}" command="${{COMP_WORDS[1]}}" words
    COMPREPLY=()
    if [ "$COMP_CWORD" -eq 1 ]; then
        COMPREPLY=($(compgen -W "{commands} --help --version" -- "$cur"))
        return
    fi
    case "$command $last" in
{choices}
    esac
    case "$command" in
{cases}
    esac
    case "$cur" in
        -*) COMPREPLY=($(compgen -W "$words" -- "$cur")) ;;
        *) COMPREPLY=($(compgen -f -- "$cur")) ;;
    esac
}}
complete -o filenames -F _hybridmem hybridmem
"""
_ZSH = """\
(( $+functions[compdef] )) || { autoload -U compinit && compinit -i; }
autoload -U +X bashcompinit && bashcompinit
"""
_RECIPE = "how results are ranked: default, rrf, competition, or a recipe.json (default)"
_COMPLETION = """\
example:
  eval "$(hybridmem completion bash)"
  hybridmem completion fish > ~/.config/fish/completions/hybridmem.fish
"""


class _Help(argparse.RawDescriptionHelpFormatter):
    """Help with every command and its description on one line."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog)
        self._action_max_length = 14


class _Parser(argparse.ArgumentParser):
    """A parser that reports a mistake on one line."""

    def error(self, message: str) -> NoReturn:
        """End with the message, where to read more, and exit code 2."""
        said = message.removeprefix("argument ")
        if said.startswith("COMMAND: invalid choice: "):
            said = _unknown_command(said.split("'")[1])
        say_error(f"{said} ({self.prog} --help)")
        raise SystemExit(EXIT_USAGE)


def _unknown_command(given: str) -> str:
    names = [spec.name for spec in COMMANDS]
    near = difflib.get_close_matches(given, names, 1)
    return (
        f"there is no command {given!r}, did you mean {near[0]!r}?" if near else f"the commands are {', '.join(names)}"
    )


def build_parser() -> argparse.ArgumentParser:
    """The argument parser with every command."""
    parser = _Parser(
        prog="hybridmem",
        description="Hybrid retrieval for agent memory: BM25, vectors and graph, fused and explained.",
        epilog=_EPILOG,
        formatter_class=_Help,
    )
    parser.add_argument("--version", action="version", version=f"hybridmem {__version__}")
    subs = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for spec in COMMANDS:
        example = f"example:\n  {spec.example}"
        sub = subs.add_parser(
            spec.name,
            help=spec.help,
            description=spec.description or spec.help,
            epilog=example,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        if spec.memory:
            _memory_options(sub, embedder=spec.embedder)
        spec.options(sub)
        sub.set_defaults(run=spec.run)
    sub = subs.add_parser("completion", help="print a completion script for your shell", epilog=_COMPLETION)
    sub.formatter_class = argparse.RawDescriptionHelpFormatter
    sub.add_argument("shell", choices=SHELLS)
    sub.set_defaults(run=_completion)
    return parser


def _completion(args: argparse.Namespace) -> int:
    say(completion_script(args.shell, build_parser()).removesuffix("\n"))
    return 0


def _memory_options(sub: argparse.ArgumentParser, *, embedder: bool) -> None:
    group = sub.add_argument_group("the memory")
    where = os.environ.get("HYBRIDMEM") or DEFAULT_PATH  # not shown in the help: an address may have a password
    group.add_argument(
        "-m",
        "--memory",
        default=where,
        metavar="PATH",
        help=f"file, folder or postgresql:// address (the value of HYBRIDMEM, else {DEFAULT_PATH})",
    )
    group.add_argument("-n", "--namespace", default="", metavar="NAME", help="namespace to use (the default namespace)")
    if not embedder:
        return
    group.add_argument(
        "--embedder",
        default=os.environ.get("HYBRIDMEM_EMBEDDER") or "auto",
        metavar="NAME",
        help="local: the offline embedder; none: BM25 and graph only; module:attribute: an embedding object or "
        "function; auto: the local one, if the memory was made with it or is new and it is installed "
        "(the value of HYBRIDMEM_EMBEDDER, else auto)",
    )
    group.add_argument("--recipe", default="default", metavar="NAME|FILE", help=_RECIPE)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    args = _parsed(sys.argv[1:] if argv is None else argv)
    if isinstance(sys.stdout, io.TextIOWrapper):  # characters that the terminal cannot encode are escaped
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        code: int = args.run(args)
        if sys.stdout is not None and not sys.stdout.closed:  # `hybridmem search … >&-`
            sys.stdout.flush()
    except HybridMemError as error:
        say_error(error)
        return EXIT_USAGE if isinstance(error, ConfigError) else EXIT_ERROR
    except BrokenPipeError:  # `hybridmem search … | head -1`
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        say_error("interrupted; everything reported as done is kept")
        return EXIT_INTERRUPTED
    except OSError as error:
        where = "" if error.filename is None else f"{error.filename}: "
        say_error(f"{where}{error.strerror or error}")
        return EXIT_ERROR
    return code


def _parsed(words: Sequence[str]) -> argparse.Namespace:
    """The command and its options; a mistake ends the program with exit code 2."""
    parser = build_parser()
    if not words:
        parser.print_help()
        raise SystemExit(EXIT_USAGE)
    if words[0] == "help":
        words = [*words[1:2], "--help"]
    if words[0].startswith("-") and words[0] not in ("-h", "--help", "--version"):
        option = words[0].partition("=")[0]  # a value may be an address with a password
        parser.error(f"{option} stands before the command: options follow it, as in hybridmem list -m notes.db")
    args, unknown = parser.parse_known_args(words)
    if unknown:
        command = dict(_subparsers(parser))[args.command]
        near = difflib.get_close_matches(unknown[0].partition("=")[0], _options(command), 1)
        hint = f", did you mean {near[0]!r}?" if near else ""
        command.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
    return args


# --- completion


def completion_script(shell: str, parser: argparse.ArgumentParser) -> str:
    """The completion script for a shell; load it with `eval "$(hybridmem completion bash)"`."""
    commands = dict(_subparsers(parser))
    if shell == "fish":
        return _fish(commands)
    cases = [f'        {name}) words="{" ".join(_options(sub))}" ;;' for name, sub in commands.items()]
    choices = [
        f'        "{name} {last}") COMPREPLY=($(compgen -W "{" ".join(action.choices)}" -- "$cur")); return ;;'
        for name, sub in commands.items()
        for action in sub._actions  # noqa: SLF001
        if action.choices
        for last in action.option_strings or [name]
    ]
    script = _BASH.format(commands=" ".join(commands), cases="\n".join(cases), choices="\n".join(choices))
    return _ZSH + script if shell == "zsh" else script


def _fish(commands: Mapping[str, argparse.ArgumentParser]) -> str:
    lines = ["complete -c hybridmem -f"]
    for name, sub in commands.items():
        lines.append(f"complete -c hybridmem -n __fish_use_subcommand -a {name} -d {_quoted(sub.description)}")
        chosen = f"complete -c hybridmem -n '__fish_seen_subcommand_from {name}'"
        for action in sub._actions:  # noqa: SLF001
            words = f" -a '{' '.join(action.choices)}'" if action.choices else ""
            if action.option_strings:
                names = [f"-{'l' if one.startswith('--') else 's'} {one.lstrip('-')}" for one in action.option_strings]
                value = "" if action.nargs == 0 else " -r"
                lines.append(f"{chosen} {' '.join(names)}{value}{words} -d {_quoted(action.help)}")
            elif words:
                lines.append(chosen + words)
    lines.append(
        "complete -c hybridmem -n 'not __fish_use_subcommand; and not __fish_seen_subcommand_from completion' -F"
    )
    return "\n".join(lines) + "\n"


def _quoted(text: str | None) -> str:
    """The first line in single quotes of fish."""
    first = (text or "").split("\n")[0].replace("\\", "\\\\").replace("'", "\\'")
    return f"'{first}'"


def _subparsers(parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    for action in parser._actions:  # noqa: SLF001  argparse has no public list of its commands
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            yield from action.choices.items()


def _options(parser: argparse.ArgumentParser) -> list[str]:
    return [option for action in parser._actions for option in action.option_strings]  # noqa: SLF001
