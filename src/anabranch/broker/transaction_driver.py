"""One shard of the transaction coordinator at work: decide, append, replay, write markers, answer.

A command is decided on the shard's state; the durable records of the decision are appended to the
journal as one batch, all its records are replayed, its timers set, its tasks carried out, and then
its answer is let go. If an append fails, the shard is dropped and read again from the journal
(fail-stop). A shard whose journal cannot be read, or cannot be trusted after a failed sync, refuses
everything with NOT_COORDINATOR until the broker is started again.

Rules
- A marker is written only after its decision is in the journal; where the journal has to be on disk
  (`flush.on.acks.all`, `flush.messages`), only after it is. Until then the transaction is decided,
  and everything else about it is told CONCURRENT_TRANSACTIONS.
- Where answers wait for the disk, they all do: none may follow from a decision that can be lost.
- Markers are written in the turn of the loop that lets them be, so that who ends a transaction is
  answered when it is complete, and can go on with the next at once. (Kafka answers before, and its
  clients try again.) A marker that cannot be written is tried again later; the answer does not wait
  for that, because the decision is durable.
- Before markers are written it is looked whether the shard still waits for them. A task may have
  waited for the disk while the shard was loaded anew, which gave the same task again; by now the
  next transaction may have begun in the same epoch.
"""

import functools
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from anabranch.broker.deferred import Deferred
from anabranch.broker.partition import Partition
from anabranch.broker.shard_clock import ShardClock
from anabranch.broker.transaction_markers import WrittenMarkers, write_markers
from anabranch.broker.transaction_metrics import TransactionMetrics
from anabranch.coordinator.runtime.result import Result, TimerKey
from anabranch.coordinator.transaction import commands as c
from anabranch.coordinator.transaction.ending import write_markers as wanted_markers
from anabranch.coordinator.transaction.settings import TransactionSettings
from anabranch.coordinator.transaction.shard import TransactionShard
from anabranch.coordinator.transaction.state import TopicPartition
from anabranch.engine.journal.errors import JournalError
from anabranch.engine.journal.journal import TOO_LARGE_CODES, append_records, read_records
from anabranch.engine.journal.transaction_codec import decode_transaction, encode_transactions
from anabranch.engine.metadata_store import STORE_ERRORS
from anabranch.model.errors import ErrorCode, KafkaError
from anabranch.observe import logs

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker
    from anabranch.broker.sink_batches import SinkBatches

# A shard whose journal fails again and again is read again only so often.
_RELOAD_PAUSE_MS = 1_000
_RELOAD = "reload"
# What changes something only when a transaction was open for too long.
_TIME_IS_UP = (c.TimerFired, c.ProducerIdAllocated)
# A timer whose decision failed is tried again after so long.
_TIMER_RETRY_MS = 10_000


