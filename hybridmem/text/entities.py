"""Entity extraction by patterns: names, identifiers, quoted terms, hashtags and dates; no model."""

from __future__ import annotations

import re
from collections.abc import Iterator

__all__ = ["spot"]

_LONGEST = 20_000  # characters read: bounds the time that a very long text takes
_MOST = 64  # entities per text

_MONTHS = (
    *("january", "february", "march", "april", "may", "june"),
    *("july", "august", "september", "october", "november", "december"),
)
_MONTH_NUMBER = {name: i for i, month in enumerate(_MONTHS, 1) for name in (month, month[:3])} | {"sept": 9}
_MONTH = r"(?:jan|feb|mar|apr|may|jun|jul|aug|sept?|oct|nov|dec)(?:uary|ruary|ch|il|e|y|ust|ember|ober)?\b\.?"
_DAY = r"(?:[12]\d|3[01]|0?[1-9])(?:st|nd|rd|th)?"

# Every special pattern needs one of these characters; most texts have none and skip the search.
_HINT = re.compile(r"[\d@#\"“„«「`/]")
# The first alternative that matches wins, so the more specific patterns come first.
_SPECIAL = re.compile(
    r"""
    (?P<web>https?://[^\s<>"']{1,500}|(?<![\w.+-])[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,4})
  | (?P<quoted>(?<!\w)"(?=\S)[^"\n]{2,60}(?<=\S)"(?!\w)
      |“[^“”\n]{2,60}”|„[^„“”\n]{2,60}[“”]|«[^«»\n]{2,60}»|「[^「」\n]{2,60}」|`[^`\n]{2,60}`)
  | (?<!\w)\#(?P<hashtag>\w{2,60})
  | (?<![\w-])(?P<iso>\d{4}-(?:0[1-9]|1[0-2])(?:-(?:0[1-9]|[12]\d|3[01]))?)(?![\w-])
  | (?<!\w)(?P<dmy>(?i:DAY\ (?:of\ )?MONTH(?:,?\ \d{4}\b)?))
  | (?<!\w)(?P<mdy>(?i:MONTH\ (?:DAY\b(?:,?\ \d{4}\b)?|\d{4}\b)))
  | (?P<path>(?<![\w/])(?:/[\w.{}-]{1,64}){2,16})
    """.replace("DAY", _DAY).replace("MONTH", _MONTH),
    re.VERBOSE,
)
_WORD = re.compile(r"(?P<word>[^\W_][\w'’]*(?:[-._][\w'’]+)*)|(?P<end>[.!?。！？:;•\n])|[^\w\s]")
_DATE = re.compile(r"(?i)(?P<month>[a-z]+)|(?P<year>\d{4})|(?P<day>\d{1,2})(?:st|nd|rd|th)?")
_CAMEL = re.compile(r"[a-z]+[A-Z]|[A-Z]{2,}[a-z]{2,}|[A-Z][a-z]+[A-Z]")
_INSIDE = frozenset(
    {"of", "de", "la", "le", "van", "von", "der", "den", "da", "do", "dos", "del", "di", "du", "y", "al"}
)

# Words that start sentences or are often capitalised, but are not names.
_OPENERS = """
a about absolutely actually after again ah aha ahead all almost along already also although always am amazing an
and another any anyone anything anyway are aren't around as asked at aw awesome aww be because been before being
believe best both bought bro but by bye called can can't check cheers come congrats congratulations cool could
couldn't cuz dear definitely did didn't do does doesn't doing don't done during each either else ever every
everyone everything exactly excuse fair few fine finished first flew for found from fun get getting give glad go
going good got gotcha gotta great guess ha had haha has have haven't having he he'd he'll he's heard hello help
her here here's hers hey hi him his hm hmm hope hopefully how how's however huh i i'd i'll i'm i've if in indeed
interesting into is isn't it it'd it'll it's its just keep kind know last lately later left let let's like lol
long look looking looks lost lots love lovely made make many may maybe me mean met mine more most moved mr mrs
ms much must my nah need never new next nice no nobody nope not note nothing now of off oh ok okay omg on once
one only oops or other our out over own perfect perhaps please pretty probably quite read really remember right
said same saw see seems sent several she she'd she'll she's should since so some someone something sometimes
soon sorry sounds speaking spoke started still such super sure take talk talked tell thank thanks that that'd
that'll that's the their them then there there's these they they'd they'll they're they've thing think this
those though three through thx til time to today together tomorrow too totally true try two u uh um under until
up upon us use very visited wait wanna want was wasn't way we we'd we'll we're we've well went were weren't what
what's whatever when when's where where's whether which while who who's whoa whose why will wish with without
won won't wonderful wondering would wouldn't wow wrote ya yay yeah yep yes yesterday yet yo you you'd you'll
you're you've your yours yup
monday tuesday wednesday thursday friday saturday sunday
"""
_COMMON = frozenset(_OPENERS.split()) | frozenset(_MONTHS)


