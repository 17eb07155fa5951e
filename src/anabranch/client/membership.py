"""Being a member of a group: heartbeats out, assignments in (KIP-848, with our tag).

A heartbeat says what changed: what the member holds, and how busy its ranges keep it. The answer
may name what it shall have, which `HandOver` makes true. One heartbeat is out at a time; the next
one goes when the broker's interval has passed, or at once when there is something to say.

A member that was fenced forgets what it held and joins again under the same id.
"""

import asyncio
import contextlib
import random
import uuid
from collections.abc import Callable, Sequence
from typing import Any

from anabranch.client.cluster import HEARTBEAT_LANE, is_worth_retrying
from anabranch.client.core import Core, log
from anabranch.client.errors import (
    ConsumerError,
    CooperationNotSupportedError,
    FencedError,
    ProtocolError,
    broker_error,
)
from anabranch.client.holdings import Assignment, Holdings
from anabranch.client.range_work import RangeWork
from anabranch.client.records import KeyRange
from anabranch.client.timing import Attempts
from anabranch.model.errors import ErrorCode
from anabranch.model.units import Unit
from anabranch.wire.messages.consumer_group_heartbeat import (
    CONSUMER_GROUP_HEARTBEAT,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from anabranch.wire.messages.cooperation import (
    Cooperation,
    CooperationAnswer,
    HeldPartition,
    RangeLoad,
)
from anabranch.wire.messages.cooperation import KeyRange as WireRange

_JOINING_EPOCH = 0
_LEAVING_EPOCH = -1
_STATIC_LEAVING_EPOCH = -2
_OWN_MEMBER_ID_VERSION = 1
_COORDINATOR_ERRORS = {
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
}
_FENCING_ERRORS = {
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.FENCED_MEMBER_EPOCH,
    ErrorCode.GROUP_ID_NOT_FOUND,
}
# Passes when the other holder of the instance id is gone, or the group has room again.
_PATIENT_ERRORS = {ErrorCode.UNRELEASED_INSTANCE_ID}


class Membership:
    """One member of one group."""

    def __init__(self, core: Core, holdings: Holdings, topics: Sequence[str]) -> None:
        self._core = core
        self._holdings = holdings
        self._topics = sorted(topics)
        self.member_id = str(uuid.uuid4())
        self.epoch = _JOINING_EPOCH
        # Set by whoever makes assignments true.
        self.on_assigned: Callable[[Assignment], None] = lambda target: None
        self.on_fenced: Callable[[], None] = lambda: None
        self._soon = asyncio.Event()
        self._interval_s = 1.0
        self._said_held: Any = None
        self._said_topics: list[str] | None = None
        self._attempts = Attempts(core.settings.retry_backoff, random.random)

    def beat_soon(self) -> None:
        """There is something to say: do not wait for the interval."""
        self._soon.set()

    def subscribe(self, topics: Sequence[str]) -> None:
        """Other topics from now on."""
        self._topics = sorted(topics)
        self.beat_soon()

    async def run(self) -> None:
        """Send heartbeats for ever."""
        while True:
            try:
                await self._beat()
                self._attempts.succeeded()
                delay_s = self._interval_s
            except ConsumerError as error:
                if not self._is_passing(error):
                    raise
                delay_s = self._attempts.failed()
                log.info("heartbeat: %s; trying again in %.1f s", error, delay_s)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delay_s):
                    await self._soon.wait()
            self._soon.clear()

    def _is_passing(self, error: ConsumerError) -> bool:
        code = getattr(error, "code", None)
        if code in _COORDINATOR_ERRORS:
            self._core.cluster.forget_coordinator()
        return (
            (isinstance(error, FencedError) and code in _FENCING_ERRORS)
            or code in _PATIENT_ERRORS
            or is_worth_retrying(error)
        )

    async def leave(self) -> None:
        """Say goodbye; a static member only for a while."""
        if self.epoch <= _JOINING_EPOCH:
            return
        is_static = self._core.settings.group_instance_id is not None
        request = self._plain_request()
        request.member_epoch = _STATIC_LEAVING_EPOCH if is_static else _LEAVING_EPOCH
        self.epoch = request.member_epoch
        try:
            await self._core.cluster.ask_coordinator(
                CONSUMER_GROUP_HEARTBEAT,
                request,
                least_version=_OWN_MEMBER_ID_VERSION,
                lane=HEARTBEAT_LANE,
            )
        except ConsumerError as error:
            log.info("could not leave the group in order: %s", error)

    # One heartbeat --------------------------------------------------------------------------------

    async def _beat(self) -> None:
        clock = self._core.clock
        with self._core.lock:
            request, held, loads = self._request()
        sent_at = clock()
        try:
            answer: ConsumerGroupHeartbeatResponse = await self._core.cluster.ask_coordinator(
                CONSUMER_GROUP_HEARTBEAT,
                request,
                least_version=_OWN_MEMBER_ID_VERSION,
                lane=HEARTBEAT_LANE,
            )
            if answer.error_code:
                raise broker_error(
                    answer.error_code,
                    "ConsumerGroupHeartbeat",
                    answer.error_message,
                    answer.cooperation.sub_code if answer.cooperation is not None else 0,
                )
            if answer.cooperation is None:
                raise CooperationNotSupportedError(
                    "ConsumerGroupHeartbeat", self._core.cluster.coordinator_place
                )
        except ConsumerError as error:
            self._said_held = None
            with self._core.lock:
                for work, records, busy_s in loads:
                    work.records_done += records
                    work.busy_s += busy_s
            if getattr(error, "code", None) in _FENCING_ERRORS:
                self._fenced()
            raise
        self._said_held = held
        if request.subscribed_topic_names is not None:
            self._said_topics = request.subscribed_topic_names
        self._take_answer(answer, answer.cooperation, sent_at)

    def _take_answer(
        self,
        answer: ConsumerGroupHeartbeatResponse,
        cooperation: CooperationAnswer,
        sent_at: float,
    ) -> None:
        self.member_id = answer.member_id or self.member_id
        self.epoch = answer.member_epoch
        self._interval_s = max(answer.heartbeat_interval_ms, 1) / 1000
        lease_ms = cooperation.lease_ms or answer.heartbeat_interval_ms * 2
        with self._core.lock:
            self._core.workload.lease.renew(sent_at, lease_ms / 1000)
        if cooperation.assigned is not None:
            self.on_assigned(_assignment_of(cooperation))
        self._core.on_ready()  # a lease that had ended counts again

    def _fenced(self) -> None:
        log.warning("the group went on without this member; joining again")
        self.epoch = _JOINING_EPOCH
        with self._core.lock:
            self._core.workload.lease.end()
        self.on_fenced()

    def _request(
        self,
    ) -> tuple[ConsumerGroupHeartbeatRequest, Any, list[tuple[RangeWork, int, float]]]:
        request = self._plain_request()
        is_joining = self.epoch == _JOINING_EPOCH
        if is_joining:
            request.rebalance_timeout_ms = self._core.settings.rebalance_timeout_ms
            request.server_assignor = self._core.settings.server_assignor
            request.topic_partitions = []
        if is_joining or self._topics != self._said_topics:
            request.subscribed_topic_names = self._topics
        held = {} if is_joining else self._holdings.held
        cooperation = Cooperation()
        if is_joining or held != self._said_held:
            cooperation.held = [
                HeldPartition(
                    topic_id=topic_id,
                    partition=partition,
                    ranges=[WireRange(**KeyRange.of_slots(one)._asdict()) for one in ranges],
                )
                for (topic_id, partition), ranges in held.items()
            ]
        loads = []
        for work in self._core.workload:
            if work.records_done or work.busy_s:
                loads.append((work, work.records_done, work.busy_s))
                cooperation.loads.append(_load_of(work))
                work.records_done = 0
                work.busy_s = 0.0
        request.cooperation = cooperation
        return request, held, loads

    def _plain_request(self) -> ConsumerGroupHeartbeatRequest:
        settings = self._core.settings
        return ConsumerGroupHeartbeatRequest(
            group_id=settings.group_id or "",
            member_id=self.member_id,
            member_epoch=self.epoch,
            instance_id=settings.group_instance_id,
        )


def _load_of(work: RangeWork) -> RangeLoad:
    first_hash, last_hash = work.key_range
    return RangeLoad(
        topic_id=work.token.topic_id,
        partition=work.token.partition,
        first_hash=first_hash,
        last_hash=last_hash,
        records=work.records_done,
        busy_us=round(work.busy_s * 1_000_000),
    )


def _assignment_of(answer: CooperationAnswer) -> dict[Unit, int]:
    target: dict[Unit, int] = {}
    for partition in answer.assigned or ():
        for one in partition.ranges:
            try:
                slots = KeyRange(one.first_hash, one.last_hash).slots
            except ValueError as error:
                raise ProtocolError(f"the coordinator's assignment: {error}") from error
            target[Unit(partition.topic_id, partition.partition, slots)] = one.epoch
    return target
