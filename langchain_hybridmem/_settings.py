"""Validation of settings that our retrievers share: every mistake is a ConfigError that says what is allowed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from langchain_core.documents import Document
from pydantic import BaseModel, ValidationError

from hybridmem.core import validation
from hybridmem.errors import ConfigError

__all__ = [
    "Built",
    "call_settings",
    "check_k",
    "check_query",
    "clear_errors",
    "documents_of_texts",
    "refuse_unknown",
]

_MEMORY_ONLY = ("as_of", "namespace")


class Built(NamedTuple):
    """The index that a retriever built from its documents, and the settings that it was built with.

    A retriever made from another's fields, as by `configurable_fields`, takes it over; it builds its own only where
    these settings differ.
    """

    index: Any
    settings: tuple[Any, ...]


def refuse_unknown(cls: type[BaseModel], settings: Mapping[str, Any], /) -> None:
    """Refuse keywords that do not exist, and say which do."""
    known = cls.model_fields
    for name in settings:
        if name not in known:
            raise ConfigError(f"{cls.__name__} has no setting {name!r}: the settings are {', '.join(known)}")


def check_k(k: Any, /) -> None:
    """Validate a number of results; None means all."""
    if k is not None:
        validation.k(k)


def check_query(query: Any, /) -> str:
    """Validate a query."""
    if not isinstance(query, str):
        raise ConfigError(f"query = {validation.display(query)} is not allowed: invoke takes the query as a str")
    return query


@contextmanager
def clear_errors() -> Iterator[None]:
    """Turn pydantic's validation errors into ConfigErrors."""
    try:
        yield
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ConfigError(f"{where} = {first['input']!r} is not allowed: {first['msg']}") from error


def call_settings(retriever: Any, names: Sequence[str], given: Mapping[str, Any], /) -> dict[str, Any]:
    """The settings of one call: those given to it, else those of the constructor."""
    for name in given:
        if name not in names:
            raise ConfigError(f"invoke does not know {name!r}: it takes {', '.join(names)}")
    chosen = {name: value for name, value in given.items() if value is not None}
    settings = {**{name: getattr(retriever, name) for name in names}, **chosen}
    for name in _MEMORY_ONLY:
        if settings[name] is not None and retriever.memory is None:
            raise ConfigError(f"{name} = {settings[name]!r}: only a memory understands {name!r}")
    return settings


def documents_of_texts(
    texts: Iterable[str], metadatas: Iterable[Mapping[str, Any]] | None, ids: Iterable[str | None] | None, /
) -> list[Document]:
    """Documents of texts, with metadata and ids when given."""
    texts = list(texts)
    more = [{} for _ in texts] if metadatas is None else [dict(one) for one in metadatas]
    names = [None] * len(texts) if ids is None else list(ids)
    if not len(texts) == len(more) == len(names):
        raise ConfigError(f"{len(texts)} texts, {len(more)} metadatas, {len(names)} ids: give one for each text")
    return [Document(text, metadata=one, id=name) for text, one, name in zip(texts, more, names, strict=True)]
