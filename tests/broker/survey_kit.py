"""A broker without sockets whose clock stands still, and groups that commit and own partitions."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from anabranch.broker.broker import Broker
from anabranch.config.load import load_settings
from anabranch.coordinator.group.commands import (
    CommitOffsets,
    JoinGroup,
    OffsetToCommit,
    SyncGroup,
)
from anabranch.coordinator.group.consumer_protocol import Subscription, encode_subscription
from anabranch.wire.record_batch import Record, build_batch

NOW_MS = 1_700_000_000_000


class Watched:
    """A broker that is surveyed."""

    def __init__(self, folder: Path, *overrides: str) -> None:
        self.now_ms = NOW_MS
        settings = load_settings(
            environ={},
            overrides=[f"log.dirs={folder}", "offsets.topic.num.partitions=2", *overrides],
        )
        self.broker = Broker(settings, now_ms=lambda: self.now_ms, steady_ms=lambda: self.now_ms)
        self.surveyor = self.broker.surveyor

    def topic(self, name: str, partitions: int = 1, **configs: str) -> None:
        given = {key.replace("_", "."): value for key, value in configs.items()}
        self.broker.create_topic(name, partitions, given)

    def produce(
        self, topic: str, *timestamps: int, partition: int = 0, key: bytes = b"k", **how: Any
    ) -> None:
        """One batch with a record for each timestamp, in milliseconds before now."""
        records = [Record(i, NOW_MS - ago, key, b"v") for i, ago in enumerate(timestamps)]
        batch = memoryview(bytearray(build_batch(records, base_offset=0, **how)))
        self.broker.topics.partition(topic, partition).log.append(batch, now_ms=self.now_ms)

    def commit(self, group: str, topic: str, offset: int, partition: int = 0) -> None:
        found = self.broker.topics.must_get(topic)
        self.broker.groups.submit(
            group,
            CommitOffsets(
                group_id=group,
                member_id="",
                group_instance_id=None,
                generation_id=-1,
                retention_ms=-1,
                knows_group_id_not_found=True,
                offsets=(
                    OffsetToCommit(
                        topic=topic,
                        topic_id=found.topic_id,
                        partition=partition,
                        offset=offset,
                        leader_epoch=3,
                        metadata="note",
                    ),
                ),
            ),
        )

    def stable_classic_member(self, group_id: str, assignment: bytes) -> str:
        """The only member of a classic group that has an assignment."""
        groups = self.broker.groups
        answers: list[Any] = []
        join = JoinGroup(
            group_id=group_id,
            member_id="",
            group_instance_id=None,
            client_id="c",
            client_host="h",
            session_timeout_ms=10_000,
            rebalance_timeout_ms=10_000,
            protocol_type="consumer",
            protocols=(("range", encode_subscription(Subscription(topics=("t",)))),),
            requires_known_member_id=False,
            can_skip_assignment=False,
            waiter=groups.new_waiter(),
            unique=group_id,
        )
        groups.submit(group_id, join, join.waiter).deliver_to(answers.append)
        self.now_ms += 5_000
        for driver in groups._drivers:
            driver._clock.turn()
        member_id: str = answers[0].member_id
        sync = SyncGroup(
            group_id=group_id,
            member_id=member_id,
            group_instance_id=None,
            generation_id=answers[0].generation_id,
            protocol_type="consumer",
            protocol_name="range",
            assignments=((member_id, assignment),),
            waiter=groups.new_waiter(),
        )
        groups.submit(group_id, sync, sync.waiter)
        return member_id

    async def close(self) -> None:
        self.broker.groups.stop()
        self.broker.close()
        await asyncio.sleep(0)


def watched(
    folder: Path, scene: Callable[[Watched], Coroutine[Any, Any, None]], *overrides: str
) -> None:
    """Play a scene with a broker of its own."""

    async def play() -> None:
        stage = Watched(folder, *overrides)
        try:
            await asyncio.wait_for(scene(stage), 60)
        finally:
            await stage.close()

    asyncio.run(play())
