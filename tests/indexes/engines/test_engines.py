"""One suite for every lexical engine: what a search promises does not depend on what is behind it."""

import math
import random
import string
from datetime import datetime, timezone

import pytest
from rank_bm25 import BM25L, BM25Okapi, BM25Plus

from hybridmem.core.protocols import Change
from hybridmem.core.types import Edge, Memory
from hybridmem.errors import ConfigError, CorruptStoreError
from hybridmem.indexes.bm25.documents import Document
from hybridmem.indexes.bm25.index import BM25Index
from hybridmem.indexes.engines.fts5 import FTS5Index
from hybridmem.indexes.engines.rank_bm25 import Drift, Frozen, RankBM25Index, drift

ENGINES = {
    "bm25": BM25Index,
    "fts5": FTS5Index,
    "okapi": RankBM25Index,
    "l": lambda: RankBM25Index(variant="l"),
    "plus": lambda: RankBM25Index(variant="plus"),
}
FILLER = ["green tea in the morning", "a long row down the river", "the invoice is due on Friday", "blue paint"]


@pytest.fixture(params=list(ENGINES))
def index(request):
    made = ENGINES[request.param]()
    for i, text in enumerate(FILLER):
        made.add(f"filler{i}", text)
    yield made
    if hasattr(made, "close"):
        made.close()


def at(day):
    return datetime(2024, 1, day, tzinfo=timezone.utc)


def test_finds_what_shares_a_word_and_nothing_else(index):
    index.add("m1", "Ana moved to Lisbon")
    hits = index.search("Where did Ana move to, Berlin or Lisbon?", k=10)
    assert hits.ids == ["m1"]
    assert hits.scores[0] > 0
    assert index.search("zebra", k=10).ids == []


def test_an_empty_index_and_a_query_without_words_give_nothing(index):
    assert index.search("", k=3).ids == []
    assert index.search('?! " * ( ) \x00', k=3).ids == []
    empty = type(index)()
    assert empty.search("ana", k=3).ids == []
    assert len(empty) == 0


def test_writes_count_in_the_next_query(index):
    index.add("m1", "Ana moved to Lisbon")
    index.add("m1", "Ana moved to Porto")
    assert index.search("Lisbon", k=3).ids == []
    assert index.search("Porto", k=3).ids == ["m1"]
    assert len(index) == len(FILLER) + 1
    assert "m1" in index
    assert index.remove("m1")
    assert not index.remove("m1")
    assert index.search("Porto", k=3).ids == []
    assert len(index) == len(FILLER)
    assert "m1" not in index


def test_words_fold_and_stem(index):
    index.add("m1", "Herr Müller walked HOME")
    assert index.search("muller", k=1).ids == ["m1"]
    assert index.search("walking", k=1).ids == ["m1"]
    index.add("m2", "我喜欢黑色的猫")
    assert index.search("喜欢猫吗", k=1).ids == ["m2"]


def test_a_query_of_nothing_but_stop_words_still_searches(index):
    index.add("m1", "who are you")
    assert index.search("are you who", k=1).ids == ["m1"]


def test_allowed_filters_before_ranking(index):
    index.add_many((f"m{i}", "lisbon " * (i + 1)) for i in range(20))
    allowed = frozenset({"m3", "m5", "filler0", "unknown"})
    for _ in range(2):
        assert sorted(index.search("lisbon", k=2, allowed=allowed).ids) == ["m3", "m5"]
    index.add("m3", "porto")
    assert index.search("lisbon", k=2, allowed=allowed).ids == ["m5"]
    assert index.search("porto", k=2, allowed=allowed).ids == ["m3"]
    assert index.search("lisbon", k=2, allowed=frozenset()).ids == []
    assert index.search("lisbon", k=30, allowed={"m1"}).ids == ["m1"]


