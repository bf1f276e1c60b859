"""Names of memories (titles, aliases, labels of links), the texts that mention them, and the live index of names.

A name is compared as whole words, with case and diacritics folded; a part in brackets is left out.

>>> name_key("Ed Wood (film)"), name_key("Müller's Café")
('ed wood', 'muller s cafe')
"""

from __future__ import annotations

import math
import posixpath
import re
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from html import unescape
from typing import Any, NamedTuple
from urllib.parse import unquote

from hybridmem.core.protocols import Change
from hybridmem.core.types import Memory
from hybridmem.indexes import arrays
from hybridmem.text.folding import LETTER, cjk_runs, fold
from hybridmem.text.stopwords import STOPWORDS

__all__ = [
    "MIN_LETTERS",
    "Mention",
    "Names",
    "TextLink",
    "labels_of",
    "links_in",
    "mentions_in",
    "name_information",
    "name_key",
    "names_of",
    "shared_names",
    "spotted_names",
    "words_of",
]

MIN_LETTERS = 4
"""A name of fewer letters links nothing, unless a link names it."""
LONGEST_NAME = 12
"""A name of more words is a sentence: it links nothing."""
_LONGEST_TEXT = 20_000

_WORD = re.compile(rf"{LETTER}+")
_TOKEN = re.compile("[a-z0-9\u0080-\U0010ffff]+")
_BREAKS = {code: " " for code in range(128) if not chr(code).isalnum()}
"""ASCII characters that end a word become blanks: splitting at blanks is faster than a pattern."""
_BRACKETS = re.compile(r"\s*[(（\[][^)）\]]*[)）\]]")
_WIKILINK = re.compile(r"\[\[([^\[\]\n|#]{1,200})(?:#[^\[\]\n|]{0,200})?(?:\|([^\[\]\n]{1,200}))?\]\]")
_SCHEME = r"(?!\w[\w+.-]*:)"  # an address on the web is no note
_MARKDOWN = re.compile(
    rf"(?<!!)\[([^\[\]\n]{{1,200}})\]\(\s*(?:<{_SCHEME}([^<>\n]{{1,300}}?\.[mM][dD])(?:#[^<>\n]{{0,200}})?>"
    rf"|{_SCHEME}([^()\s<>]{{1,300}}?\.[mM][dD])(?:#[^()\s]{{0,200}})?)\s*\)"
)


class TextLink(NamedTuple):
    """A link in a text: the name of the memory it points to, what the text calls it, and the folder that it names."""

    target: str
    label: str
    folder: str = ""


def words_of(text: str, /) -> list[str]:
    """The folded words of a text; a run of a script without spaces is cut into characters.

    >>> words_of("Ed Wood met 東京 in 1994")
    ['ed', 'wood', 'met', '東', '京', 'in', '1994']
    """
    words: list[str] = []
    text = _plain(text[:_LONGEST_TEXT]).lower()
    if text.isascii():
        return text.translate(_BREAKS).split()
    for word in _TOKEN.findall(text):
        if word.isascii():
            words.append(word)
        else:  # folding may make several words of one
            for place, piece in enumerate(cjk_runs(fold(word).casefold())):
                words += piece if place % 2 else _WORD.findall(piece)
    return words


def _plain(text: str) -> str:
    """The text without HTML's references to characters, such as `&amp;`."""
    return unescape(text) if "&" in text else text


def name_key(name: str, /) -> str:
    """The folded form by which a name is found; empty when nothing is left of it, or it is too long for a name."""
    name = _plain(name)
    words = words_of(_BRACKETS.sub("", name)) or words_of(name)
    return " ".join(words) if len(words) <= LONGEST_NAME else ""


def links_in(text: str, /) -> list[TextLink]:
    """The [[wikilinks]] and relative Markdown links of a text, in order.

    >>> [tuple(link) for link in links_in("[[Ed Wood|the film]], [[Life#Work]], [notes](people/ana%20silva.md)")]
    [('Ed Wood', 'the film', ''), ('Life', '', ''), ('ana silva', 'notes', 'people')]
    """
    if "](" not in text and "[[" not in text:
        return []
    found = [(match.start(), _link(match[1], match[2] or "")) for match in _WIKILINK.finditer(text)]
    found += [(match.start(), _link(unquote(match[2] or match[3]), match[1])) for match in _MARKDOWN.finditer(text)]
    return [link for _, link in sorted(found)]


