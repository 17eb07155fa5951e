"""One shard: the transactional ids and the sinks of one partition of `__transaction_state`.

Rules
- `decide` looks and changes nothing; `replay` changes and decides nothing.
- The durable records alone, replayed in order into an empty shard, give the same transactions as
  the living shard has. What only it knows is which markers of a decided transaction are written.
- Each transactional id stands for itself: no command is about two of them, but the look for those
  that have expired.
- A batch of a sink is about transactions of any shards. It is decided on what they are said to be,
  and they are kept for it (`is_claimed`, which looks at all shards) until they are committed.
"""

from collections.abc import Callable, Mapping
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
from anabranch.coordinator.transaction.preparing import (
    end_prepared,
    prepare_transaction,
    refuse_claimed,
)
from anabranch.coordinator.transaction.producer import init_producer_id
from anabranch.coordinator.transaction.records import (
    MarkersProgressed,
    SinkWritten,
    TransactionRecord,
    TransactionWritten,
)
from anabranch.coordinator.transaction.settings import TransactionSettings
from anabranch.coordinator.transaction.sink_state import Listed, Sink, listed
from anabranch.coordinator.transaction.sinks import (
    ask_sink,
    commit_batch,
    expired_sinks,
    listed_ended,
    sink_timer,
    try_batch_again,
)
from anabranch.coordinator.transaction.state import (
    TopicPartition,
    Transaction,
    TransactionState,
)

_NO_PARTITIONS: frozenset[TopicPartition] = frozenset()
# What a batch keeps cannot be ended for its age; it is looked at again after so long.
_CLAIMED_RETRY_MS = 10_000


