"""A real broker on a temporary folder, called through its handlers without a socket."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.register_assert_rewrite("handler_calls")

from handler_calls import Node  # noqa: E402 - after the registration


@pytest.fixture
def make_node(tmp_path: Path) -> Iterator[Callable[..., Node]]:
    """Start a broker with overrides; `folder` tells apart those that must not share data."""
    nodes: list[Node] = []

    def make(*overrides: str, folder: str = "data") -> Node:
        node = Node(tmp_path / folder, overrides)
        nodes.append(node)
        return node

    yield make
    for node in nodes:
        node.close()


@pytest.fixture
def node(make_node: Callable[..., Node]) -> Any:
    """A broker with default settings."""
    return make_node()
