"""Let every store's tests import the one suite they share."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("hybridmem.testing.stores", "hybridmem.testing.store_model")


@pytest.fixture(scope="session")
def pg_server():
    """One PostgreSQL server for all tests of this process; it stops with them."""
    from tests.support import postgres_server

    with postgres_server.server(**postgres_server.FAST) as server:
        yield server


@pytest.fixture(scope="session")
def pg_url(pg_server):
    """The address of a database that tests share: each opens schemas of its own in it."""
    return pg_server.database()


@pytest.fixture(scope="session")
def pg_schemas(pg_url):
    """Empty schemas to lend and take back."""
    from tests.support import postgres_server

    return postgres_server.Schemas(pg_url)


@pytest.fixture
def schema(pg_schemas):
    """An empty schema, for one test."""
    name = pg_schemas.take()
    yield name
    pg_schemas.give(name)
