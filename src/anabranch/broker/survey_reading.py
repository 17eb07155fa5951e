"""Reading one group for a survey: its partitions, how far it is with each, and who owns it.

Everything is in memory but the times of records, which are looked up in the logs and remembered for
as long as a group stands where it stands. A group may have ten thousand partitions, so the loop is
let go of every now and then; each partition is told as it was when its turn came.
"""

import asyncio
import contextlib
from collections.abc import Iterable, Mapping
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple

from anabranch.broker.branch_survey import SourceProgress
from anabranch.broker.deferred import awaited
from anabranch.broker.survey_values import PartitionLag
from anabranch.broker.survey_windows import Window, Windows
from anabranch.broker.topics import Topic
from anabranch.coordinator.cooperative.records import Place
from anabranch.coordinator.group.classic_state import CONSUMER_PROTOCOL_TYPE
from anabranch.coordinator.group.commands import CommittedOffset
from anabranch.coordinator.group.consumer_protocol import ConsumerProtocolError, decode_assignment
from anabranch.coordinator.group.consumer_state import ConsumerGroup
from anabranch.coordinator.group.offsets import committed_offset
from anabranch.coordinator.group.shard import Group
from anabranch.coordinator.group.subscription import group_topics
from anabranch.log.partition_log import PartitionLog
from anabranch.log.record_times import timestamp_at
from anabranch.model.errors import KafkaError
from anabranch.model.lag import lag

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker

# How long a survey works before it lets others have the loop, and after how many partitions it
# looks at the clock.
SLICE_S = 0.0002
_GLANCE = 16

Key = tuple[str, int]  # topic and partition
Owners = Mapping[Key, str | None]
_NO_WINDOWS: Mapping[Place, Window] = {}


class Slices:
    """Shares the loop with others, turn by turn."""

    __slots__ = ("_until",)

    def __init__(self) -> None:
        self._until = perf_counter() + SLICE_S

    @property
    def is_over(self) -> bool:
        return perf_counter() >= self._until

    async def pause(self) -> None:
        """Let whoever is ready go first."""
        await asyncio.sleep(0)
        self._until = perf_counter() + SLICE_S


class RecordTimes:
    """When the records at some offsets were written; forgets what two surveys did not ask for."""

    def __init__(self) -> None:
        # With how often segments were replaced: compaction may remove the record.
        self._known: dict[tuple[PartitionLog, int], tuple[int, bool, int | None]] = {}
        self._before = self._known

    def begin_round(self) -> None:
        self._before, self._known = self._known, {}

    def get(self, log: PartitionLog, offset: int, *, is_exact: bool) -> int | None:
        """The time of the first record at or after an offset; None when it cannot be told."""
        key = (log, offset)
        known = self._known.get(key) or self._before.get(key)
        if known is None or known[0] != log.replacements or (is_exact and not known[1]):
            try:
                found = timestamp_at(log, offset, is_exact=is_exact)
            except KafkaError:
                return None  # the next survey may do better
            known = (log.replacements, is_exact, found)
        self._known[key] = known
        return known[2]


class Reading(NamedTuple):
    """What was read of a group."""

    partitions: tuple[PartitionLag, ...]
    topics: tuple[str, ...]
    # What ever came to these partitions, in records: the rates are made of it.
    produced: float