def _link(path: str, label: str) -> TextLink:
    """A link to the last part of a path, without its `.md`."""
    folder, _, name = path.strip().rpartition("/")
    return TextLink(name.removesuffix(".md"), label, folder)


def _in_folder(ids: Sequence[str], source: str, folder: str, /) -> Sequence[str]:
    """The notes of one name that a link means: those in the folder, seen from the source or from the root, else all.

    >>> _in_folder(["Index", "People/Index", "Work/Index"], "Work/plan", "../People")
    ['People/Index']
    """
    home = posixpath.dirname(source)
    for path in (posixpath.join(home, folder), folder):
        wanted = posixpath.normpath("/" + path.lstrip("/")).casefold()
        found = [id_ for id_ in ids if f"/{posixpath.dirname(id_)}".casefold() == wanted]
        if found:
            return found
    return ids


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


# --- names that no memory has

_CAPITAL = "".join(letter for letter in map(chr, range(0x530)) if letter.isupper())
_INSIDE = "of|the|and|de|la|le|van|von|der|den|du|del|di|da|al"
_RUN = re.compile(rf"[{_CAPITAL}](?<![\w'’].)[\w'’-]*(?:(?: (?:{_INSIDE})){{0,2}} [{_CAPITAL}0-9][\w'’-]*)*")
_NOT_AT_ENDS = frozenset({"s"}).union(*STOPWORDS.values())


def spotted_names(text: str, /) -> list[str]:
    """The folded runs of capitalised words in a text, each once, without function words at their ends.

    >>> spotted_names("The film was directed by Tim Burton. Burton's brother met Ludwig van Beethoven.")
    ['tim burton', 'burton', 'ludwig van beethoven']
    """
    found: dict[str, None] = {}
    for run in dict.fromkeys(_RUN.findall(_plain(text[:_LONGEST_TEXT]))):
        words = _TOKEN.findall(run.lower()) if run.isascii() else words_of(run)
        while words and words[0] in _NOT_AT_ENDS:
            del words[0]
        while words and words[-1] in _NOT_AT_ENDS:
            del words[-1]
        if words and len(words) <= LONGEST_NAME and sum(map(len, words)) >= MIN_LETTERS:
            found[sys.intern(" ".join(words))] = None
    return list(found)


def shared_names(query: str, texts: Iterable[tuple[str, Iterable[str]]], /) -> dict[str, list[str]]:
    """Name → the ids of the texts in which it was spotted, where these are several; names in the query are left out.

    >>> shared_names("the tram of Lisbon", [("m1", ["ana silva", "lisbon"]), ("m2", ["lisbon", "ana silva"])])
    {'ana silva': ['m1', 'm2']}
    """
    asked = set(words_of(query))
    found: dict[str, list[str]] = {}
    for id_, names in texts:
        for name in names:
            found.setdefault(name, []).append(id_)
    return {name: ids for name, ids in found.items() if len(ids) > 1 and not asked.issuperset(name.split())}


# --- the index

_CACHED = 8192
"""So many texts that were read are kept."""
_CHANGES = 64
"""After more changes of names than this, all names are looked for again in a text that was read before."""
_RARE = 5.0
"""The IDF from which on a name links with its full weight, in a store of 225 memories or more."""
_MAGIC = b"hybridmem names 2\n"


class Mention(NamedTuple):
    """A text mentions a memory: its id, the name by which it is mentioned, and how many memories share that name."""

    id: str
    name: str
    shared: int


def names_of(title: str, metadata: Mapping[str, Any], /) -> tuple[str, ...]:
    """The folded names of a memory: its title and the `aliases` in its metadata."""
    aliases = metadata.get("aliases", ())
    if not (title or aliases):
        return ()
    listed = (aliases,) if isinstance(aliases, str) else aliases if isinstance(aliases, list | tuple) else ()
    given = (name for name in (title, *listed) if isinstance(name, str) and name)
    return tuple(dict.fromkeys(key for name in given if (key := name_key(name))))


def labels_of(text: str, /) -> tuple[tuple[str, str], ...]:
    """What the links of a text call the memories they point to: pairs of folded label and target."""
    found = ((name_key(link.label), name_key(link.target)) for link in links_in(text))
    return tuple((label, target) for label, target in found if label and target and label != target)


