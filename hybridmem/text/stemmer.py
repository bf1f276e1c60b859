"""Light English stemmer: `walked`, `walks` and `walking` share a stem, and so do `diagnosis` and `diagnoses`.

It follows Porter's second algorithm (regions R1 and R2, endings removed step by step) and adds irregular forms (`went`
is `go`) and Greek plurals. It needs no package, so that an index does not depend on what is installed.
"""

# ruff: noqa: PLR2004 - the rules compare word lengths

from __future__ import annotations

import re

from hybridmem.text.stopwords import IRREGULAR

__all__ = ["stem"]

_VOWELS = frozenset("aeiouy")
_DOUBLES = ("bb", "dd", "ff", "gg", "mm", "nn", "pp", "rr", "tt")
_VALID_LI = frozenset("cdeghkmnrt")
_R1_EXCEPTIONS = ("gener", "commun", "arsen", "univers", "later", "emerg", "organ")
_REGION = re.compile(r"[^aeiouy]*[aeiouy]+[^aeiouy]")
_SHORT_END = re.compile(r"(?:^[aeiouy][^aeiouy]|[^aeiouy][aeiouy][^aeiouywxY])$")

_WHOLE = {
    "skis": "ski",
    "skies": "sky",
    "sky": "sky",
    "dying": "die",
    "lying": "lie",
    "tying": "tie",
    "idly": "idl",
    "gently": "gentl",
    "ugly": "ugli",
    "early": "earli",
    "only": "onli",
    "singly": "singl",
    "news": "news",
    "howe": "howe",
    "atlas": "atlas",
    "cosmos": "cosmos",
    "bias": "bias",
    "andes": "andes",
    "inning": "inning",
    "outing": "outing",
    "canning": "canning",
    "herring": "herring",
    "earring": "earring",
    "evening": "evening",
    "crises": "cris",
    "theses": "thes",
    "oases": "oas",
}
"""Words whose ending only looks like one."""

_KEEP_EED = frozenset({"proceed", "exceed", "succeed"})

_STEP2 = (
    ("ization", "ize"),
    ("ational", "ate"),
    ("fulness", "ful"),
    ("ousness", "ous"),
    ("iveness", "ive"),
    ("tional", "tion"),
    ("biliti", "ble"),
    ("lessli", "less"),
    ("entli", "ent"),
    ("ation", "ate"),
    ("alism", "al"),
    ("aliti", "al"),
    ("ousli", "ous"),
    ("iviti", "ive"),
    ("fulli", "ful"),
    ("enci", "ence"),
    ("anci", "ance"),
    ("abli", "able"),
    ("izer", "ize"),
    ("ator", "ate"),
    ("alli", "al"),
    ("bli", "ble"),
    ("ogi", "og"),
    ("li", ""),
)
_STEP3 = (
    ("ational", "ate"),
    ("tional", "tion"),
    ("alize", "al"),
    ("icate", "ic"),
    ("iciti", "ic"),
    ("ative", ""),
    ("ical", "ic"),
    ("ness", ""),
    ("ful", ""),
)
_STEP4 = (
    "ement",
    "ance",
    "ence",
    "able",
    "ible",
    "ment",
    "ant",
    "ent",
    "ism",
    "ate",
    "iti",
    "ous",
    "ive",
    "ize",
    "ion",
    "al",
    "er",
    "ic",
)


def _by_last_letter(endings: tuple[tuple[str, str], ...]) -> dict[str, tuple[tuple[str, str], ...]]:
    """Only endings with the word's own last letter need to be tried, longest first."""
    return {letter: tuple(row for row in endings if row[0][-1] == letter) for letter in {e[-1] for e, _ in endings}}


_STEP2_BY = _by_last_letter(_STEP2)
_STEP3_BY = _by_last_letter(_STEP3)
_STEP4_BY = _by_last_letter(tuple((ending, "") for ending in _STEP4))