def test_equal_scores_put_the_newer_first_then_the_smaller_id(index):
    for name, day in (("d", 1), ("b", 2), ("c", 2), ("a", 1)):
        index.add(name, "lisbon trip", updated_at=at(day))
    index.add("e", "lisbon trip")
    hits = index.search("lisbon", k=5)
    assert hits.ids == ["b", "c", "a", "d", "e"]
    assert index.search("lisbon", k=3).ids == ["b", "c", "a"]


def test_follows_the_log(index):
    index.apply(
        [
            Change(3, "m1", Memory("Ana moved to Lisbon", title="Home", tags=("city",), predicate="lives_in")),
            Change(4, "m2", Memory("Bob likes tea")),
            Change(5, "", edge=Edge("m1", "m2")),
            Change(6, "m2", None),
        ]
    )
    assert index.watermark == 6
    assert index.search("city", k=3).ids == ["m1"]
    assert index.search("lives", k=3).ids == ["m1"]
    assert index.search("bob", k=3).ids == []
    index.apply([Change(7, "m1", Memory("a change of vitals only"), text_changed=False)])
    assert index.search("lisbon", k=3).ids == ["m1"]
    index.apply([Change(8, "m3", Memory("never seen before"), text_changed=False)])
    assert index.search("never seen", k=3).ids == ["m3"]
    assert index.watermark == 8


def test_k_must_be_a_number_from_one(index):
    for bad in (0, -1, True, 2.5, "3"):
        with pytest.raises(ConfigError, match="from 1 up"):
            index.search("ana", k=bad)


HOSTILE = [
    "state-of-the-art",
    "16:9",
    '"',
    '""',
    "*",
    "NEAR(",
    "NEAR(a b, 2)",
    "a AND",
    "OR",
    "NOT x",
    "text:",
    "^a",
    "{text}",
]
HOSTILE += [
    "'; DROP TABLE documents; --",
    "\x00",
    "a\x00b",
    "\ud800",
    "a\udfffb",
    "%_%",
    "\\",
    "(((",
    "col : x",
    "-x",
    "x" * 5000,
]
HOSTILE += [
    "𝕳𝖊𝖑𝖑𝖔",
    "ﷺ",
    "a\u0300\u0301",
    "\u202eabc",
    "\ufeff",
    "ß ẞ",
    "İ i̇",
    "👩‍👩‍👧",
    "한국어",
    "ไทย",
    "क्षत्रिय",
    "e\u200bf",
]


def test_any_text_is_a_legal_query_and_a_legal_document(index):
    rng = random.Random(7)
    letters = string.printable + "äß猫\u0300\x00\ud800’—" + "'\"*():^{}-+"
    texts = HOSTILE + ["".join(rng.choices(letters, k=rng.randint(1, 30))) for _ in range(1500)]
    for i, text in enumerate(texts[::30]):
        index.add(f"h{i}\ud800'\"", text)
    for text in texts:
        hits = index.search(text, k=3)
        assert len(hits.ids) == len(hits.scores) <= 3
        assert all(math.isfinite(score) for score in hits.scores)
    assert len(index) == len(FILLER) + len(texts[::30])
    index.search("lisbon" * 20_000 + " home " * 100, k=3)


# --- rank-bm25 as it is


@pytest.mark.parametrize(("variant", "peer"), [("okapi", BM25Okapi), ("l", BM25L), ("plus", BM25Plus)])
def test_rank_bm25_is_reproduced_exactly(variant, peer):
    rng = random.Random(3)
    corpus = [" ".join(rng.choices("abcdefghij", k=rng.randint(1, 9))) for _ in range(60)]
    index = RankBM25Index(str.split, variant=variant, params={"k1": 1.7}, pad=True)
    index.add_many((str(i), text) for i, text in enumerate(corpus))
    oracle = peer([text.split() for text in corpus], k1=1.7)
    for query in ("a b c", "j", "a a a z", "nothing"):
        wanted = oracle.get_scores(query.split())
        assert index.score(query, [str(i) for i in range(60)]) == wanted.tolist()
        assert index.search(query, k=7).ids == oracle.get_top_n(query.split(), [str(i) for i in range(60)], n=7)
    assert index.score("a", ["unknown"]) == [0.0]
    assert RankBM25Index(variant=variant).score("a", ["x"]) == [0.0]


