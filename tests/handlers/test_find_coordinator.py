"""FindCoordinator: this broker, for groups and transactional ids; nobody, for all else."""

import pytest
from handler_calls import Node

from anabranch.model.errors import ErrorCode
from anabranch.wire.messages.find_coordinator import (
    KEY_TYPE_SHARE,
    KEY_TYPE_TRANSACTION,
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)


@pytest.mark.parametrize("version", range(4))
def test_one_group(node: Node, version: int) -> None:
    """Old versions ask for one key and get one address."""
    request = FindCoordinatorRequest(key="g")
    assert node.call(request, version) == FindCoordinatorResponse(
        node_id=1, host="kafka.example", port=9092
    )


@pytest.mark.parametrize("version", range(4, 7))
def test_many_groups(node: Node, version: int) -> None:
    """From version 4 on each key has its own answer."""
    request = FindCoordinatorRequest(coordinator_keys=["a", "b"])
    assert node.call(request, version).coordinators == [
        Coordinator(key=key, node_id=1, host="kafka.example", port=9092) for key in ("a", "b")
    ]


@pytest.mark.parametrize(
    ("key_type", "code", "message"),
    [
        (
            KEY_TYPE_SHARE,
            ErrorCode.UNSUPPORTED_VERSION,
            "Share groups are not available on this broker.",
        ),
        (9, ErrorCode.INVALID_REQUEST, "There is no key type 9."),
    ],
)
def test_what_is_not_coordinated(node: Node, key_type: int, code: ErrorCode, message: str) -> None:
    """Share groups and unknown key types are refused without an address."""
    many = FindCoordinatorRequest(key_type=key_type, coordinator_keys=["k"])
    assert node.call(many).coordinators == [
        Coordinator(key="k", node_id=-1, port=-1, error_code=code, error_message=message)
    ]
    one = FindCoordinatorRequest(key_type=key_type, key="k")
    assert node.call(one, 3) == FindCoordinatorResponse(
        error_code=code, error_message=message, node_id=-1, port=-1
    )


def test_a_transactional_id(node: Node) -> None:
    """This broker coordinates every transactional id, and has a journal from the first one on."""
    assert node.broker.topics.get("__transaction_state") is None
    many = FindCoordinatorRequest(key_type=KEY_TYPE_TRANSACTION, coordinator_keys=["k"])
    assert node.call(many).coordinators == [
        Coordinator(key="k", node_id=1, host="kafka.example", port=9092)
    ]
    journal = node.broker.topics.get("__transaction_state")
    assert journal is not None and len(journal.partitions) == 50


def test_an_empty_transactional_id(node: Node) -> None:
    """It is nobody's: there is no address, and no journal is made for it."""
    request = FindCoordinatorRequest(key_type=KEY_TYPE_TRANSACTION, key="")
    answer = node.call(request, 3)
    assert (answer.error_code, answer.node_id) == (ErrorCode.INVALID_REQUEST, -1)
    assert node.broker.topics.get("__transaction_state") is None
