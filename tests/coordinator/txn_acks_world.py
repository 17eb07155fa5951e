"""Members that process records exactly once, each with a transaction of its own, in a broker that
is only numbers (see `engine_world`).

Members here are no clients of ours: they do what the protocol allows and nothing that would make up
for the broker. Whoever is told to give up a range gives it up at once, with its transaction open;
who pauses goes on where it was. What a transaction writes is a list; it is visible when the
transaction is committed.
"""

from dataclasses import dataclass, field
from typing import Any

from engine_world import FINE, GROUP, REBALANCE_MS, TOPIC, Fate, Ident, World, _put

from anabranch.coordinator.cooperative.acks import Ack, LogFacts
from anabranch.coordinator.cooperative.commands import (
    AbortTransactions,
    PartitionAcks,
    ResumeAcks,
    TakeAcks,
    TryAcksAgain,
)
from anabranch.coordinator.cooperative.records import (
    AcksForgotten,
    AcksPending,
    Place,
    ProgressForgotten,
    ProgressWritten,
)
from anabranch.coordinator.cooperative.settings import STABLE_ORDER
from anabranch.coordinator.group import commands as c
from anabranch.coordinator.group import consumer_commands as cc
from anabranch.coordinator.group import consumer_records as cr
from anabranch.coordinator.group.records import TransactionEnded
from anabranch.coordinator.runtime.result import Result
from anabranch.engine.journal.group_codec import encode
from anabranch.engine.journal.individual_commit_codec import encode_progress
from anabranch.model.errors import ErrorCode
from anabranch.model.offset_ranges import OffsetRanges
from anabranch.model.units import Unit

_INDIVIDUAL = (ProgressWritten, ProgressForgotten, AcksPending, AcksForgotten)
_PATIENCE_MS = 50_000

Output = tuple[Place, Ident]


@dataclass
class Transaction:
    """One producer, as the transaction coordinator knows it: all of it is durable."""

    producer_id: int
    epoch: int = 0
    is_open: bool = False
    # How it ends, from the decision on until the shard was told.
    prepared: bool | None = None
    outputs: list[Output] = field(default_factory=list)


class TxnWorld(World):
    """A broker with transactions."""

    def __post_init__(self) -> None:
        self.transactions: dict[int, Transaction] = {}
        # What readers of committed records see.
        self.visible: list[Output] = []
        # Answers to requests that waited.
        self.woken: dict[int, Any] = {}
        super().__post_init__()

    # Carrying out -------------------------------------------------------------------------------

    def submit(self, command: Any, fate: Fate = FINE) -> Any:
        result = self.shard.decide(command, self.now_ms)
        assert self.shard.decide(command, self.now_ms) == result, "decide is not repeatable"
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
        for wake in result.wakes:
            self.woken[wake.waiter] = wake.response
        for task in result.tasks:
            if isinstance(task, AbortTransactions):
                for producer_id, epoch in task.producers:
                    self.end(self.transactions[producer_id], epoch, is_commit=False)
            elif isinstance(task, TryAcksAgain):
                for waiter in task.waiters:
                    self.submit(ResumeAcks(waiter=waiter))
        return result.response

    def _write(self, result: Result, journals: int) -> None:
        durable = [record for record in result.records if record.is_durable]
        if journals > 0:
            for record in durable:
                if isinstance(record, _INDIVIDUAL):
                    _put(self.individual, encode_progress([record]))
        if journals > 1:
            for record in durable:
                # A marker ends offsets that are pending, of which there are none here.
                if not isinstance(record, (*_INDIVIDUAL, TransactionEnded)):
                    _put(self.primary, [encode(record)])

    def restart(self, lost: Any = ()) -> None:
        """What was decided is carried out before anybody is served."""
        super().restart(lost)
        self.woken.clear()
        for transaction in list(self.transactions.values()):
            self._tell(transaction, FINE)

    # The coordinator of transactions ------------------------------------------------------------

    def end(
        self, transaction: Transaction, epoch: int, *, is_commit: bool, fate: Fate = FINE
    ) -> bool:
        """Decide how a transaction ends, if it is still that one; whether it is decided so."""
        if not transaction.is_open or transaction.epoch != epoch:
            return False
        transaction.is_open, transaction.prepared = False, is_commit
        transaction.epoch += 1
        if is_commit:
            self.visible += transaction.outputs
        transaction.outputs = []
        self._tell(transaction, fate)
        return True

    def _tell(self, transaction: Transaction, fate: Fate) -> None:
        if transaction.prepared is None:
            return
        command = c.EndTransaction(
            producer_id=transaction.producer_id,
            producer_epoch=transaction.epoch,
            coordinator_epoch=0,
            is_commit=transaction.prepared,
        )
        if fate.kills:
            self.submit(command, fate)  # the start tells it again
            return
        self.submit(command)
        transaction.prepared = None


