"""Serialisation of arrays and texts: a magic line, a JSON header, raw columns and a digest. No pickle."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from hybridmem.errors import CorruptStoreError

__all__ = ["Array", "from_bytes", "pack_texts", "to_bytes", "unpack_texts"]

Array = npt.NDArray[Any]
_SEPARATOR = "\x1f"
_DIGEST = 4
"""Bytes of the CRC-32 at the end: it detects damage, and takes a fifth of the time of a cryptographic digest."""


def to_bytes(magic: bytes, head: Mapping[str, Any], arrays: Mapping[str, Array], /) -> bytes:
    """The bytes of a header (any JSON value) and arrays; read by `from_bytes`."""
    shapes = {name: [array.dtype.str, len(array)] for name, array in arrays.items()}
    text = json.dumps({**head, "arrays": shapes}).encode()
    body = [magic, len(text).to_bytes(8, "little"), text]
    body.extend(np.ascontiguousarray(array).tobytes() for array in arrays.values())
    checksum = 0
    for part in body:
        checksum = zlib.crc32(part, checksum)
    return b"".join((*body, checksum.to_bytes(_DIGEST, "little")))


def from_bytes(magic: bytes, data: bytes, /, *, what: str) -> tuple[dict[str, Any], dict[str, Array]]:
    """The header and read-only views of the arrays; damaged bytes raise CorruptStoreError."""
    start = len(magic) + 8
    if not data.startswith(magic):
        raise CorruptStoreError(f"{what} was not written by this version ({len(data)} bytes): rebuild it")
    if zlib.crc32(memoryview(data)[:-_DIGEST]).to_bytes(_DIGEST, "little") != data[-_DIGEST:]:
        raise CorruptStoreError(f"{what} is damaged (checksum of {len(data)} bytes): rebuild it")
    end = start + int.from_bytes(data[len(magic) : start], "little")
    head = json.loads(data[start:end])
    arrays = {}
    for name, (kind, count) in head["arrays"].items():
        arrays[name] = np.frombuffer(data, np.dtype(kind), count, end)
        end += arrays[name].nbytes
    return head, arrays


def pack_texts(name: str, texts: Sequence[str | None], /) -> dict[str, Array]:
    """A column of texts as arrays: all texts with a separator, the positions of None, and lengths where needed.

    Texts that contain the separator are cut by their lengths instead, which takes ten times as long to read.
    """
    joined = _SEPARATOR.join([text or "" for text in texts])
    packed: dict[str, Array] = {f"{name}.none": np.array([i for i, text in enumerate(texts) if text is None], np.int32)}
    if joined.count(_SEPARATOR) >= len(texts):
        packed[f"{name}.sizes"] = np.array([len(text or "") for text in texts], np.int32)
        joined = "".join([text or "" for text in texts])
    packed[f"{name}.count"] = np.array([len(texts)], np.int32)
    packed[name] = np.frombuffer(joined.encode("utf-8", "surrogatepass"), np.uint8)
    return packed


def unpack_texts(name: str, arrays: Mapping[str, Array], /) -> list[Any]:
    """The texts that `pack_texts` packed."""
    joined = arrays[name].tobytes().decode("utf-8", "surrogatepass")
    sizes = arrays.get(f"{name}.sizes")
    texts: list[str | None]
    if sizes is not None:
        texts = [joined[begin:end] for begin, end in pairwise(accumulate(sizes.tolist(), initial=0))]
    else:
        texts = list(joined.split(_SEPARATOR)) if arrays[f"{name}.count"][0] else []
    for place in arrays[f"{name}.none"].tolist():
        texts[place] = None
    return texts
