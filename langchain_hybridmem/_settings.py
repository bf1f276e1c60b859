"""What our retrievers share in the setting up and in the asking: every mistake is a ConfigError that says what goes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from langchain_core.documents import Document
from pydantic import BaseModel, ValidationError

from hybridmem.errors import ConfigError

__all__ = ["Kept", "asked_of", "check_k", "clear_errors", "documents_of_texts", "refuse_unknown"]

_OF_MEMORY = ("as_of", "namespace")


class Kept(NamedTuple):
    """What a retriever's documents became, and by which settings.

    A retriever made from another's fields, as by `configurable_fields`, takes them over; it makes them anew only where
    these settings differ.
    """

    things: Any
    how: tuple[Any, ...]


def refuse_unknown(cls: type[BaseModel], settings: Mapping[str, Any], /) -> None:
    """Refuse keywords that do not exist, and say which do."""
    known = cls.model_fields
    for name in settings:
        if name not in known:
            raise ConfigError(f"{cls.__name__} has no setting {name!r}: the settings are {', '.join(known)}")


def check_k(k: Any, /) -> None:
    """Refuse a number of results that cannot be; None is all."""
    if k is not None and (isinstance(k, bool) or not isinstance(k, int) or k < 1):
        raise ConfigError(f"k = {k!r} is not allowed: a whole number from 1 up, or None for all")


@contextmanager
def clear_errors() -> Iterator[None]:
    """What pydantic refuses, told as the other mistakes are."""
    try:
        yield
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ConfigError(f"{where} = {first['input']!r} is not allowed: {first['msg']}") from error


def asked_of(retriever: Any, names: Sequence[str], said: Mapping[str, Any], /) -> dict[str, Any]:
    """One question's settings: what was said in the call, else what was set up."""
    for name in said:
        if name not in names:
            raise ConfigError(f"invoke does not know {name!r}: it takes {', '.join(names)}")
    given = {name: value for name, value in said.items() if value is not None}
    asked = {**{name: getattr(retriever, name) for name in names}, **given}
    for name in _OF_MEMORY:
        if asked[name] is not None and retriever.memory is None:
            raise ConfigError(f"{name} = {asked[name]!r}: only a memory understands {name!r}")
    return asked


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
