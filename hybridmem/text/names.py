"""Names of memories and the texts that mention them: titles, aliases, [[wikilinks]] and Markdown links.

A name is compared as whole words, with case and diacritics folded; a part in brackets is left out.

>>> name_key("Ed Wood (film)"), name_key("Müller's Café")
('ed wood', 'muller s cafe')
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple
from urllib.parse import unquote

from hybridmem.text.folding import LETTER, cjk_runs, fold

__all__ = ["MIN_LETTERS", "Link", "links_in", "mentions_in", "name_key", "words_of"]

MIN_LETTERS = 4
"""A name of fewer letters links nothing, unless a link names it."""
LONGEST_NAME = 12
"""A name of more words is a sentence: it links nothing."""
_LONGEST_TEXT = 20_000

_WORD = re.compile(rf"{LETTER}+")
_TOKEN = re.compile("[a-z0-9\u0080-\U0010ffff]+")
_BRACKETS = re.compile(r"\s*[(（\[][^)）\]]*[)）\]]")
_WIKILINK = re.compile(r"\[\[([^\[\]\n|#]{1,200})(?:#[^\[\]\n|]{0,200})?(?:\|([^\[\]\n]{1,200}))?\]\]")
_SCHEME = r"(?!\w[\w+.-]*:)"  # an address on the web is no note
_MARKDOWN = re.compile(
    rf"(?<!!)\[([^\[\]\n]{{1,200}})\]\(\s*(?:<{_SCHEME}([^<>\n]{{1,300}}?\.[mM][dD])(?:#[^<>\n]{{0,200}})?>"
    rf"|{_SCHEME}([^()\s<>]{{1,300}}?\.[mM][dD])(?:#[^()\s]{{0,200}})?)\s*\)"
)


class Link(NamedTuple):
    """A link in a text: the name of the memory it points to, and what the text calls it."""

    target: str
    label: str


def words_of(text: str, /) -> list[str]:
    """The folded words of a text; a run of a script without spaces is cut into characters.

    >>> words_of("Ed Wood met 東京 in 1994")
    ['ed', 'wood', 'met', '東', '京', 'in', '1994']
    """
    words: list[str] = []
    text = text[:_LONGEST_TEXT].lower()
    if text.isascii():
        return _TOKEN.findall(text)
    for word in _TOKEN.findall(text):
        if word.isascii():
            words.append(word)
        else:  # folding may make several words of one
            for place, piece in enumerate(cjk_runs(fold(word).casefold())):
                words += piece if place % 2 else _WORD.findall(piece)
    return words


def name_key(name: str, /) -> str:
    """The folded form by which a name is found; empty when nothing is left of it, or it is too long for a name."""
    words = words_of(_BRACKETS.sub("", name)) or words_of(name)
    return " ".join(words) if len(words) <= LONGEST_NAME else ""


def links_in(text: str, /) -> list[Link]:
    """The [[wikilinks]] and relative Markdown links of a text, in order.

    >>> [tuple(link) for link in links_in("[[Ed Wood|the film]], [[Tim Burton#Life]], [notes](people/ana%20silva.md)")]
    [('Ed Wood', 'the film'), ('Tim Burton', ''), ('ana silva', 'notes')]
    """
    if "](" not in text and "[[" not in text:
        return []
    found = [(match.start(), Link(_stem(match[1]), match[2] or "")) for match in _WIKILINK.finditer(text)]
    found += [
        (match.start(), Link(_stem(unquote(match[2] or match[3])), match[1])) for match in _MARKDOWN.finditer(text)
    ]
    return [link for _, link in sorted(found)]


def _stem(path: str) -> str:
    """The last part of a path without its `.md`."""
    return path.strip().rpartition("/")[2].removesuffix(".md")


def mentions_in(words: Sequence[str], names: Collection[str], lengths: Mapping[str, Sequence[int]], /) -> list[str]:
    """The names that stand in a text as whole words, each once, in order; inside a longer name a shorter is skipped.

    `lengths` maps the first word of every name to the numbers of words that names with it have, largest first.

    >>> mentions_in(["tim", "burton", "made", "ed", "wood"], {"ed wood", "wood"}, {"ed": [2], "wood": [1]})
    ['ed wood']
    """
    found: dict[str, None] = {}
    after = 0
    for place in [place for place, word in enumerate(words) if word in lengths]:  # most words begin no name
        if place < after:
            continue
        for length in lengths.get(words[place], ()):
            name = words[place] if length == 1 else " ".join(words[place : place + length])
            if name in names:
                found[name] = None
                after = place + length
                break
    return list(found)
