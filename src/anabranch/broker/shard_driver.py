"""One shard of a coordinator at work: decide, append, replay, answer.

A command is decided on the shard's state; the durable records of the decision are appended to the
journal as one batch; then all its records are replayed, its timers set, and its answers let go.
Individual commits have a journal of their own, which is written first: what follows from them, the
committed offset, may be missing after a crash, and is made up for when both are read. Offsets that
are committed with a transaction are a batch of that transaction, and its end is a marker, as in any
other partition; what is acknowledged in it record by record is in the other journal. If an append
fails, the shard is dropped and read again from the journal (fail-stop), and everybody who waited on
it is told to look for the coordinator again: there is no half-applied decision to undo. A shard
whose journal cannot be read, or cannot be trusted after a failed sync, refuses everything with
NOT_COORDINATOR, as in Kafka, until the broker is started again: what is committed stays where it
is, and nothing is answered that might be wrong.

Nothing polls: requests that wait are parked by number, and timers are those of `shard_clock`.
"""

import asyncio
import functools
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from anabranch.broker.deferred import Deferred
from anabranch.broker.group_metrics import GroupMetrics
from anabranch.broker.partition import Partition
from anabranch.broker.shard_clock import ShardClock
from anabranch.broker.topics import INTERNAL_TOPICS
from anabranch.coordinator.cooperative.commands import (
    AbortTransactions,
    LogsFound,
    LogState,
    ResumeAcks,
    TakeAcks,
    TryAcksAgain,
)
from anabranch.coordinator.cooperative.records import (
    AcksForgotten,
    AcksPending,
    ProgressForgotten,
    ProgressWritten,
)
from anabranch.coordinator.group import commands as c
from anabranch.coordinator.group.commands import Command
from anabranch.coordinator.group.consumer_commands import (
    ConsumerHeartbeat,
    RegexesResolved,
    ResolveRegexes,
)
from anabranch.coordinator.group.consumer_records import ImageChanged
from anabranch.coordinator.group.records import OffsetPending, TransactionEnded
from anabranch.coordinator.group.settings import GroupSettings
from anabranch.coordinator.group.shard import GroupShard
from anabranch.coordinator.group.surroundings import Surroundings
from anabranch.coordinator.group.topic_regex import match_topics
from anabranch.coordinator.runtime.result import Result, TimerKey, WaiterId
from anabranch.engine.journal.errors import JournalError
from anabranch.engine.journal.individual_commit_codec import decode_progress, encode_progress
from anabranch.engine.journal.journal import (
    TOO_LARGE_CODES,
    append_pending,
    append_records,
    read_records,
)
from anabranch.log.markers import append_marker
from anabranch.log.partition_log import PartitionLog
from anabranch.model.errors import ErrorCode, KafkaError
from anabranch.observe import logs
from anabranch.wire.control_records import ABORT, COMMIT

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker

# A shard whose journal fails again and again is read again only so often.
_RELOAD_PAUSE_MS = 1_000
_RELOAD = "reload"
# A timer whose decision failed is tried again after so long.
_TIMER_RETRY_MS = 10_000
_MARKER_BYTES = 78
_PROGRESS_RECORDS = (ProgressWritten, ProgressForgotten, AcksPending, AcksForgotten)


