"""README and the docs pages: their code blocks."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
_FENCE = r"^```{language}\n(.*?)^```"


def blocks(page: Path, language: str) -> list[str]:
    """The blocks of a language on a page, in order."""
    return re.findall(_FENCE.format(language=language), page.read_text("utf-8"), re.MULTILINE | re.DOTALL)


def python_of(page: Path) -> str:
    """All Python blocks of a page as one script."""
    return "\n".join(blocks(page, "python"))


PAGES = sorted(page for page in [ROOT / "README.md", *ROOT.glob("docs/**/*.md")] if blocks(page, "python"))
"""The pages with Python blocks."""


def console_of(page: Path) -> str:
    """The lines of console blocks that a person types; a here-document goes on to its end. `inspect` would not end."""
    typed = [line.removeprefix("$ ") for line in "\n".join(blocks(page, "console")).splitlines()]
    return "\n".join(line for line in typed if not line.startswith("hybridmem inspect"))
