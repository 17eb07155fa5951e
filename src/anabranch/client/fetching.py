"""Fetching: whenever a range has room and nothing is on its way, a request is sent for it.

Each request has a lane, a connection that no other request uses meanwhile. A request that waits at
the end of a log therefore never holds up a range that was just taken over: that goes by another
lane at once. Ranges that come back at the same time go on together.
"""

import asyncio
import time
from collections.abc import Iterable
from functools import partial

from anabranch.branch.slots import DEFAULT_RULE
from anabranch.client.cluster import is_worth_retrying
from anabranch.client.core import Core, Tasks, log
from anabranch.client.errors import (
    BrokerConnectionError,
    ConsumerError,
    CooperationNotSupportedError,
    CorruptRecordsError,
    NoOffsetError,
    broker_error,
)
from anabranch.client.fetch_plan import (
    BufferLimits,
    PartitionFetch,
    finish,
    plan,
    plan_refills,
)
from anabranch.client.hand_over import HandOver
from anabranch.client.log_check import LogCheck
from anabranch.client.membership import Membership
from anabranch.client.range_work import Place, RangeWork
from anabranch.client.record_reader import FetchedRecords
from anabranch.client.records import KeyRange
from anabranch.client.timing import Attempts
from anabranch.client.workload import Row
from anabranch.model.errors import ErrorCode
from anabranch.model.units import SlotRange
from anabranch.wire.messages.cooperation import KeyRange as WireRange
from anabranch.wire.messages.cooperation import RangeFetch, RangeFetchAnswer
from anabranch.wire.messages.fetch import (
    FETCH,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)

_LANES = range(4)
# Parked records have a lane of their own: all others may be waiting at the end of a log.
_REFILL_LANES = range(4, 5)
_TOPIC_IDS_VERSION = 13
# Records are taken over in stretches, between which others have their turn after so long.
_STRETCH_RECORDS = 256
_STRETCH_S = 0.003
_REFILL_BYTES = 64 * 1024

_LEADER_ERRORS = {
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.REPLICA_NOT_AVAILABLE,
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.UNKNOWN_LEADER_EPOCH,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.INCONSISTENT_TOPIC_ID,
    ErrorCode.KAFKA_STORAGE_ERROR,
}
_MEMBER_ERRORS = {
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.FENCED_MEMBER_EPOCH,
    ErrorCode.STALE_MEMBER_EPOCH,
}


