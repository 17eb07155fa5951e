"""Stories of transactions: submit a command, let time pass, and say exactly what followed.

A `Story` does what the broker does with a shard: it decides, replays the records, sets the timers
and keeps the tasks, with a clock that moves by 10 ms before each command, or as the story says.
Each step also checks what must hold at all times (see `transaction_invariants`).

    story = Story()
    story.init().gives(answer=..., records=["..."], timers={...}, tasks=[...])

`gives` is exact: what is not named must not have happened. Records are lines, see `line`; timers
are named by their kind and count from now, None for cancelled.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from transaction_invariants import check_invariants, image, replayed

from anabranch.coordinator.runtime.result import Result
from anabranch.coordinator.runtime.timers import Timers
from anabranch.coordinator.transaction import commands as c
from anabranch.coordinator.transaction.records import (
    MarkersProgressed,
    SinkWritten,
    TransactionWritten,
)
from anabranch.coordinator.transaction.settings import TransactionSettings
from anabranch.coordinator.transaction.shard import TransactionShard
from anabranch.coordinator.transaction.sink_state import Listed, Sink
from anabranch.coordinator.transaction.state import (
    TopicPartition,
    Transaction,
    TransactionVersion,
)
from anabranch.model.errors import ErrorCode

ID = "tx"
START_MS = 1_700_000_000_000
TICK_MS = 10
TIMEOUT_MS = 60_000
# The first producer id that is handed out.
P = 1000
NOBODY = 77
SINK = "s"
RETENTION_MS = 24 * 3600 * 1000
X0, X1, X2 = ("x", 0), ("x", 1), ("x", 2)
OFFSETS = ("__consumer_offsets", 3)
V0, V2 = TransactionVersion.TV_0, TransactionVersion.TV_2

InitAnswer = c.InitProducerIdAnswer
EndAnswer = c.EndTxnAnswer


def line(transaction: Transaction | None) -> str:
    """A transactional id in one line, with every field; times count from the story's begin.

    `Ongoing 1000/0 60000 v2 +20 +30 x-0`: state, producer, timeout, version, begin of the
    transaction, last change, partitions. Only where they say something: `last` for the epoch
    before, `before` for the producer id before, `next` for the one that takes over, `for` with the
    batch of a sink that it is prepared for, since when and for how long.
    """
    if transaction is None:
        return "none"
    words = [
        transaction.state.value,
        f"{transaction.producer_id}/{transaction.producer_epoch}",
        str(transaction.timeout_ms),
        f"v{transaction.client_transaction_version.value}",
    ]
    for time_ms in (transaction.start_timestamp_ms, transaction.last_update_timestamp_ms):
        words.append("-" if time_ms < 0 else f"+{time_ms - START_MS}")
    if transaction.last_producer_epoch != -1:
        words.append(f"last {transaction.last_producer_epoch}")
    if transaction.previous_producer_id != transaction.producer_id:
        words.append(f"before {transaction.previous_producer_id}")
    if transaction.next_producer_id != -1:
        words.append(f"next {transaction.next_producer_id}")
    preparation = transaction.preparation
    if preparation is not None:
        words.append(
            f"for {preparation.sink_id}/{preparation.batch_id}"
            f" +{preparation.prepared_ms - START_MS} {preparation.retention_ms}"
        )
    words += [f"{topic}-{partition}" for topic, partition in sorted(transaction.partitions)]
    return " ".join(words)


def sink_line(sink: Sink) -> str:
    """`sink s 5 +30 tx:1000/0`: its last batch, when that was, and what is pending."""
    words = ["sink", sink.sink_id, str(sink.last_batch_id)]
    words.append(f"+{sink.last_update_timestamp_ms - START_MS}")
    words += [
        f"{one.transactional_id}:{one.producer_id}/{one.producer_epoch}" for one in sink.pending
    ]
    return " ".join(words)


def _record_line(record: Any) -> str:
    if isinstance(record, MarkersProgressed):
        return "missing " + " ".join(
            f"{topic}-{number}" for topic, number in sorted(record.missing)
        )
    if isinstance(record, SinkWritten):
        return f"sink {record.sink_id} forgotten" if record.sink is None else sink_line(record.sink)
    if record.transaction is None:
        return "forgotten"
    assert record.transactional_id == record.transaction.transactional_id
    return line(record.transaction)


class Step:
    """What one command, or one timer, has led to."""

    def __init__(self, story: "Story", result: Result) -> None:
        self.story = story
        self.answer = result.response
        self.records = [_record_line(record) for record in result.records]
        self.timers = {
            change.key[0]: (
                None if change.deadline_ms is None else change.deadline_ms - story.now_ms
            )
            for change in result.timers
        }
        self.tasks = list(result.tasks)
        assert result.wakes == ()

    def gives(
        self,
        *,
        answer: Any = None,
        records: Iterable[str] = (),
        timers: Mapping[str, int | None] | None = None,
        tasks: Iterable[Any] = (),
    ) -> "Step":
        """Check that this and nothing else has happened."""
        assert self.answer == answer
        assert self.records == list(records)
        assert self.timers == (timers or {})
        assert self.tasks == list(tasks)
        return self

    def fails(self, error: ErrorCode) -> None:
        """Check that it was refused with an error, that it tells nothing else, and did nothing."""
        assert self.answer == type(self.answer)(error=error)
        assert (self.records, self.timers, self.tasks) == ([], {}, [])

    def does_nothing(self) -> None:
        self.gives()


class Story:
    """One shard, its clock, and the work that it wants done."""

    checks_invariants = True

    def __init__(self, **settings: int) -> None:
        self.settings = TransactionSettings(**settings)
        self.now_ms = START_MS
        self.shard = TransactionShard(self.settings)
        self.timers = Timers()
        self.records: list[Any] = []
        self.tasks: list[Any] = []
        self.epochs: dict[int, int] = {}
        self.next_producer_id = P
        self.gives_producer_ids = True

    # Time ---------------------------------------------------------------------------------------

    def wait(self, delay_ms: int) -> list[Step]:
        """Let time pass; a step for each timer that fired."""
        end_ms = self.now_ms + delay_ms
        steps = []
        while (deadline_ms := self.timers.next_deadline_ms()) is not None and deadline_ms <= end_ms:
            self.now_ms = max(self.now_ms, deadline_ms)
            key = self.timers.pop_expired(self.now_ms)
            steps.append(self.submit(c.TimerFired(key=key), tick_ms=0))
            assert len(steps) < 10_000, "a timer fires without end"
        self.now_ms = end_ms
        return steps

    def restart(self) -> Step:
        """kill -9 and start: only what is durable is left, and no work is under way."""
        self.records = [record for record in self.records if record.is_durable]
        self.shard = replayed(self.records, self.settings)
        self.timers = Timers()
        self.tasks = []
        return self.submit(c.Loaded(), tick_ms=0)

    # Commands -----------------------------------------------------------------------------------

    def submit(self, command: c.Command, tick_ms: int = TICK_MS) -> Step:
        """Decide and carry out, as the broker does, and check what always holds."""
        self.now_ms += tick_ms
        before = image(self.shard)
        result = self.shard.decide(command, self.now_ms)
        if self.checks_invariants:
            assert self.shard.decide(command, self.now_ms) == result, "decide is not repeatable"
            assert image(self.shard) == before, "decide changed the state"
        for record in result.records:
            self.records.append(record)
            self.shard.replay(record)
        for change in result.timers:
            self.timers.apply(change)
        self.tasks += result.tasks
        if self.checks_invariants:
            check_invariants(self)
        return Step(self, result)

    def transaction(self, name: str = ID) -> Transaction:
        transaction = self.shard.transaction(name)
        assert transaction is not None
        return transaction

    @property
    def line(self) -> str:
        return line(self.shard.transaction(ID))

    def _new_producer_id(self, name: str | None) -> int | None:
        if not self.gives_producer_ids or not self.shard.needs_producer_id(name):
            return None
        self.next_producer_id += 1
        return self.next_producer_id - 1

    def init(self, producer_id: int = -1, epoch: int = -1, **changes: Any) -> Step:
        values: dict[str, Any] = {
            "transactional_id": ID,
            "timeout_ms": TIMEOUT_MS,
            "producer_id": producer_id,
            "producer_epoch": epoch,
        }
        values |= changes
        values.setdefault("new_producer_id", self._new_producer_id(values["transactional_id"]))
        return self.submit(c.InitProducerId(**values))

    def add(
        self, producer_id: int, epoch: int, *partitions: TopicPartition, **changes: Any
    ) -> Step:
        values: dict[str, Any] = {
            "transactional_id": ID,
            "producer_id": producer_id,
            "producer_epoch": epoch,
            "partitions": partitions,
        }
        return self.submit(c.AddPartitionsToTxn(**values | changes))

    def offsets(self, producer_id: int, epoch: int, **changes: Any) -> Step:
        values: dict[str, Any] = {
            "transactional_id": ID,
            "producer_id": producer_id,
            "producer_epoch": epoch,
            "offsets_partition": OFFSETS,
        }
        return self.submit(c.AddOffsetsToTxn(**values | changes))

    def verify(
        self, producer_id: int, epoch: int, *partitions: TopicPartition, **changes: Any
    ) -> Step:
        values: dict[str, Any] = {
            "transactional_id": ID,
            "producer_id": producer_id,
            "producer_epoch": epoch,
            "partitions": partitions,
        }
        return self.submit(c.VerifyPartitions(**values | changes))

    def end(self, producer_id: int, epoch: int, *, commit: bool, **changes: Any) -> Step:
        values: dict[str, Any] = {
            "transactional_id": ID,
            "producer_id": producer_id,
            "producer_epoch": epoch,
            "is_commit": commit,
        }
        values |= changes
        values.setdefault("new_producer_id", self._new_producer_id(values["transactional_id"]))
        return self.submit(c.EndTxn(**values))

    def end2(self, producer_id: int, epoch: int, *, commit: bool, **changes: Any) -> Step:
        """EndTxn as a client of transaction version 2 sends it."""
        changes.setdefault("transaction_version", V2)
        return self.end(producer_id, epoch, commit=commit, **changes)

    def abort(self, name: str = ID) -> Step:
        command = c.AbortTransaction(
            transactional_id=name, new_producer_id=self._new_producer_id(name)
        )
        return self.submit(command)

    def expire(self) -> Step:
        return self.submit(c.ExpireTransactionalIds())

    # Batches of sinks ---------------------------------------------------------------------------

    def prepare(self, producer_id: int, epoch: int, batch_id: int = 0, **changes: Any) -> Step:
        values: dict[str, Any] = {
            "transactional_id": ID,
            "producer_id": producer_id,
            "producer_epoch": epoch,
            "sink_id": SINK,
            "batch_id": batch_id,
        }
        return self.submit(c.PrepareTxn(**values | changes))

    def batch(self, batch_id: int, *batch: Listed, sink_id: str = SINK) -> Step:
        """Commit transactions of this shard as a batch."""
        command = c.CommitBatch(
            sink_id=sink_id,
            batch_id=batch_id,
            listed=batch,
            found=tuple(self.shard.transaction(one.transactional_id) for one in batch),
            others=tuple(self.shard.prepared_for(sink_id)),
        )
        return self.submit(command)

    def end_prepared(self, one: Listed, *, commit: bool, **changes: Any) -> Step:
        values: dict[str, Any] = {"sink_id": SINK, "listed": one, "is_commit": commit}
        values |= changes
        values.setdefault("new_producer_id", self._new_producer_id(one.transactional_id))
        return self.submit(c.EndPrepared(**values))

    def listed_ended(self, *ended: Listed, sink_id: str = SINK) -> Step:
        """The batch's work is done, with some of it committed."""
        self.tasks = [t for t in self.tasks if not isinstance(t, c.EndListed)]
        return self.submit(c.ListedEnded(sink_id=sink_id, ended=frozenset(ended)))

    def prepared(self, name: str, batch_id: int = 0, **changes: Any) -> Listed:
        """A new id with a transaction of x-0 and x-1 that is prepared for a batch."""
        answer = self.init(transactional_id=name).answer
        producer = (answer.producer_id, answer.producer_epoch)
        self.add(*producer, X0, X1, transactional_id=name, transaction_version=V2)
        assert self.prepare(*producer, batch_id, transactional_id=name, **changes).answer.error == 0
        return Listed(transactional_id=name, producer_id=producer[0], producer_epoch=producer[1])

    # Work ---------------------------------------------------------------------------------------

    @property
    def markers_under_way(self) -> list[c.WriteMarkers]:
        return [task for task in self.tasks if isinstance(task, c.WriteMarkers)]

    @property
    def batches_under_way(self) -> list[c.EndListed]:
        return [task for task in self.tasks if isinstance(task, c.EndListed)]

    def markers(self, *written: TopicPartition, name: str = ID) -> Step:
        """The work of an id is done for some partitions; for all where none is named."""
        (task,) = [task for task in self.markers_under_way if task.transactional_id == name]
        return self.outcome(task, frozenset(written) or task.partitions)

    def outcome(self, task: c.WriteMarkers, written: frozenset[TopicPartition]) -> Step:
        if task in self.tasks:
            self.tasks.remove(task)
        return self.submit(c.MarkersWritten(task=task, written=written))

    def allocated(self, producer_id: int, name: str = ID) -> Step:
        self.tasks.remove(c.AllocateProducerId(transactional_id=name))
        command = c.ProducerIdAllocated(transactional_id=name, new_producer_id=producer_id)
        return self.submit(command)

    # Beginnings ---------------------------------------------------------------------------------

    def begun(self, epoch: int = 0, version: TransactionVersion = V2) -> None:
        """An Ongoing transaction of x-0 and x-1, of producer `P` in an epoch."""
        self.init()
        self.wind(epoch)
        self.add(P, epoch, X0, X1, transaction_version=version)

    def wind(self, epoch: int) -> None:
        """Have the present producer in an epoch, as if it had been initialized so often."""
        transaction = dataclasses.replace(self.transaction(), producer_epoch=epoch)
        record = TransactionWritten(transactional_id=ID, transaction=transaction)
        self.records.append(record)
        self.shard.replay(record)
