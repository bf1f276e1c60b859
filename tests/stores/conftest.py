"""Let every store's tests import the one suite they share."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = str(Path(__file__).parents[2])
if ROOT not in sys.path:
    sys.path.append(ROOT)  # at the end: the installed package comes first

pytest.register_assert_rewrite("tests.stores.conformance", "tests.stores.model")


@pytest.fixture(scope="session")
def pg_server():
    """One PostgreSQL server for all tests of this process; it stops with them."""
    from tests import pgserver

    with pgserver.server(**pgserver.FAST) as server:
        yield server


@pytest.fixture(scope="session")
def pg_url(pg_server):
    """The address of a database that tests share: each opens schemas of its own in it."""
    return pg_server.database()


@pytest.fixture(scope="session")
def pg_schemas(pg_url):
    """Empty schemas to lend and take back."""
    from tests import pgserver

    return pgserver.Schemas(pg_url)


@pytest.fixture
def schema(pg_schemas):
    """An empty schema, for one test."""
    name = pg_schemas.take()
    yield name
    pg_schemas.give(name)
