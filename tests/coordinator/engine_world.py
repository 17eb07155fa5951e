"""A broker that is only numbers around the real engine: logs, journals, timers, what was shown.

`World` does what the broker does with a shard: it decides, writes durable records to the journal
that each belongs to, replays, sets timers, and answers; it reads logs for members, withholds what
is done, and remembers what it showed. It can die at any point of a decision and start again, with
logs that lost their end, or without the journal of individual commits.

Real are the shard, the codecs of both journals, the timers, what was shown (`Deliveries`), and
what is withheld (`done_of`). A record of a log is its leader epoch and its key.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, NamedTuple

from anabranch.branch.slots import slot_of_key
from anabranch.broker.deliveries import Deliveries
from anabranch.broker.fetch_sessions import FetchedPartition
from anabranch.coordinator.cooperative.acks import Ack, LogFacts
from anabranch.coordinator.cooperative.book import expired, with_acked
from anabranch.coordinator.cooperative.commands import (
    Action,
    Decision,
    Failure,
    LogsFound,
    LogState,
    PartitionAcks,
    TakeAcks,
    TakeDecisions,
)
from anabranch.coordinator.cooperative.holdings import holdings_of
from anabranch.coordinator.cooperative.progress import PartitionProgress, new_progress
from anabranch.coordinator.cooperative.records import Place, ProgressForgotten, ProgressWritten
from anabranch.coordinator.cooperative.retries import exhausted_offsets
from anabranch.coordinator.cooperative.settings import CooperativeSettings
from anabranch.coordinator.group import commands as c
from anabranch.coordinator.group import consumer_commands as cc
from anabranch.coordinator.group import consumer_records as cr
from anabranch.coordinator.group.assignors.registry import build_registry
from anabranch.coordinator.group.consumer_offsets import check_fetch
from anabranch.coordinator.group.consumer_state import ConsumerGroup, ConsumerMember
from anabranch.coordinator.group.settings import GroupSettings
from anabranch.coordinator.group.shard import GroupShard, Surroundings
from anabranch.coordinator.runtime.result import Result
from anabranch.coordinator.runtime.timers import Timers
from anabranch.engine.journal.group_codec import decode, encode
from anabranch.engine.journal.individual_commit_codec import decode_progress, encode_progress
from anabranch.handlers.range_fetch import done_of
from anabranch.model.cluster_image import ClusterImage, TopicImage
from anabranch.model.errors import ErrorCode
from anabranch.model.units import SlotRange, hashes_of
from anabranch.wire.messages.cooperation import KeyRange, RangeFetch

GROUP = "g"
TOPIC = "t"
START_MS = 1_700_000_000_000
SESSION_MS = 45_000
REBALANCE_MS = 60_000
# Eight slots that matter, each with three keys: a slot is more than a key, and a range more than
# a slot.
KEYS = {
    4096: (b"k4d3b", b"k1c30f", b"k50dd6"),
    12288: (b"k7f6f", b"ka86a", b"k2892b"),
    20480: (b"kc8e0", b"k38d01", b"k553da"),
    28672: (b"k880a", b"kebf3", b"k29902"),
    36864: (b"k6673", b"k18e09", b"k1d76e"),
    45056: (b"k28cb4", b"k31957", b"k38556"),
    53248: (b"k326e9", b"k568d4", b"k58b3f"),
    61440: (b"k2543f", b"k3ece6", b"k4b3b7"),
}
SLOTS = tuple(KEYS)
ALL_KEYS = tuple(key for keys in zip(*KEYS.values(), strict=True) for key in keys)
assert all(slot_of_key(key) == slot for slot, keys in KEYS.items() for key in keys)


class Ident(NamedTuple):
    """Which record it is: the same offset is another record after the log lost its end."""

    leader_epoch: int
    offset: int


class Logged(NamedTuple):
    ident: Ident
    key: bytes
    slot: int


class ModelLog:
    """A log: which records there are, and which leader epoch began where."""

    def __init__(self) -> None:
        self.start = 0
        self.end = 0
        self.records: dict[int, Logged] = {}
        self.epochs = [(0, 0)]

    @property
    def leader_epoch(self) -> int:
        return self.epochs[-1][0]

    def append(self, key: bytes) -> None:
        ident = Ident(self.leader_epoch, self.end)
        self.records[self.end] = Logged(ident, key, slot_of_key(key))
        self.end += 1

    def end_of(self, epoch: int) -> int:
        later = [start for other, start in self.epochs if other > epoch]
        return later[0] if later else self.end

    def restarted(self, lost: int) -> None:
        """The broker died: the end of the log may be gone, and the leader epoch is another one."""
        epoch = self.leader_epoch + 1
        self.end = max(self.start, self.end - lost)
        self.records = {o: record for o, record in self.records.items() if o < self.end}
        self.epochs = [one for one in self.epochs if one[1] < self.end]
        self.epochs.append((epoch, self.end))

    def retain_from(self, offset: int) -> None:
        self.start = min(max(self.start, offset), self.end)
        self.records = {o: record for o, record in self.records.items() if o >= self.start}

    def state(self, epochs: Iterable[int]) -> LogState:
        return LogState(
            log_start_offset=self.start,
            log_end_offset=self.end,
            leader_epoch=self.leader_epoch,
            epoch_ends={epoch: self.end_of(epoch) for epoch in epochs},
        )


@dataclass(frozen=True, slots=True)
class Told:
    """What a member tells of one partition, as it goes over the wire."""

    place: Place
    leader_epoch: int
    acks: tuple[Ack, ...]
    failures: tuple[Failure, ...] = ()


@dataclass(frozen=True, slots=True)
class Commit:
    """An individual commit on its way."""

    member_id: str
    member_epoch: int
    told: tuple[Told, ...]


@dataclass(frozen=True, slots=True)
class Fetched:
    """The answer to a fetch."""

    error: ErrorCode = ErrorCode.NONE
    rows: tuple[Logged, ...] = ()
    covered_offset: int = -1
    log_start_offset: int = -1


@dataclass(slots=True)
class Fate:
    """What becomes of a request: whether it is decided, what of it is written, who is told."""

    arrives: bool = True
    # None: all of it. Otherwise the broker dies after so many journals were written.
    journals_written: int | None = None
    is_answered: bool = True

    @property
    def kills(self) -> bool:
        return self.journals_written is not None


FINE = Fate()
NOT_SENT = Fate(arrives=False, is_answered=False)
UNANSWERED = Fate(is_answered=False)
FATES = (
    FINE,
    FINE,
    FINE,
    NOT_SENT,
    UNANSWERED,
    *(Fate(journals_written=count, is_answered=False) for count in range(3)),
)


@dataclass
class World:
    """The broker, its clock, and everything that it knows."""

    settings: CooperativeSettings
    partitions: int = 1
    now_ms: int = START_MS
    logs: dict[Place, ModelLog] = field(default_factory=dict)
    timers: Timers = field(default_factory=Timers)
    deliveries: Deliveries = field(default_factory=Deliveries)
    # The last value of each key, in the order they were written.
    primary: dict[bytes, bytes | None] = field(default_factory=dict)
    individual: dict[bytes, bytes | None] = field(default_factory=dict)
    generation: int = 0
    # What is in the dead-letter topic.
    dead: list[tuple[Place, Ident]] = field(default_factory=list)
    # How often the broker was started: connections do not outlive it.
    lives: int = 1
    on_restart: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        self.surroundings = Surroundings(
            build_registry(["uniform", "range"]),
            broker_members=lambda: self.shard.consumer_members,
            cooperative_settings=lambda *_: self.settings,
        )
        self.image = ClusterImage()
        self.shard = GroupShard(GroupSettings(), self.surroundings)
        self.create_topic()

    # What there is --------------------------------------------------------------------------------

    @property
    def now_s(self) -> float:
        return (self.now_ms - START_MS) / 1000

    @property
    def group(self) -> ConsumerGroup | None:
        group = self.shard.group(GROUP)
        return group if isinstance(group, ConsumerGroup) else None

    def member(self, member_id: str) -> ConsumerMember | None:
        return self.group.members.get(member_id) if self.group is not None else None

    @property
    def topic(self) -> TopicImage:
        return self.image.topics[TOPIC]

    def progress(self, place: Place) -> PartitionProgress | None:
        tracked = self.shard.progress(GROUP).get(place)
        return tracked.progress if tracked is not None else None

    def committed(self, place: Place) -> int | None:
        found = self.shard.offsets(GROUP).get((TOPIC, place[1]))
        return found.offset if found is not None and found.topic_id == place[0] else None

    def committed_epoch(self, place: Place) -> int:
        """The leader epoch of what is committed; that of the log when nobody said."""
        epoch = self.shard.offsets(GROUP)[TOPIC, place[1]].leader_epoch
        return epoch if epoch >= 0 else self.logs[place].leader_epoch

    # Topics ---------------------------------------------------------------------------------------

    def create_topic(self) -> None:
        self.generation += 1
        topic_id = f"{TOPIC}/{self.generation}".encode().ljust(16, b".")
        made = TopicImage(TOPIC, topic_id, self.partitions, is_shareable=True)
        for partition in range(self.partitions):
            self.logs[topic_id, partition] = ModelLog()
        self._set_topics({TOPIC: made})

    def recreate_topic(self) -> None:
        """The topic is deleted, and another one gets its name."""
        self.logs.clear()
        self._set_topics({})
        self.submit(c.DeleteTopicOffsets(topic=TOPIC))
        self.create_topic()

    def _set_topics(self, topics: dict[str, TopicImage]) -> None:
        self.image = self.image.with_topics(topics)
        self.submit(cc.ClusterChanged(image=self.image, changed=frozenset({TOPIC})))

    # Deciding -------------------------------------------------------------------------------------

    def submit(self, command: Any, fate: Fate = FINE) -> Any:
        """Decide, write, replay; the answer is returned also when nobody is told."""
        result = self.shard.decide(command, self.now_ms)
        if fate.kills:
            self._write(result, fate.journals_written or 0)
            self.restart()
            return result.response
        self._write(result, 2)
        for record in result.records:
            self.shard.replay(record)
            if isinstance(record, cr.MemberWritten) and record.member is None:
                self.deliveries.forget_member(record.group_id, record.member_id)
        self._set_timers(result)
        return result.response

    def _set_timers(self, result: Result) -> None:
        for change in result.timers:
            self.timers.apply(change)

    def _write(self, result: Result, journals: int) -> None:
        """The journal of individual commits is written first."""
        durable = [record for record in result.records if record.is_durable]
        progress = [r for r in durable if isinstance(r, ProgressWritten | ProgressForgotten)]
        groups = [r for r in durable if not isinstance(r, ProgressWritten | ProgressForgotten)]
        if journals > 0:
            for record in progress:
                _put(self.individual, encode_progress([record]))
        if journals > 1:
            for record in groups:
                _put(self.primary, [encode(record)])

    def read(self) -> GroupShard:
        """A shard with what the journals say."""
        shard = GroupShard(GroupSettings(), self.surroundings)
        shard.replay(cr.ImageChanged(image=self.image))
        for key, value in self.primary.items():
            shard.replay(decode(key, value))  # type: ignore[arg-type]
        for key, value in self.individual.items():
            shard.replay(decode_progress(key, value))  # type: ignore[arg-type]
        return shard

    def restart(self, lost: Sequence[int] = ()) -> None:
        """kill -9 and start; each log has lost so many records."""
        self.lives += 1
        for log, count in zip(self.logs.values(), [*lost, *[0] * len(self.logs)], strict=False):
            log.restarted(count)
        self.shard = self.read()
        self.timers = Timers()
        self.deliveries = Deliveries()
        if self.group is not None:
            self.deliveries.group_loaded(GROUP, self.group.group_epoch)
        epochs = self.shard.epochs_in_doubt()
        states = {
            place: self.logs[place].state(some)
            for place, some in epochs.items()
            if place in self.logs
        }
        for command in (LogsFound(logs=states), c.Loaded()):
            result = self.shard.decide(command, self.now_ms)
            for record in result.records:
                assert not record.is_durable, "what follows from the journal is written again"
                self.shard.replay(record)
            self._set_timers(result)
        self.on_restart()

    def wait(self, delay_ms: int) -> None:
        """Let time pass; timers ring when they are due."""
        end_ms = self.now_ms + delay_ms
        while (deadline_ms := self.timers.next_deadline_ms()) is not None and deadline_ms <= end_ms:
            self.now_ms = max(self.now_ms, deadline_ms)
            key = self.timers.pop_expired(self.now_ms)
            if key is not None:
                self.submit(c.TimerFired(key=key))
        self.now_ms = end_ms

    # What members ask for -------------------------------------------------------------------------

    def fetch(
        self,
        member_id: str,
        member_epoch: int,
        place: Place,
        asked: Sequence[SlotRange],
        first: int,
        leader_epoch: int,
        span: int,
    ) -> Fetched:
        """Records of key ranges, as `Fetch` answers for a member."""
        log = self.logs.get(place)
        if log is None:
            return Fetched(ErrorCode.UNKNOWN_TOPIC_ID)
        if leader_epoch != log.leader_epoch:
            return Fetched(ErrorCode.FENCED_LEADER_EPOCH)
        member = self.member(member_id)
        if member is None or member_epoch not in (
            member.member_epoch,
            member.previous_member_epoch,
        ):
            return Fetched(ErrorCode.FENCED_MEMBER_EPOCH)
        held = holdings_of(member, *place).slots
        if not all(_is_covered(slots, held) for slots in asked):
            return Fetched(ErrorCode.FENCED_MEMBER_EPOCH)
        if not log.start <= first <= log.end:
            return Fetched(ErrorCode.OFFSET_OUT_OF_RANGE, log_start_offset=log.start)
        upto = min(first + span, log.end)
        done = self._withheld(member_id, member_epoch, place, asked, first)
        rows = tuple(
            record
            for offset, record in sorted(log.records.items())
            if first <= offset < upto
            and any(slots.first <= record.slot < slots.end for slots in asked)
            and offset not in done
        )
        self.deliveries.note(GROUP, *place, member_id, member_epoch, upto)
        return Fetched(rows=rows, covered_offset=upto)

    def _withheld(
        self,
        member_id: str,
        member_epoch: int,
        place: Place,
        asked: Sequence[SlotRange],
        first: int,
    ) -> Any:
        ranges = [KeyRange(first_hash=one, last_hash=last) for one, last in map(hashes_of, asked)]
        wanted = FetchedPartition(
            topic=place[0],
            index=place[1],
            fetch_offset=first,
            max_bytes=1 << 20,
            current_leader_epoch=-1,
            range_fetch=RangeFetch(
                group_id=GROUP, member_id=member_id, member_epoch=member_epoch, ranges=ranges
            ),
        )
        broker: Any = SimpleNamespace(
            topics=SimpleNamespace(id_of=lambda topic: topic), groups=self.shard
        )
        return done_of(broker, wanted)

    def fetch_offsets(
        self, member_id: str, member_epoch: int, place: Place
    ) -> PartitionProgress | None:
        """How far the group is, as `OffsetFetch` answers; None when the member may not ask."""
        group, log = self.group, self.logs.get(place)
        if group is None or log is None or check_fetch(group, member_id, member_epoch):
            return None
        known = self.progress(place)
        if known is None:
            committed = self.committed(place)
            return new_progress(-1 if committed is None else committed)
        return with_acked(known, expired(known, log.start))

    def facts(self, commit: Commit, told: Told) -> LogFacts:
        """What a commit is judged by when it arrives."""
        log = self.logs[told.place]
        member = self.member(commit.member_id)
        delivered = None
        held = holdings_of(member, *told.place).slots if member is not None else {}
        if held:
            since = min(held.values())
            delivered = self.deliveries.delivered(GROUP, *told.place, commit.member_id, since)
        return LogFacts(
            log_start_offset=log.start,
            log_end_offset=log.end,
            delivered_offset=log.end if delivered is None else delivered,
            epoch_end_offset=log.end_of(told.leader_epoch) if told.leader_epoch >= 0 else log.end,
        )

    def commit(self, commit: Commit, fate: Fate = FINE) -> tuple[tuple[Told, ...], Any]:
        """Take an individual commit; what of it is about topics that are there, and the answer."""
        there = tuple(told for told in commit.told if told.place in self.logs)
        command = TakeAcks(
            group_id=GROUP,
            member_id=commit.member_id,
            member_epoch=commit.member_epoch,
            partitions=tuple(
                PartitionAcks(
                    topic=TOPIC,
                    topic_id=told.place[0],
                    partition=told.place[1],
                    facts=self.facts(commit, told),
                    leader_epoch=self.logs[told.place].leader_epoch,
                    acks=told.acks,
                    failures=told.failures,
                )
                for told in there
            ),
        )
        return there, self.submit(command, fate)

    # Records after their last attempt -------------------------------------------------------------

    def decide(self, place: Place, decisions: Sequence[Decision], fate: Fate = FINE) -> Any:
        """Decisions; whatever is to be in the dead-letter topic is copied there first."""
        log, progress = self.logs[place], self.progress(place)
        waiting = exhausted_offsets(progress) if progress is not None else []
        for decision in decisions:
            if decision.action is Action.DLQ:
                for offset in waiting:
                    is_meant = decision.offset == offset or (
                        decision.offset < 0
                        and progress is not None
                        and progress.attempts[offset].key_hash == decision.key_hash
                    )
                    if is_meant and offset in log.records:
                        self.dead.append((place, log.records[offset].ident))
        return self.submit(
            TakeDecisions(
                group_id=GROUP,
                topic=TOPIC,
                topic_id=place[0],
                partition=place[1],
                log_start_offset=log.start,
                decisions=tuple(decisions),
            ),
            fate,
        )


def _put(journal: dict[bytes, bytes | None], entries: Iterable[tuple[bytes, Any]]) -> None:
    for key, value in entries:
        journal.pop(key, None)
        journal[key] = value


def _is_covered(wanted: SlotRange, held: Iterable[SlotRange]) -> bool:
    first = wanted.first
    for slots in sorted(held):
        if slots.first <= first < slots.end:
            first = slots.end
    return first >= wanted.end
