"""Embedders of every kind: recognised, checked, batched, retried, cached, and never in the way of the loop."""

import asyncio
import json
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.embeddings import Embeddings
from llama_index.core.base.embeddings.base import BaseEmbedding

from hybridmem.embedding.embedder import Embedder, as_embedder, check_same, unit
from hybridmem.errors import ConfigError, EmbeddingError, MissingExtraError


def letters(texts):
    return [[float(text.count("a")), float(text.count("b")), 1.0] for text in texts]


def rounded(vector):
    return np.round(np.asarray(vector, dtype=float), 6).tolist()


class LangChainSync(Embeddings):
    model = "small"

    def embed_documents(self, texts):
        return letters(texts)

    def embed_query(self, text):
        return [1.0, 0.0, 0.0]


class LangChainAsync(LangChainSync):
    def __init__(self):
        self.threads = []

    async def aembed_documents(self, texts):
        await asyncio.sleep(0)
        self.threads.append(threading.get_ident())
        return letters(texts)

    async def aembed_query(self, text):
        await asyncio.sleep(0)
        self.threads.append(threading.get_ident())
        return [1.0, 0.0, 0.0]


class LlamaSync(BaseEmbedding):
    def _get_query_embedding(self, query):
        return [0.0, 2.0, 0.0]

    async def _aget_query_embedding(self, query):
        raise AssertionError("this would have run on the loop")

    def _get_text_embedding(self, text):
        return letters([text])[0]


class LlamaAsync(LlamaSync):
    async def _aget_query_embedding(self, query):
        await asyncio.sleep(0)
        return [0.0, 0.0, 3.0]

    async def _aget_text_embedding(self, text):
        await asyncio.sleep(0)
        return [0.0, 0.0, 5.0]


class ChromaFunction:
    """The shape of chromadb's EmbeddingFunction: called with `input`, its name a static method."""

    def __call__(self, input):
        return [np.array(row, dtype=np.float32) for row in letters(input)]

    def embed_query(self, input):
        return [np.array([0.0, 0.0, 1.0]) for _ in input]

    @staticmethod
    def name():
        return "letters"

    def get_config(self):
        return {"model_name": "abc"}


class Encoder:
    model_name_or_path = "tiny"

    def encode(self, texts):
        return np.array(letters(texts))


# --- what comes out


def test_vectors_have_length_one_and_zero_stays_zero():
    embedder = as_embedder(lambda texts: [[3.0, 4.0], [0.0, 0.0]])
    assert rounded(embedder.documents(["x", "y"])) == [[3 / 5, 4 / 5], [0.0, 0.0]]
    assert embedder.dim == 2


def test_unit_survives_huge_and_tiny_numbers():
    assert rounded(unit([[3e200, 4e200], [3e-200, 4e-200]])) == [[3 / 5, 4 / 5]] * 2


def test_no_texts_give_an_empty_matrix():
    embedder = as_embedder(letters)
    assert embedder.documents([]).shape == (0, 0)
    embedder.query("a")
    assert embedder.documents([]).shape == (0, 3)


def test_probe_learns_the_dimension_once():
    calls = []
    embedder = as_embedder(lambda texts: calls.append(texts) or letters(texts))
    assert embedder.dim is None
    assert (embedder.probe(), embedder.probe(), len(calls)) == (3, 3, 1)


# --- who is recognised


@pytest.mark.parametrize(
    ("obj", "name", "query"),
    [
        (LangChainSync(), "langchain:LangChainSync:small", [1.0, 0.0, 0.0]),
        (LlamaSync(), "llamaindex:LlamaSync", [0.0, 1.0, 0.0]),
        (LlamaSync(model_name="m"), "llamaindex:LlamaSync:m", [0.0, 1.0, 0.0]),
        (ChromaFunction(), "chroma:letters:abc", [0.0, 0.0, 1.0]),
        (Encoder(), "encoder:Encoder:tiny", [1 / 2**0.5, 0.0, 1 / 2**0.5]),
        (letters, "callable", [1 / 2**0.5, 0.0, 1 / 2**0.5]),
    ],
)
def test_each_kind_is_recognised_and_named(obj, name, query):
    embedder = as_embedder(obj)
    assert embedder.name == name
    assert rounded(embedder.query("a")) == rounded(query)
    assert rounded(embedder.documents(["bb"])) == [rounded(np.array([0.0, 2.0, 1.0]) / 5**0.5)]
    assert as_embedder(embedder) is embedder