class ShardDriver:
    """One shard with its journal partition, timers and parked requests."""

    def __init__(
        self,
        partition: Partition,
        settings: GroupSettings,
        surroundings: Surroundings,
        broker: "Broker",
        steady_ms: Callable[[], int],
        metrics: GroupMetrics | None = None,
        on_records: Callable[[tuple[Any, ...]], None] = lambda records: None,
        individual: Partition | None = None,
    ) -> None:
        self.partition = partition
        # The journal of individual commits, which there is from the first one on.
        self.individual = individual
        self._broker = broker
        self._settings = settings
        self._surroundings = surroundings
        self._now_ms = broker.now_ms
        self._metrics = metrics or GroupMetrics(steady_ms)
        self._timeline = broker.timeline
        # Told the records of every decision when they count.
        self._on_records = on_records
        self.shard = self._new_shard()
        # Why nothing is served, while that is so.
        self.refusal: KafkaError | None = None
        self._clock = ShardClock(steady_ms, self._ring, broker.wake_fetches)
        self.left_ms = self._clock.left_ms
        self._parked: dict[WaiterId, Deferred[Any]] = {}
        self._reload_from_ms = 0
        # Groups whose regular expressions are being matched.
        self._resolving: set[str] = set()

    # Loading --------------------------------------------------------------------------------------

    def load(self) -> None:
        """Read the journal and rebuild the state; refuse everything if it cannot be read."""
        self.refusal = None
        self._clock.clear()
        self.shard = self._new_shard()
        shard = self._new_shard()
        try:
            self._read(shard)
        except (JournalError, KafkaError) as error:
            self._refuse(f"The journal cannot be read: {error}")
            return
        self.shard = shard
        now_ms = self._now_ms()
        for command in (self._logs_found(shard), c.Loaded()):
            result = shard.decide(command, now_ms)
            for record in result.records:
                assert not record.is_durable, "what follows from the journal is not written again"
                shard.replay(record)
            self._clock.set(result.timers, now_ms)

    def _read(self, shard: GroupShard) -> None:
        """Replay what both journals say."""
        skipped: Counter[int] = Counter()
        for record in read_records(self.partition.log, skipped):
            shard.replay(record)
        self._tell_skipped(self.partition, skipped)
        if self.individual is None:
            return
        skipped = Counter()
        try:
            for record in read_records(self.individual.log, skipped, decode_progress):
                shard.replay(record)
        except JournalError as error:
            raise JournalError(
                f"{error}. It is in {self.individual.log.folder}; without that folder groups go on "
                "from their committed offsets"
            ) from error
        self._tell_skipped(self.individual, skipped)

    @staticmethod
    def _tell_skipped(journal: Partition, skipped: Counter[int]) -> None:
        if skipped:
            logs.warning(
                "coordinator.records.skipped",
                shard=journal.log.folder.name,
                records=skipped.total(),
                types=" ".join(str(number) for number in sorted(skipped)),
            )

    def _logs_found(self, shard: GroupShard) -> LogsFound:
        """What the logs are like whose records were acknowledged one by one."""
        found = {}
        for (topic_id, number), epochs in shard.epochs_in_doubt().items():
            topic = self._broker.topics.get_by_id(topic_id)
            if topic is None or not topic.has_partition(number):
                continue
            log = topic.partitions[number].log
            found[topic_id, number] = LogState(
                log_start_offset=log.log_start_offset,
                log_end_offset=log.log_end_offset,
                leader_epoch=log.leader_epoch,
                epoch_ends={epoch: _epoch_end(log, epoch) for epoch in epochs},
            )
        return LogsFound(logs=found)

    def _new_shard(self) -> GroupShard:
        shard = GroupShard(self._settings, self._surroundings)
        shard.replay(ImageChanged(image=self._broker.topics.image))
        return shard

    @property
    def _name(self) -> str:
        return self.partition.log.folder.name

    def _refuse(self, why: str) -> None:
        """Serve nothing any more: the groups of this shard wait for a restart."""
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

    def submit(self, command: Command, waiter: WaiterId | None = None) -> Any:
        """Decide and carry out; the answer, or a Deferred when it comes later.

        It comes later when the request is parked, and when the journal has to be on disk first
        (`flush.on.acks.all`, `flush.messages`). KafkaError when the journal cannot be written.
        """
        self.check_serving()
        if type(command) is c.CommitTxnOffsets:
            self._check_epoch(command.producer_id, command.producer_epoch)
        elif type(command) is TakeAcks and command.producer is not None:
            self._check_epoch(*command.producer)
        now_ms = self._now_ms()
        result = self.shard.decide(command, now_ms)
        response = result.response
        if response is None and waiter is not None:
            return self._park(command, result, now_ms, waiter)
        later = self._apply(command, result, now_ms)
        self._count(command, response)
        if later is None:
            return response
        return later.then(lambda refusal: refusal or response)

    def do(self, command: Command) -> int:
        """Carry out a command that nobody waits for; how many records it took."""
        self.check_serving()
        now_ms = self._now_ms()
        result = self.shard.decide(command, now_ms)
        self._apply(command, result, now_ms)
        return len(result.records)

    def end_transaction(self, command: c.EndTransaction) -> list[Partition]:
        """Commit or forget what a transaction has pending, and write its marker.

        Returns the journals that were written. That they reach the disk is seen to by who asks, as
        with the markers of other partitions.
        INVALID_PRODUCER_EPOCH or TRANSACTION_COORDINATOR_FENCED when somebody newer wrote; with any
        other KafkaError it has to be asked for again.
        """
        self.check_serving()
        self.partition.log.producer_states.check_marker(
            command.producer_id, command.producer_epoch, command.coordinator_epoch
        )
        pending_epoch = self.shard.pending_acks.epoch_of(command.producer_id)
        if command.producer_epoch < pending_epoch:
            raise _fenced(command.producer_id, pending_epoch, command.producer_epoch)
        now_ms = self._now_ms()
        result = self.shard.decide(command, now_ms)
        written = self._record(command, result, now_ms)
        if result.tasks or result.wakes:
            self._follow_up(result, now_ms, [])
        return written

    def _check_epoch(self, producer_id: int, producer_epoch: int) -> None:
        """INVALID_PRODUCER_EPOCH when a newer producer has written: who is late changes nothing."""
        entry = self.partition.log.producer_states.entries.get(producer_id)
        if entry is not None and producer_epoch < entry.producer_epoch:
            raise _fenced(producer_id, entry.producer_epoch, producer_epoch)

    def _count(self, command: Command, response: Any) -> None:
        """Count what was answered; nearly all are heartbeats and commits, and this is all."""
        kind = type(command)
        if kind is ConsumerHeartbeat:
            self._metrics.consumer_heartbeats += 1
        elif kind is c.Heartbeat:
            self._metrics.classic_heartbeats += 1
        if response is not None and response.error:
            self._metrics.refused(self.shard, command, response.error)
            self._timeline.refused(self.shard, command, response.error)

    def _park(
        self, command: Command, result: Result, now_ms: int, waiter: WaiterId
    ) -> Deferred[Any]:
        """Hold a request until a later decision answers it, or this one does."""
        parked: Deferred[Any] = Deferred()
        parked.on_cancel = functools.partial(self._forget, waiter)
        self._parked[waiter] = parked
        try:
            self._apply(command, result, now_ms)
        except BaseException:
            self._forget(waiter)
            raise
        return parked

    def _forget(self, waiter: WaiterId) -> None:
        """Nobody waits for that answer any more; its member stays until its session ends."""
        self._parked.pop(waiter, None)

    def _apply(
        self, command: Command, result: Result, now_ms: int
    ) -> Deferred[KafkaError | None] | None:
        """Carry out a decision; a Deferred when its answers have to wait for the disk."""
        written = self._record(command, result, now_ms) if result.records else []
        return self._follow_up(result, now_ms, written)

    def _follow_up(
        self, result: Result, now_ms: int, written: list[Partition]
    ) -> Deferred[KafkaError | None] | None:
        """What a decision leads to when it counts; a Deferred as for `_apply`."""
        if result.timers and self._clock.set(result.timers, now_ms):
            self._clock.arm()
        for task in result.tasks:
            self._begin(task)
        woken = [(self._parked.pop(wake.waiter, None), wake.response) for wake in result.wakes]
        unsynced = [one for one in written if self._broker.must_sync(one, acks=-1)]
        if not unsynced:
            if woken:
                _answer(woken)
            return None
        later: Deferred[KafkaError | None] = Deferred()
        outcomes: list[bool] = []

        def synced(is_safe: bool) -> None:
            outcomes.append(is_safe)
            if len(outcomes) < len(unsynced):
                return
            refusal = None
            if not all(outcomes):
                refusal = KafkaError(ErrorCode.NOT_COORDINATOR, "The journal is not on disk.")
                self._fail(refusal.message)
            _answer([(parked, refusal or response) for parked, response in woken])
            later.complete(refusal)

        for one in unsynced:
            self._broker.flusher.sync(one.log, synced)
        return later

    def _record(self, command: Command, result: Result, now_ms: int) -> list[Partition]:
        """Make a decision's records the truth; the journals that some of them went to."""
        durable = [record for record in result.records if record.is_durable]
        written = self._write(durable, now_ms) if durable else []
        try:
            self._metrics.before_replay(self.shard, command, result.records)
            seen = None
            # Members commit all the time, and nothing else comes of that.
            if type(command) is not c.CommitOffsets or command.generation_id < 0:
                seen = self._timeline.before_replay(self.shard, command, result.records)
            for record in result.records:
                self.shard.replay(record)
            self._metrics.after_replay(self.shard, result.records)
            if seen is not None:
                self._timeline.after_replay(self.shard, command, seen)
        except Exception as error:
            self._fail(repr(error))
            raise
        told = result.records
        if type(command) is c.EndTransaction:
            # What counts from now on was written long before.
            told = (*told, *result.response.applied)
        self._on_records(told)
        return written

    def _write(self, durable: list[Any], now_ms: int) -> list[Partition]:
        """Append to the journals, that of individual commits first; those that were written."""
        written: list[Partition] = []
        try:
            if self.individual is not None:
                progress = [one for one in durable if isinstance(one, _PROGRESS_RECORDS)]
                if progress:
                    log = self.individual.log
                    size_bytes = append_records(log, progress, now_ms, encode_progress)
                    self._broker.purgatory.mark(self.individual, size_bytes)
                    written.append(self.individual)
                    durable = [one for one in durable if not isinstance(one, _PROGRESS_RECORDS)]
            if durable:
                size_bytes = self._append(durable, now_ms)
                self._broker.purgatory.mark(self.partition, size_bytes)
                written.append(self.partition)
        except KafkaError as error:
            if error.code in TOO_LARGE_CODES and not written:
                # Nothing was written and nothing has changed: only this request suffers.
                raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, error.message) from error
            self._fail(error.message)
            raise KafkaError(ErrorCode.NOT_COORDINATOR, error.message) from error
        return written

    def _append(self, durable: list[Any], now_ms: int) -> int:
        log, first = self.partition.log, durable[0]
        if type(first) is OffsetPending:
            return append_pending(log, durable, now_ms)
        if type(first) is not TransactionEnded:
            return append_records(log, durable, now_ms)
        follows = durable[1:]
        append_marker(
            log,
            COMMIT if first.is_commit else ABORT,
            producer_id=first.producer_id,
            producer_epoch=first.producer_epoch,
            coordinator_epoch=first.coordinator_epoch,
            now_ms=now_ms,
        )
        return _MARKER_BYTES + (append_records(log, follows, now_ms) if follows else 0)

    def _fail(self, why: str) -> None:
        """Memory and journal may differ: forget what is in memory and read what is on disk."""
        if self.refusal is not None:
            return
        logs.error("coordinator.shard.failed", shard=self._name, reason=why)
        parked, self._parked = self._parked, {}
        failed = self.partition.log.failed or (self.individual and self.individual.log.failed)
        if failed:
            self._refuse(f"The journal takes no more records: {failed}.")
        elif self._clock.now_ms() < self._reload_from_ms:
            # Reading it again has not helped a moment ago, and costs the others their time.
            self.refusal = KafkaError(ErrorCode.NOT_COORDINATOR, why)
            self._clock.clear()
            self._clock.ring_at(_RELOAD, self._reload_from_ms)
        else:
            self._reload()
        self.arm()
        _answer([(p, KafkaError(ErrorCode.NOT_COORDINATOR, why)) for p in parked.values()])

    def _reload(self) -> None:
        began_ms = self._clock.now_ms()
        self.load()
        # A journal that takes long to read is read the more seldom.
        ended_ms = self._clock.now_ms()
        self._reload_from_ms = ended_ms + max(_RELOAD_PAUSE_MS, 10 * (ended_ms - began_ms))

    # Work that takes longer than a decision may ---------------------------------------------------

    def _begin(self, task: ResolveRegexes | AbortTransactions | TryAcksAgain) -> None:
        if isinstance(task, AbortTransactions):
            logs.info("group.transactions.abort", group=task.group_id, member=task.member_id)
            self._broker.transactions.abort(task.producers)
        elif isinstance(task, TryAcksAgain):
            for waiter in task.waiters:
                self._resume(waiter)
        else:
            self._match(task)

    def _resume(self, waiter: WaiterId) -> None:
        """Let acknowledgements that waited for others be judged again."""
        try:
            self.do(ResumeAcks(waiter=waiter))
        except KafkaError as error:
            parked = self._parked.pop(waiter, None)
            _answer([(parked, error)])

    def _match(self, task: ResolveRegexes) -> None:
        """Match regular expressions off the loop; what they match comes back as a command."""
        group_id = task.group_id
        if group_id in self._resolving:
            return  # when that is done, the decision sees that there is more to do
        self._resolving.add(group_id)
        topics = [name for name in task.image.topics if name not in INTERNAL_TOPICS]
        work = asyncio.get_running_loop().run_in_executor(
            self._broker.background, match_topics, task.regexes, topics
        )
        work.add_done_callback(functools.partial(self._resolved, task))

    def _resolved(
        self, task: ResolveRegexes, work: asyncio.Future[dict[str, frozenset[str]]]
    ) -> None:
        self._resolving.discard(task.group_id)
        if work.cancelled() or self.refusal is not None:
            return
        failure = work.exception()
        if failure is not None:
            logs.error("coordinator.regex.failed", group=task.group_id, reason=repr(failure))
            return
        command = RegexesResolved(
            group_id=task.group_id, topics=work.result(), version=task.image.version
        )
        try:
            self.do(command)
        except KafkaError as error:
            logs.error("coordinator.regex.failed", group=task.group_id, reason=error.message)
        self._broker.wake_fetches()

    # Time -----------------------------------------------------------------------------------------

    def arm(self) -> None:
        """The loop runs: let the timers of what was loaded run too."""
        self._clock.arm()

    def _ring(self, key: TimerKey) -> None:
        if key is _RELOAD:
            self._reload()
        else:
            self._time_is_up(key)

    def _time_is_up(self, key: TimerKey) -> None:
        now_ms = self._now_ms()
        try:
            command = c.TimerFired(key=key)
            self._apply(command, self.shard.decide(command, now_ms), now_ms)
        except Exception as error:
            if isinstance(error, KafkaError) and error.code is ErrorCode.NOT_COORDINATOR:
                return  # it was said, and what was loaded has timers of its own
            logs.error("coordinator.timer.failed", shard=self._name, timer=key, error=repr(error))
            self._clock.ring_at(key, self._clock.now_ms() + _TIMER_RETRY_MS)

    def stop(self) -> None:
        """Tell everybody who waits to look elsewhere, and serve nothing any more."""
        why = KafkaError(ErrorCode.NOT_COORDINATOR, "The broker is shutting down.")
        self.refusal = why
        self._clock.clear()
        self.arm()
        parked, self._parked = self._parked, {}
        _answer([(deferred, why) for deferred in parked.values()])


def _fenced(producer_id: int, epoch: int, late_epoch: int) -> KafkaError:
    return KafkaError(
        ErrorCode.INVALID_PRODUCER_EPOCH,
        f"Producer {producer_id} has epoch {epoch} by now, and this one is of epoch {late_epoch}. "
        "It must stop.",
    )


def _epoch_end(log: PartitionLog, epoch: int) -> int:
    """Where a leader epoch ended; an epoch that the log never had says nothing about it."""
    end_offset = log.offset_for_leader_epoch(epoch)[1]
    return end_offset if end_offset >= 0 else log.log_start_offset


def _answer(woken: list[tuple[Deferred[Any] | None, Any]]) -> None:
    """Let answers go; one that cannot be given takes no other with it."""
    for parked, response in woken:
        if parked is None:
            continue
        try:
            parked.complete(response)
        except Exception as error:
            logs.error("coordinator.answer.failed", error=repr(error))
