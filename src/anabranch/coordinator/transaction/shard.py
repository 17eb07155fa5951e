"""One shard: the transactional ids of one partition of `__transaction_state`.

Rules
- `decide` looks and changes nothing; `replay` changes and decides nothing.
- The durable records alone, replayed in order into an empty shard, give the same transactions as
  the living shard has. What only it knows is which markers of a decided transaction are written.
- Each transactional id stands for itself: no command is about two of them, but the look for those
  that have expired.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import assert_never

from anabranch.coordinator.runtime.result import Result, TimerChange, TimerKey
from anabranch.coordinator.transaction import commands as c
from anabranch.coordinator.transaction.ending import (
    abort_transaction,
    end_transaction,
    markers_written,
    time_is_up,
    timeout_timer,
    try_markers_again,
    write_markers,
)
from anabranch.coordinator.transaction.partitions import (
    add_offsets,
    add_partitions,
    verify_partitions,
)
from anabranch.coordinator.transaction.producer import init_producer_id
from anabranch.coordinator.transaction.records import (
    MarkersProgressed,
    TransactionRecord,
    TransactionWritten,
)
from anabranch.coordinator.transaction.settings import TransactionSettings
from anabranch.coordinator.transaction.state import (
    TopicPartition,
    Transaction,
    TransactionState,
)

_NO_PARTITIONS: frozenset[TopicPartition] = frozenset()


class TransactionShard:
    """The state of one shard."""

    def __init__(self, settings: TransactionSettings) -> None:
        self.settings = settings
        self._transactions: dict[str, Transaction] = {}
        # Of decided transactions, as soon as a part of their markers is written.
        self._missing: dict[str, frozenset[TopicPartition]] = {}

    # Looking --------------------------------------------------------------------------------------

    @property
    def transactions(self) -> Mapping[str, Transaction]:
        return MappingProxyType(self._transactions)

    def transaction(self, transactional_id: str) -> Transaction | None:
        return self._transactions.get(transactional_id)

    def missing(self, transactional_id: str) -> frozenset[TopicPartition]:
        """The partitions in which a decided transaction's marker is not known to be."""
        transaction = self._transactions.get(transactional_id)
        if transaction is None or not transaction.state.is_decided:
            return _NO_PARTITIONS
        return self._missing.get(transactional_id, transaction.partitions)

    def needs_producer_id(self, transactional_id: str | None) -> bool:
        """Whether InitProducerId, EndTxn or an abort may take another producer id."""
        transaction = self._transactions.get(transactional_id or "")
        return transaction is None or transaction.is_exhausted

    # Deciding -------------------------------------------------------------------------------------

    def decide(self, command: c.Command, now_ms: int) -> Result:
        match command:
            case c.InitProducerId():
                transaction = self._transactions.get(command.transactional_id or "")
                return init_producer_id(transaction, command, self.settings, now_ms)
            case c.AddPartitionsToTxn():
                return add_partitions(self.transaction(command.transactional_id), command, now_ms)
            case c.AddOffsetsToTxn():
                return add_offsets(self.transaction(command.transactional_id), command, now_ms)
            case c.VerifyPartitions():
                return verify_partitions(self.transaction(command.transactional_id), command)
            case c.EndTxn():
                return end_transaction(self.transaction(command.transactional_id), command, now_ms)
            case c.AbortTransaction():
                transaction = self.transaction(command.transactional_id)
                return abort_transaction(transaction, command, now_ms)
            case c.MarkersWritten():
                transactional_id = command.task.transactional_id
                transaction, missing = (
                    self.transaction(transactional_id),
                    self.missing(transactional_id),
                )
                return markers_written(transaction, missing, command, self.settings, now_ms)
            case c.ProducerIdAllocated():
                transaction = self.transaction(command.transactional_id)
                return time_is_up(transaction, command.new_producer_id, self.settings, now_ms)
            case c.ExpireTransactionalIds():
                return self._expire(now_ms)
            case c.TimerFired():
                return self._timer_fired(command.key, now_ms)
            case c.Loaded():
                return self._loaded()
            case _:
                assert_never(command)

    def _timer_fired(self, key: TimerKey, now_ms: int) -> Result:
        assert isinstance(key, tuple)
        kind, transactional_id = key
        transaction = self.transaction(transactional_id)
        if kind == "timeout":
            return time_is_up(transaction, None, self.settings, now_ms)
        return try_markers_again(transaction, self.missing(transactional_id))

    def _expire(self, now_ms: int) -> Result:
        before_ms = now_ms - self.settings.id_expiration_ms
        return Result(
            records=tuple(
                TransactionWritten(transactional_id=transactional_id, transaction=None)
                for transactional_id, transaction in self._transactions.items()
                if transaction.state.is_idle and transaction.last_update_timestamp_ms <= before_ms
            )
        )

    def _loaded(self) -> Result:
        """Timers of what is Ongoing, and work for what is decided."""
        transactions = self._transactions.values()
        return Result(
            timers=tuple(
                TimerChange(timeout_timer(one.transactional_id), one.deadline_ms)
                for one in transactions
                if one.state is TransactionState.ONGOING
            ),
            tasks=tuple(
                write_markers(one, self.missing(one.transactional_id))
                for one in transactions
                if one.state.is_decided
            ),
        )

    # Replaying ------------------------------------------------------------------------------------

    def replay(self, record: TransactionRecord) -> None:
        transactional_id = record.transactional_id
        match record:
            case TransactionWritten():
                self._missing.pop(transactional_id, None)
                if record.transaction is None:
                    self._transactions.pop(transactional_id, None)
                else:
                    self._transactions[transactional_id] = record.transaction
            case MarkersProgressed():
                self._missing[transactional_id] = record.missing
            case _:
                assert_never(record)
