"""PostgresStore keeps every promise of a store: the suite of the SQLite store, unchanged, on a real server."""

from __future__ import annotations

import pytest

from hybridmem.stores.postgres.store import PostgresStore
from hybridmem.testing.stores import Clock, StoreConformance


class TestConformance(StoreConformance):
    @pytest.fixture
    def store_factory(self, pg_url, pg_schemas):
        opened, schemas = {}, {}

        def give_back(name):
            for store in opened.pop(name):
                store.close()
            pg_schemas.give(schemas.pop(name))

        def make(clock=None, name="main"):
            if name not in schemas and name != "main":  # a law's next example: the last one's stores are closed
                for old in [n for n, stores in opened.items() if n != "main" and all(s._db._closed for s in stores)]:
                    give_back(old)
            schema = schemas.setdefault(name, schemas.get(name) or pg_schemas.take())
            opened.setdefault(name, [])
            store = PostgresStore(pg_url, schema=schema, clock=clock or Clock(), pool_size=5)
            opened[name].append(store)
            return store

        yield make
        for name in list(schemas):
            give_back(name)
