"""One shard as the broker runs it: a journal of encoded batches, timers, crashes and restarts.

The records of a decision are one batch. A crash comes between two batches: everything that is not
in the journal is gone, and the next start reads the last record of each key, as the broker does.
"""

from collections.abc import Callable
from typing import Any

from consumer_invariants import check_group, check_no_epoch_went_back, epochs

from anabranch.coordinator.group import commands as c
from anabranch.coordinator.group import consumer_commands as cc
from anabranch.coordinator.group.consumer_records import ImageChanged
from anabranch.coordinator.group.consumer_settings import ConsumerSettings
from anabranch.coordinator.group.consumer_state import ConsumerGroup
from anabranch.coordinator.group.settings import GroupSettings
from anabranch.coordinator.group.shard import GroupShard, Surroundings
from anabranch.coordinator.group.topic_regex import match_topics
from anabranch.coordinator.runtime.timers import Timers
from anabranch.engine.journal.group_codec import decode, encode
from anabranch.model.cluster_image import ClusterImage, TopicImage
from anabranch.model.errors import ErrorCode
from anabranch.model.units import Unit

GROUP = "g"


class Crash(Exception):
    """The broker died before it could answer."""


def topic_image(name: str, partitions: int) -> TopicImage:
    return TopicImage(name, name.encode().ljust(16, b"."), partitions)


class SimulatedBroker:
    """The shard, and what is known of it from outside."""

    def __init__(
        self,
        schedule: Callable[[int, Callable[[], None]], None],
        died: Callable[[], None],
        settings: ConsumerSettings,
    ) -> None:
        self._schedule = schedule
        self._died = died
        self.settings = settings
        self.surroundings = Surroundings(
            consumer_settings=lambda group_id: self.settings,
            broker_members=lambda: self.shard.consumer_members,
        )
        self.image = ClusterImage()
        self.journal: list[list[tuple[bytes, bytes | None]]] = []
        # Die when the journal has this many batches.
        self.dies_at: int | None = None
        self.is_up = True
        self.starts = 0
        self.now_ms = 0
        # Members whose time was up: they may still believe that they own something.
        self.expired: set[str] = set()
        self.heard_ms: dict[str, int] = {}
        self._epochs: dict[Any, int] = {}
        self._start(())

    @property
    def group(self) -> ConsumerGroup | None:
        group = self.shard.group(GROUP)
        return group if isinstance(group, ConsumerGroup) else None

    # Life ---------------------------------------------------------------------------------------

    def _start(self, batches: Any) -> None:
        self.shard = GroupShard(GroupSettings(), self.surroundings)
        self.timers = Timers()
        self.is_up = True
        self.starts += 1
        self.shard.replay(ImageChanged(image=self.image))
        last: dict[bytes, bytes | None] = {}
        for key, value in (entry for batch in batches for entry in batch):
            last.pop(key, None)
            last[key] = value
        for key, value in last.items():
            record = decode(key, value)
            assert record is not None
            self.shard.replay(record)

    def crash(self) -> None:
        """kill -9: what is in the journal is left."""
        self.is_up = False
        self._died()

    def restart(self, now_ms: int) -> None:
        self._start(self.journal)
        self.heard_ms = dict.fromkeys(self.heard_ms, now_ms)
        self.check()
        self.run(c.Loaded(), now_ms)

    def run(self, command: Any, now_ms: int) -> Any:
        """Decide, write, replay; Crash when the broker dies on the way."""
        if not self.is_up:
            raise Crash
        self.now_ms = now_ms
        result = self.shard.decide(command, now_ms)
        durable = [record for record in result.records if record.is_durable]
        if durable:
            self.journal.append([encode(record) for record in durable])
            if self.dies_at is not None and len(self.journal) >= self.dies_at:
                self.dies_at = None
                self.crash()
                raise Crash
        for record in result.records:
            self.shard.replay(record)
        for change in result.timers:
            deadline_ms = self.timers.apply(change)
            if deadline_ms is not None:
                self._schedule(deadline_ms, self._fire_due)
        for task in result.tasks:
            self._resolve_later(task)
        self._note(command, result)
        if durable:
            self.check()
        return result.response

    def _fire_due(self) -> None:
        """Timers whose time has come; those of a broker that is down died with it."""
        while self.is_up:
            key = self.timers.pop_expired(self.now_ms)
            if key is None:
                return
            try:
                self.run(c.TimerFired(key=key), self.now_ms)
            except Crash:
                return

    def _resolve_later(self, task: cc.ResolveRegexes) -> None:
        start = self.starts

        def resolved() -> None:
            if self.is_up and self.starts == start:
                topics = match_topics(task.regexes, task.image.topics)
                command = cc.RegexesResolved(
                    group_id=task.group_id, topics=topics, version=task.image.version
                )
                try:
                    self.run(command, self.now_ms)
                except Crash:
                    return

        self._schedule(self.now_ms + 30, resolved)

    def set_topics(self, now_ms: int, **partitions: int) -> None:
        """Topics are known to the broker before its coordinator hears of them."""
        topics = dict(self.image.topics)
        topics.update({name: topic_image(name, n) for name, n in partitions.items()})
        self.image = self.image.with_topics(topics)
        if self.is_up:
            try:
                self.run(cc.ClusterChanged(image=self.image, changed=frozenset(partitions)), now_ms)
            except Crash:
                return

    # What is noticed ----------------------------------------------------------------------------

    def _note(self, command: Any, result: Any) -> None:
        group = self.group
        members = group.members if group is not None else {}
        match command:
            case cc.ConsumerHeartbeat() if result.response.error is ErrorCode.NONE:
                self.expired.discard(command.member_id)
                if command.member_epoch >= 0:  # a leave does not prolong a session
                    self.heard_ms[command.member_id] = self.now_ms
            case c.TimerFired(key=("session", _, member_id)) if member_id not in members:
                silence_ms = self.now_ms - self.heard_ms.get(member_id, 0)
                assert silence_ms >= self.settings.session_timeout_ms, "expired too soon"
                self.expired.add(member_id)
            case c.TimerFired(key=("rebalance", _, member_id)) if member_id not in members:
                self.expired.add(member_id)
            case c.CommitOffsets() if result.response.error is ErrorCode.NONE:
                for asked in command.offsets:
                    owner = group.owners.get(Unit(asked.topic_id, asked.partition))
                    assert owner == command.member_id, "a commit of somebody who is not the owner"

    def check(self) -> None:
        if self.group is not None:
            check_group(self.group)
        now = dict(epochs(self.shard))
        check_no_epoch_went_back(self._epochs, now)
        self._epochs = now