def test_a_real_chroma_function_is_recognised():
    from chromadb.api.types import EmbeddingFunction

    class Old(EmbeddingFunction):
        def __init__(self):
            pass

        def __call__(self, input):
            return [np.array(row, dtype=np.float32) for row in letters(input)]

    embedder = as_embedder(Old())
    assert embedder.name == "chroma:Old"
    assert rounded(embedder.query("b")) == rounded([0.0, 1 / 2**0.5, 1 / 2**0.5])


def test_a_given_name_wins():
    assert as_embedder(letters, name="letters-3").name == "letters-3"


@pytest.mark.parametrize("obj", [3, None, object(), "remote", Embedder])
def test_other_things_are_refused(obj):
    with pytest.raises(ConfigError, match="local"):
        as_embedder(obj)


def test_an_async_function_is_refused():
    async def embed(texts):
        return letters(texts)

    with pytest.raises(ConfigError, match="async"):
        as_embedder(embed)


def test_an_embedder_is_not_set_up_twice():
    with pytest.raises(ConfigError, match="retries"):
        as_embedder(as_embedder(letters), retries=1)


@pytest.mark.parametrize("setting", [{"batch_size": 0}, {"retries": -1}, {"cache_size": -1}, {"prefix": 0}])
def test_bad_settings_are_named(setting):
    with pytest.raises(ConfigError, match=next(iter(setting))):
        as_embedder(letters, **setting)


def test_one_string_is_not_a_list_of_texts():
    with pytest.raises(ConfigError, match="a list of texts"):
        as_embedder(letters).documents("abc")


# --- what is checked


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ([[1.0, 0.0, 0.0]], "1 vectors for 2 texts"),
        ([], "0 vectors for 2 texts"),
        ([[1.0, 0.0], [1.0, 0.0]], "dimension 2, expected 3"),
        ([[1.0, 0.0, 0.0], [1.0, 0.0]], "lengths"),
        ([[1.0, 0.0, 0.0], [float("nan"), 0.0, 0.0]], "not finite for text 1 of 2"),
        ([[float("inf"), 0.0, 0.0], [1.0, 0.0, 0.0]], "not finite for text 0 of 2"),
        ([1.0, 2.0], "shape"),
        ([[], []], "shape"),
        (None, "NoneType"),
        ("no", "expected 2 vectors"),
    ],
)
def test_wrong_answers_are_reported_with_both_numbers(answer, says):
    with pytest.raises(EmbeddingError, match=says):
        as_embedder(lambda texts: answer, dim=3).documents(["a", "b"])


# --- batches, cache


def test_texts_go_in_batches_each_once_and_come_back_in_order():
    calls = []
    embedder = as_embedder(lambda texts: calls.append(list(texts)) or letters(texts), batch_size=2)
    rows = embedder.documents(["a", "b", "a", "ab", "b", "aa"])
    assert calls == [["a", "b"], ["ab", "aa"]]
    assert rounded(rows) == rounded(unit(letters(["a", "b", "a", "ab", "b", "aa"])))
    embedder.documents(["aa", "new"])
    assert calls[2:] == [["new"]]


def test_queries_are_remembered_apart_from_documents_and_within_bounds():
    calls = []
    embedder = as_embedder(lambda texts: calls.extend(texts) or letters(texts), cache_size=2)
    embedder.documents(["q1"])
    for text in ("q1", "q1", "q2", "q3", "q1"):
        embedder.query(text)
    assert calls == ["q1", "q1", "q2", "q3", "q1"]