class _Reading:
    """What was read in the text of a memory: its words, its links, names that no memory has, and those of memories."""

    __slots__ = ("labels", "linked", "named", "seen", "spotted", "words")

    def __init__(self, text: str, words: Sequence[str]) -> None:
        self.words = f" {' '.join(words)} "
        self.linked: dict[str, dict[str, None]] = {}
        """The folders of the links to each name."""
        links = links_in(text)
        self.labels = {name_key(link.label) for link in links}
        for link in links:
            self.linked.setdefault(name_key(link.target), {})[link.folder] = None
        self.spotted = spotted_names(text)
        self.named: Sequence[str] = ()
        self.seen = -1


class Names:
    """Name → memories, following adds, updates and deletes; a text is matched against the current names.

    Nothing is stored for a mention. A text is read when its memory takes part in a search, so a name that is added
    later is found in older texts, and one that is removed is not.

    >>> names = Names()
    >>> names.put("m1", Memory("A film about Ed Wood.", title="Ed Wood (film)"))
    >>> names.mentions("m2", "He played in Ed Wood.")
    [Mention(id='m1', name='ed wood', shared=1)]
    """

    def __init__(self) -> None:
        self.watermark = 0
        self._ids: dict[str, dict[str, None]] = {}
        self._own: dict[str, tuple[str, ...]] = {}
        self._labels: dict[str, tuple[tuple[str, str], ...]] = {}
        self._called: dict[str, Counter[str]] = {}
        self._all: dict[str, int] = {}
        """Every name and label, with the number of memories that give it."""
        self._counts: dict[str, dict[int, int]] = {}
        self._readings: dict[str, _Reading] = {}
        self._log: tuple[int, list[str]] = (0, [])
        """The names that came or went, and how many did before those."""
        self._lengths: dict[str, tuple[int, ...]] = {}

    def __len__(self) -> int:
        return len(self._own)

    def put(self, id_: str, memory: Memory, /) -> None:
        """Add or replace the names of a memory, and the labels that its links give to others."""
        self.remove(id_)
        self.set(id_, names_of(memory.title, memory.metadata), labels_of(memory.text))

    def set(self, id_: str, keys: tuple[str, ...], labels: tuple[tuple[str, str], ...], /) -> None:
        """Set the folded names and labels of a memory that has none yet."""
        if keys:
            self._own[id_] = keys
            for key in keys:
                self._ids.setdefault(key, {})[id_] = None
                self._count(key, 1)
        if labels:
            self._labels[id_] = labels
            for label, target in labels:
                self._called.setdefault(label, Counter())[target] += 1
                self._count(label, 1)

    def remove(self, id_: str, /) -> None:
        """Forget the names of a memory and the labels of its links."""
        self._readings.pop(id_, None)
        for key in self._own.pop(id_, ()):
            members = self._ids[key]
            del members[id_]
            if not members:
                del self._ids[key]
            self._count(key, -1)
        for label, target in self._labels.pop(id_, ()):
            targets = self._called[label]
            targets[target] -= 1
            if not targets[target]:
                del targets[target]
            if not targets:
                del self._called[label]
            self._count(label, -1)

    def _count(self, key: str, step: int) -> None:
        """Keep the lengths of names by their first word, largest first."""
        before = self._all.get(key, 0)
        self._all[key] = before + step
        if not self._all[key]:
            del self._all[key]
        first, length = key.partition(" ")[0], key.count(" ") + 1
        counts = self._counts.setdefault(first, {})
        counts[length] = counts.get(length, 0) + step
        if not counts[length]:
            del counts[length]
        if counts:
            self._lengths[first] = tuple(sorted(counts, reverse=True))
        else:
            del self._counts[first], self._lengths[first]
        if not before or key not in self._all:
            past, changed = self._log
            changed.append(key)
            if len(changed) > _CHANGES:
                self._log = past + len(changed), []

    def has_read(self, id_: str, /) -> bool:
        """Whether the text of a memory was read before and did not change since."""
        return id_ in self._readings

    def has_name(self, id_: str, /) -> bool:
        """Whether a memory has a name of its own."""
        return id_ in self._own

    def spotted(self, id_: str, /) -> Sequence[str]:
        """The names spotted in the text of a memory that was read before."""
        reading = self._readings.get(id_)
        return () if reading is None else reading.spotted

    def mentions(self, id_: str, text: str | None = None, /) -> list[Mention]:
        """The memories that the text of a memory mentions or links to, without the memory itself.

        Without a text, that which was read before (see `has_read`).
        """
        if not self._ids:
            return []
        reading = self._readings.get(id_) if text is None else None
        words = None
        if reading is None:
            words = words_of(text or "")
            reading = _Reading(text or "", words)
            if text is not None and id_:
                if len(self._readings) >= _CACHED:
                    self._readings = {}
                self._readings[id_] = reading
        found: dict[str, Mention] = {}
        for name in self._named(reading, words):
            if name in reading.labels and name not in self._ids:
                continue  # the link itself counts
            every = self._members(name)
            folders = reading.linked.get(name, ()) if len(every) > 1 else ()
            for members in [_in_folder(every, id_, folder) for folder in folders] or [every]:
                for other in members:
                    if other != id_ and other not in found:
                        found[other] = Mention(other, name, len(members))
        return list(found.values())

    def _named(self, reading: _Reading, words: Sequence[str] | None) -> Sequence[str]:
        """The names of memories in a text, found again when a name in it came or went since; `words`: its words."""
        past, changed = self._log
        now, since = past + len(changed), reading.seen - past
        if since < 0 or any(f" {key} " in reading.words for key in changed[since:]):
            plain = mentions_in(reading.words.split() if words is None else words, self._all, self._lengths)
            named = [name for name in plain if len(name) >= MIN_LETTERS and len(name.replace(" ", "")) >= MIN_LETTERS]
            reading.named = tuple(dict.fromkeys((*reading.linked, *named))) if reading.linked else tuple(named)
        reading.seen = now
        return reading.named

    def _members(self, name: str) -> Sequence[str]:
        """The memories of a name: by title or alias, else by what links call them."""
        own = self._ids.get(name)
        if own is not None:
            return sorted(own) if len(own) > 1 else tuple(own)
        targets: Iterable[str] = self._called.get(name, ())
        return sorted({id_ for target in targets for id_ in self._ids.get(target, ())})

    def apply(self, changes: Iterable[Change], /) -> None:
        """Apply the store's changes."""
        for change in changes:
            self.watermark = max(self.watermark, change.seq)
            if change.edge is not None:
                continue
            if change.memory is None:
                self.remove(change.id)
            elif change.text_changed:
                self.put(change.id, change.memory)

    def given(self) -> tuple[dict[str, tuple[str, ...]], dict[str, tuple[tuple[str, str], ...]]]:
        """The names of each memory, and the labels that its links give to others."""
        return self._own, self._labels

    def to_bytes(self) -> bytes:
        """All names and labels as checksummed columns (no pickle)."""
        own = {id_: "\n".join(keys) for id_, keys in self._own.items()}
        columns = arrays.pack_texts("ids", list(own)) | arrays.pack_texts("names", list(own.values()))
        return arrays.to_bytes(_MAGIC, {"watermark": self.watermark, "labels": self._labels}, columns)

    @classmethod
    def from_bytes(cls, data: bytes, /) -> Names:
        """The names of `to_bytes`; damaged bytes raise CorruptStoreError."""
        head, columns = arrays.from_bytes(_MAGIC, data, what="names snapshot")
        names = cls()
        packed = zip(arrays.unpack_texts("ids", columns), arrays.unpack_texts("names", columns), strict=True)
        for id_, keys in packed:
            names.set(id_, tuple(keys.split("\n")), ())
        for id_, labels in head["labels"].items():
            names.set(id_, (), tuple((label, target) for label, target in labels))
        names.watermark = head["watermark"]
        return names


def name_information(terms: Iterable[str], idf: Callable[[str], float], count: int, /) -> float:
    """How much a name tells, from 0 to 1: the IDF of its rarest term, as a share of the IDF of a rare one.

    Rare is a term of one of these `count` memories, and one of 150 or more. Terms after a rare one are not read.

    >>> name_information(["tim", "burton", "never read"], {"tim": 2.0, "burton": 5.5}.__getitem__, 10_000)
    1.0
    """
    rare = min(_RARE, math.log1p((count - 0.5) / 1.5)) if count else _RARE
    highest = 0.0
    for term in terms:
        highest = max(highest, idf(term))
        if highest >= rare:
            return 1.0
    return highest / rare
