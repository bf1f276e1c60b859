"""Serialised arrays: exact after a round trip, short where columns allow it, and damage is noticed."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays as random_arrays

from hybridmem.errors import CorruptStoreError
from hybridmem.indexes import arrays

MAGIC = b"test 1\n"
HEADER = 200
"""More bytes than the header of one column takes."""
kinds = st.sampled_from([np.int8, np.uint8, np.uint16, np.int32, np.int64, np.float32, np.float64, np.bool_])
columns = st.dictionaries(st.text(max_size=5), kinds.flatmap(lambda kind: random_arrays(kind, st.integers(0, 9))))


def read(data):
    return arrays.from_bytes(MAGIC, data, what="the test")


@given(columns)
def test_a_round_trip_keeps_values_types_and_lengths(written):
    head, found = read(arrays.to_bytes(MAGIC, {"n": 1}, written))
    assert head["n"] == 1
    assert list(found) == list(written)
    for name, array in written.items():
        assert found[name].dtype == array.dtype
        assert np.array_equal(found[name], array, equal_nan=array.dtype.kind == "f")


@pytest.mark.parametrize(
    ("column", "width"),
    [
        (np.full(10_000, math.nan), 0),
        (np.full(10_000, 7), 0),
        (np.arange(10_000) % 100, 1),
        ((np.arange(10_000) % 200).astype(np.uint16), 1),
        (np.arange(10_000), 2),
        (np.arange(10_000) * 10_000, 4),
        (np.arange(10_000) + 0.5, 4),
        (np.arange(10_000) / 3, 8),
    ],
)
def test_a_column_takes_only_the_bytes_that_it_needs(column, width):
    size = len(arrays.to_bytes(MAGIC, {}, {"column": column}))
    assert 10_000 * width <= size <= 10_000 * width + HEADER


@given(st.lists(st.none() | st.text(max_size=9), max_size=9))
def test_texts_come_back_also_with_the_separator_in_them(texts):
    _, found = read(arrays.to_bytes(MAGIC, {}, arrays.pack_texts("t", texts)))
    assert arrays.unpack_texts("t", found) == texts


@given(st.integers(0, 10_000), st.integers(1, 255))
def test_a_changed_byte_is_noticed(place, change):
    data = bytearray(arrays.to_bytes(MAGIC, {"watermark": 3}, {"column": np.arange(100.0) / 3}))
    data[place % len(data)] ^= change
    with pytest.raises(CorruptStoreError, match="the test"):
        read(bytes(data))