class GroupReader:
    """Reads groups; lives on the event loop."""

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self.times = RecordTimes()
        self.windows = Windows(broker)
        # By group: the partitions in order, which is dear to find out and seldom changes.
        self._orders: dict[str, tuple[set[Key], list[Key]]] = {}
        # What was read last, in the same order. Where nothing happens it is told again: tens of
        # thousands of new objects every few seconds would have the garbage collector go through
        # all that the broker has.
        self._lasts: dict[str, tuple[list[Key], tuple[PartitionLag, ...]]] = {}
        # By classic group, whose values are replaced whenever something changes.
        self._classic: dict[str, tuple[Group, Owners, frozenset[str]]] = {}

    def forget_others(self, group_ids: Iterable[str]) -> None:
        """Forget what is known of groups that are gone."""
        kept = set(group_ids)
        self.windows.forget_others(kept)
        for known in (self._orders, self._lasts, self._classic):
            for gone in known.keys() - kept:
                known.pop(gone, None)

    async def read(self, group: Group, slices: Slices, *, is_exact: bool = False) -> Reading:
        """All partitions of a group. KafkaError when its shard cannot be read."""
        offsets = self._broker.groups.offsets(group.group_id)
        owners, subscribed = await self._owners(group, slices)
        keys = self._in_order(group.group_id, offsets, owners)
        progress = self._broker.groups.progress(group.group_id)
        windows = await self.windows.look(group.group_id, progress) if progress else _NO_WINDOWS
        if is_exact and self._reads_branches(keys):
            with contextlib.suppress(KafkaError):  # what was found before is told then
                await awaited(self._broker.groups.branch_progress.of_group(group.group_id))
        now_ms = self._broker.now_ms()
        order, lasts = self._lasts.get(group.group_id, (None, None))
        if order is not keys:
            lasts = None
        partitions: list[PartitionLag] = []
        produced = 0.0
        source: _TopicReader | None = None
        for number, key in enumerate(keys):
            if not number % _GLANCE and slices.is_over:
                await slices.pause()
            if source is None or source.name != key[0]:
                source = self._topic_reader(group.group_id, key[0], windows, now_ms, is_exact)
            last = lasts[number] if lasts is not None else None
            found = source.read(key[1], offsets, owners.get(key), last)
            partitions.append(found)
            produced += (found.log_end_offset or 0) / source.ranges
        topics = {name for name, _ in keys} | subscribed
        reading = Reading(tuple(partitions), tuple(sorted(topics)), produced)
        self._lasts[group.group_id] = (keys, reading.partitions)
        return reading

    def _topic_reader(
        self,
        group_id: str,
        name: str,
        windows: Mapping[Place, Window],
        now_ms: int,
        is_exact: bool,
    ) -> "_TopicReader":
        topic = self._broker.topics.get(name)
        looked: Mapping[int, SourceProgress] = {}
        if topic is not None and topic.source is not None:
            looked = self._broker.groups.branch_progress.last_of(group_id, topic.topic_id)
        return _TopicReader(name, topic, looked, windows, self.times, now_ms, is_exact)

    def _reads_branches(self, keys: Iterable[Key]) -> bool:
        topics = [self._broker.topics.get(name) for name in {name for name, _ in keys}]
        return any(topic is not None and topic.source is not None for topic in topics)

    def _in_order(
        self, group_id: str, offsets: Mapping[Key, CommittedOffset], owners: Owners
    ) -> list[Key]:
        keys = offsets.keys() | owners.keys()
        known = self._orders.get(group_id)
        if known is None or known[0] != keys:
            known = self._orders[group_id] = (keys, sorted(keys))
        return known[1]

    async def _owners(self, group: Group, slices: Slices) -> tuple[Owners, frozenset[str]]:
        """Who owns which partition, and what members are subscribed to."""
        if isinstance(group, ConsumerGroup):
            return await self._consumer_owners(group, slices), group.subscribed_topics
        known = self._classic.get(group.group_id)
        if known is None or known[0] is not group:
            owners: dict[Key, str | None] = {}
            if group.protocol_type == CONSUMER_PROTOCOL_TYPE:
                for member in group.members.values():
                    for key in _assigned(member.assignment):
                        owners[key] = member.member_id
                    if slices.is_over:
                        await slices.pause()
            known = (group, owners, group_topics(group) or frozenset())
            self._classic[group.group_id] = known
        return known[1], known[2]

    async def _consumer_owners(self, group: ConsumerGroup, slices: Slices) -> Owners:
        owners: dict[Key, str | None] = {}
        topics = self._broker.topics
        for number, (unit, member_id) in enumerate(list(group.owners.items())):
            if not number % (8 * _GLANCE) and slices.is_over:
                await slices.pause()
            topic = topics.get_by_id(unit.topic_id)
            if topic is not None:
                key = (topic.name, unit.partition)
                is_shared = owners.get(key, member_id) != member_id
                owners[key] = None if is_shared else member_id
        return owners