@dataclass(eq=False)
class TxnMember:
    """A process that consumes, transforms and produces."""

    world: TxnWorld
    member_id: str
    producer_id: int
    instance_id: str | None = None
    epoch: int = 0
    is_alive: bool = True
    # What it has, since which epoch, and what of that is not to be processed any more.
    units: dict[Unit, int] = field(default_factory=dict)
    done: dict[Unit, set[int]] = field(default_factory=dict)
    # The epoch of the producer when the transaction began, and what was processed in it.
    txn_epoch: int | None = None
    in_txn: list[tuple[Unit, int]] = field(default_factory=list)
    # It was told that something was not taken: the transaction can only be aborted.
    is_spoilt: bool = False
    waiter: int = 0

    def __repr__(self) -> str:
        return self.member_id

    @property
    def transaction(self) -> Transaction:
        return self.world.transactions.setdefault(self.producer_id, Transaction(self.producer_id))

    # The group ----------------------------------------------------------------------------------

    def beat(self, fate: Fate = FINE) -> None:
        is_joining = self.epoch == 0
        if not fate.arrives:
            return
        answer = self.world.submit(
            cc.ConsumerHeartbeat(
                group_id=GROUP,
                member_id=self.member_id,
                member_epoch=self.epoch,
                instance_id=self.instance_id,
                rebalance_timeout_ms=REBALANCE_MS if is_joining else -1,
                subscribed_topic_names=(TOPIC,) if is_joining else None,
                owned=() if is_joining else tuple(sorted(self.units)),
                shares=True,
            ),
            fate,
        )
        if not fate.is_answered:
            return
        if answer.error is not ErrorCode.NONE:
            self.epoch, self.units, self.done = 0, {}, {}
            return
        self.epoch = answer.member_epoch
        if answer.assignment is not None:
            self._assign(dict(zip(answer.assignment, answer.epochs or (), strict=True)))

    def _assign(self, target: dict[Unit, int]) -> None:
        before = self.units
        self.units = dict(target)
        done: dict[Unit, set[int]] = {}
        for unit, epoch in target.items():
            # The same slots may come in other cuts.
            known = [
                (old, self.done[old])
                for old in self.done
                if old[:2] == unit[:2]
                and old.slots.first < unit.slots.end
                and unit.slots.first < old.slots.end
                and before.get(old, -1) == epoch
            ]
            covered = sum(
                min(old.slots.end, unit.slots.end) - max(old.slots.first, unit.slots.first)
                for old, _ in known
            )
            if covered == unit.slots.end - unit.slots.first:
                done[unit] = set().union(*(offsets for _, offsets in known))
            else:
                done[unit] = self._load(unit)
        self.done = done

    def _load(self, unit: Unit) -> set[int]:
        """What is done of a range that it was given."""
        progress = self.world.fetch_offsets(self.member_id, self.epoch, unit[:2])
        if progress is None:
            return set()
        return {
            offset
            for offset, record in self.world.logs[unit[:2]].records.items()
            if progress.is_done(record.slot, offset)
        }

    def leave(self) -> None:
        if self.epoch > 0:
            self.world.submit(
                cc.ConsumerHeartbeat(
                    group_id=GROUP,
                    member_id=self.member_id,
                    member_epoch=-1 if self.instance_id is None else -2,
                    instance_id=self.instance_id,
                    shares=True,
                )
            )
        self.is_alive = False

    # Work ---------------------------------------------------------------------------------------

    def work(self, count: int, fate: Fate = FINE, skip: int = 0) -> None:
        """Process some records, and acknowledge them in the transaction; others take longer."""
        if self.is_spoilt or self.waiter:
            return
        chosen: list[tuple[Unit, int]] = []
        if self._is_ordered:
            # Who does later records first would wait for itself.
            for place in self.world.logs:
                mine = [unit for unit in self.units if unit[:2] == place]
                left = sorted((offset, unit) for unit in mine for offset in self._left(unit))
                chosen += [(unit, offset) for offset, unit in left[:count]]
        else:
            for unit in sorted(self.units):
                chosen += [(unit, offset) for offset in self._left(unit)][skip : skip + count]
        # A range without records tells how far it is, or nobody could know.
        behind = [unit for unit in self.units if self._watermark(unit) > self._told(unit)]
        if not (chosen or (behind and not skip)) or not fate.arrives:
            return
        transaction = self.transaction
        if self.txn_epoch is None:
            if transaction.prepared is not None or transaction.is_open:
                return
            transaction.is_open, self.txn_epoch = True, transaction.epoch
        elif transaction.epoch != self.txn_epoch:
            self.is_spoilt = True
            return
        for unit, offset in chosen:
            record = self.world.logs[unit[:2]].records[offset]
            transaction.outputs.append((unit[:2], record.ident))
            self.done[unit].add(offset)
            self.in_txn.append((unit, offset))
        self._tell(chosen, fate)

    def _left(self, unit: Unit) -> list[int]:
        """What it has yet to do of a range."""
        return [
            offset
            for offset, record in sorted(self.world.logs[unit[:2]].records.items())
            if unit.slots.first <= record.slot < unit.slots.end and offset not in self.done[unit]
        ]

    @property
    def _is_ordered(self) -> bool:
        return self.world.settings.txn_order == STABLE_ORDER

    def _watermark(self, unit: Unit) -> int:
        units = [unit]
        if self._is_ordered:
            units = [other for other in self.units if other[:2] == unit[:2]]
        left = [offset for one in units for offset in self._left(one)]
        return min(left) if left else self.world.logs[unit[:2]].end

    def _told(self, unit: Unit) -> int:
        """How far a range is, as everybody can see."""
        progress = self.world.progress(unit[:2])
        if progress is None:
            return -1
        return min(one.watermark for one in progress.within(unit.slots))

    def _tell(self, chosen: list[tuple[Unit, int]], fate: Fate) -> None:
        places: dict[Place, list[Ack]] = {}
        for unit in sorted(self.units):
            offsets = OffsetRanges([(o, o) for other, o in chosen if other == unit])
            watermark = self._watermark(unit)
            ack = Ack(unit.slots, self.units[unit], watermark, offsets.at_or_above(watermark))
            places.setdefault(unit[:2], []).append(ack)
        command = TakeAcks(
            group_id=GROUP,
            member_id=self.member_id,
            member_epoch=max(self.epoch, 0),
            partitions=tuple(self._part(place, acks) for place, acks in places.items()),
            producer=(self.producer_id, self.txn_epoch or 0),
            waiter=1_000 * self.producer_id + self.world.lives,
            wait_until_ms=self.world.now_ms + _PATIENCE_MS,
        )
        answer = self.world.submit(command, fate)
        if not fate.is_answered:
            self.is_spoilt = True
        elif answer is None:
            assert command.waiter is not None
            self.waiter = command.waiter
        else:
            self._hear(answer)

    def _part(self, place: Place, acks: list[Ack]) -> PartitionAcks:
        log = self.world.logs[place]
        return PartitionAcks(
            topic=TOPIC,
            topic_id=place[0],
            partition=place[1],
            facts=LogFacts(log.start, log.end, log.end, log.end),
            leader_epoch=log.leader_epoch,
            acks=tuple(acks),
        )

    def _hear(self, answer: Any) -> None:
        is_taken = answer.error is ErrorCode.NONE and all(
            one.error_code is ErrorCode.NONE
            for partition in answer.partitions
            for one in partition.outcomes
        )
        self.is_spoilt |= not is_taken

    def listen(self) -> None:
        """The answer to what waited may be there, or never come."""
        if self.waiter in self.world.woken:
            self._hear(self.world.woken.pop(self.waiter))
            self.waiter = 0
        elif self.waiter and self.waiter % 1_000 != self.world.lives % 1_000:
            self.waiter, self.is_spoilt = 0, True

    # The transaction ----------------------------------------------------------------------------

    def end(self, *, is_commit: bool, fate: Fate = FINE) -> None:
        if self.txn_epoch is None or not fate.arrives:
            return
        is_commit = is_commit and not self.is_spoilt and not self.waiter
        is_decided = self.world.end(
            self.transaction, self.txn_epoch, is_commit=is_commit, fate=fate
        )
        if not fate.is_answered:
            # It asks again, and is told: the decision is durable.
            is_decided = True
        if not (is_commit and is_decided):
            for unit, offset in self.in_txn:
                self.done.get(unit, set()).discard(offset)
            # What was cut meanwhile is known under other names.
            self.done = {unit: self._load(unit) for unit in self.units}
        self.txn_epoch, self.in_txn, self.is_spoilt, self.waiter = None, [], False, 0
