"""Recognition of embedding objects by their methods, so that no framework is imported."""

from __future__ import annotations

import dis
import inspect
import warnings
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

from hybridmem.errors import ConfigError

if TYPE_CHECKING:
    from hybridmem.embedding.embedder import Embedder

__all__ = ["EmbeddingOption", "EmbeddingSource", "source_of"]


class LangChainEmbeddings(Protocol):
    """LangChain's `Embeddings`."""

    def embed_documents(self, texts: list[str], /) -> list[list[float]]:
        """A vector for each text."""
        ...

    def embed_query(self, text: str, /) -> list[float]:
        """The vector of a query."""
        ...


class LlamaIndexEmbedding(Protocol):
    """LlamaIndex's `BaseEmbedding`."""

    def get_text_embedding_batch(self, texts: list[str], /) -> list[list[float]]:
        """A vector for each text."""
        ...

    def get_query_embedding(self, query: str, /) -> list[float]:
        """The vector of a query."""
        ...


class Encoder(Protocol):
    """An object such as a SentenceTransformer."""

    def encode(self, texts: list[str], /) -> Any:
        """A vector for each text."""
        ...


EmbeddingOption: TypeAlias = (
    "Embedder | LangChainEmbeddings | LlamaIndexEmbedding | Encoder | Callable[[list[str]], Any] | str"
)
"""What makes vectors: an embedding object of a framework, a function texts → vectors (Chroma's are), or "local"."""


class EmbeddingSource(NamedTuple):
    """Raw access to an embedding object: unchecked vectors. Async calls are None where it has no real ones."""

    name: str
    documents: Callable[[list[str]], Any]
    query: Callable[[str], Any]
    adocuments: Callable[[list[str]], Awaitable[Any]] | None = None
    aquery: Callable[[str], Awaitable[Any]] | None = None


def source_of(obj: Any, /) -> EmbeddingSource:
    """The raw access to a LangChain, LlamaIndex, Chroma, SentenceTransformer-like object or a plain function."""
    if hasattr(obj, "embed_documents") and hasattr(obj, "embed_query"):
        return _langchain(obj)
    if hasattr(obj, "get_text_embedding_batch") and hasattr(obj, "get_query_embedding"):
        return _llamaindex(obj)
    if callable(obj) and hasattr(obj, "get_config") and callable(getattr(obj, "name", None)):
        return _chroma(obj)
    if callable(getattr(obj, "encode", None)) and not isinstance(obj, str | bytes):
        return _encoder(obj)
    if callable(obj) and not isinstance(obj, type):
        return _function(obj)
    raise ConfigError(
        f"cannot embed with {obj!r}: allowed are a LangChain Embeddings, a LlamaIndex BaseEmbedding, a Chroma "
        "EmbeddingFunction, a function texts -> vectors, an Embedder, or 'local'"
    )


def _langchain(obj: Any) -> EmbeddingSource:
    return EmbeddingSource(
        _named("langchain", obj),
        obj.embed_documents,
        obj.embed_query,
        obj.aembed_documents if _awaits(obj, "aembed_documents", not_in="langchain_core.") else None,
        obj.aembed_query if _awaits(obj, "aembed_query", not_in="langchain_core.") else None,
    )


def _llamaindex(obj: Any) -> EmbeddingSource:
    # Every LlamaIndex embedding has async methods, but many only call the sync one and would block the loop.
    texts = any(
        _awaits(obj, name, not_in="llama_index.core.") for name in ("_aget_text_embedding", "_aget_text_embeddings")
    )
    query = _awaits(obj, "_aget_query_embedding", not_in="llama_index.core.")
    return EmbeddingSource(
        _named("llamaindex", obj),
        obj.get_text_embedding_batch,
        obj.get_query_embedding,
        obj.aget_text_embedding_batch if texts else None,
        obj.aget_query_embedding if query else None,
    )


def _chroma(obj: Any) -> EmbeddingSource:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # older functions have neither a name nor a config
        name, config = obj.name(), obj.get_config()
    model = next((config[key] for key in _MODEL_KEYS if config.get(key)), None) if isinstance(config, dict) else None
    label = name if isinstance(name, str) else type(obj).__name__
    ask = obj.embed_query if hasattr(obj, "embed_query") else obj
    return EmbeddingSource(f"chroma:{label}:{model}" if model else f"chroma:{label}", obj, partial(_one, ask))


def _encoder(obj: Any) -> EmbeddingSource:
    return EmbeddingSource(_named("encoder", obj), obj.encode, partial(_one, obj.encode))


def _function(obj: Any) -> EmbeddingSource:
    call = obj if inspect.isroutine(obj) else type(obj).__call__
    if inspect.iscoroutinefunction(call):
        raise ConfigError(f"the embedding function {obj!r} is async: give a plain function texts -> vectors")
    # A function has no identity that survives a restart; only its dimension can be compared.
    return EmbeddingSource("callable", obj, partial(_one, obj))


_MODEL_KEYS = ("model_name", "model", "model_id", "repo_id", "deployment", "model_name_or_path")


def _one(embed: Callable[[list[str]], Any], text: str) -> Any:
    return next(iter(embed([text])))


def _named(family: str, obj: Any) -> str:
    """`family:Class:model`, from the first attribute that names the model.

    >>> _named("langchain", type("Fake", (), {"model": "small"})())
    'langchain:Fake:small'
    """
    values = (getattr(obj, key, None) for key in _MODEL_KEYS)
    model = next((value for value in values if isinstance(value, str) and value not in {"", "unknown"}), None)
    return ":".join(filter(None, (family, type(obj).__name__, model)))


def _awaits(obj: Any, method: str, *, not_in: str) -> bool:
    """Whether a method is really async: overridden outside the framework's base class, and containing an await."""
    found = getattr(type(obj), method, None)
    if found is None:
        return False
    function = inspect.unwrap(found)
    if not inspect.iscoroutinefunction(function) or function.__module__.startswith(not_in):
        return False
    return any(step.opname in _AWAITING for step in dis.get_instructions(function))


_AWAITING = {"GET_AWAITABLE", "GET_AITER", "BEFORE_ASYNC_WITH"}