def test_a_remembered_vector_cannot_be_spoilt():
    embedder = as_embedder(letters)
    with pytest.raises(ValueError, match="read-only"):
        embedder.query("a")[0] = 9.0


@settings(max_examples=30, deadline=None)
@given(st.lists(st.text(max_size=8), max_size=12), st.integers(1, 5), st.integers(0, 4))
def test_batching_and_caching_change_nothing(texts, batch_size, cache_size):
    embedder = as_embedder(letters, batch_size=batch_size, cache_size=cache_size, dim=3)
    expected = unit(np.array(letters(texts)).reshape(len(texts), 3))
    assert np.array_equal(embedder.documents(texts), expected)
    assert np.array_equal(embedder.documents(texts), expected)


# --- retries


class Flaky:
    def __init__(self, failures, error=None):
        self.left, self.error = failures, error or ConnectionError("down")

    def __call__(self, texts):
        if self.left:
            self.left -= 1
            raise self.error
        return letters(texts)


def test_failures_are_retried_with_growing_pauses():
    pauses = []
    embedder = as_embedder(Flaky(3), retries=3, backoff=0.5, sleep=pauses.append)
    assert embedder.documents(["a"]).shape == (1, 3)
    assert pauses == [0.5, 1.0, 2.0]


def test_the_last_failure_is_kept_as_the_cause():
    embedder = as_embedder(Flaky(9), retries=1, sleep=lambda _: None)
    with pytest.raises(EmbeddingError, match=r"tried 2 times: ConnectionError: down") as caught:
        embedder.query("a")
    assert isinstance(caught.value.__cause__, ConnectionError)


def test_a_mistake_in_the_code_is_not_retried():
    pauses = []
    embedder = as_embedder(Flaky(9, TypeError("oops")), sleep=pauses.append)
    with pytest.raises(EmbeddingError, match="tried once: TypeError"):
        embedder.query("a")
    assert pauses == []


# --- async


async def test_async_gives_the_same_vectors_for_every_kind():
    for obj in (LangChainSync(), LangChainAsync(), LlamaSync(), ChromaFunction(), letters):
        embedder, again = as_embedder(obj), as_embedder(obj)
        assert rounded(await embedder.aquery("ab")) == rounded(again.query("ab"))
        assert rounded(await embedder.adocuments(["ab", "b"])) == rounded(again.documents(["ab", "b"]))
        assert rounded(await embedder.aquery("ab")) == rounded(again.query("ab"))


async def test_real_async_methods_are_awaited_on_the_loop():
    obj = LangChainAsync()
    embedder = as_embedder(obj)
    await embedder.aquery("a")
    await embedder.adocuments(["a"])
    assert obj.threads == [threading.get_ident()] * 2
    llama = as_embedder(LlamaAsync())
    assert rounded(await llama.aquery("a")) == [0.0, 0.0, 1.0]
    assert rounded(await llama.adocuments(["a"])) == [[0.0, 0.0, 1.0]]


async def test_a_blocking_embedder_does_not_block_the_loop():
    release = threading.Event()

    def embed(texts):
        assert release.wait(30)
        return letters(texts)

    waiting = asyncio.create_task(as_embedder(embed).aquery("a"))
    await asyncio.sleep(0)
    release.set()  # only reached because the loop goes on while the embedder waits
    assert (await waiting).shape == (3,)


async def test_async_failures_are_retried_and_reported():
    class Down(LangChainAsync):
        async def aembed_query(self, text):
            await asyncio.sleep(0)
            raise ConnectionError("down")

        async def aembed_documents(self, texts):
            await asyncio.sleep(0)
            raise TypeError("oops")

    pauses = []

    async def pause(seconds):
        pauses.append(seconds)

    embedder = as_embedder(Down(), retries=2, backoff=1.0, asleep=pause)
    with pytest.raises(EmbeddingError, match="tried 3 times"):
        await embedder.aquery("a")
    assert pauses == [1.0, 2.0]
    with pytest.raises(EmbeddingError, match="tried once"):
        await embedder.adocuments(["a"])