class _TopicReader:
    """Reads the partitions of one topic for one group."""

    __slots__ = (
        "_is_exact",
        "_looked",
        "_now_ms",
        "_times",
        "_topic",
        "_windows",
        "name",
        "ranges",
    )

    def __init__(
        self,
        name: str,
        topic: Topic | None,
        looked: Mapping[int, SourceProgress],
        windows: Mapping[Place, Window],
        times: RecordTimes,
        now_ms: int,
        is_exact: bool,
    ) -> None:
        self.name = name
        self._topic = topic
        self._looked = looked
        self._windows = windows
        self._times = times
        self._now_ms = now_ms
        self._is_exact = is_exact
        # How many partitions show the same log.
        self.ranges = topic.layout.ranges if topic is not None and topic.layout is not None else 1

    def read(
        self,
        number: int,
        offsets: Mapping[Key, CommittedOffset],
        member_id: str | None,
        last: PartitionLag | None,
    ) -> PartitionLag:
        topic = self._topic
        if topic is None or not topic.has_partition(number):
            return self._gone(number, offsets.get((self.name, number)))
        committed = committed_offset(offsets, self.name, topic.topic_id, number)
        # -1 is committed where slots of a partition have no offset yet.
        offset = committed.offset if committed is not None and committed.offset >= 0 else None
        log = topic.partitions[number].log
        start, end = log.log_start_offset, log.high_watermark
        records = lag(end, offset, start)
        first = start if offset is None else offset
        if records and self._looked:
            records, first = self._branch_lag(topic, number, records, first, end)
        elif records and self._windows:
            window = self._windows.get((topic.topic_id, number))
            if window is not None:
                records = min(records, window.open_records + max(end - window.end_offset, 0))
        if last is not None and not records and last.lag_records == 0:
            committed_ms = committed.commit_timestamp_ms if committed is not None else None
            # A commit without a new time has nothing new.
            if (
                last.log_end_offset == end
                and last.log_start_offset == start
                and last.committed_offset == offset
                and last.committed_ms == committed_ms
                and last.member_id == member_id
                and last.metadata == (committed.metadata if committed is not None else "")
            ):
                return last
        return PartitionLag(
            topic=self.name,
            partition=number,
            committed_offset=offset,
            leader_epoch=committed.leader_epoch if committed is not None else -1,
            metadata=committed.metadata if committed is not None else "",
            committed_ms=committed.commit_timestamp_ms if committed is not None else None,
            log_start_offset=start,
            log_end_offset=end,
            lag_records=records,
            lag_ms=self._lag_ms(log, records, first),
            member_id=member_id,
        )

    def _gone(self, number: int, committed: CommittedOffset | None) -> PartitionLag:
        return PartitionLag(
            topic=self.name,
            partition=number,
            committed_offset=committed.offset if committed is not None else None,
            leader_epoch=committed.leader_epoch if committed is not None else -1,
            metadata=committed.metadata if committed is not None else "",
            committed_ms=committed.commit_timestamp_ms if committed is not None else None,
            log_start_offset=None,
            log_end_offset=None,
            lag_records=None,
            lag_ms=None,
            member_id=None,
        )

    def _branch_lag(
        self, topic: Topic, number: int, distance: int, first: int, end: int
    ) -> tuple[int, int]:
        """The records of a branch that are to be done, and where the first of them may be.

        As of the last look at its source; of what came since, each branch is given its share.
        """
        assert topic.layout is not None
        partition, index = topic.layout.branch_at(number)
        looked = self._looked.get(partition)
        if looked is None:
            return distance, first
        progress, ranges = looked.progress, topic.layout.ranges
        arrived = max(end - progress.high_watermark, 0)
        share = arrived * (index + 1) // ranges - arrived * index // ranges
        records = min(progress.unprocessed[index] + share, distance)
        return records, max(first, min(progress.firsts[index], end - 1))

    def _lag_ms(self, log: PartitionLog, records: int, first: int) -> int | None:
        if not records:
            return 0
        written_ms = self._times.get(log, max(first, log.log_start_offset), is_exact=self._is_exact)
        return max(self._now_ms - written_ms, 0) if written_ms is not None else None


def _assigned(assignment: bytes) -> Iterable[Key]:
    """The partitions of a classic member; none where its bytes are not a consumer's."""
    if not assignment:
        return []
    try:
        decoded = decode_assignment(assignment)
    except ConsumerProtocolError:
        return []
    return [(topic, number) for topic, numbers in decoded.partitions for number in numbers]
