"""What every test shares: quiet frameworks, one hypothesis profile, one PostgreSQL server."""

import os
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

pytest.register_assert_rewrite("hybridmem.testing.stores", "hybridmem.testing.store_model")

os.environ.setdefault("ANONYMIZED_TELEMETRY", "False")
os.environ.setdefault("CHROMA_TELEMETRY_IMPL", "none")
os.environ.setdefault("LANGCHAIN_TRACING_V2", "false")
os.environ.setdefault("LANGSMITH_TRACING", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

sys.path.append(str(Path(__file__).parents[1]))  # for `tests.support`; the installed package comes first

settings.register_profile(
    "suite",
    max_examples=60,
    deadline=None,  # a loaded machine is no failure
    derandomize=True,  # the same examples every time: a red suite is always a change of ours
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.register_profile("deep", parent=settings.get_profile("suite"), max_examples=1000, derandomize=False)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "suite"))


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
