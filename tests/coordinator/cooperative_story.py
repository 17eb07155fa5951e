"""Stories of individual commits: who holds which slots, what they did, and exactly what followed.

A `Desk` does what the broker does with a shard: it decides, replays, and keeps the durable records
as the two journals would, each key's last one. Each step checks that deciding changes nothing and
that the journals alone give back what the living shard knows. Logs are numbers: where they start
and end, and which leader epoch began where.
"""

import copy
import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from anabranch.coordinator.cooperative.acks import NO_WATERMARK, Ack, LogFacts
from anabranch.coordinator.cooperative.commands import (
    Decision,
    Failure,
    LogsFound,
    LogState,
    PartitionAcks,
    PartitionAnswer,
    TakeAcks,
    TakeDecisions,
)
from anabranch.coordinator.cooperative.progress import PartitionProgress
from anabranch.coordinator.cooperative.records import (
    Place,
    ProgressForgotten,
    ProgressWritten,
)
from anabranch.coordinator.cooperative.settings import CooperativeSettings
from anabranch.coordinator.group import commands as c
from anabranch.coordinator.group import consumer_records as cr
from anabranch.coordinator.group.consumer_state import ConsumerMember
from anabranch.coordinator.group.records import OffsetCommitted
from anabranch.coordinator.group.settings import GroupSettings
from anabranch.coordinator.group.shard import GroupShard, Surroundings
from anabranch.coordinator.runtime.result import Result
from anabranch.coordinator.runtime.timers import Timers
from anabranch.engine.journal.group_codec import decode, encode
from anabranch.engine.journal.individual_commit_codec import decode_progress, encode_progress
from anabranch.model.cluster_image import ClusterImage, TopicImage
from anabranch.model.errors import ErrorCode
from anabranch.model.offset_ranges import OffsetRanges
from anabranch.model.units import ALL_SLOTS, SLOT_COUNT, SlotRange, Unit

GROUP = "g"
TOPIC = "t"
TOPIC_ID = b"t".ljust(16, b".")
PLACE: Place = (TOPIC_ID, 0)
MIDDLE = SLOT_COUNT // 2
LOW, HIGH = SlotRange(0, MIDDLE), SlotRange(MIDDLE, SLOT_COUNT)
START_MS = 1_700_000_000_000

OK = ErrorCode.NONE


def done(*pairs: tuple[int, int]) -> OffsetRanges:
    return OffsetRanges(pairs)


def ack(
    slots: SlotRange, epoch: int, watermark: int = NO_WATERMARK, *pairs: tuple[int, int]
) -> Ack:
    return Ack(slots, epoch, watermark, OffsetRanges(pairs))


class Log:
    """A log as far as commits care."""

    def __init__(self, end: int = 1000, leader_epoch: int = 3) -> None:
        self.start = 0
        self.end = end
        self.epochs = [(leader_epoch, 0)]

    @property
    def leader_epoch(self) -> int:
        return self.epochs[-1][0]

    def end_of(self, epoch: int) -> int:
        later = [start for other, start in self.epochs if other > epoch]
        return later[0] if later else self.end

    def cut(self, end: int, leader_epoch: int) -> None:
        """A start after a crash: the end may be gone, and the leader epoch is another one."""
        self.end = min(self.end, end)
        self.epochs = [one for one in self.epochs if one[1] < self.end]
        self.epochs.append((leader_epoch, self.end))

    def state(self, epochs: Iterable[int]) -> LogState:
        return LogState(
            log_start_offset=self.start,
            log_end_offset=self.end,
            leader_epoch=self.leader_epoch,
            epoch_ends={epoch: self.end_of(epoch) for epoch in epochs},
        )


class Step:
    """What one command has led to."""

    def __init__(self, result: Result) -> None:
        self.answer = result.response
        self.records = [record for record in result.records if record.is_durable]
        self.timers = result.timers

    @property
    def partition(self) -> PartitionAnswer:
        """What became of the only partition."""
        (answer,) = self.answer.partitions
        assert isinstance(answer, PartitionAnswer)
        return answer

    @property
    def codes(self) -> list[ErrorCode]:
        """The codes of the parts of the acknowledgements."""
        return [one.error_code for one in self.partition.outcomes]

    @property
    def failure_codes(self) -> list[ErrorCode]:
        return [one.error_code for one in self.partition.failures]

    def fails(self, error: ErrorCode) -> None:
        assert (self.answer.error, self.records) == (error, [])


