"""Fixtures of the durability tests."""

import pytest

pytest.register_assert_rewrite("support.log_walker", "support.raw_client")