class TransactionShard:
    """The state of one shard."""

    def __init__(
        self,
        settings: TransactionSettings,
        is_claimed: Callable[[Transaction], bool] | None = None,
    ) -> None:
        """`is_claimed` says whether a batch has a prepared transaction; only this shard's if not
        given."""
        self.settings = settings
        self._is_claimed = is_claimed or self.claims
        self._transactions: dict[str, Transaction] = {}
        # Of decided transactions, as soon as a part of their markers is written.
        self._missing: dict[str, frozenset[TopicPartition]] = {}
        self._sinks: dict[str, Sink] = {}
        # What is pending of all sinks, and the ids that are prepared for each sink.
        self._claimed: set[Listed] = set()
        self._prepared: dict[str, set[str]] = {}

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

    @property
    def sinks(self) -> Mapping[str, Sink]:
        return MappingProxyType(self._sinks)

    def sink(self, sink_id: str) -> Sink | None:
        return self._sinks.get(sink_id)

    def claims(self, transaction: Transaction) -> bool:
        """Whether a batch of this shard's sinks has yet to commit the transaction."""
        return listed(transaction) in self._claimed

    def prepared_for(self, sink_id: str) -> list[Transaction]:
        """The transactions of this shard that are prepared for a sink."""
        return [self._transactions[name] for name in sorted(self._prepared.get(sink_id, ()))]

    def needs_producer_id(self, transactional_id: str | None) -> bool:
        """Whether InitProducerId, EndTxn or an abort may take another producer id."""
        transaction = self._transactions.get(transactional_id or "")
        return transaction is None or transaction.is_exhausted

    # Deciding -------------------------------------------------------------------------------------

    def decide(self, command: c.Command, now_ms: int) -> Result:
        match command:
            case c.InitProducerId() | c.EndTxn() | c.AbortTransaction() if self._waits(command):
                return refuse_claimed(command)
            case c.EndPrepared(is_commit=False) if self._waits(command):
                return refuse_claimed(command)
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
            case c.PrepareTxn():
                transaction = self.transaction(command.transactional_id)
                return prepare_transaction(transaction, command, self.settings, now_ms)
            case c.EndPrepared():
                transaction = self.transaction(command.transactional_id)
                return end_prepared(transaction, command, now_ms)
            case c.AskSink():
                return ask_sink(self.sink(command.sink_id))
            case c.CommitBatch():
                return commit_batch(self.sink(command.sink_id), command, now_ms)
            case c.ListedEnded():
                sink = self.sink(command.sink_id)
                return listed_ended(sink, command, self.settings, now_ms)
            case c.MarkersWritten():
                transactional_id = command.task.transactional_id
                transaction, missing = (
                    self.transaction(transactional_id),
                    self.missing(transactional_id),
                )
                return markers_written(transaction, missing, command, self.settings, now_ms)
            case c.ProducerIdAllocated():
                return self._time_is_up(command.transactional_id, command.new_producer_id, now_ms)
            case c.ExpireTransactionalIds():
                return self._expire(now_ms)
            case c.TimerFired():
                return self._timer_fired(command.key, now_ms)
            case c.Loaded():
                return self._loaded(now_ms)
            case _:
                assert_never(command)

    def _waits(
        self, command: c.InitProducerId | c.EndTxn | c.AbortTransaction | c.EndPrepared
    ) -> bool:
        """Whether the transaction is kept for a batch that is being committed."""
        transaction = self._transactions.get(command.transactional_id or "")
        return transaction is not None and transaction.is_prepared and self._is_claimed(transaction)

    def _timer_fired(self, key: TimerKey, now_ms: int) -> Result:
        assert isinstance(key, tuple)
        kind, name = key
        if kind == "timeout":
            return self._time_is_up(name, None, now_ms)
        if kind == "sink":
            return try_batch_again(self.sink(name))
        return try_markers_again(self.transaction(name), self.missing(name))

    def _time_is_up(
        self, transactional_id: str, new_producer_id: int | None, now_ms: int
    ) -> Result:
        transaction = self.transaction(transactional_id)
        if transaction is not None and transaction.is_prepared and self._is_claimed(transaction):
            key = timeout_timer(transactional_id)
            return Result(timers=(TimerChange(key, now_ms + _CLAIMED_RETRY_MS),))
        return time_is_up(transaction, new_producer_id, self.settings, now_ms)

    def _expire(self, now_ms: int) -> Result:
        before_ms = now_ms - self.settings.id_expiration_ms
        ids = tuple(
            TransactionWritten(transactional_id=transactional_id, transaction=None)
            for transactional_id, transaction in self._transactions.items()
            if transaction.state.is_idle and transaction.last_update_timestamp_ms <= before_ms
        )
        return Result(records=(*ids, *expired_sinks(self._sinks.values(), self.settings, now_ms)))

    def _loaded(self, now_ms: int) -> Result:
        """Timers of what is Ongoing, and work for what is decided.

        What a batch lists may belong to shards that are not loaded yet: a timer stands for it.
        """
        transactions = self._transactions.values()
        timeouts = (
            TimerChange(timeout_timer(one.transactional_id), one.deadline_ms)
            for one in transactions
            if one.state is TransactionState.ONGOING and one.deadline_ms is not None
        )
        batches = (
            TimerChange(sink_timer(sink.sink_id), now_ms)
            for sink in self._sinks.values()
            if sink.pending
        )
        return Result(
            timers=(*timeouts, *batches),
            tasks=tuple(
                write_markers(one, self.missing(one.transactional_id))
                for one in transactions
                if one.state.is_decided
            ),
        )

    # Replaying ------------------------------------------------------------------------------------

    def replay(self, record: TransactionRecord) -> None:
        match record:
            case TransactionWritten():
                self._missing.pop(record.transactional_id, None)
                self._keep(record.transactional_id, record.transaction)
            case MarkersProgressed():
                self._missing[record.transactional_id] = record.missing
            case SinkWritten():
                self._keep_sink(record.sink_id, record.sink)
            case _:
                assert_never(record)

    def _keep(self, transactional_id: str, transaction: Transaction | None) -> None:
        before = self._transactions.get(transactional_id)
        if before is not None and before.preparation is not None:
            names = self._prepared[before.preparation.sink_id]
            names.discard(transactional_id)
            if not names:
                del self._prepared[before.preparation.sink_id]
        if transaction is None:
            self._transactions.pop(transactional_id, None)
            return
        self._transactions[transactional_id] = transaction
        if transaction.preparation is not None:
            self._prepared.setdefault(transaction.preparation.sink_id, set()).add(transactional_id)

    def _keep_sink(self, sink_id: str, sink: Sink | None) -> None:
        before = self._sinks.pop(sink_id, None)
        if before is not None:
            self._claimed.difference_update(before.pending)
        if sink is not None:
            self._sinks[sink_id] = sink
            self._claimed.update(sink.pending)
