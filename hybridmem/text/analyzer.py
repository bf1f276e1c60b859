"""Analyzer: tokenising of documents and queries into terms.

```
"Müller's VW123-platform-team walked"  →  muller  vw123-platform-team  vw123  vw  123  platform  team  walk
```

Case and diacritics are folded, English words are stemmed, runs of Chinese, Japanese, Korean and Thai become bigrams,
and identifiers are kept whole and in parts, unstemmed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain, pairwise
from typing import Any, Literal

from hybridmem.core import validation
from hybridmem.errors import ConfigError, MissingExtraError
from hybridmem.text.folding import CJK_RUN, LETTER, cjk_runs, fold
from hybridmem.text.stemmer import stem as stem_english
from hybridmem.text.stopwords import AGENT_WORDS, STOPWORDS

__all__ = ["Analyzer", "cjk_runs", "fold"]

_VERSION = 2
"""Increased when the same settings produce other terms, so that stored indexes are rebuilt."""

_MAX_TERM = 128
_CACHE_SIZE = 100_000
_CACHE_WORD = 64

_ALIASES = {
    "en": "english",
    "de": "german",
    "fr": "french",
    "es": "spanish",
    "it": "italian",
    "pt": "portuguese",
    "nl": "dutch",
    "sv": "swedish",
    "no": "norwegian",
    "da": "danish",
    "fi": "finnish",
    "ru": "russian",
    "ar": "arabic",
    "hu": "hungarian",
    "ro": "romanian",
    "tr": "turkish",
    "el": "greek",
}

_CHUNK = re.compile(
    # C++ and C#; then letters joined by single connectors; a comma joins the thousands of a number.
    rf"\b[A-Za-z](?:\+\+|#)(?!\w)|{LETTER}+(?:(?:_+|::|[-./:@&'\\]|(?<=\d),(?=\d{{3}}(?!\d))){LETTER}+)*"
)
_BREAKS = str.maketrans(dict.fromkeys(';!?()[]{}<>"*=|~^`$%\0', " "))
"""Characters that never belong to a word become blanks, because splitting at blanks is faster than a pattern."""
_CONNECTOR = re.compile(r"[-_./:@&'\\,]+")
_CODE = re.compile(r"[\d_/.:@&\\]")
_ISO_T = re.compile(r"(?<=\d\d\d\d-\d\d-\d\d)[Tt](?=\d)")
_CAMEL = re.compile(r"[a-z][A-Z]|[A-Z]{2}[a-z]{2}")
_CAMEL_PART = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[^\WA-Z\d_]+|[A-Z]+|\d+")
_LETTERS_OR_DIGITS = re.compile(r"\d+|[^\W\d_]+")
_CLITICS = frozenset({"s", "d", "m", "ll", "re", "ve"})
_ORDINAL = re.compile(r"(\d+)(?:st|nd|rd|th)")


class _Cache(dict[str, tuple[str, ...]]):
    """Cache from a word to its terms."""

    def __init__(self, expand: Callable[[str], tuple[str, ...]]) -> None:
        super().__init__()
        self._expand = expand

    def __missing__(self, chunk: str) -> tuple[str, ...]:
        terms = self._expand(chunk)
        if len(chunk) <= _CACHE_WORD:
            if len(self) >= _CACHE_SIZE:
                self.clear()
            self[chunk] = terms
        return terms


class _Tokenizer:
    """Tokenises with one set of settings."""

    __slots__ = ("cache", "identifiers", "stem", "stops")

    def __init__(self, stem: Callable[[str], str], stops: frozenset[str], identifiers: bool) -> None:
        self.stem = stem
        self.stops = stops
        self.identifiers = identifiers
        self.cache = _Cache(self.expand)

    def run(self, text: str) -> list[str]:
        if text.isascii():
            text = text.translate(_BREAKS)
        return list(chain.from_iterable(map(self.cache.__getitem__, text.split())))

    def expand(self, blanked: str) -> tuple[str, ...]:
        """All terms of a piece between two blanks, such as `Ana's` or `18.12.1,`."""
        bare = blanked.strip(".,:'-")
        if bare.isascii() and bare.isalpha():
            if bare != blanked:
                return self.cache[bare]
            return self._identifier(bare) if _CAMEL.search(bare) else (self.word(bare.lower()),)
        text = blanked if blanked.isascii() else fold(blanked)
        return tuple(chain.from_iterable(map(self._chunk, _CHUNK.findall(_ISO_T.sub(" ", text)))))

    def _chunk(self, chunk: str) -> tuple[str, ...]:
        """The terms of a word, an identifier, a contraction, or a CJK run with either around it."""
        if not chunk.isascii():
            pieces = [piece for piece in CJK_RUN.split(chunk) if piece]
            if len(pieces) > 1 or CJK_RUN.match(chunk):
                return tuple(chain.from_iterable(map(self._piece, pieces)))
        return self._joined(chunk)

    def _piece(self, piece: str) -> tuple[str, ...]:
        if not CJK_RUN.match(piece):
            piece = _CONNECTOR.sub("", piece[0]) + piece[1:-1] + _CONNECTOR.sub("", piece[-1:] * (len(piece) > 1))
            return self._joined(piece) if piece else ()
        return tuple(map("".join, pairwise(piece))) if len(piece) > 1 else (piece,)

    def _joined(self, chunk: str) -> tuple[str, ...]:
        if "'" in chunk:
            return self._apostrophe(chunk)
        if chunk.isdigit():
            return (chunk[:_MAX_TERM],)
        code = _CODE.search(chunk) or _CAMEL.search(chunk) or ("-" in chunk and chunk.isupper())
        if code:
            return self._identifier(chunk)
        return tuple(map(self.word, _CONNECTOR.split(chunk.casefold())))

    def word(self, word: str) -> str:
        """The term of a plain word. A stem never equals a stop word, so that both share one vocabulary."""
        if word in self.stops:
            return word
        term = self.stem(word[:_MAX_TERM])
        return word[:_MAX_TERM] if term in self.stops or not term else term

    def _apostrophe(self, chunk: str) -> tuple[str, ...]:
        """`Ana's` → ana, `don't` → a stop word, `o'clock` → o, clock."""
        *heads, tail = chunk.split("'")
        end = tail.casefold()
        if end == "t" and heads[-1][-1:] in "nN" and "not" in self.stops:
            return ("not",)
        if end not in _CLITICS:
            heads.append(tail)
        return tuple(chain.from_iterable(map(self._joined, heads)))

    def _identifier(self, chunk: str) -> tuple[str, ...]:
        """The whole identifier, then its parts: between connectors, in camelCase, between letters and digits."""
        whole = chunk.casefold()
        ordinal = _ORDINAL.fullmatch(whole)
        if ordinal:
            return (ordinal[1],)
        if "," in whole and whole.replace(",", "").isdigit():
            return (whole.replace(",", "")[:_MAX_TERM],)
        parts = [part for part in _CONNECTOR.split(chunk) if part]
        if not self.identifiers:
            return tuple(self.word(part.casefold()) for part in parts)
        terms = dict.fromkeys([whole[:_MAX_TERM]])
        for part in parts:
            terms.update(dict.fromkeys(self._part(part)))
        return tuple(terms)

    def _part(self, part: str) -> Iterable[str]:
        yield from self._part_terms(part.casefold())
        pieces = _CAMEL_PART.findall(part) if _CAMEL.search(part) else _LETTERS_OR_DIGITS.findall(part)
        if len(pieces) > 1:
            for piece in pieces:
                if len(piece) > 1:
                    yield from self._part_terms(piece.casefold())

    def _part_terms(self, part: str) -> Iterable[str]:
        """The part unchanged, and as a stemmed word, so that `export` matches `/v2/exports`."""
        yield part[:_MAX_TERM]
        if part.isalpha():
            yield self.word(part)


@lru_cache(maxsize=16)
def _tokenizer(language: str, stopwords: str | frozenset[str], identifiers: bool) -> _Tokenizer:
    """One tokenizer for all analyzers with equal settings, so that they share its cache."""
    name, _, unstemmed = language.partition(" ")
    if stopwords in ("default", "agent"):
        stops = STOPWORDS.get(name, frozenset()) | (AGENT_WORDS if stopwords == "agent" else frozenset())
    else:
        stops = frozenset() if stopwords == "none" else frozenset(fold(word).casefold() for word in stopwords)
    stem = str if unstemmed or name == "none" else stem_english if name == "english" else _snowball(name)
    return _Tokenizer(stem, stops, identifiers)


def _snowball(language: str) -> Callable[[str], str]:
    try:
        import Stemmer
    except ImportError as error:
        raise MissingExtraError("stem", needs=f"PyStemmer (for language={language!r})") from error
    known = sorted(Stemmer.algorithms())
    if language not in known:
        allowed = ", ".join([*known, "none"])
        raise ConfigError(f"language = {language!r} is not allowed: {allowed}")
    found: Callable[[str], str] = Stemmer.Stemmer(language).stemWord
    return found


@dataclass(frozen=True, slots=True)
class Analyzer:
    """Settings of the tokeniser, applied to documents and queries alike. Equal settings give equal terms.

    `language`: `english` (built in), any language of PyStemmer (extra `stem`), or `none` for no stemming.
    `stopwords`: `default` for the function words of the language, `agent` for these and the words that most notes of an
    agent contain (user, memory, note, said, …), `none`, or your own words.

    >>> Analyzer()("Ana's diagnoses")
    ['ana', 'diagnos']
    """

    language: str = "english"
    stopwords: Literal["default", "agent", "none"] | tuple[str, ...] = "default"
    stem: bool = True
    identifiers: bool = True
    _tokenizer: _Tokenizer = field(init=False, repr=False, compare=False, hash=False)

    def __post_init__(self) -> None:
        if not isinstance(self.language, str):
            raise ConfigError(f"language = {self.language!r} is not allowed: a name such as 'english', or 'none'")
        language = _ALIASES.get(self.language.lower(), self.language.lower())
        object.__setattr__(self, "language", language)
        for name in ("stem", "identifiers"):
            validation.flag(name, getattr(self, name))
        if not isinstance(self.stopwords, str) or self.stopwords not in ("default", "agent", "none"):
            object.__setattr__(self, "stopwords", _checked_words(self.stopwords))
        words = self.stopwords if isinstance(self.stopwords, str) else frozenset(self.stopwords)
        tokenizer = _tokenizer(self.language if self.stem else f"{self.language} unstemmed", words, self.identifiers)
        object.__setattr__(self, "_tokenizer", tokenizer)

    def __reduce__(self) -> tuple[Any, ...]:
        return Analyzer.from_dict, (self.to_dict(),)

    def __call__(self, text: str, /) -> list[str]:
        """The content terms of a text, in order; their number is the text's length |D|."""
        stops = self._tokenizer.stops
        return [term for term in self._tokenizer.run(text) if term not in stops]

    def all_terms(self, text: str, /) -> list[str]:
        """The content terms and the stop words. An index stores both, so that `who are you` is a possible query."""
        return self._tokenizer.run(text)

    def query(self, text: str, /) -> list[str]:
        """The content terms of a query with repetitions; if it has only stop words, those."""
        return self(text) or self.all_terms(text)

    def batch(self, texts: Iterable[str], /) -> list[list[str]]:
        """`[analyzer(text) for text in texts]`."""
        return list(map(self, texts))

    def stemmed(self, word: str, /) -> str:
        """The term of one lower-case word."""
        return self._tokenizer.word(word)

    def is_stop(self, term: str, /) -> bool:
        """Whether a term of `all_terms` is a stop word (a stem never is)."""
        return term in self._tokenizer.stops

    def to_dict(self) -> dict[str, Any]:
        """The settings as JSON values, with the version of the tokeniser."""
        words = self.stopwords
        return {
            "version": _VERSION,
            "language": self.language,
            "stopwords": words if isinstance(words, str) else list(words),
            "stem": self.stem,
            "identifiers": self.identifiers,
        }

    @classmethod
    def from_dict(cls, settings: Mapping[str, Any], /) -> Analyzer:
        """The analyzer of `to_dict`; another version raises ConfigError, because its terms may differ."""
        if settings.get("version") != _VERSION:
            raise ConfigError(f"analyzer version {settings.get('version')!r} is not {_VERSION}: reindex the texts")
        words = settings["stopwords"]
        return cls(
            language=settings["language"],
            stopwords=words if isinstance(words, str) else tuple(words),  # type: ignore[arg-type]
            stem=settings["stem"],
            identifiers=settings["identifiers"],
        )


def _checked_words(words: Any) -> tuple[str, ...]:
    if isinstance(words, str):
        validation.refuse("stopwords", words, "'default', 'agent', 'none', or a tuple of words")
    given = validation.texts("stopwords", words)
    return tuple(sorted(given) if isinstance(words, set | frozenset) else given)  # a set has no fixed order