# --- the recorded identity


def test_the_same_embedder_is_accepted():
    embedder = as_embedder(letters, name="letters")
    check_same(None, None, embedder)
    check_same("letters", 3, embedder)  # its dimension is not known yet
    embedder.probe()
    check_same("letters", 3, embedder)


@pytest.mark.parametrize(("name", "dim"), [("other", 3), ("letters", 4)])
def test_another_embedder_is_refused_with_both_names(name, dim):
    embedder = as_embedder(letters, name="letters", dim=3)
    with pytest.raises(EmbeddingError, match=rf"'{name}' \({dim} dimensions\).*'letters' \(3 dimensions\).*reindex"):
        check_same(name, dim, embedder)


# --- the local default


@pytest.fixture(scope="module")
def local():
    return as_embedder("local")


def test_local_embeds_meaning_offline(local):
    assert (local.name, local.dim, local.prefix) == ("wordllama-256", 256, None)
    cat, kitten, tax = local.documents(
        ["The cat sleeps on the sofa", "A kitten naps on the couch", "Tax rates rose in 2021"]
    )
    assert cat @ kitten > 0.4 > 0.1 > cat @ tax


def test_local_takes_any_text(local):
    hostile = ["", " ", "\x00", "\ud800", "文" * 5000, "x" * 100_000, "word " * 20_000, "🙂"]
    rows = local.documents(hostile)
    assert rows.shape == (8, 256)
    assert np.isfinite(rows).all()
    assert not rows[0].any()


def test_local_is_the_sum_of_its_tokens_in_any_case(local):
    from hybridmem.embedding.local import _model

    model = _model()
    ids = model._tokenizer.encode("red wine", add_special_tokens=False).ids
    assert np.allclose(local.query("Red  WINE"), unit(model._table[ids].sum(axis=0)), atol=1e-6)


def test_local_agrees_with_itself_across_threads(local):
    texts = [f"memory number {number} about topic {number % 7}" for number in range(200)]
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: as_embedder("local").documents(texts), range(4)))
    assert all(np.array_equal(answer, answers[0]) for answer in answers)


def test_local_is_the_same_in_another_process_and_leaves_logging_alone():
    code = (
        "import json, logging; from hybridmem.embedding.embedder import as_embedder;"
        "print(json.dumps([as_embedder('local').query('tea in Lisbon').tolist(), len(logging.getLogger().handlers)]))"
    )
    runs = [
        json.loads(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout)
        for _ in range(2)
    ]
    assert runs[0] == runs[1]
    assert runs[0][1] == 0


def test_local_without_its_package_names_the_pip_line(monkeypatch):
    import hybridmem.embedding.local as module

    monkeypatch.setattr(module, "find_spec", lambda name: None)
    module._model.cache_clear()
    try:
        with pytest.raises(MissingExtraError, match=r"pip install 'hybridmem\[local\]'"):
            as_embedder("local")
    finally:
        module._model.cache_clear()


def test_local_without_its_weights_is_reported(monkeypatch, tmp_path):
    import importlib.machinery

    import hybridmem.embedding.local as module

    spec = importlib.machinery.ModuleSpec("wordllama", None, is_package=True)
    spec.submodule_search_locations.append(str(tmp_path))
    monkeypatch.setattr(module, "find_spec", lambda name: spec)
    module._model.cache_clear()
    try:
        with pytest.raises(EmbeddingError, match="safetensors"):
            as_embedder("local")
    finally:
        module._model.cache_clear()


def test_a_function_may_yield_its_vectors():
    embedder = as_embedder(lambda texts: ([float(len(text)), 1.0] for text in texts))
    assert embedder.documents(["a", "b"]).shape == (2, 2)
    assert embedder.query("a").tolist() == embedder.documents(["a"])[0].tolist()
