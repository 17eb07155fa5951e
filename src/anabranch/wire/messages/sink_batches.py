"""Our own tagged fields of EndTxn and DescribeTransactions: batches of a sink, exactly once.

A job that runs as many tasks, batch by batch, writes every batch as one. Each task produces in a
transaction of its own, and the driver makes them all count with one request, which the broker
decides with one record: "these prepared transactions are batch B of sink S". The broker remembers
S -> B, so a batch that is run again is dropped, whatever the number of its tasks.

    task     InitProducerId                   a transactional id that no other task uses at the same
                                              time: of sink, task and attempt, for example. It
                                              should be used again in the next batch, since those
                                              that are not are remembered for long
             Produce                          as ever
             EndTxn + `prepare`               all records are acknowledged: no more are taken, and
                                              the transaction's time does not end it any more
    driver   EndTxn + `batch`, committed      all of them become visible, or none does
             EndTxn + `batch`, not committed  all of them are aborted: the batch failed
    anybody  DescribeTransactions + `sinks`   which batch was the last one, to save work

Requests of a task go to the coordinator of its transactional id, those about a sink to that of the
sink's id: FindCoordinator, key type 1 (transaction), key S. A sink's id and a transactional id have
nothing to do with each other, even when they are the same text.

EndTxn + `prepare` (version 3 and later)
    The request's own fields are those of the task: transactional id, producer id, epoch.
    `committed` must be false: a broker that does not know the tag aborts the transaction, and does
    not answer the tag. Answered with NONE and the tag `prepare`. If its `last_batch_id` is not
    below the batch of the request, the batch is committed already: the transaction was aborted, and
    there is nothing left to do. Asked again it is answered the same. A transaction that has written
    nothing cannot be prepared (INVALID_TXN_STATE): a task without records has none to list.
    A prepared transaction ends with its batch, with an EndTxn of its producer that aborts, with
    InitProducerId of the same transactional id (which aborts it, and is answered
    CONCURRENT_TRANSACTIONS until that is done, as ever), by an administrator, or after
    `transaction.prepared.retention.ms`. An EndTxn that commits is refused (INVALID_TXN_STATE).

EndTxn + `batch` (version 3 and later)
    `transactional_id` is the sink's id, `producer_id` and `producer_epoch` are -1.
    committed: NONE when batch and transactions are committed, durably; markers are written by then,
    or will be. With `is_replay` the batch (or a later one: `last_batch_id`) was committed before,
    and those of the listed transactions that are still prepared were aborted: also when the very
    same request is sent again because its answer was lost. An error says that nothing was
    committed; `refused` and `error_message` say which transactions are in the way and why:

        TRANSACTIONAL_ID_NOT_FOUND   nobody has the id
        INVALID_PRODUCER_ID_MAPPING  another producer id has it
        PRODUCER_FENCED              another epoch: it was ended, or another task has taken the id
        INVALID_TXN_STATE            not prepared, or prepared for another sink or batch
        NOT_COORDINATOR              what the broker knows of it cannot be read: ask again

    With a batch, and with every replay, all other prepared transactions of the sink are aborted
    that are of this batch or an earlier one: those of attempts that nobody lists.
    not committed: the listed ones that are prepared are aborted, and nothing else happens; NONE.
    Batches of a sink may leave numbers out. A batch may have no transactions.

DescribeTransactions + `sinks`
    The last batch of each sink that is asked for, -1 if there is none (or it is forgotten:
    `transaction.sink.expiration.ms`); and each described transaction says whether it is prepared.
"""

from anabranch.wire.schema import Bool, Int16, Int64, String, at, struct

SINK_BATCHES_VERSION = 1
# In ApiVersions, supported and finalized, by whoever knows these tags.
SINK_BATCHES_FEATURE = "sink.batches"
NO_BATCH = -1


# EndTxn -------------------------------------------------------------------------------------------


@struct
class PrepareTxn:
    """The transaction has all its records and waits for its batch; `committed` must be false."""

    version: Int16 = at("0+", default=SINK_BATCHES_VERSION)
    sink_id: String = at("0+")
    batch_id: Int64 = at("0+", default=NO_BATCH)


@struct
class PrepareTxnAnswer:
    """The sink's last batch: if it is not below that of the request, the transaction is aborted."""

    version: Int16 = at("0+", default=SINK_BATCHES_VERSION)
    last_batch_id: Int64 = at("0+", default=NO_BATCH)
    error_message: String | None = at("0+", default=None)


@struct
class SinkTransaction:
    """A prepared transaction; producer id and epoch are those it was prepared with."""

    transactional_id: String = at("0+")
    producer_id: Int64 = at("0+")
    producer_epoch: Int16 = at("0+")


@struct
class SinkBatch:
    """These transactions are a batch of the sink, or are aborted if `committed` is false."""

    version: Int16 = at("0+", default=SINK_BATCHES_VERSION)
    batch_id: Int64 = at("0+", default=NO_BATCH)
    transactions: list[SinkTransaction] = at("0+")


@struct
class RefusedTransaction:
    """One that is in the way of a batch."""

    transactional_id: String = at("0+")
    error_code: Int16 = at("0+")
    error_message: String = at("0+")


@struct
class SinkBatchAnswer:
    """What became of the batch; `is_replay` says that it was committed before."""

    version: Int16 = at("0+", default=SINK_BATCHES_VERSION)
    last_batch_id: Int64 = at("0+", default=NO_BATCH)
    is_replay: Bool = at("0+")
    error_message: String | None = at("0+", default=None)
    refused: list[RefusedTransaction] = at("0+")


# DescribeTransactions -----------------------------------------------------------------------------


@struct
class SinksQuestion:
    """Which sinks are asked for; none asks whether transactions are prepared, and no more."""

    version: Int16 = at("0+", default=SINK_BATCHES_VERSION)
    sink_ids: list[String] = at("0+")


@struct
class SinkState:
    """A sink's last batch, when it was committed, and how many transactions still need markers."""

    error_code: Int16 = at("0+")
    sink_id: String = at("0+")
    last_batch_id: Int64 = at("0+", default=NO_BATCH)
    last_batch_time_ms: Int64 = at("0+", default=-1)
    pending_transactions: Int64 = at("0+")


@struct
class SinksAnswer:
    """In the order of the question."""

    version: Int16 = at("0+", default=SINK_BATCHES_VERSION)
    sinks: list[SinkState] = at("0+")


@struct
class PreparedTxn:
    """For which batch a transaction is prepared, and since when."""

    version: Int16 = at("0+", default=SINK_BATCHES_VERSION)
    sink_id: String = at("0+")
    batch_id: Int64 = at("0+", default=NO_BATCH)
    prepared_time_ms: Int64 = at("0+", default=-1)
