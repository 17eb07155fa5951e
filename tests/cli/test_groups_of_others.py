"""`anabranch groups` on groups that are not of consumers, as the workers of Kafka Connect make."""

from collections.abc import Callable, Iterator

import pytest
from command_result import Result
from groups_kit import GroupsKit

from anabranch.cli.raw_client import RawClient
from anabranch.wire.messages.join_group import (
    JOIN_GROUP,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
)
from anabranch.wire.messages.leave_group import LEAVE_GROUP, LeaveGroupRequest
from anabranch.wire.messages.sync_group import (
    SYNC_GROUP,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)

GROUP = "connect-cluster"
# The last version in which a member joins with its first request.
_JOINS_AT_ONCE = 3
# The last version in which one member leaves.
_LEAVES_ALONE = 2


@pytest.fixture
def workers(kit: GroupsKit) -> Iterator[str]:
    """A group of the protocol type `connect` with one member; its id."""
    host, port = kit.bootstrap.split(":")
    with RawClient(host, int(port), 20) as client:
        protocol = JoinGroupRequestProtocol(name="sessioned", metadata=b"\0")
        joining = JoinGroupRequest(
            group_id=GROUP,
            session_timeout_ms=60_000,
            rebalance_timeout_ms=60_000,
            member_id="",
            protocol_type="connect",
            protocols=[protocol],
        )
        joined = client.send(JOIN_GROUP, joining, last_version=_JOINS_AT_ONCE)
        assert joined.error_code == 0
        mine = SyncGroupRequestAssignment(member_id=joined.member_id, assignment=b"tasks")
        syncing = SyncGroupRequest(
            group_id=GROUP,
            generation_id=joined.generation_id,
            member_id=joined.member_id,
            assignments=[mine],
        )
        assert client.send(SYNC_GROUP, syncing, last_version=_JOINS_AT_ONCE).error_code == 0
        yield joined.member_id
        leaving = LeaveGroupRequest(group_id=GROUP, member_id=joined.member_id)
        assert client.send(LEAVE_GROUP, leaving, last_version=_LEAVES_ALONE).error_code == 0


def test_they_are_listed_with_their_protocol(
    workers: str, groups: Callable[..., Result], kit: GroupsKit
) -> None:
    """The list has them between the groups of consumers, with what members agreed to be."""
    kit.commit("offsets-only", kit.topic("of-others"), {0: 0})
    rows = {row["group"]: row for row in groups("list", "--format", "json").document}
    listed = {"group": GROUP, "type": "Classic", "protocol": "connect", "state": "Stable"}
    assert rows[GROUP] == listed
    assert rows["offsets-only"]["protocol"] is None
    assert list(rows) == sorted(rows)
    chosen = ("--format", "json", "--state", "Stable", "--type", "Classic")
    assert listed in groups("list", *chosen).document
    assert listed not in groups("list", "--format", "json", "--state", "Empty").document


def test_they_are_described_without_what_only_members_can_read(
    workers: str, groups: Callable[..., Result]
) -> None:
    """Members, state and protocol are told; what a member has to do is not in partitions."""
    result = groups("describe", GROUP, "--format", "json")
    assert result.code == 0, result.err
    (found,) = result.document
    assert (found["type"], found["protocol"], found["state"]) == ("Classic", "connect", "Stable")
    assert found["assignor"] == "sessioned"
    (member,) = found["members"]
    assert (member["consumer_id"], member["assignment"]) == (workers, [])
    members = groups("describe", GROUP, "--members")
    assert members.code == 0 and workers in members.out
    assert groups("describe", "--all").code == 0
