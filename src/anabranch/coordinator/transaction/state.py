"""What a transactional id is: a value that is replaced, never changed.

States
    Empty           a producer has the id, and no transaction has begun
    Ongoing         partitions belong to the transaction; it may be *prepared*, see below
    PrepareCommit   decided: commit markers are being written to the partitions
    PrepareAbort    decided: abort markers are being written to the partitions
    CompleteCommit  all markers are written
    CompleteAbort   likewise
    Dead            forgotten: no id is ever kept in it, it is not there any more
    PrepareEpochFence  a name of Kafka's that filters may have; here aborting and fencing are one

Transitions
    none, Empty, Complete* -> Empty     InitProducerId: another epoch, or another producer id
    Empty, Complete* -> Ongoing         a partition is added
    Ongoing -> Ongoing                  another one is added, or it is prepared
    Ongoing -> PrepareCommit, -Abort    EndTxn, or the batch of a sink that it is prepared for
    Ongoing -> PrepareAbort             its time is up, an admin wants it, or InitProducerId came
    Empty, Complete* -> PrepareAbort    EndTxn aborts what has not begun (transaction version 2)
    PrepareCommit -> CompleteCommit     all markers are written
    PrepareAbort -> CompleteAbort       likewise; at once where there are no partitions
    Empty, Complete* -> Dead            nobody has used the id for `transactional.id.expiration.ms`

Rules
- A decision once taken is carried out: nothing leads from Prepare* but to its Complete*, and
  while it is Prepare* everything else waits (CONCURRENT_TRANSACTIONS).
- The epoch of a producer id only grows. Who has an older one is fenced. The largest epoch that a
  producer is told is 32766, so that there is always one left to fence it with; then comes another
  producer id, from epoch 0.
- In transaction version 2 (KIP-890) every end of a transaction takes another epoch, and markers are
  written with it, so that no late message of one transaction can get into the next. An abort that
  the coordinator decides by itself always does so, whatever version the producer speaks.
- The epoch before the present one is remembered while a producer may ask again because it has not
  heard the answer (KIP-360, and EndTxn of version 2): it gets the same answer and nothing happens.
- A prepared transaction has all its records and waits for the batch of a sink (see `sinks`):
  nothing can be added, its producer cannot commit it, and its time is that of prepared
  transactions. As in KIP-939 it is Ongoing for everybody else.
- A producer of two-phase commit (KIP-939) has transactions that no time ends.
"""

import dataclasses
from dataclasses import dataclass
from enum import Enum, IntEnum

# A topic's name and the number of a partition.
TopicPartition = tuple[str, int]

NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_TIMESTAMP = -1
# An epoch that no producer is told: it is kept to fence the one before.
MAX_EPOCH = 32767
LAST_EPOCH = MAX_EPOCH - 1
NO_BATCH = -1
# What stands for the timeout of a producer of two-phase commit, as in Kafka's journal.
NO_TIMEOUT_MS = (1 << 31) - 1


class TransactionState(Enum):
    """The names are those that describe and list show."""

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"
    DEAD = "Dead"
    PREPARE_EPOCH_FENCE = "PrepareEpochFence"

    @property
    def is_decided(self) -> bool:
        return self in (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)

    @property
    def is_complete(self) -> bool:
        return self in (TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT)

    @property
    def is_idle(self) -> bool:
        """Whether no transaction is under way: only then an id can expire."""
        return self is TransactionState.EMPTY or self.is_complete


_IDLE = frozenset(state for state in TransactionState if state.is_idle)
_MAY_FOLLOW = {
    TransactionState.EMPTY: _IDLE,
    TransactionState.ONGOING: _IDLE | {TransactionState.ONGOING},
    TransactionState.PREPARE_COMMIT: {TransactionState.ONGOING},
    TransactionState.PREPARE_ABORT: _IDLE | {TransactionState.ONGOING},
    TransactionState.COMPLETE_COMMIT: {TransactionState.PREPARE_COMMIT},
    TransactionState.COMPLETE_ABORT: {TransactionState.PREPARE_ABORT},
}


class TransactionVersion(IntEnum):
    """How a client ends its transactions: Kafka's feature `transaction.version`."""

    TV_0 = 0
    TV_1 = 1
    TV_2 = 2

    @property
    def bumps_epoch(self) -> bool:
        return self >= TransactionVersion.TV_2


# What the coordinator itself ends is ended so.
SERVER_VERSION = TransactionVersion.TV_2


@dataclass(frozen=True, slots=True, kw_only=True)
class Preparation:
    """The batch of a sink that a prepared transaction waits for, and for how long it does."""

    sink_id: str
    batch_id: int
    prepared_ms: int
    retention_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """One transactional id with its producer, and the transaction that is under way or was last."""

    transactional_id: str
    producer_id: int
    # The producer id before the last change, which is nearly always the same.
    previous_producer_id: int = NO_PRODUCER_ID
    # The one that takes over when the markers are written.
    next_producer_id: int = NO_PRODUCER_ID
    producer_epoch: int
    # The epoch with which the producer may ask again for what it was told.
    last_producer_epoch: int = NO_PRODUCER_EPOCH
    timeout_ms: int
    state: TransactionState = TransactionState.EMPTY
    partitions: frozenset[TopicPartition] = frozenset()
    start_timestamp_ms: int = NO_TIMESTAMP
    last_update_timestamp_ms: int
    client_transaction_version: TransactionVersion = TransactionVersion.TV_0
    preparation: Preparation | None = None

    @property
    def is_prepared(self) -> bool:
        return self.preparation is not None

    @property
    def is_exhausted(self) -> bool:
        """Whether the next epoch would be one that no producer is told."""
        return self.producer_epoch >= LAST_EPOCH

    @property
    def deadline_ms(self) -> int | None:
        """When an Ongoing transaction is aborted; never where that is for others to say."""
        if self.preparation is not None:
            return self.preparation.prepared_ms + self.preparation.retention_ms
        if self.timeout_ms == NO_TIMEOUT_MS:
            return None
        return self.start_timestamp_ms + self.timeout_ms


