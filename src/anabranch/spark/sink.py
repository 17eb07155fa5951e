"""`format("anabranch")` as a sink: what Spark calls to write rows to topics.

At least once, as Spark's own `kafka` sink: rows are written by an idempotent producer, so that what
is sent again within a task is there once; but a task, or a batch, that is run again writes its rows
again. With `exactlyOnce` tasks write in transactions that the driver's commit makes visible all at
once (see `sink_transactions`); readers must then ask for committed records.

Spark makes a writer in the driver, sends copies to the executors, where `write` gets the rows of
one task, and makes another writer for `commit` or `abort`. So writers hold plain data, and whatever
`commit` has to know is in the messages of the tasks.
"""

import contextlib
import logging
import time
import uuid
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Final

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from anabranch.spark.encode import ColumnNames, Encoder
from anabranch.spark.errors import LinkError, OptionError
from anabranch.spark.link import Link, link_of
from anabranch.spark.producing import Producer, borrow_producer, return_producer, topic_to_write
from anabranch.spark.sink_options import (
    SinkOptions,
    check_columns,
    fields_of,
    parse_sink_options,
)
from anabranch.spark.sink_transactions import Batch, TaskMessage, Transactions, is_committed
from anabranch.spark.worker_gc import freeze_gc_once

_COLLECT_BYTES: Final = 4 * 1024 * 1024
"""Rows are collected until they have so many bytes, or `linger.ms` are over."""
_BATCH_PROPERTY: Final = "streaming.sql.batchId"
_QUERY_PROPERTY: Final = "sql.streaming.queryId"
_LANE: Final = "sink"

_log = logging.getLogger(__name__)

Messages = list[WriterCommitMessage | None]


def batch_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> "BatchWriter":
    """The writer of a batch query; OptionError names the option or column that is wrong."""
    if overwrite:
        raise OptionError(
            "mode 'overwrite' is not possible: a topic cannot be replaced; use mode 'append'"
        )
    parsed = _checked(options, is_streaming=False)
    return BatchWriter(parsed, check_columns(fields_of(schema), parsed.topic))


def stream_writer(
    options: Mapping[str, str], schema: StructType, overwrite: bool
) -> "StreamWriter":
    """The writer of a streaming query; OptionError names the option or column that is wrong."""
    if overwrite:
        raise OptionError(
            "output mode 'complete' would replace what was written; topics take 'append', and the"
            " results of aggregations are written in foreachBatch"
        )
    parsed = _checked(options, is_streaming=True)
    return StreamWriter(parsed, check_columns(fields_of(schema), parsed.topic))


def _checked(options: Mapping[str, str], *, is_streaming: bool) -> SinkOptions:
    parsed = parse_sink_options(options, is_streaming=is_streaming)
    for warning in parsed.warnings:
        warnings.warn(warning, stacklevel=2)
    return parsed


