"""Where ranges begin: how far the group is with them, and what of them it has done beyond that."""

import asyncio
from collections.abc import Collection, Iterable, Sequence

from anabranch.branch.slots import SlotRule
from anabranch.client.cluster import is_worth_retrying
from anabranch.client.core import Core, log
from anabranch.client.errors import (
    ConsumerError,
    CooperationNotSupportedError,
    NoOffsetError,
    broker_error,
)
from anabranch.client.membership import Membership
from anabranch.client.ordering import NULL_KEY_CONFIG, ORDERING_HEADER_CONFIG, rule_of
from anabranch.client.range_work import DoneBefore, Place, RangeState, RangeWork, Rest
from anabranch.client.records import KeyRange
from anabranch.model.errors import ErrorCode
from anabranch.model.units import ALL_SLOTS, SlotRange, slot_of_hash
from anabranch.wire.messages.cooperation import IndividualProgress
from anabranch.wire.messages.describe_configs import (
    DESCRIBE_CONFIGS,
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from anabranch.wire.messages.list_offsets import (
    EARLIEST,
    LATEST,
    LIST_OFFSETS,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from anabranch.wire.messages.offset_fetch import (
    NO_OFFSET,
    OFFSET_FETCH,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponsePartitions,
)
from anabranch.wire.offset_set import decode

_TAGS_VERSION = 8
_TOPIC_RESOURCE = 2
# How often records are asked about that rest for longer than this. Those that somebody has to
# decide about are asked about early at first, since it may be the broker itself that decides.
_WATCH_S = 3.0
_WATCH_FIRST_S = 0.1
# A record that rests for ever, and for how long that is here.
_NEVER_MS = 2**63 - 1
_REST_MAX_S = 10 * 365 * 86_400.0


class StartingPoints:
    """Loads ranges."""

    def __init__(self, core: Core, membership: Membership | None) -> None:
        self._core = core
        self._membership = membership
        # Where ranges begin that nobody has progress of, by partition.
        self.fixed: dict[Place, int] = {}
        self._turn = asyncio.Lock()
        self._has_failures = asyncio.Event()

    def may_retry(self, error: ConsumerError) -> bool:
        code = getattr(error, "code", None)
        if code in (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE):
            self._core.cluster.forget_coordinator()
        if self._membership is not None and code in (
            ErrorCode.STALE_MEMBER_EPOCH,
            ErrorCode.UNKNOWN_MEMBER_ID,
            ErrorCode.FENCED_MEMBER_EPOCH,
        ):
            self._membership.beat_soon()
            return True
        return is_worth_retrying(error)

    async def load(self, works: Sequence[RangeWork]) -> None:
        """Find out where ranges begin, and begin."""
        places = sorted({work.unit[:2] for work in works})
        for topic_id in sorted({place[0] for place in places}):
            await self.learn_rule(topic_id)
        # What is asked for now is true of this leader epoch, or of a later one.
        leaders = {place: self._core.cluster.leader_of(*place) for place in places}
        progress: dict[Place, tuple[int, IndividualProgress | None]] = {}
        if self._core.settings.group_id is not None:
            progress = await self._fetch_progress(places)
        resets = {
            place: offset
            for place in places
            if (offset := _offset_without(*progress.get(place, (NO_OFFSET, None)))) is None
        }
        starts = await self._reset_offsets(list(resets)) if resets else {}
        with self._core.lock:
            for work in works:
                if work.state is RangeState.LOADING:
                    self._begin(work, progress, starts)
                    leader = leaders[work.unit[:2]]
                    work.leader_epoch = leader.epoch if leader is not None else -1

    def _begin(
        self,
        work: RangeWork,
        progress: dict[Place, tuple[int, IndividualProgress | None]],
        starts: dict[Place, int],
    ) -> None:
        place = work.unit[:2]
        committed, individual = progress.get(place, (NO_OFFSET, None))
        start = starts.get(place, committed)
        known = list(_done_before(individual, work.slots)) if individual is not None else []
        rest = [
            DoneBefore(slots, start)
            for slots in _uncovered(work.slots, [one.slots for one in known])
        ]
        parts = known + rest
        position = min(one.watermark for one in parts)
        # A start that the group does not know is told to it with the first commit, so that the
        # next owner does not begin elsewhere.
        is_known = bool(known) and not rest
        work.load(position, parts, committed=position if is_known else NO_OFFSET)
        if individual is not None:
            work.rests = _rests_of(individual, self._core.clock())
            work.diverted = _diverted_of(individual)
            work.exhausted = {
                one.offset
                for one in individual.retried
                if work.rests[one.offset].is_exhausted
                and work.slots.first <= slot_of_hash(one.key_hash) < work.slots.end
            }

    # What the group knows -------------------------------------------------------------------------

    async def _fetch_progress(
        self, places: Collection[Place]
    ) -> dict[Place, tuple[int, IndividualProgress | None]]:
        """The committed offset of each partition, and what is done beyond it."""
        membership = self._membership
        topics: dict[bytes, OffsetFetchRequestTopics] = {}
        for topic_id, partition in places:
            named = self._core.cluster.place_of(topic_id, partition)
            topic = topics.setdefault(
                topic_id,
                OffsetFetchRequestTopics(name=named.topic if named else "", topic_id=topic_id),
            )
            topic.partition_indexes.append(partition)
        group = OffsetFetchRequestGroup(
            group_id=self._core.settings.group_id or "", topics=list(topics.values())
        )
        if membership is not None:
            group.member_id, group.member_epoch = membership.member_id, membership.epoch
        answer = await self._core.cluster.ask_coordinator(
            OFFSET_FETCH,
            OffsetFetchRequest(groups=[group], with_individual=True),
            least_version=_TAGS_VERSION,
        )
        (found,) = answer.groups
        if found.error_code:
            raise broker_error(found.error_code, "OffsetFetch")
        ids = {topic.name: topic_id for topic_id, topic in topics.items()}
        progress: dict[Place, tuple[int, IndividualProgress | None]] = {}
        for answered in found.topics:
            topic_id = answered.topic_id if any(answered.topic_id) else ids[answered.name]
            for one in answered.partitions:
                self._check(one)
                progress[topic_id, one.partition_index] = (one.committed_offset, one.individual)
        return progress

    def _check(self, answered: OffsetFetchResponsePartitions) -> None:
        if answered.error_code:
            raise broker_error(answered.error_code, "OffsetFetch")
        if answered.individual is None:
            raise CooperationNotSupportedError("OffsetFetch", self._core.cluster.coordinator_place)
        individual = answered.individual
        if individual.stable_offset < 0:
            individual.stable_offset = answered.committed_offset

    async def refresh_rests(self, places: Collection[Place]) -> None:
        """Records failed: take over what the broker makes of it."""
        # It may decide about them a moment later, and nobody else will say so.
        self._has_failures.set()
        await self._refresh_rests(places)

    async def _refresh_rests(self, places: Collection[Place]) -> None:
        try:
            async with self._turn:  # what was asked for first is taken over first
                progress = await self._fetch_progress(sorted(places))
                self._take_over(progress)
        except ConsumerError as error:
            if not self.may_retry(error):
                raise
            log.info("cannot ask for rests: %s", error)  # then they rest as long as was asked for

    def _take_over(self, progress: dict[Place, tuple[int, IndividualProgress | None]]) -> None:
        now = self._core.clock()
        with self._core.lock:
            for place, (_, individual) in progress.items():
                if individual is None:
                    continue
                rests, diverted = _rests_of(individual, now), _diverted_of(individual)
                for work in list(self._core.workload.of_place(place)):
                    done = list(_done_before(individual, work.slots))
                    self._core.workload.update_rests(work, done, rests, diverted, now)
        self._core.set_alarm()
        self._core.on_ready()
        self._core.on_hungry()

    async def watch_rests(self) -> None:
        """Ask now and then about records that rest for long: somebody may have decided about
        them."""
        pause_s = _WATCH_S
        while True:
            self._has_failures.clear()
            try:
                async with asyncio.timeout(pause_s):
                    await self._has_failures.wait()
                pause_s = _WATCH_FIRST_S
                continue
            except TimeoutError:
                pause_s = min(2 * pause_s, _WATCH_S)
            with self._core.lock:
                places = self._core.workload.undecided_places
                resting = self._core.workload.queue.resting_after(self._core.clock() + _WATCH_S)
                places |= {record._work.unit[:2] for record in resting}
            if places:
                await self._refresh_rests(places)

    # What nobody knows ----------------------------------------------------------------------------

    async def _reset_offsets(self, places: Collection[Place]) -> dict[Place, int]:
        """Where partitions without progress begin."""
        found = {place: self.fixed[place] for place in places if place in self.fixed}
        asked = [place for place in places if place not in found]
        if not asked:
            return found
        reset = self._core.settings.auto_offset_reset
        if reset == "none":
            names = [str(self._core.cluster.place_of(*place)) for place in asked]
            raise NoOffsetError(
                f"the group has no progress of {', '.join(names)}, and auto_offset_reset is none"
            )
        timestamp = EARLIEST if reset == "earliest" else LATEST
        answers = await asyncio.gather(*(self._list_offset(place, timestamp) for place in asked))
        return {**found, **dict(zip(asked, answers, strict=True))}

    async def _list_offset(self, place: Place, timestamp: int) -> int:
        cluster = self._core.cluster
        named = cluster.place_of(*place)
        leader = cluster.leader_of(*place)
        if named is None or leader is None:
            await cluster.refresh(ids=[place[0]])
            raise broker_error(ErrorCode.LEADER_NOT_AVAILABLE, f"looking for offsets of {named}")
        asked = ListOffsetsPartition(
            partition_index=place[1], timestamp=timestamp, current_leader_epoch=leader.epoch
        )
        request = ListOffsetsRequest(
            replica_id=-1,
            isolation_level=self._core.settings.isolation_code,
            topics=[ListOffsetsTopic(name=named.topic, partitions=[asked])],
        )
        answer = await cluster.ask_node(leader.node_id, -1, LIST_OFFSETS, request)
        (topic,) = answer.topics
        (found,) = topic.partitions
        if found.error_code:
            await cluster.refresh(ids=[place[0]])
            raise broker_error(found.error_code, f"looking for offsets of {named}")
        offset: int = found.offset
        return offset

    # By what records keep their order -------------------------------------------------------------

    async def learn_rule(self, topic_id: bytes, *, again: bool = False) -> SlotRule:
        """Ask by what the records of a topic keep their order."""
        rules = self._core.workload.rules
        if topic_id in rules and not again:
            return rules[topic_id]
        named = self._core.cluster.place_of(topic_id, 0)
        topic = named.topic if named is not None else ""
        resource = DescribeConfigsResource(
            resource_type=_TOPIC_RESOURCE,
            resource_name=topic,
            configuration_keys=[NULL_KEY_CONFIG, ORDERING_HEADER_CONFIG],
        )
        answer = await self._core.cluster.ask_any(
            DESCRIBE_CONFIGS, DescribeConfigsRequest(resources=[resource])
        )
        (found,) = answer.results
        if found.error_code:
            raise broker_error(
                found.error_code,
                f"asking how {named and named.topic} is ordered",
                found.error_message,
            )
        rule = rule_of({one.name: one.value for one in found.configs})
        with self._core.lock:
            rules[topic_id] = rule
        return rule


def _offset_without(committed: int, individual: IndividualProgress | None) -> int | None:
    """The offset to begin with where nothing more is known; None when nothing is."""
    if individual is not None and individual.ranges:
        covered = [one.slots for one in _done_before(individual, ALL_SLOTS)]
        if not list(_uncovered(ALL_SLOTS, covered)):
            return 0  # it will not be needed
    return committed if committed != NO_OFFSET else None


def _rests_of(individual: IndividualProgress, now: float) -> dict[int, Rest]:
    return {
        one.offset: Rest(
            one.attempts,
            now + min(max(one.not_before_ms, 0) / 1000, _REST_MAX_S),
            is_exhausted=one.not_before_ms == _NEVER_MS,
        )
        for one in individual.retried
    }


def _diverted_of(individual: IndividualProgress) -> dict[int, int]:
    return {one.key_hash: one.offset for one in individual.diverted}


def _done_before(individual: IndividualProgress, slots: SlotRange) -> Iterable[DoneBefore]:
    for one in individual.ranges:
        found = KeyRange(one.first_hash, one.last_hash).slots
        first, end = max(found.first, slots.first), min(found.end, slots.end)
        if first < end and one.watermark >= 0:  # below that nothing is known
            yield DoneBefore(SlotRange(first, end), one.watermark, decode(one.done))


def _uncovered(slots: SlotRange, covered: Iterable[SlotRange]) -> Iterable[SlotRange]:
    first = slots.first
    for one in sorted(covered):
        if one.first > first:
            yield SlotRange(first, one.first)
        first = max(first, one.end)
    if first < slots.end:
        yield SlotRange(first, slots.end)
