"""What can be asked of the transaction coordinator, what it answers, and what it wants done.

Commands are facts of a request; whoever makes them has checked nothing but the form. Errors are
values: an `ErrorCode` in the answer.

Producer ids come with the commands, because the core reserves nothing on a disk. They are rarely
needed: `TransactionShard.needs_producer_id` says when, and otherwise a command may come without.

Tasks are carried out by the broker, and what comes of each returns as one command. After a restart
`Loaded` gives those tasks again whose outcome the journal does not have.

    WriteMarkers       ->  MarkersWritten
    AllocateProducerId ->  ProducerIdAllocated
    EndListed          ->  EndPrepared, in the shard of each transaction; then ListedEnded
"""

from dataclasses import dataclass

from anabranch.coordinator.runtime.result import TimerKey
from anabranch.coordinator.transaction.sink_state import Listed, Sink
from anabranch.coordinator.transaction.state import (
    NO_BATCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    TopicPartition,
    Transaction,
    TransactionState,
    TransactionVersion,
)
from anabranch.model.errors import ErrorCode

# Producers -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class InitProducerId:
    """A producer that starts, or one that goes on after an error (KIP-360).

    The latter says which producer id and epoch it has; -1 and -1 otherwise.
    """

    # None for a producer that is idempotent and no more.
    transactional_id: str | None
    timeout_ms: int
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH
    new_producer_id: int | None = None
    # Before version 4 a fenced producer is told INVALID_PRODUCER_EPOCH (KIP-588).
    knows_producer_fenced: bool = True
    # From version 6 on (KIP-939): no time ends the transactions of this producer.
    is_two_phase_commit: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class InitProducerIdAnswer:
    error: ErrorCode = ErrorCode.NONE
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH


# Partitions ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class AddPartitionsToTxn:
    """Let partitions belong to the transaction.

    Version 0 to 3 requests come from clients of transaction version 0; for those of version 2 the
    broker adds what they produce to and commit offsets in.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: tuple[TopicPartition, ...]
    transaction_version: TransactionVersion = TransactionVersion.TV_0
    # Before version 2 a fenced producer is told INVALID_PRODUCER_EPOCH (KIP-588).
    knows_producer_fenced: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class AddOffsetsToTxn:
    """Let the partition of `__consumer_offsets` that a group belongs to be in the transaction."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    offsets_partition: TopicPartition
    knows_producer_fenced: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyPartitions:
    """Ask whether partitions belong to the transaction (AddPartitionsToTxn, version 4 on)."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionsAnswer:
    """One error for all, or one for each partition in the order of the command."""

    error: ErrorCode = ErrorCode.NONE
    errors: tuple[ErrorCode, ...] = ()


# The end -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class EndTxn:
    """Commit or abort. Version 5 on is of transaction version 2."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    is_commit: bool
    transaction_version: TransactionVersion = TransactionVersion.TV_0
    new_producer_id: int | None = None
    # Before version 2 a fenced producer is told INVALID_PRODUCER_EPOCH (KIP-588).
    knows_producer_fenced: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class EndTxnAnswer:
    """In transaction version 2 with what the producer has to use from now on."""

    error: ErrorCode = ErrorCode.NONE
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortTransaction:
    """An admin wants an Ongoing transaction to end; its producer is fenced."""

    transactional_id: str
    new_producer_id: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortAnswer:
    error: ErrorCode = ErrorCode.NONE


# Batches of sinks --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareTxn:
    """The producer has written all of the transaction, which waits for a batch of a sink now."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    sink_id: str
    batch_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareAnswer:
    error: ErrorCode = ErrorCode.NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class EndPrepared:
    """A batch commits what it lists; or what is prepared and will be in no batch is aborted."""

    sink_id: str
    listed: Listed
    is_commit: bool
    new_producer_id: int | None = None

    @property
    def transactional_id(self) -> str:
        return self.listed.transactional_id


@dataclass(frozen=True, slots=True, kw_only=True)
class EndPreparedAnswer:
    """No error where it has ended before, this way or another."""

    error: ErrorCode = ErrorCode.NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class AskSink:
    """Which batch of a sink was the last one: as durable as the answer to any command."""

    sink_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkAnswer:
    """None for a sink that had no batch, or is forgotten."""

    sink: Sink | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitBatch:
    """These transactions are a batch of the sink.

    `found` are they, in their order, as their shards have them, and `others` is what else is
    prepared for the sink.
    """

    sink_id: str
    batch_id: int
    listed: tuple[Listed, ...]
    found: tuple[Transaction | None, ...]
    others: tuple[Transaction, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A transaction that is in the way of its batch, and the state that it was found in."""

    listed: Listed
    error: ErrorCode
    state: TransactionState | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchAnswer:
    """With an error nothing was committed; in a replay the batch has been committed before."""

    error: ErrorCode = ErrorCode.NONE
    last_batch_id: int = NO_BATCH
    is_replay: bool = False
    refused: tuple[Refusal, ...] = ()


# Work for the broker, and what comes of it ------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteMarkers:
    """Write the end of a transaction into its partitions.

    A partition whose topic is gone counts as written: there is nothing left to be ended.
    `decided_ms` tells it from the same work for an earlier transaction in the same epoch.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    is_commit: bool
    partitions: frozenset[TopicPartition]
    transaction_version: TransactionVersion
    decided_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkersWritten:
    """The outcome of `WriteMarkers`: what was written; the others are tried again later."""

    task: WriteMarkers
    written: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocateProducerId:
    """A transaction whose time is up can be aborted only with another producer id."""

    transactional_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerIdAllocated:
    """The outcome of `AllocateProducerId`."""

    transactional_id: str
    new_producer_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EndListed:
    """Have transactions of a sink ended by the shards that they belong to.

    Those to be committed are in a batch that is: it is tried until it is done.
    """

    sink_id: str
    commits: tuple[Listed, ...]
    aborts: tuple[Listed, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedEnded:
    """The outcome of `EndListed`: what is committed now; the others are tried again later."""

    sink_id: str
    ended: frozenset[Listed]


Task = WriteMarkers | AllocateProducerId | EndListed


# The rest -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpireTransactionalIds:
    """The periodic look for ids that nobody uses any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimerFired:
    key: TimerKey


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """The journal was read to its end: start the timers and the work that a living shard has."""


Command = (
    InitProducerId
    | AddPartitionsToTxn
    | AddOffsetsToTxn
    | VerifyPartitions
    | EndTxn
    | AbortTransaction
    | PrepareTxn
    | EndPrepared
    | AskSink
    | CommitBatch
    | ListedEnded
    | MarkersWritten
    | ProducerIdAllocated
    | ExpireTransactionalIds
    | TimerFired
    | Loaded
)
