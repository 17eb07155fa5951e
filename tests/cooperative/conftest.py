"""The folder's own modules, and the tool that judges histories, can be imported by its tests."""

import sys
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2] / "tools")]

pytest.register_assert_rewrite("soak_stage")
