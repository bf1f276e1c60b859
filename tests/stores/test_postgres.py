"""PostgresStore keeps every promise of a store: the suite of the SQLite store, unchanged, on a real server."""

from __future__ import annotations

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridmem.stores.postgres import PostgresStore
from tests.stores.conformance import LAWS, Clock, StoreConformance
from tests.stores.model import STEPS

EXAMPLES = int(os.environ.get("HYBRIDMEM_PG_EXAMPLES", "3"))
"""A law asks thousands of questions per example, each a round trip: the suite runs few examples, more on demand."""


def fewer(law, **strategies):
    return settings(LAWS, max_examples=EXAMPLES)(given(**(strategies or {"steps": STEPS}))(law.hypothesis.inner_test))


class TestConformance(StoreConformance):
    test_as_of_equals_replaying_the_log = fewer(StoreConformance.test_as_of_equals_replaying_the_log)
    test_nothing_of_one_namespace_shows_in_another = fewer(
        StoreConformance.test_nothing_of_one_namespace_shows_in_another
    )
    test_decaying_often_equals_decaying_once = fewer(
        StoreConformance.test_decaying_often_equals_decaying_once, days=st.lists(st.floats(0, 5), max_size=8)
    )
    test_export_restore_export_is_the_same = fewer(StoreConformance.test_export_restore_export_is_the_same)

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
