"""A simulated consumer: the group requests of a stock client over a real connection.

It fetches nothing. One request is under way at a time: JoinGroup (twice for a newcomer, which is
told its id first), SyncGroup, then Heartbeat at the interval; when a heartbeat is answered with
REBALANCE_IN_PROGRESS it rejoins at once. As in the Java client the heartbeat clock starts with the
answer to JoinGroup, so that the members of a group heartbeat nearly together.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections.abc import Callable
from typing import Any, Protocol, cast

from anabranch.model.errors import ErrorCode
from anabranch.wire.api import Api
from anabranch.wire.header import write_request_header
from anabranch.wire.messages.heartbeat import HEARTBEAT, HeartbeatRequest
from anabranch.wire.messages.join_group import (
    JOIN_GROUP,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
)
from anabranch.wire.messages.leave_group import LEAVE_GROUP, LeaveGroupRequest, MemberIdentity
from anabranch.wire.messages.sync_group import (
    SYNC_GROUP,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)
from anabranch.wire.primitives import read_uvarint, skip_tags
from rebalance_protocol import (
    Assignment,
    RebalanceError,
    read_assignment,
    read_owned,
    write_assignment,
    write_subscription,
)

JOIN_VERSION = 9
SYNC_VERSION = 5
HEARTBEAT_VERSION = 4
LEAVE_VERSION = 5
# The defaults of the Java client and of librdkafka.
SESSION_TIMEOUT_MS = 45_000
REBALANCE_TIMEOUT_MS = 300_000

_SIZE = struct.Struct(">i")
_CLIENT_ID = "rebalance"


class MemberEvents(Protocol):
    """What a member tells its group, as it happens."""

    group_id: str
    is_cooperative: bool
    heartbeat_interval_s: float

    def assign(self, owned: dict[str, tuple[int, ...]]) -> Assignment: ...
    def join_sent(self) -> None: ...
    def joined(self, generation_id: int) -> None: ...
    def synced(self, member: Member) -> None: ...
    def failed(self, reason: str) -> None: ...


class WireClient(asyncio.Protocol):
    """One connection with one request under way."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport = cast(asyncio.Transport, None)
        self._received = bytearray()
        self._correlation_id = 0
        self._answered: tuple[Api, int, Callable[[Any], None]] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        sock = transport.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._answered is not None:
            api, _, _ = self._answered
            self.request_failed(f"the connection ended during {api.name}")

    def request_failed(self, reason: str) -> None:
        """The request under way will not be answered."""
        raise RebalanceError(reason)

    def send(self, api: Api, version: int, request: Any, on_answer: Callable[[Any], None]) -> None:
        assert self._answered is None, f"{api.name} while another request is under way"
        self._correlation_id += 1
        self._answered = (api, version, on_answer)
        header = write_request_header(
            api.key, version, self._correlation_id, _CLIENT_ID, flexible=api.is_flexible(version)
        )
        body = b"".join([header, *api.encode_request(version)(request)])
        self._transport.write(_SIZE.pack(len(body)) + body)

    async def ask(self, api: Api, version: int, request: Any) -> Any:
        answer = asyncio.get_running_loop().create_future()
        self.send(api, version, request, answer.set_result)
        return await answer

    @property
    def is_idle(self) -> bool:
        return self._answered is None

    def data_received(self, data: bytes) -> None:
        self._received += data
        if len(self._received) < 4:
            return
        (size,) = _SIZE.unpack_from(self._received)
        if len(self._received) < 4 + size:
            return
        frame = memoryview(bytes(self._received[4 : 4 + size]))
        del self._received[: 4 + size]
        assert self._answered is not None, "an answer to no request"
        (api, version, on_answer), self._answered = self._answered, None
        assert _SIZE.unpack_from(frame)[0] == self._correlation_id
        position = 4
        if api.has_tagged_response_header(version):
            count, position = read_uvarint(frame, position)
            position = skip_tags(frame, position, count)
        answer, _ = api.decode_response(version)(frame, position)
        on_answer(answer)

    def close(self) -> None:
        self._answered = None
        self._transport.close()