def test_rank_bm25_settings_are_checked():
    with pytest.raises(ConfigError, match="'okapi', 'l', 'plus'"):
        RankBM25Index(variant="bm42")
    with pytest.raises(ConfigError, match="'always', 'drift'"):
        RankBM25Index(refresh="never")


# --- drift


def test_drift_is_the_overlap_of_vocabularies():
    assert drift({"a", "b", "c"}, {"b", "c", "d"}) == Drift(2 / 4, added=1, gone=1)
    assert drift(set(), set()) == Drift(1.0, 0, 0)
    assert drift({"a"}, {"a"}).flagged is False
    assert Drift(0.85, 0, 0).flagged is False
    assert Drift(0.8499, 0, 0).flagged is True


def test_a_frozen_engine_serves_the_old_build_until_it_has_drifted():
    index = RankBM25Index(str.split, refresh="drift")
    index.add_many((f"m{i}", f"word{i} word{i + 1}") for i in range(100))
    index.rebuild()
    index.add("new", "word7 fresh")
    assert index.search("fresh", k=3).ids == []
    assert index.drift() == Drift(101 / 102, added=1, gone=0)
    index.add_many((f"n{i}", f"other{i}") for i in range(100))
    assert index.drift().flagged
    assert index.search("fresh", k=3).ids == []  # the old one serves this query, and a new one is on its way
    index._background.join()
    assert index.search("fresh", k=3).ids == ["new"]


def test_a_failed_rebuild_leaves_the_old_one():
    answers = iter([1, ValueError(), 3])

    def build():
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    frozen = Frozen(build)
    with pytest.raises(ValueError):
        frozen.rebuild()
    assert frozen.current == 1
    assert frozen.rebuild() == 3


# --- FTS5 in a file


def test_fts5_keeps_its_words_in_a_file(tmp_path):
    path = tmp_path / "words.db"
    index = FTS5Index(path)
    index.apply([Change(9, "m\ud800", Memory("Ana moved to Lisbon"))])
    index.close()
    again = FTS5Index(path)
    assert again.watermark == 9
    assert again.search("lisbon", k=1).ids == ["m\ud800"]
    again.add("m\ud800", "Ana moved to Porto")
    assert again.search("lisbon", k=1).ids == []
    assert again._db.execute("INSERT INTO words(words, rank) VALUES ('integrity-check', 1)").fetchall() == []
    again.close()


def test_fts5_weighs_columns_and_leaves_out_what_weighs_nothing():
    index = FTS5Index(weights={"text": 1.0, "title": 5.0})
    index.add_many([("f1", "a"), ("f2", "b"), ("f3", "c")])
    index.add("body", "lisbon trip", title="walk")
    index.add("head", "trip walk", title="lisbon")
    index.add("tag", "trip walk", tags="lisbon")
    assert index.search("lisbon", k=3).ids == ["head", "body"]
    assert FTS5Index(weights={"text": 0}).search("lisbon", k=3).ids == []


def test_fts5_refuses_a_file_that_is_something_else(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_bytes(b"not a database at all" * 100)
    with pytest.raises(CorruptStoreError, match=r"notes\.txt"):
        FTS5Index(path)


def test_fts5_rolls_a_failed_batch_back():
    index = FTS5Index()
    index.add("m1", "ana")
    with pytest.raises(AttributeError):
        index._write([Document("m2", {"text": "bob"}), Document("m3", {"text": 5})], 9)
    assert index.search("bob ana", k=3).ids == ["m1"]
    assert (index.watermark, len(index)) == (0, 1)