class BatchWriter(DataSourceArrowWriter):
    """Writes a table; with `exactlyOnce` all rows become visible at once, or none does."""

    def __init__(self, options: SinkOptions, columns: frozenset[str]) -> None:
        self._options = options
        self._columns = columns
        self._batch: Batch | None = None
        if options.is_exactly_once:
            sink_id = options.sink_id or f"batch-{uuid.uuid4()}"
            self._batch = Batch(sink_id, options.batch_id or 0)

    def write(self, iterator: Iterator[Any]) -> TaskMessage:
        return _write(self._options, self._columns, self._batch, iterator)

    def commit(self, messages: Messages) -> None:
        _end(self._options, messages, committed=True)

    def abort(self, messages: Messages) -> None:
        _end(self._options, messages, committed=False)


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes the batches of a streaming query."""

    def __init__(self, options: SinkOptions, columns: frozenset[str]) -> None:
        self._options = options
        self._columns = columns

    def write(self, iterator: Iterator[Any]) -> TaskMessage:
        batch = None
        if self._options.is_exactly_once:
            task = _task()
            sink_id = self._options.sink_id or task.getLocalProperty(_QUERY_PROPERTY)
            batch_id = task.getLocalProperty(_BATCH_PROPERTY)
            if not sink_id or batch_id is None:
                raise LinkError("Spark does not tell the task which query and batch it is of")
            batch = Batch(sink_id, int(batch_id))
        return _write(self._options, self._columns, batch, iterator)

    def commit(self, messages: Messages, batchId: int) -> None:
        _end(self._options, messages, committed=True)

    def abort(self, messages: Messages, batchId: int) -> None:
        _end(self._options, messages, committed=False)


# In executors -------------------------------------------------------------------------------------


def _task() -> TaskContext:
    task = TaskContext.get()
    if task is None:
        raise LinkError("rows are written by tasks of Spark only")
    return task


def _write(
    options: SinkOptions, columns: frozenset[str], batch: Batch | None, rows: Iterator[Any]
) -> TaskMessage:
    """All rows of one task."""
    freeze_gc_once()
    task = _task()
    first = next((one for one in rows if one.num_rows), None)
    if first is None:  # nobody has to know of it
        return TaskMessage(0, batch)
    rows = chain([first], rows)
    if batch is not None:
        return _write_in_transaction(options, columns, batch, task, rows)
    producer = borrow_producer(options.link, options.producer)
    try:
        count = write_rows(options, columns, producer, rows, task.partitionId())
    except BaseException:
        # Its sequences are in doubt, so it is not used again.
        producer.close()
        raise
    return_producer(producer, options.link, options.producer)
    return TaskMessage(count)


def _write_in_transaction(
    options: SinkOptions,
    columns: frozenset[str],
    batch: Batch,
    task: TaskContext,
    rows: Iterator[Any],
) -> TaskMessage:
    link = link_of(options.link, _LANE)
    transactions = Transactions(link, options.producer)
    if is_committed(transactions.last_batch(batch.sink_id), batch):
        return TaskMessage(sum(one.num_rows for one in rows), batch)
    identity = transactions.begin(f"{batch.sink_id}.{task.partitionId()}.{task.attemptNumber()}")
    producer = Producer(link, options.producer, identity)
    try:
        count = write_rows(options, columns, producer, rows, task.partitionId())
        is_prepared = transactions.prepare(identity, batch)
    except BaseException:
        producer.close()
        # Otherwise its time ends it, or the next task that has its id.
        with contextlib.suppress(LinkError):
            transactions.abort(identity)
        raise
    producer.close()
    return TaskMessage(count, batch, identity if is_prepared else None)


def write_rows(
    options: SinkOptions,
    columns: frozenset[str],
    producer: Producer,
    rows: Iterable[Any],
    task_number: int = 0,
    clock: Callable[[], float] = time.monotonic,
) -> int:
    """Write the rows of Arrow batches, wait until all are acknowledged; returns their number."""
    encoder = Encoder(
        ColumnNames(
            topic=options.topic,
            has_key="key" in columns,
            has_headers="headers" in columns,
            has_partition="partition" in columns,
        ),
        options.producer.batch_bytes,
        _PartitionCounts(producer.link, options),
        # Rows without a key begin at another partition in each task.
        sticky_first=task_number,
    )
    count = 0
    collected: list[Any] = []
    collected_bytes, collected_at = 0, 0.0
    for batch in rows:
        if not collected:
            collected_at = clock()
        collected.append(batch)
        collected_bytes += batch.nbytes
        count += batch.num_rows
        is_late = (clock() - collected_at) * 1000 >= options.producer.linger_ms
        if collected_bytes >= _COLLECT_BYTES or is_late:
            _send(encoder, producer, collected)
            collected, collected_bytes = [], 0
    _send(encoder, producer, collected)
    producer.flush()
    return count


def _send(encoder: Encoder, producer: Producer, batches: Sequence[Any]) -> None:
    import pyarrow as pa

    if not batches:
        return
    for rows in pa.Table.from_batches(batches).combine_chunks().to_batches():
        for encoded in encoder.encode(rows):
            producer.send(encoded)


class _PartitionCounts:
    """How many partitions topics have, as it was when the task came to them."""

    def __init__(self, link: Link, options: SinkOptions) -> None:
        self._link = link
        self._options = options
        self._counts: dict[str, int] = {}

    def __call__(self, topic: str) -> int:
        count = self._counts.get(topic)
        if count is None:
            found = topic_to_write(self._link, topic, self._options.producer)
            count = self._counts[topic] = max(found.leaders) + 1
        return count


# In the driver ------------------------------------------------------------------------------------


def _end(options: SinkOptions, messages: Messages, *, committed: bool) -> None:
    """Commit or abort what tasks prepared; there is nothing to do without transactions."""
    written = [one for one in messages if isinstance(one, TaskMessage) and one.batch is not None]
    if not options.is_exactly_once or not written:
        return
    batch = written[0].batch
    assert batch is not None
    identities = [one.identity for one in written if one.identity is not None]
    link = link_of(options.link, _LANE)
    transactions = Transactions(link, options.producer)
    is_new = transactions.end_batch(batch, identities, committed=committed)
    if not committed:
        return
    if not is_new:
        # Who is late leaves it at that: others may be at work for the sink by now.
        _log.warning("%s was committed before; what was written now is dropped", batch)
        return
    try:
        transactions.abort_left_over(batch.sink_id)
    except LinkError as error:
        # The batch is committed; what is left over ends with the next one, or by its time.
        _log.warning("%s: %s", batch, error)
