"""Fixtures of the stock-client tests."""

import re

import pytest

pytest.register_assert_rewrite("client_behaviour")


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A topic name that no other test of the module uses."""
    return re.sub(r"[^a-zA-Z0-9._-]+", "-", request.node.name).strip("-")
