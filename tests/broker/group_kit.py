"""A broker with groups and without sockets: commands go to the coordinator, time passes by hand."""

import shutil
from pathlib import Path
from typing import Any

from anabranch.broker.broker import Broker
from anabranch.broker.deferred import Deferred
from anabranch.broker.shard_driver import ShardDriver
from anabranch.config.load import load_settings
from anabranch.coordinator.group import commands as c
from anabranch.coordinator.group.classic_state import ClassicGroup, ClassicState
from anabranch.log.partition_log import PartitionLog
from anabranch.model.errors import ErrorCode, KafkaError
from support.fake_loop import FakeLoop

NOW_MS = 1_700_000_000_000
DELAY_MS = 3_000
SESSION_MS = 10_000
REBALANCE_MS = 60_000
GROUP = "g"
TOPIC = "t"


class Waiting:
    """The outcome of a command, as often as it was given."""

    def __init__(self, outcome: Any) -> None:
        self.outcomes: list[Any] = []
        self.deferred: Deferred[Any] | None = None
        if isinstance(outcome, Deferred):
            self.deferred = outcome
            outcome.deliver_to(self.outcomes.append)
        else:
            self.outcomes.append(outcome)

    @property
    def is_answered(self) -> bool:
        return bool(self.outcomes)

    @property
    def answer(self) -> Any:
        assert len(self.outcomes) == 1, f"answered {len(self.outcomes)} times"
        return self.outcomes[0]

    @property
    def error(self) -> ErrorCode:
        """The code of a refusal, whichever way it came."""
        answer = self.answer
        return answer.code if isinstance(answer, KafkaError) else ErrorCode(answer.error)


