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
    """A column of texts as two arrays: their lengths (-1 for None) and their concatenation."""
    sizes = np.array([-1 if text is None else len(text) for text in texts], np.int32)
    whole = "".join([text for text in texts if text]).encode("utf-8", "surrogatepass")
    return {f"{name}.sizes": sizes, name: np.frombuffer(whole, np.uint8)}


def unpack_texts(name: str, arrays: Mapping[str, Array], /) -> list[Any]:
    """The texts that `pack_texts` packed."""
    sizes = arrays[f"{name}.sizes"]
    whole = arrays[name].tobytes().decode("utf-8", "surrogatepass")
    texts: list[Any] = [whole[begin:end] for begin, end in pairwise(accumulate(sizes.clip(0).tolist(), initial=0))]
    for place in np.flatnonzero(sizes < 0).tolist():
        texts[place] = None
    return texts