def spot(text: str, /) -> tuple[str, ...]:
    """The entities of a text, in order, each once.

    Names are runs of capitalised words; the first word of a sentence counts unless it is a common one. Dates are
    written the ISO way, so that "7 May 2023" and "May 7, 2023" are the same entity.

    >>> spot('Met Ana Silva in Lisbon on 7 May 2023: "Project Blue" needs E0427 fixed #urgent')
    ('Ana Silva', 'Lisbon', '2023-05-07', 'Project Blue', 'E0427', 'urgent')
    """
    found: dict[str, str] = {}
    for entity in _entities(text[:_LONGEST]):
        found.setdefault(entity.casefold(), entity)
        if len(found) == _MOST:
            break
    return tuple(found.values())


def _entities(text: str) -> Iterator[str]:
    """Special patterns, and names in the text between them."""
    start, begin = True, 0
    for match in _SPECIAL.finditer(text) if _HINT.search(text) else ():
        special = _special(match)
        if special:
            names, start = _names(text[begin : match.start()], start=start)
            yield from names
            yield special
            start, begin = False, match.end()
    yield from _names(text[begin:], start=start)[0]


def _names(text: str, *, start: bool) -> tuple[list[str], bool]:
    """Names and identifiers of plain text, and whether the text after it starts a sentence."""
    found: list[str] = []
    run: list[str] = []  # the name being read
    end = -1  # end of its last word: a name continues only over single spaces
    for match in _WORD.finditer(text):
        token = match["word"]
        if token is None:
            start = start or match["end"] is not None
            continue
        if token.islower() and token.isalpha() and not run:  # most words
            start = False
            continue
        word = _bare(token)
        if run and text[end : match.start()] != " ":
            _close(run, found)
        end = match.end()
        if _is_identifier(word):
            _close(run, found)
            found.append(word)
        elif run and word in _INSIDE:
            run.append(word)
        elif word[0].isupper() and not _is_common(word, start=start):
            run.append(word)
            if len(word) < len(token):  # "Ana's Lisbon trip" names two things
                _close(run, found)
        else:
            _close(run, found)
        start = False
    _close(run, found)
    return found, start


def _special(match: re.Match[str]) -> str:
    kind, text = match.lastgroup, match[0]
    if kind == "quoted":
        return text[1:-1].strip()
    if kind == "hashtag":
        return match["hashtag"]
    if kind in ("dmy", "mdy"):
        return _date(text)
    return text.rstrip(".,;:!?)")


def _close(run: list[str], found: list[str]) -> None:
    """Store the finished name without a trailing "of"."""
    while run and run[-1] in _INSIDE:
        run.pop()
    if run:
        found.append(" ".join(run))
        run.clear()


def _bare(word: str) -> str:
    stripped = word.strip("'’")
    return stripped[:-2] if stripped[-2:] in ("'s", "’s") and len(stripped) > 2 else stripped  # noqa: PLR2004


def _is_common(word: str, *, start: bool) -> bool:
    """Whether it is no name: one letter, or a listed word. Inside a sentence an acronym such as US is a name."""
    if len(word) == 1 and word.isascii():
        return True
    return word.replace("’", "'").casefold() in _COMMON and (start or not word.isupper())


def _is_identifier(word: str) -> bool:
    if word.isalpha():
        return not word.islower() and not word.isupper() and _CAMEL.search(word) is not None
    digits = any(map(str.isdigit, word))
    letters = any(map(str.isalpha, word))
    return (digits and letters and not _ordinal(word)) or "_" in word or (digits and word.count(".") > 1)


def _ordinal(word: str) -> bool:
    """1st, 20s, 5k, 10am, 3pm: numbers with a unit rather than identifiers."""
    head = word.rstrip("abcdefghijklmnopqrstuvwxyz'’")
    return head.replace(".", "").replace("-", "").isdigit() and len(word) - len(head) <= 2  # noqa: PLR2004


def _date(text: str) -> str:
    """2023-05-07, 2023-05, or May 7 without a year; empty for "may 4 times" or "march 3 miles"."""
    month = day = year = ""
    for part in _DATE.finditer(text):
        if part["year"]:
            year = part["year"]
        elif part["day"]:
            day = part["day"]
        elif part["month"] and part["month"].casefold() in _MONTH_NUMBER:
            month = part["month"]
    number = _MONTH_NUMBER[month.casefold()]
    if not year:
        if month in ("may", "mar", "march"):  # common words in lower case
            return ""
        return f"{_MONTHS[number - 1].capitalize()} {int(day)}"
    return f"{year}-{number:02}-{int(day):02}" if day else f"{year}-{number:02}"