class TransactionDriver:
    """One shard with its journal partition and its timers."""

    def __init__(
        self,
        partition: Partition,
        settings: TransactionSettings,
        broker: "Broker",
        steady_ms: Callable[[], int],
        metrics: TransactionMetrics,
        sinks: "SinkBatches",
    ) -> None:
        self.partition = partition
        self._settings = settings
        self._broker = broker
        self._metrics = metrics
        self._sinks = sinks
        self.shard = self._new_shard()
        # Why nothing is served, while that is so.
        self.refusal: KafkaError | None = None
        self._clock = ShardClock(steady_ms, self._ring, broker.wake_fetches)
        self._reload_from_ms = 0
        # The decisions whose markers could not all be written, by transactional id.
        self._failing: dict[str, int] = {}

    def _new_shard(self) -> TransactionShard:
        return TransactionShard(self._settings, self._sinks.is_claimed)

    @property
    def _name(self) -> str:
        return self.partition.log.folder.name

    # Loading --------------------------------------------------------------------------------------

    def load(self) -> None:
        """Read the journal, and end in all partitions what was decided before.

        Everything is refused if the journal cannot be read.
        """
        self.refusal = None
        self._clock.clear()
        self.shard = self._new_shard()
        shard = self._new_shard()
        now_ms = self._broker.now_ms()
        log = self.partition.log
        skipped: Counter[int] = Counter()
        try:
            for record in read_records(log, skipped, decode_transaction):
                shard.replay(record)
            if self._broker.must_sync(self.partition, acks=-1):
                log.flush(now_ms)  # what is carried out now must not be lost later
        except (JournalError, KafkaError) as error:
            self._refuse(f"The journal cannot be read: {error}")
            return
        if skipped:
            types = " ".join(str(number) for number in sorted(skipped))
            logs.warning(
                "coordinator.records.skipped",
                shard=self._name,
                records=skipped.total(),
                types=types,
            )
        self.shard = shard
        result = shard.decide(c.Loaded(), now_ms)
        assert not result.records, "what follows from the journal is not written again"
        self._clock.set(result.timers, now_ms)
        self._carry_out(result)

    def _refuse(self, why: str) -> None:
        """Serve nothing any more: the transactional ids of this shard wait for a restart."""
        self.refusal = KafkaError(ErrorCode.NOT_COORDINATOR, why)
        self._clock.clear()
        logs.error(
            "coordinator.shard.refused",
            shard=self._name,
            folder=str(self.partition.log.folder),
            reason=why,
            next_step="repair the disk or restore the folder, and start the broker again",
        )

    def check_serving(self) -> None:
        """NOT_COORDINATOR while the shard serves nothing."""
        if self.refusal is not None:
            # A new one each time: what is raised again and again gathers all its tracebacks.
            raise KafkaError(self.refusal.code, self.refusal.message)

    # Commands -------------------------------------------------------------------------------------

    def submit(self, command: c.Command) -> Any:
        """Decide and carry out; the answer, or a Deferred when it has to wait for the disk.

        KafkaError when the journal cannot be written; a Deferred is then completed with one.
        """
        self.check_serving()
        now_ms = self._broker.now_ms()
        result = self.shard.decide(command, now_ms)
        if result.records:
            self._record(result, now_ms)
            if isinstance(command, _TIME_IS_UP):
                self._metrics.timed_out += 1
        if result.timers and self._clock.set(result.timers, now_ms):
            self._clock.arm()
        if self._broker.must_sync(self.partition, acks=-1):
            return self._answer_when_synced(result)
        later = self._carry_out(result) if result.tasks else None
        if later is None:
            return result.response
        return later.then(lambda _: result.response)

    def _answer_when_synced(self, result: Result) -> Deferred[Any]:
        answer: Deferred[Any] = Deferred()

        def synced(is_safe: bool) -> None:
            if not is_safe:
                refusal = KafkaError(ErrorCode.NOT_COORDINATOR, "The journal is not on disk.")
                self._fail(refusal.message)
                answer.complete(refusal)
                return
            later = self._carry_out(result)
            if later is None:
                answer.complete(result.response)
            else:
                later.deliver_to(lambda _: answer.complete(result.response))
            self._broker.wake_fetches()

        self._broker.flusher.sync(self.partition.log, synced)
        return answer

    def _record(self, result: Result, now_ms: int) -> None:
        """Make a decision's records the truth."""
        durable = [record for record in result.records if record.is_durable]
        if durable:
            self._write(durable, now_ms)
        try:
            for record in result.records:
                self.shard.replay(record)
        except Exception as error:
            self._fail(repr(error))
            raise

    def _write(self, durable: list[Any], now_ms: int) -> None:
        try:
            size_bytes = append_records(
                self.partition.log, durable, now_ms, encode_all=encode_transactions
            )
        except KafkaError as error:
            if error.code in TOO_LARGE_CODES:
                # Nothing was written and nothing has changed: only this request suffers.
                raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, error.message) from error
            self._fail(error.message)
            raise KafkaError(ErrorCode.NOT_COORDINATOR, error.message) from error
        self._broker.purgatory.mark(self.partition, size_bytes)

    def _fail(self, why: str) -> None:
        """Memory and journal may differ: forget what is in memory and read what is on disk."""
        if self.refusal is not None:
            return
        logs.error("coordinator.shard.failed", shard=self._name, reason=why)
        failed = self.partition.log.failed
        if failed:
            self._refuse(f"The journal takes no more records: {failed}.")
        elif self._clock.now_ms() < self._reload_from_ms:
            # Reading it again has not helped a moment ago, and costs the others their time.
            self.refusal = KafkaError(ErrorCode.NOT_COORDINATOR, why)
            self._clock.clear()
            self._clock.ring_at(_RELOAD, self._reload_from_ms)
        else:
            self._reload()
        self._clock.arm()

    def _reload(self) -> None:
        began_ms = self._clock.now_ms()
        # Set before as well: what the loaded shard has to do may fail in its turn.
        self._reload_from_ms = began_ms + _RELOAD_PAUSE_MS
        self.load()
        # A journal that takes long to read is read the more seldom.
        ended_ms = self._clock.now_ms()
        self._reload_from_ms = ended_ms + max(_RELOAD_PAUSE_MS, 10 * (ended_ms - began_ms))

    # Tasks ----------------------------------------------------------------------------------------

    def _carry_out(self, result: Result) -> Deferred[None] | None:
        """Do what a decision wants done; a Deferred when the disk has to be waited for.

        What fails is tried again by a timer, or by the next start: it is nobody's who waits.
        """
        later: Deferred[None] | None = None
        for task in result.tasks:
            if self.refusal is not None:
                break
            if isinstance(task, c.AllocateProducerId):
                self._allocate(task)
            elif isinstance(task, c.EndListed):
                later = self._sinks.end_listed(task)
            elif self._is_wanted(task):
                later = self._end(task)
        return later

    def _allocate(self, task: c.AllocateProducerId) -> None:
        try:
            new_producer_id = self._broker.producer_ids.next()
        except STORE_ERRORS as error:
            logs.error("producer.ids.failed", reason=str(error))
            return
        self._report(
            c.ProducerIdAllocated(
                transactional_id=task.transactional_id, new_producer_id=new_producer_id
            )
        )

    def _is_wanted(self, task: c.WriteMarkers) -> bool:
        """Whether the transaction still waits for these markers."""
        transactional_id = task.transactional_id
        transaction = self.shard.transaction(transactional_id)
        if transaction is None or not transaction.state.is_decided:
            return False
        return task == wanted_markers(transaction, self.shard.missing(transactional_id))

    def _end(self, task: c.WriteMarkers) -> Deferred[None] | None:
        outcome = write_markers(self._broker, task, self.partition.log.leader_epoch)
        if outcome.unsynced:
            return self._end_when_synced(task, outcome)
        self._ended(task, outcome)
        return None

    def _ended(self, task: c.WriteMarkers, outcome: WrittenMarkers) -> None:
        """All that could be done about the markers of a task is done."""
        self._metrics.markers_written += len(outcome.written)
        self._metrics.markers_failed += len(outcome.failed)
        transactional_id = task.transactional_id
        if not outcome.failed:
            self._failing.pop(transactional_id, None)
        elif self._failing.get(transactional_id) != task.decided_ms:
            # Said once, and tried again and again.
            self._failing[transactional_id] = task.decided_ms
            (topic, partition), reason = next(iter(outcome.failed.items()))
            logs.error(
                "transaction.markers.failed",
                transactional_id=transactional_id,
                partitions=len(outcome.failed),
                first=f"{topic}-{partition}",
                reason=reason,
                next_step="none: it is tried again until it works or the topic is deleted",
            )
        self._report(c.MarkersWritten(task=task, written=frozenset(outcome.written)))

    def _end_when_synced(self, task: c.WriteMarkers, outcome: WrittenMarkers) -> Deferred[None]:
        """Complete the transaction when the disk has the markers that must not be lost."""
        ended: Deferred[None] = Deferred()
        left = sum(map(len, outcome.unsynced.values()))

        def synced(place: TopicPartition, is_safe: bool) -> None:
            nonlocal left
            if not is_safe:
                outcome.failed[place] = "The marker is not on disk."
            left -= 1
            if not left:
                outcome.written.update(outcome.unsynced.keys() - outcome.failed.keys())
                self._ended(task, outcome)
                ended.complete(None)

        for place, partitions in outcome.unsynced.items():
            for partition in partitions:
                self._broker.flusher.sync(partition.log, functools.partial(synced, place))
        return ended

    def _report(self, command: c.MarkersWritten | c.ProducerIdAllocated) -> None:
        """Tell the shard what came of a task."""
        if self.refusal is not None:
            return
        try:
            self.submit(command)
        except KafkaError as error:
            logs.error("coordinator.task.failed", shard=self._name, reason=error.message)

    # Time -----------------------------------------------------------------------------------------

    def start(self) -> None:
        """The loop runs: let the timers of what was loaded run too."""
        self._clock.arm()

    def _ring(self, key: TimerKey) -> None:
        if key is _RELOAD:
            self._reload()
            return
        try:
            self.submit(c.TimerFired(key=key))
        except Exception as error:
            if isinstance(error, KafkaError) and error.code is ErrorCode.NOT_COORDINATOR:
                return  # it was said, and what was loaded has timers of its own
            logs.error("coordinator.timer.failed", shard=self._name, timer=key, error=repr(error))
            self._clock.ring_at(key, self._clock.now_ms() + _TIMER_RETRY_MS)

    def stop(self) -> None:
        """Serve nothing any more; what is decided and not carried out is so after the start."""
        self.refusal = KafkaError(ErrorCode.NOT_COORDINATOR, "The broker is shutting down.")
        self._clock.clear()
        self._clock.arm()
