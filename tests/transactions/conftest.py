"""The folder's own modules can be imported by its tests, and those of the cooperative stage."""

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "cooperative")]

pytest.register_assert_rewrite("soak_stage", "anomaly_stage", "rounds_stage")