class Fetcher:
    """Keeps the buffer filled."""

    def __init__(self, core: Core, membership: Membership | None, hand_over: HandOver) -> None:
        self._core = core
        self._membership = membership
        self._hand_over = hand_over
        settings = core.settings
        self._limits = BufferLimits(settings.buffer_max_records, settings.buffer_max_bytes)
        self._busy_lanes: dict[int, set[int]] = {}
        self._tasks = Tasks(core)
        self._log_check = LogCheck(core, hand_over)
        self._checking: set[Place] = set()
        self._resting: dict[Place, asyncio.TimerHandle] = {}
        self._attempts: dict[Place, Attempts] = {}
        self._is_pumping = False
        self._is_running = False
        core.on_hungry = self.pump_soon

    def start(self) -> None:
        self._is_running = True
        self._tasks.spawn("metadata", self._refresh_regularly)
        self.pump_soon()

    async def stop(self) -> None:
        """Fetch nothing more."""
        self._is_running = False
        for handle in self._resting.values():
            handle.cancel()
        await self._tasks.stop()

    def pump_soon(self) -> None:
        """See what is to be fetched, once, after whatever is happening now."""
        if self._is_running and not self._is_pumping:
            self._is_pumping = True
            asyncio.get_running_loop().call_soon(self._pump)

    def _pump(self) -> None:
        self._is_pumping = False
        while self._is_running and self._core.error is None:
            workload = self._core.workload
            with self._core.lock:
                half = self._limits.max_records // max(sum(1 for _ in workload), 1) // 2
                workload.low_mark = workload.queue.park_above = half
                requests = plan(workload, self._limits, partial(self._free_node_of, _LANES))
            self._send(requests, _LANES)
            with self._core.lock:
                refills = plan_refills(workload, partial(self._free_node_of, _REFILL_LANES))
            self._send(refills, _REFILL_LANES)
            if not requests and not refills:
                return

    def _send(self, requests: dict[int, list[PartitionFetch]], lanes: Iterable[int]) -> None:
        for node_id, fetches in requests.items():
            busy = self._busy_lanes.setdefault(node_id, set())
            lane = next(number for number in lanes if number not in busy)
            busy.add(lane)
            self._tasks.spawn("a fetch", self._fetch, node_id, lane, fetches)

    def _free_node_of(self, lanes: Iterable[int], place: Place) -> int | None:
        """The leader, unless the partition is to be left alone for now, or the lanes are busy."""
        if place in self._resting or place in self._checking:
            return None
        if self._log_check.is_due(place):
            self._checking.add(place)
            self._tasks.spawn("looking at a log", self._check_log, place)
            return None
        leader = self._core.cluster.leader_of(*place)
        if leader is None:
            self._rest(place, "it has no leader")
            return None
        busy = self._busy_lanes.get(leader.node_id, ())
        return leader.node_id if any(lane not in busy for lane in lanes) else None

    async def _check_log(self, place: Place) -> None:
        """The partition has a new leader epoch: is what was read of it still there?"""
        try:
            await self._log_check.look(place)
        except ConsumerError as error:
            if getattr(error, "code", None) not in _LEADER_ERRORS and not is_worth_retrying(error):
                raise
            self._rest(place, str(error))
        finally:
            self._checking.discard(place)
            self.pump_soon()

    # One request ----------------------------------------------------------------------------------

    async def _fetch(self, node_id: int, lane: int, fetches: list[PartitionFetch]) -> None:
        settings = self._core.settings
        try:
            answer: FetchResponse = await self._core.cluster.ask_node(
                node_id,
                lane,
                FETCH,
                self._request(fetches),
                least_version=_TOPIC_IDS_VERSION,
                extra_s=settings.fetch_max_wait_ms / 1000,
            )
            if answer.error_code:
                raise broker_error(answer.error_code, "Fetch")
            await self._take_answer(node_id, answer, fetches)
        except BrokerConnectionError as error:
            for fetch in fetches:
                self._rest(fetch.place, str(error))
        except ConsumerError as error:
            if not is_worth_retrying(error):
                raise
            for fetch in fetches:
                self._rest(fetch.place, str(error))
        finally:
            self._busy_lanes[node_id].discard(lane)
            with self._core.lock:
                for fetch in fetches:
                    finish(self._core.workload, fetch)
            self.pump_soon()

    def _request(self, fetches: list[PartitionFetch]) -> FetchRequest:
        settings = self._core.settings
        group_id, member_id, member_epoch = "", "", -1
        if self._membership is not None:
            group_id = settings.group_id or ""
            member_id, member_epoch = self._membership.member_id, self._membership.epoch
        topics: dict[bytes, FetchTopic] = {}
        for fetch in fetches:
            fetch.member_epoch = member_epoch
            topic_id, partition = fetch.place
            leader = self._core.cluster.leader_of(topic_id, partition)
            fetch.leader_epoch = leader.epoch if leader is not None else -1
            topic = topics.setdefault(topic_id, FetchTopic(topic_id=topic_id))
            topic.partitions.append(
                FetchPartition(
                    partition=partition,
                    current_leader_epoch=fetch.leader_epoch,
                    fetch_offset=fetch.first,
                    partition_max_bytes=(
                        _REFILL_BYTES if fetch.is_refill else settings.max_partition_fetch_bytes
                    ),
                    range_fetch=RangeFetch(
                        group_id=group_id,
                        member_id=member_id,
                        member_epoch=member_epoch,
                        ranges=[_wire_range(slots) for slots in fetch.asked],
                    ),
                )
            )
        return FetchRequest(
            max_wait_ms=settings.fetch_max_wait_ms,
            min_bytes=settings.fetch_min_bytes,
            max_bytes=settings.fetch_max_bytes,
            isolation_level=settings.isolation_code,
            topics=list(topics.values()),
        )

    async def _take_answer(
        self, node_id: int, answer: FetchResponse, fetches: list[PartitionFetch]
    ) -> None:
        found = {
            (topic.topic_id, data.partition_index): data
            for topic in answer.responses
            for data in topic.partitions
        }
        for fetch in fetches:
            data = found.get(fetch.place)
            if data is None:
                self._rest(fetch.place, "the broker left it out of its answer")
            elif data.error_code:
                self._take_error(fetch, data)
            elif data.range_fetch is None:
                place = self._core.cluster.place_of_node(node_id)
                raise CooperationNotSupportedError("Fetch", place)
            else:
                await self._take_data(fetch, data, data.range_fetch)

    # What came ------------------------------------------------------------------------------------

    async def _take_data(
        self, fetch: PartitionFetch, data: PartitionData, answer: RangeFetchAnswer
    ) -> None:
        applied = sorted(KeyRange(one.first_hash, one.last_hash).slots for one in answer.ranges)
        content = memoryview(data.records or b"")
        upto = max(answer.covered_offset, fetch.first)
        taken = 0
        if content:
            rule = self._core.workload.rules.get(fetch.place[0], DEFAULT_RULE)
            aborted = [
                (one.producer_id, one.first_offset) for one in data.aborted_transactions or ()
            ]
            records = FetchedRecords(content, rule, fetch.first, aborted)
            if records.damaged:
                self._take_damage(fetch, records.damaged)
            if not records.is_whole:
                upto = min(upto, records.next_offset)
            if fetch.is_refill:
                self._refill(fetch, applied, list(records.rows(0, len(records))), upto)
                return
            strange = records.slots_outside(applied)
            if strange:
                await self._take_strange(fetch, strange)
                return
            taken = await self._deliver(fetch, applied, records, upto)
        elif fetch.is_refill:
            self._refill(fetch, applied, [], upto)
            return
        else:
            with self._core.lock:
                self._core.workload.deliver(fetch.place, applied, (), fetch.first, upto)
        self._attempts.pop(fetch.place, None)
        self._note(fetch, data, len(content) / taken if taken else 0.0)
        if taken:
            self._core.on_ready()
            self._core.set_alarm()

    def _refill(
        self, fetch: PartitionFetch, applied: list[SlotRange], rows: list[Row], upto: int
    ) -> None:
        with self._core.lock:
            found = self._core.workload.refill(fetch.place, applied, rows, fetch.first, upto)
        if found:
            self._attempts.pop(fetch.place, None)
            self._core.on_ready()
        else:
            self._rest(fetch.place, "parked records did not come back")

    async def _deliver(
        self, fetch: PartitionFetch, applied: list[SlotRange], records: FetchedRecords, upto: int
    ) -> int:
        """Take records over, in stretches between which others have their turn."""
        core = self._core
        first = fetch.first
        taken = 0
        began_at = time.monotonic()
        for start in range(0, max(len(records), 1), _STRETCH_RECORDS):
            end = start + _STRETCH_RECORDS
            until = records.offset(end) if end < len(records) else upto
            rows = records.rows(start, end)
            with core.lock:
                taken += core.workload.deliver(fetch.place, applied, rows, first, until)
            first = until
            if time.monotonic() - began_at > _STRETCH_S:
                core.on_ready()
                await asyncio.sleep(0)
                began_at = time.monotonic()
        return taken

    async def _take_strange(self, fetch: PartitionFetch, slots: list[int]) -> None:
        """Records of slots that were not asked for: the topic's rule for slots has changed."""
        why = f"its records have slots that were not asked for, such as {slots[0]}"
        log.warning("%s: %s; asking for its rule", self._core.cluster.place_of(*fetch.place), why)
        await self._hand_over.learn_rule(fetch.place[0], again=True)
        self._rest(fetch.place, why)

    def _take_damage(self, fetch: PartitionFetch, damaged: list[str]) -> None:
        place = self._core.cluster.place_of(*fetch.place)
        if self._core.settings.corrupt_batches == "fail":
            raise CorruptRecordsError(
                f"{place}: {damaged[0]}; corrupt_batches='skip' goes on without such batches"
            )
        for one in damaged:
            log.error("%s: %s; skipped", place, one)

    def _note(self, fetch: PartitionFetch, data: PartitionData, record_bytes: float) -> None:
        readable_end = data.high_watermark
        if self._core.settings.isolation_code and data.last_stable_offset >= 0:
            readable_end = data.last_stable_offset
        with self._core.lock:
            for work in self._works_of(fetch):
                work.high_watermark = data.high_watermark
                work.readable_end = readable_end
                work.leader_epoch = fetch.leader_epoch
                if record_bytes:
                    work.record_bytes = record_bytes

    def _works_of(self, fetch: PartitionFetch) -> list[RangeWork]:
        works = self._core.workload.of_place(fetch.place)
        return [work for work in works if work.fetch is fetch]

    # What went wrong ------------------------------------------------------------------------------

    def _take_error(self, fetch: PartitionFetch, data: PartitionData) -> None:
        sub_code = data.range_fetch.sub_code if data.range_fetch is not None else 0
        place = self._core.cluster.place_of(*fetch.place)
        error = broker_error(data.error_code, f"fetching {place}", None, sub_code)
        if error.code == ErrorCode.OFFSET_OUT_OF_RANGE:
            self._take_out_of_range(fetch, data)
        elif error.code in _MEMBER_ERRORS and self._membership is not None:
            if not fetch.is_refill and self._is_outdated(fetch):
                return  # what is asked for next is what the coordinator knows
            self._membership.beat_soon()
            self._rest(fetch.place, str(error))
        elif error.code in _LEADER_ERRORS or is_worth_retrying(error):
            self._rest(fetch.place, str(error))
        else:
            raise error

    def _is_outdated(self, fetch: PartitionFetch) -> bool:
        """Whether the member's epoch or ranges have changed since the request was sent."""
        with self._core.lock:
            now = sorted(work.slots for work in self._works_of(fetch))
        is_same = self._membership is not None and self._membership.epoch == fetch.member_epoch
        return not is_same or now != fetch.asked

    def _take_out_of_range(self, fetch: PartitionFetch, data: PartitionData) -> None:
        """The log has been cut at its beginning, by retention, or at its end."""
        place = self._core.cluster.place_of(*fetch.place)
        if self._core.settings.auto_offset_reset == "none":
            raise NoOffsetError(f"{place} has no offset {fetch.first} any more")
        if fetch.first < data.log_start_offset:
            log.warning(
                "%s begins at offset %d now: the records from %d on were deleted unprocessed",
                place,
                data.log_start_offset,
                fetch.first,
            )
            with self._core.lock:
                for work in self._works_of(fetch):
                    work.position = max(work.position, data.log_start_offset)
            if fetch.is_refill:
                self._refill(fetch, fetch.asked, [], data.log_start_offset)
            return
        log.warning("%s ends before offset %d: its log was cut; starting over", place, fetch.first)
        with self._core.lock:
            works = self._works_of(fetch)
        self._hand_over.reload(works)

    def _rest(self, place: Place, why: str) -> None:
        """Leave a partition alone for a while, and find out who leads it then."""
        if place in self._resting or not self._is_running:
            return
        settings = self._core.settings
        attempts = self._attempts.get(place)
        if attempts is None:
            attempts = Attempts(settings.retry_backoff, self._hand_over.random_share)
            self._attempts[place] = attempts
        delay_s = attempts.failed()
        log.info("partition %s: %s; trying again in %.1f s", place[1], why, delay_s)
        loop = asyncio.get_running_loop()
        self._resting[place] = loop.call_later(delay_s, self._end_rest, place)

    def _end_rest(self, place: Place) -> None:
        self._tasks.spawn("a refresh", self._refresh, place)

    async def _refresh(self, place: Place) -> None:
        try:
            await self._learn_leaders({place[0]})
        finally:
            self._resting.pop(place, None)
            self.pump_soon()

    async def _refresh_regularly(self) -> None:
        while True:
            await asyncio.sleep(self._core.settings.metadata_max_age_ms / 1000)
            with self._core.lock:
                topic_ids = {work.token.topic_id for work in self._core.workload}
            if topic_ids:
                await self._learn_leaders(topic_ids)

    async def _learn_leaders(self, topic_ids: set[bytes]) -> None:
        try:
            await self._core.cluster.refresh(ids=topic_ids)
        except ConsumerError as error:
            if not is_worth_retrying(error):
                raise
            log.info("cannot refresh metadata: %s", error)


def _wire_range(slots: SlotRange) -> WireRange:
    return WireRange(**KeyRange.of_slots(slots)._asdict())
