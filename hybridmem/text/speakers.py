"""Names of speakers: which prefixes count as speakers, whom a question names, and the question without the names."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from functools import lru_cache

from hybridmem.text.cues import ROLES, USER_ROLES, about_assistant, about_user
from hybridmem.text.folding import CJK_RUN
from hybridmem.text.stopwords import STOPWORDS

__all__ = ["bare_question", "frequent_prefixes", "named_speakers"]

LEAST, SHARE = 3, 0.01
"""A "Name:" prefix counts as a speaker when it begins at least so many memories and this share of all."""
_AMBIGUOUS = STOPWORDS["english"] | {"may", "will", "mark", "art", "hope", "grace", "bill", "rob"}
"""Words that are names only when they are capitalised inside a sentence."""
_WORD = re.compile(r"\w+")


def frequent_prefixes(counts: Mapping[str, int], total: int, /) -> dict[str, int]:
    """The "Name:" prefixes that count as speakers among `total` memories, with their counts."""
    least = max(LEAST, SHARE * total)
    return {name: count for name, count in counts.items() if count >= least}


def named_speakers(question: str, speakers: Collection[str], /) -> set[str]:
    """The speakers that a question names; "I", "my" … mean the user, where there is one and no name is given.

    >>> named_speakers("What did Ana buy?", {"ana", "ben"}), named_speakers("Where do I live?", {"user", "assistant"})
    ({'ana'}, {'user'})
    """
    named = {name for name in _mentioned(question, speakers) if _pattern(name).search(question)}
    if named or not about_user(question) or about_assistant(question):
        return named
    return {name for name in speakers if name in USER_ROLES}


def bare_question(question: str, speakers: Collection[str], /) -> str:
    """The question without the names of speakers, for embedding: they dominate the vector. Roles stay.

    A question of nothing but names is returned unchanged.

    >>> bare_question("Where does Ana's sister live?", {"ana", "ben"})
    'Where does sister live?'
    """
    text = question
    for name in sorted(_mentioned(question, speakers), key=len, reverse=True):
        text = _pattern(name).sub(" ", text)
    if text == question:
        return question
    text = " ".join(text.split())
    return text if re.search(r"\w{3,}", text) or CJK_RUN.search(text) else question


def _mentioned(question: str, speakers: Collection[str]) -> list[str]:
    """The names, not roles, of which a word is anywhere in the question: a quick test for very many speakers."""
    folded = question.casefold()
    return [name for name in speakers if name not in ROLES and any(word in folded for word in name.split())]


@lru_cache(maxsize=1024)
def _pattern(name: str) -> re.Pattern[str]:
    """A pattern for a name, or for one of its words where it has several, with a possessive ending."""
    words = [word for word in _WORD.findall(name) if len(word) > 1 and word not in _AMBIGUOUS]
    forms = [_form(name), *(_form(word) for word in words if word != name)]
    return re.compile("|".join(forms))


def _form(name: str) -> str:
    if CJK_RUN.search(name):  # no spaces between words
        return re.escape(name)
    if name in _AMBIGUOUS:
        return rf"(?<=\w[ ,]){re.escape(name.capitalize())}(?:'s|’s)?(?!\w)"
    return rf"(?i:\b{re.escape(name)}(?:'s|’s)?(?!\w))"
