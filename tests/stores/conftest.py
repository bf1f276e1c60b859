"""Let every store's tests import the one suite they share."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = str(Path(__file__).parents[2])
if ROOT not in sys.path:
    sys.path.append(ROOT)  # at the end: the installed package comes first

pytest.register_assert_rewrite("tests.stores.conformance", "tests.stores.model")
