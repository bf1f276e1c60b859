"""A griffe extension for the docs site: the examples of docstrings become code blocks."""

from __future__ import annotations

from typing import Any

import griffe

__all__ = ["DocstringExamples", "with_code_blocks"]


class DocstringExamples(griffe.Extension):
    """Fences the interactive examples of every docstring, which Markdown would show as quotations."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Change the docstring of one object."""
        if obj.docstring is not None:
            obj.docstring.value = with_code_blocks(obj.docstring.value)


def with_code_blocks(text: str) -> str:
    """The text with a fence around each example, from its first `>>>` to the next empty line."""
    lines: list[str] = []
    within = False
    for line in [*text.split("\n"), ""]:
        if not within and line.startswith(">>> "):
            lines.append("```pycon")
            within = True
        elif within and not line:
            lines.append("```")
            within = False
        lines.append(line)
    return "\n".join(lines[:-1])