def stem(word: str) -> str:
    """The stem of a lower-case English word: `stem("relational") == "relat"`; short words stay as they are."""
    word = IRREGULAR.get(word, word)
    if word in _WHOLE:
        return _WHOLE[word]
    if len(word) <= 2:
        return word
    word = _mark_consonant_y(word)
    r1, r2 = _regions(word)
    word = _plural(word)
    word = _past_and_ing(word, r1)
    if len(word) > 2 and word[-1] in "yY" and word[-2] not in _VOWELS:
        word = word[:-1] + "i"
    word = _replace(word, _STEP2_BY, r1, r2)
    word = _replace(word, _STEP3_BY, r1, r2)
    word = _step4(word, r2)
    return _final(word, r1, r2).replace("Y", "y")


def _mark_consonant_y(word: str) -> str:
    """Write `Y` where y is a consonant: at the start, and after a vowel."""
    if "y" not in word:
        return word
    letters = list(word)
    for i, letter in enumerate(letters):
        if letter == "y" and (i == 0 or letters[i - 1] in _VOWELS):
            letters[i] = "Y"
    return "".join(letters)


def _regions(word: str) -> tuple[int, int]:
    """Where R1 and R2 begin: after the first, and the second, consonant that follows a vowel."""
    if word.startswith(_R1_EXCEPTIONS):
        r1 = next(len(start) for start in _R1_EXCEPTIONS if word.startswith(start))
    else:
        found = _REGION.match(word)
        r1 = found.end() if found else len(word)
    found = _REGION.match(word, r1)
    return r1, found.end() if found else len(word)


def _has_vowel(part: str) -> bool:
    return not _VOWELS.isdisjoint(part)


def _plural(word: str) -> str:
    """`ponies` → `poni`, `ties` → `tie`, `cats` → `cat`; `diagnosis` → `diagnos`, like `diagnoses`."""
    if word.endswith(("ied", "ies")):
        return word[:-2] if len(word) > 4 else word[:-1]
    if word[-1] != "s":
        return word
    if word.endswith("sses"):
        return word[:-2]
    if word.endswith("sis") and len(word) > 5 and word[-4] != "s":
        return word[:-2]
    if word.endswith(("us", "ss")):
        return word
    return word[:-1] if _has_vowel(word[:-2]) else word


def _past_and_ing(word: str, r1: int) -> str:
    """`hopping` → `hop`, `hoped` → `hope`, `agreed` → `agree`."""
    if word in _KEEP_EED:
        return word
    for ending in ("eedly", "eed"):
        if word.endswith(ending):
            return word[: -len(ending)] + "ee" if len(word) - len(ending) >= r1 else word
    for ending in ("ingly", "edly", "ing", "ed"):
        if word.endswith(ending):
            base = word[: -len(ending)]
            return _mend(base, r1) if _has_vowel(base) else word
    return word


def _mend(base: str, r1: int) -> str:
    """Give back the e of `hop(e)d`, take away the second p of `hopp(ing)`."""
    if base.endswith(("at", "bl", "iz")):
        return base + "e"
    if base.endswith(_DOUBLES) and not (len(base) == 3 and base[0] in "aeo"):
        return base[:-1]
    return base + "e" if len(base) <= r1 and _SHORT_END.search(base) else base


def _replace(word: str, table: dict[str, tuple[tuple[str, str], ...]], r1: int, r2: int) -> str:
    """Put the short ending of the first row that fits, when it lies in its region."""
    for ending, short in table.get(word[-1], ()):
        if not word.endswith(ending):
            continue
        base = word[: -len(ending)]
        fits = len(base) >= (r2 if ending == "ative" else r1)
        if ending == "li":
            fits = fits and base[-1:] in _VALID_LI
        elif ending == "ogi":
            fits = fits and base.endswith("l")
        return base + short if fits else word
    return word


def _step4(word: str, r2: int) -> str:
    for ending, _ in _STEP4_BY.get(word[-1], ()):
        if word.endswith(ending):
            base = word[: -len(ending)]
            fits = len(base) >= r2 and (ending != "ion" or base.endswith(("s", "t")))
            return base if fits else word
    return word


def _final(word: str, r1: int, r2: int) -> str:
    """Take off a last e (`probate` → `probat`) or the second l of `controll`."""
    if word.endswith("e"):
        base = word[:-1]
        if len(base) >= r2 or (len(base) >= r1 and not _SHORT_END.search(base)):
            return base
    elif word.endswith("ll") and len(word) - 1 >= r2:
        return word[:-1]
    return word
