"""FindCoordinator: this broker, for every group; nobody, for what is not served."""

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
            KEY_TYPE_TRANSACTION,
            ErrorCode.UNSUPPORTED_VERSION,
            "Transactions are not available on this broker.",
        ),
        (
            KEY_TYPE_SHARE,
            ErrorCode.UNSUPPORTED_VERSION,
            "Share groups are not available on this broker.",
        ),
        (9, ErrorCode.INVALID_REQUEST, "There is no key type 9."),
    ],
)
def test_what_is_not_coordinated(node: Node, key_type: int, code: ErrorCode, message: str) -> None:
    """Transactions, share groups and unknown key types are refused without an address."""
    many = FindCoordinatorRequest(key_type=key_type, coordinator_keys=["k"])
    assert node.call(many).coordinators == [
        Coordinator(key="k", node_id=-1, port=-1, error_code=code, error_message=message)
    ]
    one = FindCoordinatorRequest(key_type=key_type, key="k")
    assert node.call(one, 3) == FindCoordinatorResponse(
        error_code=code, error_message=message, node_id=-1, port=-1
    )
