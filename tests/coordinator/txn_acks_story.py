"""A desk with transactions: what its journals were told, append by append, and what any part of
that would give back.

A decision is written in the order that the broker writes it: what is progress or pending in the
journal of individual commits, then the marker and what follows it in the journal of groups.
"""

import copy
from collections.abc import Sequence
from typing import Any

from cooperative_story import GROUP, TOPIC, TOPIC_ID, Desk, Step, done

from anabranch.coordinator.cooperative.acks import Ack
from anabranch.coordinator.cooperative.commands import (
    AbortTransactions,
    ResumeAcks,
    TakeAcks,
    TryAcksAgain,
)
from anabranch.coordinator.cooperative.records import (
    AckedRange,
    AcksForgotten,
    AcksPending,
    ProgressForgotten,
    ProgressWritten,
)
from anabranch.coordinator.group import commands as c
from anabranch.coordinator.group.records import TransactionEnded
from anabranch.coordinator.group.shard import GroupShard
from anabranch.coordinator.runtime.result import Result
from anabranch.engine.journal.individual_commit_codec import decode_progress, encode_progress
from anabranch.model.units import SlotRange

INDIVIDUAL = (ProgressWritten, ProgressForgotten, AcksPending, AcksForgotten)
# The producers of most stories.
ONE, OTHER = (7, 0), (8, 0)


class TxnStep(Step):
    """What a command has led to, also for those who waited."""

    def __init__(self, result: Result) -> None:
        super().__init__(result)
        self.wakes = {wake.waiter: wake.response for wake in result.wakes}
        self.aborted = [task for task in result.tasks if isinstance(task, AbortTransactions)]
        self.resumed: list[TxnStep] = []


class AcksDesk(Desk):
    """One shard, its members, and the producers that they use."""

    def __init__(self, **settings: Any) -> None:
        self.appends: list[list[Any]] = []
        self.waiters = 0
        # Whether a log was cut: what is pending of it is not what the journal says.
        self.has_settled = False
        super().__init__(**settings)

    # Journals -----------------------------------------------------------------------------------

    def _write(self, record: Any) -> None:
        self.appends.append([record])

    def _apply(self, result: Result) -> TxnStep:
        self.appends += in_appends(result)
        for record in result.records:
            self.shard.replay(record)
        for change in result.timers:
            self.timers.apply(change)
        if self.checks_replay:
            self.check_replay()
        step = TxnStep(result)
        for task in result.tasks:
            if isinstance(task, TryAcksAgain):
                step.resumed += [self.submit(ResumeAcks(waiter=one)) for one in task.waiters]
        return step

    def read(self, appends: Sequence[list[Any]] | None = None) -> GroupShard:
        """A shard with what was appended, or a part of it."""
        shard = self._new_shard()
        individual: dict[bytes, bytes | None] = {}
        for records in self.appends if appends is None else appends:
            for record in records:
                if isinstance(record, INDIVIDUAL):
                    for key, value in encode_progress([record]):
                        individual.pop(key, None)
                        individual[key] = value
                else:
                    shard.replay(record)
        for key, value in individual.items():
            shard.replay(decode_progress(key, value))  # type: ignore[arg-type]
        return shard

    def check_replay(self) -> None:
        super().check_replay()
        if not self.has_settled:
            assert self.pending_in(self.read()) == self.pending_in(self.shard)

    def restart_from(self, appends: Sequence[list[Any]]) -> None:
        """kill -9 after some appends, and start."""
        self.appends = list(appends)
        self.restart()
        self.ring()

    # What there is ------------------------------------------------------------------------------

    @staticmethod
    def pending_in(shard: GroupShard) -> Any:
        return copy.deepcopy(dict(shard.pending_acks.of_group(GROUP)))

    @property
    def pending(self) -> dict[tuple[int, str], tuple[AckedRange, ...]]:
        """What is pending of the first partition, by producer and member."""
        found = self.shard.pending_acks.of_place(GROUP, (TOPIC_ID, 0))
        return {(key.producer_id, key.member_id): one.acked for key, one in found.items()}

    @property
    def stable(self) -> int:
        progress = self.progress()
        assert progress is not None
        return progress.stable_offset

    # Commands -----------------------------------------------------------------------------------

    def submit(self, command: Any) -> TxnStep:
        step = super().submit(command)
        assert isinstance(step, TxnStep)
        return step

    def say(
        self,
        member_id: str,
        epoch: int,
        *acks: Ack,
        producer: tuple[int, int] = ONE,
        wait_ms: int = 0,
        group_id: str = GROUP,
        **facts: Any,
    ) -> TxnStep:
        """Acknowledge in a transaction; with a time to wait if need be."""
        self.waiters += 1
        return self.submit(
            TakeAcks(
                group_id=group_id,
                member_id=member_id,
                member_epoch=epoch,
                partitions=(self.part(*acks, **facts),),
                producer=producer,
                waiter=self.waiters,
                wait_until_ms=self.now_ms + wait_ms,
            )
        )

    def end(self, producer: tuple[int, int] = ONE, *, is_commit: bool = True) -> TxnStep:
        return self.submit(end_command(producer, is_commit=is_commit))

    def commit_offset(
        self, offset: int, member_id: str = "", epoch: int = -1, producer: tuple[int, int] = ONE
    ) -> TxnStep:
        """Commit an offset of the first partition in a transaction."""
        asked = c.OffsetToCommit(
            topic=TOPIC,
            topic_id=TOPIC_ID,
            partition=0,
            offset=offset,
            leader_epoch=-1,
            metadata=None,
        )
        return self.submit(
            c.CommitTxnOffsets(
                group_id=GROUP,
                member_id=member_id,
                group_instance_id=None,
                generation_id=epoch,
                offsets=(asked,),
                producer_id=producer[0],
                producer_epoch=producer[1],
            )
        )


