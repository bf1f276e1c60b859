"""Shell completion: a script for bash, zsh or fish, generated from the argument parser."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping

__all__ = ["SHELLS", "completion_script"]

SHELLS = ("bash", "zsh", "fish")
_BASH = """\
_hybridmem() {{
    local cur="${{COMP_WORDS[COMP_CWORD]}}" command="${{COMP_WORDS[1]}}" words
    COMPREPLY=()
    if [ "$COMP_CWORD" -eq 1 ]; then
        COMPREPLY=($(compgen -W "{commands} --help --version" -- "$cur"))
        return
    fi
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


def completion_script(shell: str, parser: argparse.ArgumentParser) -> str:
    """The completion script for a shell; load it with `eval "$(hybridmem completion bash)"`."""
    commands = dict(_subparsers(parser))
    if shell == "fish":
        return _fish(commands)
    cases = "\n".join(f'        {name}) words="{" ".join(_options(sub))}" ;;' for name, sub in commands.items())
    script = _BASH.format(commands=" ".join(commands), cases=cases)
    return f"autoload -U +X bashcompinit && bashcompinit\n{script}" if shell == "zsh" else script


def _fish(commands: Mapping[str, argparse.ArgumentParser]) -> str:
    lines = ["complete -c hybridmem -f"]
    for name, sub in commands.items():
        lines.append(f"complete -c hybridmem -n __fish_use_subcommand -a {name}")
        lines += [
            f"complete -c hybridmem -n '__fish_seen_subcommand_from {name}' -l {option.removeprefix('--')}"
            for option in _options(sub)
            if option.startswith("--")
        ]
    lines.append("complete -c hybridmem -n 'not __fish_use_subcommand' -F")
    return "\n".join(lines) + "\n"


def _subparsers(parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    for action in parser._actions:  # noqa: SLF001  argparse has no public list of its commands
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            yield from action.choices.items()


def _options(parser: argparse.ArgumentParser) -> list[str]:
    return [option for action in parser._actions for option in action.option_strings]  # noqa: SLF001
