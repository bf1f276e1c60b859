"""Conversation in texts: who speaks, whom a question names, and cues (asking, first person, time words).

Word lists are per language in `LANGUAGES`. To add a language, add an entry: the patterns are the union of all entries.
A language without an entry has no cues, so evidence that is based on them adds nothing.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import NamedTuple

from hybridmem.text.analyzer import Analyzer
from hybridmem.text.folding import CJK_RUN
from hybridmem.text.stopwords import STOPWORDS

__all__ = [
    "ASKS",
    "ASSISTANT_ROLES",
    "FIRST_PERSON",
    "LANGUAGES",
    "ROLES",
    "TIME_WORD",
    "USER_ROLES",
    "CueWords",
    "about_assistant",
    "about_user",
    "asks_when",
    "bare_question",
    "cues_of",
    "frequent_prefixes",
    "is_person",
    "named_speakers",
    "question_sentences",
    "recall_query",
    "speaker_of",
    "spoken",
]

ASKS, FIRST_PERSON, TIME_WORD = 1, 2, 4
"""Bits of `cues_of`."""
ASSISTANT_ROLES = frozenset({"assistant", "ai", "bot", "chatbot", "model", "system", "tool"})
USER_ROLES = frozenset({"user", "human"})
ROLES = ASSISTANT_ROLES | USER_ROLES
"""Speakers that are roles: they are not names, so they stay in a question."""


class CueWords(NamedTuple):
    """The cue words of one language, separated by spaces; `when` and `assistant` are regular expressions."""

    first_person: str
    """Words of a speaker who speaks of himself."""
    self_reference: str
    """Words by which the asking user means himself."""
    time: str
    when: str
    """How questions for a time begin."""
    assistant: str
    """Questions about what the assistant has said."""
    labels: str
    """Words that stand before a colon and are not speakers."""


LANGUAGES = {
    "english": CueWords(
        first_person="i i'm i've my me mine we our im ive",
        self_reference="i my me mine i'm i've i'd",
        time="yesterday today tonight tomorrow ago last next week weekend month year day days monday tuesday wednesday "
        "thursday friday saturday sunday january february march april june july august september october november "
        "december morning evening recently since summer winter spring fall",
        when=r"when\b|what date|what day|which month|what month|which year|what year|how long|what time",
        assistant=r"\byou(?:r)?\b.{0,30}\b(?:recommend|suggest|advi|said|say|tell|told|mention|propose|explain|provide)",
        labels="abstract action answer attention author body caution chapter comment conclusion content context date "
        "definition description details email error example fact fig figure from goal hint idea important info input "
        "issue keywords label link log message name note notes observation output problem q question reason reminder "
        "result section solution source status step subject summary table task text tip title to todo topic type url "
        "warning",
    )
}

_PREFIX = re.compile(
    r"^\s{0,8}(?:\*\*|__)?([^\s:：*_][^:：\n]{0,30}?)(?: \([^()\n]{1,20}\))?(?:\*\*|__)?"
    r"(?:：|:(?=(?:\*\*|__)?\s))(?:\*\*|__)?\s?"
)
"""Ana: …, **Ana:** …, **Ana**: …, Ana (3:14 pm): … and 小明：…"""
_PREFIX_LENGTH = 64
"""A prefix ends within this many characters."""
_SENTENCE = re.compile(r"[^.!?。！？؟\n]*[.!?。！？؟\n]+|[^.!?。！？؟\n]+$")
_QUESTION_MARKS = ("?", "？", "؟")


def _words(name: str) -> re.Pattern[str]:
    words = sorted({word for language in LANGUAGES.values() for word in getattr(language, name).split()}, reverse=True)
    return re.compile(rf"\b(?:{'|'.join(map(re.escape, words))})\b", re.IGNORECASE)


def _word_set(name: str) -> frozenset[str]:
    """The words of all languages; of a word with an apostrophe (I'm) the first part."""
    words = chain.from_iterable(getattr(language, name).split() for language in LANGUAGES.values())
    return frozenset(re.split(r"\W", word)[0] for word in words)


def _pattern(name: str) -> re.Pattern[str]:
    return re.compile("|".join(getattr(language, name) for language in LANGUAGES.values()), re.IGNORECASE)


_SELF = _words("self_reference")
_LABELS = frozenset(chain.from_iterable(language.labels.split() for language in LANGUAGES.values()))
_TOKEN = re.compile(r"\w+")
_YEARS = frozenset(f"20{year:02d}" for year in range(100))
_FIRST_PERSON, _TIME = _word_set("first_person"), _word_set("time") | _YEARS
_WHEN, _ASSISTANT = re.compile(rf"\b(?:{_pattern('when').pattern})", re.IGNORECASE), _pattern("assistant")


def speaker_of(text: str, speaker: str = "", /) -> str | None:
    """The speaker of a memory in lower case: the one given, else the "Name:" at the start of its text, else None.

    >>> speaker_of("Ana: I moved to Lisbon."), speaker_of("I moved.", "Ana"), speaker_of("I moved.")
    ('ana', 'ana', None)
    """
    if speaker.strip():
        return " ".join(speaker.casefold().split())
    match = _prefix(text)
    if match is None:
        return None
    name = " ".join(match[1].casefold().split())
    return None if name in _LABELS else name


def spoken(text: str, /) -> str:
    """The text without the "Name:" at its start."""
    match = _prefix(text)
    return text if match is None else text[match.end() :]


def _prefix(text: str) -> re.Match[str] | None:
    start = text[:_PREFIX_LENGTH]
    return _PREFIX.match(text) if ":" in start or "：" in start else None


def is_person(speaker: str | None, /) -> bool:
    """Whether a turn is by a person in a conversation between people: neither an assistant's nor a user's."""
    return speaker not in ROLES


def cues_of(text: str, /) -> int:
    """The cues of a text as bits: ASKS, FIRST_PERSON, TIME_WORD.

    >>> cues_of("Ben: I saw her yesterday. And you?") == ASKS | FIRST_PERSON | TIME_WORD
    True
    """
    body = spoken(text)
    cues = ASKS if "?" in body or "？" in body or "؟" in body else 0
    words = _TOKEN.findall(body.lower())
    if not _FIRST_PERSON.isdisjoint(words):
        cues |= FIRST_PERSON
    return cues if _TIME.isdisjoint(words) else cues | TIME_WORD


def question_sentences(text: str, /) -> str:
    """The sentences of a text that end in a question mark, without the "Name:" at its start.

    >>> question_sentences("Ana: I moved to Lisbon. Where do you live? Tell me.")
    'Where do you live?'
    """
    if not any(mark in text for mark in _QUESTION_MARKS):
        return ""
    sentences = (match.strip() for match in _SENTENCE.findall(spoken(text)))
    return " ".join(sentence for sentence in sentences if sentence.endswith(_QUESTION_MARKS))


CONTENT_WORDS = 3
"""A message with fewer content words is searched together with those before it."""


def recall_query(messages: Sequence[str], /, *, window: int = 2) -> str:
    """What to search for after these messages of a user: the last one.

    If it has fewer than three different content words, as "And when was that?" has, the messages before it count too,
    `window` messages in all. An earlier message about something else would otherwise lower recall (LoCoMo, recall@8
    after an unrelated message: .81, and .66 when both messages are always joined).

    >>> recall_query(["Where did Ana buy her bicycle?", "And when was that?"])
    'Where did Ana buy her bicycle? And when was that?'
    >>> recall_query(["It rains.", "Where did Ana buy her bicycle?"])
    'Where did Ana buy her bicycle?'
    """
    if not messages:
        return ""
    last = messages[-1]
    return last if len(set(_analyzer()(last))) >= CONTENT_WORDS else " ".join(messages[-window:])


@lru_cache(maxsize=1)
def _analyzer() -> Analyzer:
    return Analyzer()


def asks_when(question: str, /) -> bool:
    """Whether a question asks for a time."""
    return _WHEN.search(question) is not None


def about_user(question: str, /) -> bool:
    """Whether the question is about the user who asks it: "What did I buy?"."""
    return _SELF.search(question) is not None


def about_assistant(question: str, /) -> bool:
    """Whether a question is about what the assistant has said: "What did you recommend?"."""
    return _ASSISTANT.search(question) is not None


# --- names of speakers in a question

LEAST, SHARE = 3, 0.01
"""A "Name:" prefix counts as a speaker when it begins at least so many memories and this share of all."""
_AMBIGUOUS = STOPWORDS["english"] | {"may", "will", "mark", "art", "hope", "grace", "bill", "rob"}
"""Words that are names only when they are capitalised inside a sentence."""


def frequent_prefixes(counts: Mapping[str, int], total: int, /) -> dict[str, int]:
    """The "Name:" prefixes that count as speakers among `total` memories, with their counts."""
    least = max(LEAST, SHARE * total)
    return {name: count for name, count in counts.items() if count >= least}


def named_speakers(question: str, speakers: Collection[str], /) -> set[str]:
    """The speakers that a question names; "I", "my" … mean the user, where there is one and no name is given.

    >>> named_speakers("What did Ana buy?", {"ana", "ben"}), named_speakers("Where do I live?", {"user", "assistant"})
    ({'ana'}, {'user'})
    """
    named = {name for name in _mentioned(question, speakers) if _name_pattern(name).search(question)}
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
        text = _name_pattern(name).sub(" ", text)
    if text == question:
        return question
    text = " ".join(text.split())
    return text if re.search(r"\w{3,}", text) or CJK_RUN.search(text) else question


def _mentioned(question: str, speakers: Collection[str]) -> list[str]:
    """The names, not roles, of which a word is anywhere in the question: a quick test for very many speakers."""
    folded = question.casefold()
    return [name for name in speakers if name not in ROLES and any(word in folded for word in name.split())]


@lru_cache(maxsize=1024)
def _name_pattern(name: str) -> re.Pattern[str]:
    """A pattern for a name, or for one of its words where it has several, with a possessive ending."""
    words = [word for word in _TOKEN.findall(name) if len(word) > 1 and word not in _AMBIGUOUS]
    forms = [_name_form(name), *(_name_form(word) for word in words if word != name)]
    return re.compile("|".join(forms))


def _name_form(name: str) -> str:
    if CJK_RUN.search(name):  # no spaces between words
        return re.escape(name)
    if name in _AMBIGUOUS:
        return rf"(?<=\w[ ,]){re.escape(name.capitalize())}(?:'s|’s)?(?!\w)"
    return rf"(?i:\b{re.escape(name)}(?:'s|’s)?(?!\w))"