def in_appends(result: Result) -> list[list[Any]]:
    """The durable records of a decision, in the appends that the broker makes of them."""
    durable = [record for record in result.records if record.is_durable]
    individual = [record for record in durable if isinstance(record, INDIVIDUAL)]
    others = [record for record in durable if not isinstance(record, INDIVIDUAL)]
    appends = [individual, others]
    if others and isinstance(others[0], TransactionEnded):
        appends = [individual, others[:1], others[1:]]
    return [records for records in appends if records]


def end_command(producer: tuple[int, int] = ONE, *, is_commit: bool = True) -> c.EndTransaction:
    return c.EndTransaction(
        producer_id=producer[0],
        producer_epoch=producer[1],
        coordinator_epoch=5,
        is_commit=is_commit,
    )


# Records ----------------------------------------------------------------------------------------


def said(slots: SlotRange, watermark: int = -1, *pairs: tuple[int, int]) -> AckedRange:
    return AckedRange(slots, watermark, done(*pairs))


def pending(
    member_id: str, *acked: AckedRange, producer: tuple[int, int] = ONE, leader_epoch: int = 3
) -> AcksPending:
    return AcksPending(
        group_id=GROUP,
        topic_id=TOPIC_ID,
        partition=0,
        producer_id=producer[0],
        member_id=member_id,
        producer_epoch=producer[1],
        leader_epoch=leader_epoch,
        acked=acked,
    )


def gone(member_id: str, producer: tuple[int, int] = ONE) -> AcksForgotten:
    return AcksForgotten(
        group_id=GROUP, topic_id=TOPIC_ID, partition=0, producer_id=producer[0], member_id=member_id
    )


def ended(producer: tuple[int, int] = ONE, *, is_commit: bool = True) -> TransactionEnded:
    return TransactionEnded(
        producer_id=producer[0],
        producer_epoch=producer[1],
        coordinator_epoch=5,
        is_commit=is_commit,
    )