class Groups:
    """A broker whose journal has one partition unless a test wants more."""

    def __init__(self, folder: Path, loop: FakeLoop, *overrides: str) -> None:
        self.folder = folder
        self.loop = loop
        self.now_ms = NOW_MS
        self.steady_ms = NOW_MS
        settings = load_settings(
            environ={},
            overrides=[f"log.dirs={folder}", "offsets.topic.num.partitions=1", *overrides],
        )
        self.broker = Broker(
            settings, now_ms=lambda: int(self.now_ms), steady_ms=lambda: int(self.steady_ms)
        )
        self.is_open = True
        loop.on_time = self._on_time
        self._uniques = 0

    def _on_time(self, step_ms: float) -> None:
        self.now_ms += step_ms
        self.steady_ms += step_ms

    def pass_ms(self, delay_ms: float) -> None:
        self.loop.pass_ms(delay_ms)

    def close(self) -> None:
        if self.is_open:
            self.is_open = False
            self.broker.groups.stop()
            self.broker.close()

    def copied(self, folder: Path) -> Path:
        """The folder as a crash of the process would leave it now."""
        # Folders of deleted topics go while they are copied; a restart removes them in any case.
        shutil.copytree(self.folder, folder, ignore=shutil.ignore_patterns("*-delete"))
        return folder

    # What there is ------------------------------------------------------------------------------

    @property
    def driver(self) -> ShardDriver:
        """The only shard, or the one that owns GROUP."""
        return self.broker.groups._driver(GROUP)

    @property
    def log(self) -> PartitionLog:
        return self.driver.partition.log

    def state(self, group_id: str = GROUP) -> tuple[ClassicState, int, list[str]]:
        """State, generation and members of a group."""
        group = self.group(group_id)
        return group.state, group.generation_id, list(group.members)

    def group(self, group_id: str = GROUP) -> ClassicGroup:
        group = self.broker.groups.group(group_id)
        assert group is not None
        return group

    def offset(self, group_id: str = GROUP, partition: int = 0) -> int | None:
        committed = self.broker.groups.offsets(group_id).get((TOPIC, partition))
        return committed.offset if committed is not None else None

    def image(self) -> dict[str, Any]:
        """Everything durable that is known of all groups."""
        return {
            group.group_id: (
                group.state,
                group.generation_id,
                group.protocol_type,
                group.protocol_name,
                group.leader_id,
                {
                    m.member_id: (m.group_instance_id, m.client_id, m.client_host, m.assignment)
                    for m in group.members.values()
                },
                dict(self.broker.groups.offsets(group.group_id)),
            )
            for group in self.broker.groups.all_groups()
        }

    # Commands -----------------------------------------------------------------------------------

    def submit(self, command: Any, waiter: int | None = None) -> Waiting:
        """Hand a command over as a handler does."""
        try:
            return Waiting(self.broker.groups.submit(command.group_id, command, waiter))
        except KafkaError as error:
            return Waiting(error)

    def join(self, client: str, member_id: str = "", **changes: Any) -> Waiting:
        self._uniques += 1
        waiter = self.broker.groups.new_waiter()
        values: dict[str, Any] = {
            "group_id": GROUP,
            "member_id": member_id,
            "group_instance_id": None,
            "client_id": client,
            "client_host": "/127.0.0.1",
            "session_timeout_ms": SESSION_MS,
            "rebalance_timeout_ms": REBALANCE_MS,
            "protocol_type": "consumer",
            "protocols": (("range", b"m"),),
            "requires_known_member_id": False,
            "can_skip_assignment": False,
            "waiter": waiter,
            "unique": str(self._uniques),
        }
        return self.submit(c.JoinGroup(**values | changes), waiter)

    def sync(self, member_id: str, generation_id: int, **changes: Any) -> Waiting:
        waiter = self.broker.groups.new_waiter()
        values: dict[str, Any] = {
            "group_id": GROUP,
            "member_id": member_id,
            "group_instance_id": None,
            "generation_id": generation_id,
            "protocol_type": None,
            "protocol_name": None,
            "assignments": (),
            "waiter": waiter,
        }
        return self.submit(c.SyncGroup(**values | changes), waiter)

    def heartbeat(self, member_id: str, generation_id: int, group_id: str = GROUP) -> Waiting:
        return self.submit(
            c.Heartbeat(
                group_id=group_id,
                member_id=member_id,
                group_instance_id=None,
                generation_id=generation_id,
            )
        )

    def commit(
        self,
        offset: int,
        *partitions: int,
        member_id: str = "",
        generation_id: int = -1,
        group_id: str = GROUP,
        topic: str = TOPIC,
    ) -> Waiting:
        offsets = tuple(
            c.OffsetToCommit(
                topic=topic,
                topic_id=bytes(16),
                partition=partition,
                offset=offset,
                leader_epoch=-1,
                metadata=None,
            )
            for partition in partitions or (0,)
        )
        return self.submit(
            c.CommitOffsets(
                group_id=group_id,
                member_id=member_id,
                group_instance_id=None,
                generation_id=generation_id,
                retention_ms=-1,
                knows_group_id_not_found=True,
                offsets=offsets,
            )
        )

    def leave(self, *member_ids: str) -> Waiting:
        members = tuple(
            c.LeavingMember(member_id=member_id, group_instance_id=None) for member_id in member_ids
        )
        return self.submit(c.LeaveGroup(group_id=GROUP, members=members))

    def joined(self, *clients: str, **changes: Any) -> list[str]:
        """The ids of members that were let in together; the first one leads."""
        waiting = [self.join(client, **changes) for client in clients]
        while not waiting[-1].is_answered:
            self.pass_ms(DELAY_MS)
        return [one.answer.member_id for one in waiting]

    def stable(self, *clients: str, **changes: Any) -> list[str]:
        """The ids of the members of a Stable group of generation 1."""
        group_id = changes.get("group_id", GROUP)
        ids = self.joined(*clients, **changes)
        given = tuple((member_id, b"for " + member_id.encode()) for member_id in ids)
        for number, member_id in enumerate(ids):
            assignments = () if number else given
            sync = self.sync(member_id, 1, group_id=group_id, assignments=assignments)
            assert sync.error is ErrorCode.NONE
        return ids


def failing_append(*args: Any, **kwargs: Any) -> Any:
    """Stands in for a log's append on a disk that refuses."""
    raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "the write failed")
