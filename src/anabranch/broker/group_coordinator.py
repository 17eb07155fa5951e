"""The group coordinator at work: decide, append, replay, answer.

One driver per partition of `__consumer_offsets`. A command is decided on the shard's state; the
durable records of the decision are appended to the journal as one batch; then all its records are
replayed, its timers set, and its answers let go. If the append fails, the shard is dropped and
read again from the journal (fail-stop), and everybody who waited on it is told to look for the
coordinator again: there is no half-applied decision to undo.

Nothing polls: requests that wait are parked by number, and one loop timer is armed for the nearest
deadline of each shard.
"""

import asyncio
import itertools
import uuid
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from anabranch.broker.deferred import Deferred
from anabranch.broker.partition import Partition
from anabranch.broker.topics import Topic
from anabranch.coordinator.group import commands as c
from anabranch.coordinator.group.classic_state import ClassicGroup
from anabranch.coordinator.group.commands import Command, CommittedOffset
from anabranch.coordinator.group.settings import GroupSettings
from anabranch.coordinator.group.shard import GroupShard
from anabranch.coordinator.runtime.result import Result, WaiterId
from anabranch.coordinator.runtime.timers import Timers
from anabranch.engine.journal.journal import append_records, read_records
from anabranch.engine.journal.partitions import partition_for
from anabranch.model.errors import ErrorCode, KafkaError
from anabranch.observe import logs

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker

JOURNAL_TOPIC = "__consumer_offsets"
# A whole group is one record, and a decision is one batch: large groups need large batches.
_JOURNAL_MAX_MESSAGE_BYTES = 64 * 1024 * 1024


