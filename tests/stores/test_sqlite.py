"""SQLiteStore keeps every promise of a store, on disk and in memory, and some of its own."""

from __future__ import annotations

import pytest

from hybridmem.stores.base import View
from hybridmem.stores.sqlite import SQLiteStore
from hybridmem.types import Memory
from tests.stores.conformance import Clock, StoreConformance


class TestOnDisk(StoreConformance):
    @pytest.fixture
    def store_factory(self, tmp_path):
        opened = []

        def make(clock=None, name="main"):
            opened.append(SQLiteStore(tmp_path / f"{name}.db", clock=clock or Clock(), synchronous="normal"))
            return opened[-1]

        yield make
        for store in opened:
            store.close()


class TestInMemory(StoreConformance):
    @pytest.fixture
    def store_factory(self):
        opened = []

        def make(clock=None, name="main"):
            opened.append(SQLiteStore(":memory:", clock=clock or Clock()))
            return opened[-1]

        yield make
        for store in opened:
            store.close()

    def test_all_is_there_after_reopening(self, store_factory):
        store_factory().put([Memory("gone with the process")])
        assert store_factory().count(view=View()) == 0
