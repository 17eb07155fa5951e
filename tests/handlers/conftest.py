"""A real broker on a temporary folder, called through its handlers without a socket."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.register_assert_rewrite(
    "handler_calls", "group_calls", "consumer_group_calls", "transaction_calls"
)

from consumer_group_calls import ConsumerNode  # noqa: E402 - after the registration
from group_calls import GroupNode  # noqa: E402
from handler_calls import Node  # noqa: E402
from transaction_calls import TransactionNode  # noqa: E402

from support.fake_loop import FakeLoop, fake_loop  # noqa: E402


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


@pytest.fixture
def loop() -> Iterator[FakeLoop]:
    """A running loop in which time passes when a test says so."""
    with fake_loop() as loop:
        yield loop


@pytest.fixture
def make_group_node(tmp_path: Path, loop: FakeLoop) -> Iterator[Callable[..., GroupNode]]:
    """Start a broker for groups with overrides, on one folder."""
    nodes: list[GroupNode] = []

    def make(*overrides: str) -> GroupNode:
        nodes.append(GroupNode(tmp_path / "data", loop, *overrides))
        return nodes[-1]

    yield make
    for node in nodes:
        node.close()


@pytest.fixture
def group_node(make_group_node: Callable[..., GroupNode]) -> GroupNode:
    return make_group_node()


@pytest.fixture
def make_consumer_node(tmp_path: Path, loop: FakeLoop) -> Iterator[Callable[..., ConsumerNode]]:
    """Start a broker for consumer groups with overrides, on one folder."""
    nodes: list[ConsumerNode] = []

    def make(*overrides: str) -> ConsumerNode:
        nodes.append(ConsumerNode(tmp_path / "data", loop, *overrides))
        return nodes[-1]

    yield make
    for node in nodes:
        node.close()


@pytest.fixture
def consumer_node(make_consumer_node: Callable[..., ConsumerNode]) -> ConsumerNode:
    return make_consumer_node()


@pytest.fixture
def make_transaction_node(
    tmp_path: Path, loop: FakeLoop
) -> Iterator[Callable[..., TransactionNode]]:
    """Start a broker for transactions with overrides, on one folder, with a topic t."""
    nodes: list[TransactionNode] = []

    def make(*overrides: str) -> TransactionNode:
        node = TransactionNode(tmp_path / "data", loop, *overrides)
        nodes.append(node)
        if node.broker.topics.get("t") is None:
            node.create_topic("t", 2)
        return node

    yield make
    for node in nodes:
        node.close()


@pytest.fixture
def transaction_node(make_transaction_node: Callable[..., TransactionNode]) -> TransactionNode:
    return make_transaction_node()
