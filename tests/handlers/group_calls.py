"""Groups through their handlers: requests with what a test does not care about filled in."""

from pathlib import Path
from typing import Any

from handler_calls import Call, Node

from anabranch.coordinator.group.classic_state import ClassicGroup
from anabranch.model.errors import ErrorCode
from anabranch.wire.messages.heartbeat import HeartbeatRequest
from anabranch.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from anabranch.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from anabranch.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from support.fake_loop import FakeLoop

GROUP = "g"
DELAY_MS = 3_000
SESSION_MS = 10_000
REBALANCE_MS = 60_000


def subscription(*topics: str) -> bytes:
    """The metadata of a consumer that is subscribed to these topics."""
    names = b"".join(len(topic).to_bytes(2, "big") + topic.encode() for topic in topics)
    return b"\x00\x00" + len(topics).to_bytes(4, "big") + names + b"\xff\xff\xff\xff"


METADATA = subscription("t")
PROTOCOLS = [JoinGroupRequestProtocol(name="range", metadata=METADATA)]


class GroupNode(Node):
    """A broker whose journal has one partition, and a clock that moves its alarms."""

    def __init__(self, folder: Path, loop: FakeLoop, *overrides: str) -> None:
        super().__init__(folder, ("offsets.topic.num.partitions=1", *overrides))
        self.loop = loop
        loop.on_time = self._on_time

    def _on_time(self, step_ms: float) -> None:
        self.now_ms += round(step_ms)

    def pass_ms(self, delay_ms: int) -> None:
        self.loop.pass_ms(delay_ms)

    def close(self) -> None:
        self.broker.groups.stop()
        super().close()

    def group(self, group_id: str = GROUP) -> ClassicGroup:
        group = self.broker.groups.group(group_id)
        assert group is not None
        return group

    # Requests -----------------------------------------------------------------------------------

    def join(self, member_id: str = "", version: int = 3, **changes: Any) -> Call:
        """JoinGroup under way; by default in a version that lets new members in at once."""
        values: dict[str, Any] = {
            "group_id": GROUP,
            "session_timeout_ms": SESSION_MS,
            "rebalance_timeout_ms": REBALANCE_MS,
            "member_id": member_id,
            "protocol_type": "consumer",
            "protocols": PROTOCOLS,
        }
        return self.begin(JoinGroupRequest(**values | changes), version)

    def sync(
        self,
        member_id: str,
        generation_id: int = 1,
        version: int = 5,
        assignments: dict[str, bytes] | None = None,
        **changes: Any,
    ) -> Call:
        values: dict[str, Any] = {
            "group_id": GROUP,
            "generation_id": generation_id,
            "member_id": member_id,
            "assignments": [
                SyncGroupRequestAssignment(member_id=member, assignment=assignment)
                for member, assignment in (assignments or {}).items()
            ],
        }
        return self.begin(SyncGroupRequest(**values | changes), version)

    def heartbeat(self, member_id: str, generation_id: int = 1, version: int = 4) -> int:
        request = HeartbeatRequest(group_id=GROUP, generation_id=generation_id, member_id=member_id)
        code: int = self.call(request, version).error_code
        return code

    def commit(
        self,
        offset: int,
        *partitions: int,
        group_id: str = GROUP,
        topic: str = "t",
        member_id: str = "",
        generation_id: int = -1,
        **changes: Any,
    ) -> list[int]:
        """Commit by name; the error of each partition."""
        request = OffsetCommitRequest(
            group_id=group_id,
            member_id=member_id,
            generation_id_or_member_epoch=generation_id,
            topics=[
                OffsetCommitRequestTopic(
                    name=topic,
                    partitions=[
                        OffsetCommitRequestPartition(
                            partition_index=index, committed_offset=offset, **changes
                        )
                        for index in partitions or (0,)
                    ],
                )
            ],
        )
        return [p.error_code for p in self.call(request, 9).topics[0].partitions]

    # Beginnings ---------------------------------------------------------------------------------

    def joined(self, count: int = 1, **changes: Any) -> list[str]:
        """The ids of members that were let in together; the first one leads."""
        joins = [self.join(**changes) for _ in range(count)]
        while not joins[-1].is_answered:
            self.pass_ms(DELAY_MS)
        assert [join.answer.error_code for join in joins] == [ErrorCode.NONE] * count
        return [join.answer.member_id for join in joins]

    def stable(self, count: int = 1, **changes: Any) -> list[str]:
        """The ids of the members of a Stable group, who were assigned their number."""
        ids = self.joined(count, **changes)
        given = {member_id: b"%d" % number for number, member_id in enumerate(ids)}
        for number, member_id in enumerate(ids):
            sync = self.sync(
                member_id,
                assignments={} if number else given,
                group_id=changes.get("group_id", GROUP),
            )
            assert sync.answer.error_code == ErrorCode.NONE
        return ids