class Desk:
    """One shard with a topic of two partitions, its logs and its journals."""

    checks_replay = True

    def __init__(self, **settings: int) -> None:
        self.settings = CooperativeSettings(**settings)
        self.now_ms = START_MS
        self.logs: dict[Place, Log] = {PLACE: Log(), (TOPIC_ID, 1): Log()}
        self.topics = {TOPIC: TopicImage(TOPIC, TOPIC_ID, 2)}
        # The last value of each key, in the order they were written.
        self.primary: dict[bytes, bytes | None] = {}
        self.individual: dict[bytes, bytes | None] = {}
        self.timers = Timers()
        self.shard = self._new_shard()

    def _new_shard(self) -> GroupShard:
        surroundings = Surroundings(
            cooperative_settings=lambda group_id: self.settings,
            progress_bytes=lambda: self.shard.progress_bytes,
        )
        shard = GroupShard(GroupSettings(), surroundings)
        image = ClusterImage(1, self.topics, {t.topic_id: t for t in self.topics.values()})
        shard.replay(cr.ImageChanged(image=image))
        return shard

    # What there is ------------------------------------------------------------------------------

    def progress(self, place: Place = PLACE, group_id: str = GROUP) -> PartitionProgress | None:
        tracked = self.shard.progress(group_id).get(place)
        return tracked.progress if tracked is not None else None

    def intervals(self, place: Place = PLACE) -> Any:
        progress = self.progress(place)
        return None if progress is None else progress.intervals

    def committed(self, partition: int = 0, group_id: str = GROUP) -> int | None:
        found = self.shard.offsets(group_id).get((TOPIC, partition))
        return found.offset if found is not None else None

    # Commands -----------------------------------------------------------------------------------

    def submit(self, command: Any) -> Step:
        before = _image(self.shard)
        result = self.shard.decide(command, self.now_ms)
        if self.checks_replay:
            assert self.shard.decide(command, self.now_ms) == result, "decide is not repeatable"
            assert _image(self.shard) == before, "decide changed the state"
        return self._apply(result)

    def _apply(self, result: Result) -> Step:
        for record in result.records:
            if record.is_durable:
                self._write(record)
            self.shard.replay(record)
        for change in result.timers:
            self.timers.apply(change)
        if self.checks_replay:
            self.check_replay()
        return Step(result)

    def _write(self, record: Any) -> None:
        if isinstance(record, ProgressWritten | ProgressForgotten):
            entries, journal = encode_progress([record]), self.individual
        else:
            entries, journal = [encode(record)], self.primary
        for key, value in entries:
            journal.pop(key, None)
            journal[key] = value

    def check_replay(self) -> None:
        """What the journals say is what the shard knows, but for what was settled since."""
        read = self.read()
        for group_id in (GROUP, "other"):
            assert read.offsets(group_id) == self.shard.offsets(group_id)
            known = self.shard.progress(group_id)
            written = read.progress(group_id)
            assert known.keys() <= written.keys()
            for place, tracked in known.items():
                if not tracked.needs_snapshot:
                    assert written[place] == tracked

    def read(self) -> GroupShard:
        """A shard with what the journals say."""
        shard = self._new_shard()
        for key, value in self.primary.items():
            shard.replay(decode(key, value))  # type: ignore[arg-type]
        for key, value in self.individual.items():
            shard.replay(decode_progress(key, value))  # type: ignore[arg-type]
        return shard

    def compact(self) -> None:
        """Tombstones go in the end."""
        for journal in (self.primary, self.individual):
            for key in [key for key, value in journal.items() if value is None]:
                del journal[key]

    def restart(self, missing: Place | None = None) -> list[Step]:
        """kill -9 and start; the logs are what they are by now, but for one that may be missing.
        What timers wrote comes last."""
        self.shard = self.read()
        self.timers = Timers()
        epochs = self.shard.epochs_in_doubt()
        logs = {
            place: self.logs[place].state(some)
            for place, some in epochs.items()
            if place[0] in {topic.topic_id for topic in self.topics.values()} and place != missing
        }
        found = self.shard.decide(LogsFound(logs=logs), self.now_ms)
        assert not any(record.is_durable for record in found.records)
        self._apply(found)
        return []

    def ring(self) -> list[Step]:
        """Let the timers of what was settled ring."""
        steps = []
        while (key := self.timers.pop_expired(self.now_ms)) is not None:
            steps.append(self.submit(c.TimerFired(key=key)))
        return steps

    def replace_topics(self, *topics: TopicImage) -> None:
        self.topics = {topic.name: topic for topic in topics}
        image = ClusterImage(2, self.topics, {t.topic_id: t for t in topics})
        self.shard.replay(cr.ImageChanged(image=image))

    # Members ------------------------------------------------------------------------------------

    def holds(
        self,
        member_id: str,
        epoch: int,
        slots: Mapping[SlotRange, int],
        pending: Mapping[SlotRange, int] | None = None,
        place: Place = PLACE,
    ) -> None:
        """Make somebody a member that holds slots of a partition, each since an epoch."""
        described = ConsumerMember(member_id=member_id, subscribed_topic_names=(TOPIC,))
        current = dataclasses.replace(
            described,
            member_epoch=epoch,
            previous_member_epoch=epoch - 1,
            assigned={Unit(*place, one): since for one, since in slots.items()},
            pending_revocation={Unit(*place, one): s for one, s in (pending or {}).items()},
        )
        for record in (
            cr.GroupEpochWritten(group_id=GROUP, epoch=epoch),
            cr.MemberWritten(group_id=GROUP, member_id=member_id, member=described),
            cr.CurrentWritten(group_id=GROUP, member_id=member_id, member=current),
        ):
            self._write(record)
            self.shard.replay(record)

    def leaves(self, member_id: str) -> None:
        record = cr.MemberWritten(group_id=GROUP, member_id=member_id, member=None)
        self._write(record)
        self.shard.replay(record)

    # Commits ------------------------------------------------------------------------------------

    def part(
        self,
        *acks: Ack,
        failures: tuple[Failure, ...] = (),
        partition: int = 0,
        leader_epoch: int | None = None,
        delivered: int | None = None,
    ) -> PartitionAcks:
        log = self.logs[TOPIC_ID, partition]
        epoch_end = log.end if leader_epoch is None else log.end_of(leader_epoch)
        return PartitionAcks(
            topic=TOPIC,
            topic_id=TOPIC_ID,
            partition=partition,
            facts=LogFacts(
                log.start, log.end, log.end if delivered is None else delivered, epoch_end
            ),
            leader_epoch=log.leader_epoch,
            acks=acks,
            failures=failures,
        )

    def take(
        self, member_id: str, epoch: int, *parts: PartitionAcks, group_id: str = GROUP
    ) -> Step:
        return self.submit(
            TakeAcks(group_id=group_id, member_id=member_id, member_epoch=epoch, partitions=parts)
        )

    def ack(self, member_id: str, epoch: int, *acks: Ack, **facts: Any) -> Step:
        return self.take(member_id, epoch, self.part(*acks, **facts))

    def fail(self, member_id: str, epoch: int, *failures: Failure, **facts: Any) -> Step:
        return self.take(member_id, epoch, self.part(failures=failures, **facts))

    def decide(self, *decisions: Decision, partition: int = 0, group_id: str = GROUP) -> Step:
        """Decisions of somebody who looks after the group."""
        return self.submit(
            TakeDecisions(
                group_id=group_id,
                topic=TOPIC,
                topic_id=TOPIC_ID,
                partition=partition,
                log_start_offset=self.logs[TOPIC_ID, partition].start,
                decisions=decisions,
            )
        )

    def commit(
        self,
        offset: int,
        member_id: str = "",
        epoch: int = -1,
        partitions: Iterable[int] = (0,),
        group_id: str = GROUP,
        **changes: Any,
    ) -> Step:
        """A plain commit."""
        values: dict[str, Any] = {
            "group_id": group_id,
            "member_id": member_id,
            "group_instance_id": None,
            "generation_id": epoch,
            "retention_ms": -1,
            "knows_group_id_not_found": True,
            "offsets": tuple(
                c.OffsetToCommit(
                    topic=TOPIC,
                    topic_id=TOPIC_ID,
                    partition=partition,
                    offset=offset,
                    leader_epoch=-1,
                    metadata=None,
                )
                for partition in partitions
            ),
        }
        return self.submit(c.CommitOffsets(**values | changes))


