"""Messages of a conversation as memories: speaker, thread and an id by which a repeated text is stored once."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

from hybridmem.core.protocols import View
from hybridmem.core.types import Memory
from hybridmem.memory.memory import HybridMemory

__all__ = ["add_messages", "as_message", "normalized"]


def normalized(text: str, /) -> str:
    r"""A text without differences of case and white space.

    >>> normalized(" I  like\nTea ")
    'i like tea'
    """
    return " ".join(text.split()).casefold()


def as_message(text: str, /, *, role: str, thread: str | None, name: str | None = None) -> Memory:
    """What somebody said, as a memory. Equal texts of one role in one thread have one id."""
    id_ = blake2b(repr((thread, role, normalized(text))).encode("utf-8", "replace"), digest_size=9).hexdigest()
    return Memory(text, id=id_, thread=thread, speaker=name or role, type="message", metadata={"role": role})


def add_messages(view: HybridMemory, messages: Sequence[Memory], /) -> list[str]:
    """Store the messages that the view does not have yet; gives their ids."""
    fresh = {message.id: message for message in messages}
    stored = view.store.get([*fresh], view=View(view.name, superseded=True))
    return view.add_many([message for message, old in zip(fresh.values(), stored, strict=True) if old is None])
