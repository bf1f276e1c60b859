"""The analyzer: what becomes a term, in every script, and that nothing can upset it."""

import pickle
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridmem.errors import ConfigError, MissingExtraError
from hybridmem.indexes.bm25.index import BM25Index
from hybridmem.text.analyzer import Analyzer, fold
from hybridmem.text.stemmer import stem
from hybridmem.text.stopwords import IRREGULAR, STOPWORDS

analyze = Analyzer()


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        # identifiers: whole and in parts, unstemmed
        ("E0427", ["e0427", "0427"]),
        ("VW123-platform-team", ["vw123-platform-team", "vw123", "vw", "123", "platform", "team"]),
        ("18.12.1", ["18.12.1", "18", "12", "1"]),
        ("POST /v2/exports", ["post", "v2/exports", "v2", "exports", "export"]),
        ("max_client_conn", ["max_client_conn", "max", "client", "conn"]),
        ("getUserById", ["getuserbyid", "get", "user", "id"]),
        ("HTTPServer", ["httpserver", "http", "server"]),
        ("ABC-DEF", ["abc-def", "abc", "def"]),
        ("std::vector", ["std::vector", "std", "vector"]),
        ("ana@example.org", ["ana@example.org", "ana", "example", "exampl", "org"]),
        ("C++ or C#?", ["c++", "c#"]),
        ("__init__", ["init"]),
        # numbers and dates survive
        ("16:9", ["16:9", "16", "9"]),
        ("7th of May 2023", ["7", "may", "2023"]),
        ("2023-05-08T13:56", ["2023-05-08", "2023", "05", "08", "13:56", "13", "56"]),
        ("1,000,000 km", ["1000000", "km"]),
        ("3,5", ["3", "5"]),
        ("10km", ["10km", "10", "km"]),
        # English
        ("state-of-the-art", ["state", "art"]),
        ("Ana's diagnoses", ["ana", "diagnos"]),
        ("the diagnosis", ["diagnos"]),
        ("She went, he goes, they've gone", ["go", "go", "go"]),
        ("I don't, you can't", []),
        ("five o'clock", ["five", "o", "clock"]),
        ("“quoted” — (bracketed)", ["quot", "bracket"]),
        # German: folded, with or without diacritics
        ("Müller's Straße", ["muller", "strass"]),
        ("Muller Strasse", ["muller", "strass"]),
        ("Łódź, Ærø, İstanbul", ["lodz", "aero", "istanbul"]),
        # Chinese, Japanese, Korean, Thai: bigrams
        ("我喜欢猫。", ["我喜", "喜欢", "欢猫"]),
        ("猫", ["猫"]),
        ("東京タワーは高い", ["東京", "京タ", "タワ", "ワー", "ーは", "は高", "高い"]),
        ("ガラス", ["ガラ", "ラス"]),
        ("한국어 문서", ["한국", "국어", "문서"]),
        ("ไทย", ["ไท", "ทย"]),
        # mixed
        ("Python3で書く", ["python3", "python", "で書", "書く"]),
        ("iPhone 15を買った", ["iphone", "iphon", "phone", "15", "を買", "買っ", "った"]),
        ("ＡＢＣ１２", ["abc12", "abc", "12"]),
        ("Привет, мир! Ёлка", ["привет", "мир", "елка"]),
        ("नमस्ते दुनिया", ["नमस्ते", "दुनिया"]),
        ("العَرَبِيَّة", ["العربية"]),
        # nothing
        ("", []),
        (' \t\n\x00\ud800 "*?()', []),
    ],
)  # fmt: skip
def test_terms(text, terms):
    assert analyze(text) == terms


@pytest.mark.parametrize(
    ("query", "right", "wrong"),
    [
        ("/v2/exports", "POST /v2/exports failed", "POST /v2/imports failed"),
        ("18.12.1", "upgrade to node 18.12.1", "upgrade to node 18.16.0"),
        ("E0427", "error E0427 again", "error E0472 again"),
        ("VW123-platform-team", "ask VW123-platform-team", "ask VW124-platform-team"),
        ("max_client_conn", "set max_client_conn", "set max_server_conn"),
        ("getUserById", "call getUserById", "call getUserByName"),
        ("Welche Straße?", "Die Strasse ist lang", "Der Weg ist lang"),
        ("喜欢猫", "我喜欢猫和狗", "我喜欢喝茶"),
        ("東京タワー", "昨日東京タワーに行った", "昨日京都に行った"),
        ("Node 18.12.1 で動く", "Node 18.12.1 で動きました", "Node 18.16.0 で動きました"),
    ],
)
def test_the_right_identifier_wins(query, right, wrong):
    index = BM25Index()
    index.add_many([("wrong", wrong), ("right", right), ("other", "nothing of the kind")])
    assert index.search(query, k=3).ids[0] == "right"


def test_stop_words_are_dropped_unless_there_is_nothing_else():
    assert analyze("who are you") == []
    assert analyze.all_terms("who are you, Ana?") == ["who", "are", "you", "ana"]
    assert analyze.query("who are you") == ["who", "are", "you"]
    assert analyze.query("who is Ana") == ["ana"]
    assert analyze.query("tea tea") == ["tea", "tea"]
    assert analyze("the memory limit was exceeded") == ["memori", "limit", "exceed"]
    assert Analyzer(stopwords="agent")("the user said that memory works") == []
    assert "may" not in STOPWORDS["english"]
    assert all(analyze.is_stop(word) for word in ("the", "of", "is"))
    assert not analyze.is_stop("ana")


def test_a_stem_never_becomes_a_stop_word():
    assert stem("nots") == "not"
    assert analyze("nots") == ["nots"]