class ShardDriver:
    """One shard with its journal partition, timers and parked requests."""

    def __init__(
        self,
        partition: Partition,
        settings: GroupSettings,
        broker: "Broker",
        now_ms: Callable[[], int],
    ) -> None:
        self.partition = partition
        self._broker = broker
        self._settings = settings
        self._now_ms = now_ms
        self.shard = GroupShard(settings)
        self._timers = Timers()
        self._parked: dict[WaiterId, Deferred[Any]] = {}
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_ms = 0

    # Loading --------------------------------------------------------------------------------------

    def load(self) -> None:
        """Read the journal from its start and rebuild the state."""
        self.shard = GroupShard(self._settings)
        self._timers.clear()
        for record in read_records(self.partition.log):
            self.shard.replay(record)
        result = self.shard.decide(c.Loaded(), self._now_ms())
        for change in result.timers:
            self._timers.apply(change)

    # Commands -------------------------------------------------------------------------------------

    def submit(self, command: Command, waiter: WaiterId | None = None) -> Any:
        """Decide and carry out; the answer, or a Deferred when it comes later.

        It comes later when the request is parked, and when the journal has to be on disk first
        (`flush.on.acks.all`, `flush.messages`). KafkaError when the journal cannot be written.
        """
        result = self.shard.decide(command, self._now_ms())
        if result.response is None and waiter is not None:
            # Parked before anything is woken: a decision may answer its own request.
            parked: Deferred[Any] = Deferred()
            self._parked[waiter] = parked
            self._apply(result)
            return parked
        later = self._apply(result)
        if later is None:
            return result.response
        return later.then(lambda refusal: refusal or result.response)

    def _apply(self, result: Result) -> Deferred[KafkaError | None] | None:
        """Carry out a decision; a Deferred when its answers have to wait for the disk."""
        durable = [record for record in result.records if record.is_durable]
        if durable:
            try:
                size_bytes = append_records(self.partition.log, durable, self._now_ms())
            except KafkaError as error:
                self._fail(error)
                raise KafkaError(ErrorCode.NOT_COORDINATOR, error.message) from error
            self._broker.purgatory.mark(self.partition, size_bytes)
        for record in result.records:
            self.shard.replay(record)
        for change in result.timers:
            self._timers.apply(change)
        self.arm()
        woken = [(self._parked.pop(wake.waiter, None), wake.response) for wake in result.wakes]
        if not durable or not self._broker.must_sync(self.partition, acks=-1):
            _answer(woken)
            return None
        later: Deferred[KafkaError | None] = Deferred()

        def synced(is_safe: bool) -> None:
            refusal = None
            if not is_safe:
                refusal = KafkaError(ErrorCode.NOT_COORDINATOR, "The journal failed.")
                self._fail(refusal)
            _answer([(parked, refusal or response) for parked, response in woken])
            later.complete(refusal)

        self._broker.flusher.sync(self.partition.log, synced)
        return later

    def _fail(self, error: KafkaError) -> None:
        """The journal refused: forget what is in memory and read what is on disk."""
        logs.error(
            "coordinator.shard.reloaded",
            shard=self.partition.log.folder.name,
            reason=error.message,
        )
        parked, self._parked = self._parked, {}
        self.load()
        for deferred in parked.values():
            deferred.complete(KafkaError(ErrorCode.NOT_COORDINATOR, error.message))

    # Time -----------------------------------------------------------------------------------------

    def arm(self) -> None:
        """Have the loop call when the nearest deadline comes, unless it already will."""
        deadline_ms = self._timers.next_deadline_ms()
        if self._alarm is not None:
            if deadline_ms is not None and self._alarm_ms <= deadline_ms:
                return  # it fires early enough and arms itself anew
            self._alarm.cancel()
            self._alarm = None
        if deadline_ms is not None:
            delay_s = max(0, deadline_ms - self._now_ms()) / 1000
            self._alarm_ms = deadline_ms
            self._alarm = asyncio.get_running_loop().call_later(delay_s, self._ring)

    def _ring(self) -> None:
        self._alarm = None
        while (key := self._timers.pop_expired(self._now_ms())) is not None:
            try:
                self._apply(self.shard.decide(c.TimerFired(key=key), self._now_ms()))
            except KafkaError as error:
                logs.error("coordinator.timer.failed", timer=str(key), reason=error.message)
                break
        self.arm()

    def stop(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        parked, self._parked = self._parked, {}
        for deferred in parked.values():
            deferred.complete(KafkaError(ErrorCode.NOT_COORDINATOR, "The broker is shutting down."))


class GroupCoordinator:
    """All shards of this broker."""

    def __init__(self, broker: "Broker", now_ms: Callable[[], int]) -> None:
        self._broker = broker
        self._now_ms = now_ms
        self._settings = _group_settings(broker)
        self._drivers: list[ShardDriver] = []
        self._waiters = itertools.count(1)
        topic = broker.topics.get(JOURNAL_TOPIC)
        if topic is not None:
            self._open(topic)

    def _open(self, topic: Topic) -> None:
        self._drivers = [
            ShardDriver(partition, self._settings, self._broker, self._now_ms)
            for partition in topic.partitions
        ]
        for driver in self._drivers:
            driver.load()

    def start(self) -> None:
        """The loop runs: let the timers of what was loaded run too."""
        for driver in self._drivers:
            driver.arm()

    def stop(self) -> None:
        for driver in self._drivers:
            driver.stop()

    def _ensure_journal(self) -> None:
        """Create the journal topic when the first group appears."""
        if self._drivers:
            return
        topic = self._broker.create_topic(
            JOURNAL_TOPIC,
            self._broker.get_int("offsets.topic.num.partitions"),
            {
                "cleanup.policy": "compact",
                "compression.type": "producer",
                "segment.bytes": str(self._broker.get_int("offsets.topic.segment.bytes")),
                "max.message.bytes": str(_JOURNAL_MAX_MESSAGE_BYTES),
            },
        )
        self._open(topic)

    # Commands -------------------------------------------------------------------------------------

    def new_waiter(self) -> WaiterId:
        """A number for a request that may have to wait."""
        return next(self._waiters)

    @staticmethod
    def new_unique() -> str:
        """What makes a new member id unique."""
        return str(uuid.uuid4())

    def submit(self, group_id: str, command: Command, waiter: WaiterId | None = None) -> Any:
        """Hand a command to the shard that owns the group."""
        return self._driver(group_id).submit(command, waiter)

    def _driver(self, group_id: str) -> ShardDriver:
        self._ensure_journal()
        return self._drivers[partition_for(group_id, len(self._drivers))]

    # Queries --------------------------------------------------------------------------------------

    def _shard(self, group_id: str) -> GroupShard | None:
        """The state to read a group from; there is none before the first group."""
        if not self._drivers:
            return None
        return self._drivers[partition_for(group_id, len(self._drivers))].shard

    def group(self, group_id: str) -> ClassicGroup | None:
        shard = self._shard(group_id)
        return shard.group(group_id) if shard is not None else None

    def offsets(self, group_id: str) -> Mapping[tuple[str, int], CommittedOffset]:
        """What a group has committed; nothing for a group that does not exist."""
        shard = self._shard(group_id)
        return shard.offsets(group_id) if shard is not None else {}

    def all_groups(self) -> list[ClassicGroup]:
        """Every group, by name."""
        found: list[ClassicGroup] = []
        for driver in self._drivers:
            for group_id in driver.shard.group_ids():
                group = driver.shard.group(group_id)
                if group is not None:
                    found.append(group)
        return sorted(found, key=lambda group: group.group_id)

    # Chores ---------------------------------------------------------------------------------------

    def topic_deleted(self, topic: str) -> None:
        """What was committed for a topic goes with it."""
        for driver in self._drivers:
            driver.submit(c.DeleteTopicOffsets(topic=topic))

    def expire_offsets(self) -> None:
        for driver in self._drivers:
            driver.submit(c.ExpireOffsets())


def _answer(woken: list[tuple[Deferred[Any] | None, Any]]) -> None:
    for parked, response in woken:
        if parked is not None:
            parked.complete(response)


def _group_settings(broker: "Broker") -> GroupSettings:
    return GroupSettings(
        min_session_timeout_ms=broker.get_int("group.min.session.timeout.ms"),
        max_session_timeout_ms=broker.get_int("group.max.session.timeout.ms"),
        initial_rebalance_delay_ms=broker.get_int("group.initial.rebalance.delay.ms"),
        max_size=broker.get_int("group.max.size"),
        offset_metadata_max_bytes=broker.get_int("offset.metadata.max.bytes"),
        offsets_retention_ms=broker.get_int("offsets.retention.minutes") * 60_000,
    )
