"""What every test shares: quiet frameworks, one hypothesis profile."""

import os
import sys
from pathlib import Path

from hypothesis import HealthCheck, settings

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