def test_settings():
    assert Analyzer(stopwords="none")("the cat") == ["the", "cat"]
    assert Analyzer(stopwords=("Cät",))("the cat") == ["the"]
    assert Analyzer(stem=False)("the walked cats") == ["walked", "cats"]
    assert Analyzer(language="none")("walked") == ["walked"]
    assert Analyzer(identifiers=False)("VW123-platform 18.12.1") == ["vw123", "platform", "18", "12", "1"]
    assert Analyzer("de") == Analyzer(language="German")
    assert Analyzer("german")("die Häuser der Katzen") == Analyzer("german")("das Haus einer Katze")
    assert Analyzer().batch(["a cat", "dogs"]) == [["cat"], ["dog"]]


def test_bad_settings_say_what_is_allowed(monkeypatch):
    with pytest.raises(ConfigError, match=r"klingon.*english"):
        Analyzer(language="klingon")
    with pytest.raises(ConfigError, match="'default', 'agent', 'none'"):
        Analyzer(stopwords="some")
    with pytest.raises(ConfigError, match="language = 5"):
        Analyzer(language=5)
    monkeypatch.setitem(sys.modules, "Stemmer", None)
    with pytest.raises(MissingExtraError, match=r"hybridmem\[stem\]"):
        Analyzer(language="finnish")
    assert Analyzer()("walks") == ["walk"]


def test_settings_can_be_stored_and_compared():
    for one in (Analyzer(), Analyzer("german", stopwords=("der",), stem=False, identifiers=False)):
        assert Analyzer.from_dict(one.to_dict()) == one
        assert pickle.loads(pickle.dumps(one)) == one
        assert hash(Analyzer.from_dict(one.to_dict())) == hash(one)
    assert Analyzer() != Analyzer(stem=False)
    with pytest.raises(ConfigError, match="version 99"):
        Analyzer.from_dict({**Analyzer().to_dict(), "version": 99})


@given(st.text(st.characters(codec=None), max_size=200))
def test_never_raises_and_folding_changes_nothing_more(text):
    for analyzer in (analyze, Analyzer(identifiers=False, stopwords="none")):
        terms = analyzer.all_terms(text)
        assert all(term and len(term) <= 128 for term in terms)
        assert analyzer(text) == [term for term in terms if not analyzer.is_stop(term)]
        assert bool(analyzer.query(text)) == bool(terms)
        assert all(term.encode() for term in terms)
    assert fold(fold(text)) == fold(text)


@given(st.text(alphabet=st.sampled_from("abtzAB09-_./: ,'ü猫ガ"), max_size=60))
def test_case_and_surrounding_punctuation_do_not_matter(text):
    words = text.replace("-", " ").replace("_", " ")
    assert sorted(analyze(f"({words})!")) == sorted(analyze(words))
    assert analyze("lisbon") == analyze("LISBON") == analyze("“Lisbon”,")


def test_a_megabyte_is_no_trouble():
    for piece in ("a", "word ", "\x00", "'"):
        assert isinstance(analyze(piece * (1_000_000 // len(piece))), list)
    for piece in ("a-", "aB", "1.", "猫", "x_", "ü.", "a'"):
        assert isinstance(analyze(piece * 50_000), list)


def test_terms_do_not_depend_on_the_process():
    text = "VW123-platform-team went to 東京タワー, 18.12.1"
    code = f"from hybridmem.text.analyzer import Analyzer; print(Analyzer()({text!r}))"
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed, "PYTHONIOENCODING": "utf-8"},
            capture_output=True,
            text=True,
            encoding="utf-8",
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1


@pytest.mark.parametrize(
    ("words", "stemmed"),
    [
        ("connect connected connecting connection connections", "connect"),
        ("hop hops hopping hopped", "hop"),
        ("hope hopes hoped hoping", "hope"),
        ("agree agrees agreed", "agre"),
        ("diagnosis diagnoses", "diagnos"),
        ("hypothesis hypotheses", "hypothes"),
        ("crisis crises", "cris"),
        ("child children", "child"),
        ("buy buys buying bought", "buy"),
        ("relational relate", "relat"),
        ("happy happiness", "happi"),
        ("party parties partied", "parti"),
        ("die died dying dies", "die"),
        ("control controlling controlled", "control"),
        ("sky skies", "sky"),
        ("exceed exceeds exceeding", "exceed"),
        ("generous generously", "generous"),
        ("playing plays played play", "play"),
        ("hopefulness hopeful hopefully", "hope"),
        ("apology apologies", "apolog"),
        ("tie ties tied", "tie"),
        ("add added adding adds", "add"),
    ],
)
def test_stems(words, stemmed):
    assert {stem(word) for word in words.split()} == {stemmed}


@pytest.mark.parametrize(
    "word", ["news", "as", "is", "by", "bus", "gas", "evening", "bed", "red", "sing", "string", "be", "go"]
)
def test_words_that_only_look_inflected_stay(word):
    assert stem(word) == word


def test_the_stemmer_agrees_with_snowball_on_ordinary_words():
    import Stemmer

    peer = Stemmer.Stemmer("english")
    text = """the running dogs quickly jumped over several lazily sleeping foxes while national organisations debated
    increasingly complicated relational theories concerning electrical conductivity and hopeful adjustments with
    remarkable carefulness formality vietnamization predication operator feudalism decisiveness callousness formaliti
    sensitivity sensibility triplicate formative formalize electricity revival allowance inference airliner adjustable
    defensible irritant replacement dependent adoption communism activate homologous effective bowdlerize"""
    words = [word for word in text.split() if word not in IRREGULAR]
    assert {word: stem(word) for word in words} == {word: peer.stemWord(word) for word in words}
