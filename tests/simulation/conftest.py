"""The simulation asserts for its tests, and shares the invariants of the coordinator's stories."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "coordinator"))
pytest.register_assert_rewrite(
    "simulated_broker", "simulated_client", "simulated_world", "consumer_invariants"
)