def _image(shard: GroupShard) -> Any:
    groups = (GROUP, "other")
    return copy.deepcopy(
        [(dict(shard.progress(group)), dict(shard.offsets(group))) for group in groups]
    )


# Records ----------------------------------------------------------------------------------------


def written(sequence: int, value: Any, partition: int = 0, group_id: str = GROUP) -> Any:
    return ProgressWritten(
        group_id=group_id, topic_id=TOPIC_ID, partition=partition, sequence=sequence, value=value
    )


def forgotten(partition: int = 0, group_id: str = GROUP, topic_id: bytes = TOPIC_ID) -> Any:
    return ProgressForgotten(group_id=group_id, topic_id=topic_id, partition=partition)


def committed(
    offset: int | None,
    partition: int = 0,
    *,
    at_ms: int = START_MS,
    leader_epoch: int = 3,
    group_id: str = GROUP,
    topic_id: bytes = TOPIC_ID,
) -> Any:
    value = None
    if offset is not None:
        value = c.CommittedOffset(
            offset=offset,
            leader_epoch=leader_epoch,
            commit_timestamp_ms=at_ms,
            topic_id=topic_id,
        )
    return OffsetCommitted(group_id=group_id, topic=TOPIC, partition=partition, value=value)


WHOLE = {ALL_SLOTS: 5}