def ended_epoch(transaction: Transaction) -> int:
    """The epoch with which the transaction was ended, where the end took another; or none.

    Whoever ended it by transaction version 2 may not have heard of it, and ask again with that one.
    """
    is_ended = transaction.state.is_decided or transaction.state.is_complete
    if not is_ended or not transaction.client_transaction_version.bumps_epoch:
        return NO_PRODUCER_EPOCH
    is_rotated = transaction.producer_id != transaction.previous_producer_id
    return LAST_EPOCH if is_rotated else transaction.producer_epoch - 1


# Transitions ------------------------------------------------------------------------------------


def new_transaction(
    transactional_id: str, producer_id: int, timeout_ms: int, now_ms: int
) -> Transaction:
    """An id that nobody had: it has no epoch yet, and is not kept like that."""
    return Transaction(
        transactional_id=transactional_id,
        producer_id=producer_id,
        producer_epoch=NO_PRODUCER_EPOCH,
        timeout_ms=timeout_ms,
        last_update_timestamp_ms=now_ms,
    )


def initialized(
    transaction: Transaction,
    *,
    producer_id: int,
    producer_epoch: int,
    last_producer_epoch: int,
    timeout_ms: int,
    now_ms: int,
) -> Transaction:
    """A producer has begun to use the id, and no transaction has begun."""
    return _moved(
        transaction,
        TransactionState.EMPTY,
        now_ms,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        last_producer_epoch=last_producer_epoch,
        timeout_ms=timeout_ms,
        partitions=frozenset(),
        start_timestamp_ms=NO_TIMESTAMP,
    )


def with_partitions(
    transaction: Transaction,
    partitions: frozenset[TopicPartition],
    version: TransactionVersion,
    now_ms: int,
) -> Transaction:
    """More partitions belong to the transaction, which may begin with it.

    Its producer has heard of its epoch: nobody asks again with the one before.
    """
    is_ongoing = transaction.state is TransactionState.ONGOING
    return _moved(
        transaction,
        TransactionState.ONGOING,
        now_ms,
        last_producer_epoch=NO_PRODUCER_EPOCH,
        partitions=transaction.partitions | partitions,
        start_timestamp_ms=transaction.start_timestamp_ms if is_ongoing else now_ms,
        client_transaction_version=version,
    )


def prepared(
    transaction: Transaction, sink_id: str, batch_id: int, retention_ms: int, now_ms: int
) -> Transaction:
    """The transaction waits for a batch."""
    assert transaction.state is TransactionState.ONGOING, transaction.state
    preparation = Preparation(
        sink_id=sink_id, batch_id=batch_id, prepared_ms=now_ms, retention_ms=retention_ms
    )
    return _moved(transaction, TransactionState.ONGOING, now_ms, preparation=preparation)


def decided(
    transaction: Transaction,
    *,
    is_commit: bool,
    version: TransactionVersion,
    next_producer_id: int,
    now_ms: int,
) -> Transaction:
    """How the transaction ends is decided; one that has not begun begins and ends now.

    No two decisions about an id have the same time, so that their markers can be told apart where
    the epoch is the same.
    """
    now_ms = max(now_ms, transaction.last_update_timestamp_ms + 1)
    is_ongoing = transaction.state is TransactionState.ONGOING
    epoch, last_epoch = transaction.producer_epoch, transaction.last_producer_epoch
    if version.bumps_epoch:
        epoch, last_epoch = epoch + 1, epoch
    return _moved(
        transaction,
        TransactionState.PREPARE_COMMIT if is_commit else TransactionState.PREPARE_ABORT,
        now_ms,
        producer_epoch=epoch,
        last_producer_epoch=last_epoch,
        next_producer_id=next_producer_id,
        start_timestamp_ms=transaction.start_timestamp_ms if is_ongoing else now_ms,
        client_transaction_version=version,
    )


def completed(transaction: Transaction, now_ms: int) -> Transaction:
    """All markers are written; the next producer id, if there is one, takes over."""
    is_commit = transaction.state is TransactionState.PREPARE_COMMIT
    producer_id, epoch = transaction.producer_id, transaction.producer_epoch
    if transaction.next_producer_id != NO_PRODUCER_ID:
        producer_id, epoch = transaction.next_producer_id, 0
    return _moved(
        transaction,
        TransactionState.COMPLETE_COMMIT if is_commit else TransactionState.COMPLETE_ABORT,
        now_ms,
        producer_id=producer_id,
        producer_epoch=epoch,
        next_producer_id=NO_PRODUCER_ID,
        partitions=frozenset(),
    )


def _moved(
    transaction: Transaction, state: TransactionState, now_ms: int, **changes: object
) -> Transaction:
    assert transaction.state in _MAY_FOLLOW[state], f"{transaction.state} to {state}"
    return dataclasses.replace(
        transaction,
        state=state,
        previous_producer_id=transaction.producer_id,
        # Clocks may be set back; that something came later stays so.
        last_update_timestamp_ms=max(now_ms, transaction.last_update_timestamp_ms),
        **{"preparation": None, **changes},  # type: ignore[arg-type]
    )