class Member(WireClient):
    """One member of a simulated group."""

    def __init__(self, group: MemberEvents) -> None:
        super().__init__()
        self._group = group
        self._protocol_name = "cooperative-sticky" if group.is_cooperative else "range"
        self._heartbeat_due_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self.member_id = ""
        self.generation_id = -1
        self.synced_generation_id = -1
        self.owned: tuple[int, ...] = ()
        self.has_left = False

    def request_failed(self, reason: str) -> None:
        self._group.failed(reason)

    # Joining --------------------------------------------------------------------------------------

    def join(self) -> None:
        self._cancel_heartbeat()
        if not self._group.is_cooperative:
            self.owned = ()
        subscription = write_subscription(self.owned, self.generation_id)
        request = JoinGroupRequest(
            group_id=self._group.group_id,
            session_timeout_ms=SESSION_TIMEOUT_MS,
            rebalance_timeout_ms=REBALANCE_TIMEOUT_MS,
            member_id=self.member_id,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name=self._protocol_name, metadata=subscription)],
            reason="",
        )
        self._group.join_sent()
        self.send(JOIN_GROUP, JOIN_VERSION, request, self._joined)

    def _joined(self, answer: JoinGroupResponse) -> None:
        if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = answer.member_id
            self.join()
            return
        if answer.error_code == ErrorCode.REBALANCE_IN_PROGRESS:
            self.join()
            return
        if answer.error_code != ErrorCode.NONE:
            self._unexpected("JoinGroup", answer.error_code)
            return
        self.member_id = answer.member_id
        self.generation_id = answer.generation_id
        self._heartbeat_due_s = time.monotonic() + self._group.heartbeat_interval_s
        self._group.joined(answer.generation_id)
        self._sync(answer)

    def _sync(self, joined: JoinGroupResponse) -> None:
        assignments = []
        if joined.leader == self.member_id:
            owned = {member.member_id: read_owned(member.metadata) for member in joined.members}
            assignments = [
                SyncGroupRequestAssignment(
                    member_id=member_id, assignment=write_assignment(partitions)
                )
                for member_id, partitions in self._group.assign(owned).items()
            ]
        request = SyncGroupRequest(
            group_id=self._group.group_id,
            generation_id=self.generation_id,
            member_id=self.member_id,
            protocol_type="consumer",
            protocol_name=self._protocol_name,
            assignments=assignments,
        )
        self.send(SYNC_GROUP, SYNC_VERSION, request, self._synced)

    def _synced(self, answer: SyncGroupResponse) -> None:
        if answer.error_code == ErrorCode.REBALANCE_IN_PROGRESS:
            self.join()
            return
        if answer.error_code != ErrorCode.NONE:
            self._unexpected("SyncGroup", answer.error_code)
            return
        assigned = read_assignment(answer.assignment)
        is_less = not set(self.owned) <= set(assigned)
        self.owned = assigned
        if is_less:
            # Cooperative: only now that it is given up may another member get it.
            self.join()
            return
        self.synced_generation_id = self.generation_id
        self._group.synced(self)
        self._arm_heartbeat()

    # Being a member -------------------------------------------------------------------------------

    def _arm_heartbeat(self) -> None:
        delay_s = max(0.0, self._heartbeat_due_s - time.monotonic())
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._heartbeat)

    def _cancel_heartbeat(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _heartbeat(self) -> None:
        self._timer = None
        self._heartbeat_due_s = time.monotonic() + self._group.heartbeat_interval_s
        request = HeartbeatRequest(
            group_id=self._group.group_id,
            generation_id=self.generation_id,
            member_id=self.member_id,
        )
        self.send(HEARTBEAT, HEARTBEAT_VERSION, request, self._heard)

    def _heard(self, answer: Any) -> None:
        if self.has_left:
            return
        if answer.error_code == ErrorCode.REBALANCE_IN_PROGRESS:
            self.join()
        elif answer.error_code == ErrorCode.NONE:
            self._arm_heartbeat()
        else:
            self._unexpected("Heartbeat", answer.error_code)

    async def prepare_to_leave(self) -> None:
        """Stop the heartbeats and let the one under way be answered."""
        self._cancel_heartbeat()
        self.has_left = True
        while not self.is_idle:
            await asyncio.sleep(0.001)

    async def leave(self, others: list[Member] | None = None) -> None:
        """Leave the group, for others too; `prepare_to_leave` comes first."""
        leaving = [self, *(others or ())]
        request = LeaveGroupRequest(
            group_id=self._group.group_id,
            members=[MemberIdentity(member_id=member.member_id) for member in leaving],
        )
        answer = await self.ask(LEAVE_GROUP, LEAVE_VERSION, request)
        errors = {answer.error_code, *(member.error_code for member in answer.members)}
        if errors != {ErrorCode.NONE}:
            self._unexpected("LeaveGroup", max(errors))

    def close(self) -> None:
        self._cancel_heartbeat()
        self.has_left = True
        super().close()

    def _unexpected(self, request: str, error_code: int) -> None:
        self._group.failed(f"{request} was answered with {ErrorCode(error_code).name}")
