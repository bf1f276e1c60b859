"""Serialisation of arrays and texts: a magic line, a JSON header, raw columns and a digest. No pickle.

A column of equal values is stored as one value, and numbers in the narrowest type that holds them.
"""

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
_ALIGNED = 8
"""Columns begin at multiples of so many bytes: numpy reads others more slowly."""
_DIGEST = 4
"""Bytes of the CRC-32 at the end: it detects damage, and takes a fifth of the time of a cryptographic digest."""


def to_bytes(magic: bytes, head: Mapping[str, Any], arrays: Mapping[str, Array], /) -> bytes:
    """The bytes of a header (any JSON value) and arrays; read by `from_bytes`."""
    stored = {name: _shortened(array) for name, array in arrays.items()}
    shapes = [
        [name, array.dtype.str, len(array), arrays[name].dtype.str, len(arrays[name])] for name, array in stored.items()
    ]
    text = json.dumps({**head, "arrays": shapes}).encode()
    text += b" " * (-(len(magic) + 8 + len(text)) % _ALIGNED)
    body = [magic, len(text).to_bytes(8, "little"), text]
    for array in stored.values():
        data = np.ascontiguousarray(array).tobytes()
        body += [data, bytes(-len(data) % _ALIGNED)]
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
    for name, kind, count, full_kind, full_count in head["arrays"]:
        array = np.frombuffer(data, np.dtype(kind), count, end)
        end += array.nbytes + -array.nbytes % _ALIGNED
        array = array if kind == full_kind else array.astype(full_kind)
        arrays[name] = array if count == full_count else np.broadcast_to(array, full_count)
    return head, arrays


_NARROW: dict[str, tuple[type[np.integer[Any]], ...]] = {
    "i": (np.int8, np.int16, np.int32),
    "u": (np.uint8, np.uint16),
}


def _shortened(array: Array) -> Array:
    """One value for a column of equal values, and the narrowest type that holds all values exactly."""
    kind = array.dtype.kind
    if len(array) > 1 and np.array_equal(array, np.broadcast_to(array[0], len(array)), equal_nan=kind == "f"):
        return array[:1]
    if kind in _NARROW and len(array):
        low, high = int(array.min()), int(array.max())
        for narrow in _NARROW[kind]:
            if np.iinfo(narrow).min <= low and high <= np.iinfo(narrow).max:
                return array.astype(narrow)
    if array.dtype == np.float64:
        with np.errstate(over="ignore"):
            rounded = array.astype(np.float32)
        if np.array_equal(rounded, array, equal_nan=True):
            return rounded
    return array


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
