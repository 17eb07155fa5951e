"""What becomes of records after their last attempt, where it is not left to people.

Rules
- A group's disposition decides (`coop.disposition`). With `block-key` nothing happens here: records
  wait for an administrator. With `dlq` and `dlq-key` they are copied to the dead-letter topic, and
  counted as done when the copy is as safe as a produce with acks=all makes it, never before. What
  a crash between the two leaves is a copy too many.
- Records of one group and partition are worked off one after the other in the order of their
  offsets, so that those of a key arrive in order. One that cannot be copied holds back its key, and
  no other.
- A record that is not in the log any more, or whose transaction was aborted, is done. One whose
  transaction is open cannot be copied yet.
- Where the dead-letter topic cannot be written, records wait as with `block-key`, and it is tried
  again, less and less often. It is said once, until it works again or fails differently.
- What was begun before is found again after a start, and when settings change.
- An administrator's `dlq` goes the same way, whatever the disposition, but is tried only once.

Everything runs on the event loop, in a task for each group and partition that has such records;
only records are searched for in another thread.
"""

import asyncio
import contextlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from anabranch.broker.dead_letters import (
    FoundRecord,
    Origin,
    dead_letter,
    dlq_partition,
    dlq_topic_name,
    find_records,
    is_ordered,
    read_batch,
)
from anabranch.broker.deferred import Deferred
from anabranch.broker.partition import Partition
from anabranch.broker.topics import Topic
from anabranch.coordinator.cooperative.commands import (
    Action,
    Decision,
    DecisionOutcome,
    DecisionsAnswer,
    TakeDecisions,
)
from anabranch.coordinator.cooperative.decisions import waiting_attempt
from anabranch.coordinator.cooperative.progress import PartitionProgress
from anabranch.coordinator.cooperative.records import Place, ProgressWritten
from anabranch.coordinator.cooperative.retries import exhausted_offsets, is_exhausted
from anabranch.coordinator.cooperative.settings import BLOCK_KEY, DLQ_KEY, CooperativeSettings
from anabranch.model.errors import ErrorCode, KafkaError
from anabranch.observe import logs
from anabranch.observe import metrics as m

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker

# Copied before their group hears of it: each costs the group a record in its journal otherwise.
_ROUND_RECORDS = 64
_PAUSE_FIRST_S = 0.5
_PAUSE_MAX_S = 60.0

_Key = tuple[str, Place]
_Asked = dict[int, list[Deferred[DecisionOutcome]]]


class Dispositions:
    """Takes records that nobody could process to the dead-letter topic."""

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._tasks: dict[_Key, asyncio.Task[None]] = {}
        # Set when a task that pauses has something new to do.
        self._wakers: dict[_Key, asyncio.Event] = {}
        self._asked: dict[_Key, _Asked] = {}
        self._is_stopped = False
        # How many records were copied, by group and topic.
        self._letters: dict[m.Labels, float] = {}

    def start(self) -> None:
        """Go on with what was begun before."""
        self.look_again(self._broker.groups.groups_with_progress())

    def stop(self) -> None:
        self._is_stopped = True
        for task in self._tasks.values():
            task.cancel()
        outcome = DecisionOutcome(ErrorCode.NOT_COORDINATOR, "The broker is shutting down.")
        asked, self._asked = self._asked, {}
        for offsets in asked.values():
            for waiting in offsets.values():
                _answer(waiting, outcome)

    def look_again(self, group_ids: Iterable[str]) -> None:
        """Settings may have changed: see whether records of these groups wait for them."""
        for group_id in group_ids:
            if self._settings(group_id).disposition == BLOCK_KEY:
                continue
            with contextlib.suppress(KafkaError):  # what cannot be read is looked at when it can
                for place, tracked in self._broker.groups.progress(group_id).items():
                    if exhausted_offsets(tracked.progress):
                        self._wake((group_id, place))

    def recorded(self, record: ProgressWritten) -> None:
        """Progress was written: see whether records of it have had their last attempt."""
        value = record.value
        if isinstance(value, PartitionProgress):
            attempts = list(value.attempts.values())
        else:
            attempts = [failed.attempt for failed in value.failed]
        if not attempts or self._settings(record.group_id).disposition == BLOCK_KEY:
            return
        if any(is_exhausted(attempt) for attempt in attempts):
            self._wake((record.group_id, (record.topic_id, record.partition)))

    def bury(self, group_id: str, place: Place, offset: int) -> Deferred[DecisionOutcome]:
        """Take a record to the dead-letter topic because an administrator says so."""
        key = (group_id, place)
        outcome: Deferred[DecisionOutcome] = Deferred()
        self._asked.setdefault(key, {}).setdefault(offset, []).append(outcome)
        self._wake(key)
        return outcome

    def _settings(self, group_id: str) -> CooperativeSettings:
        return self._broker.groups.cooperative_settings(group_id)

    def collect_metrics(self) -> Iterator[tuple[m.Metric, m.Values]]:
        """What waits, and what was copied; of groups that cannot be read, nothing."""
        blocked: dict[m.Labels, float] = {}
        diverted: dict[m.Labels, float] = {}
        for group_id in self._broker.groups.groups_with_progress():
            for place, tracked in self._broker.groups.progress(group_id).items():
                topic = self._broker.topics.get_by_id(place[0])
                if topic is None:
                    continue
                labels = (group_id, topic.name, str(place[1]))
                blocked[labels] = len(exhausted_offsets(tracked.progress))
                diverted[labels] = len(tracked.progress.diverted)
        yield m.GROUP_BLOCKED_RECORDS, blocked
        yield m.GROUP_DIVERTED_KEYS, diverted
        yield m.GROUP_DEAD_LETTERS, dict(self._letters)

    # One group and partition ----------------------------------------------------------------------

    def _wake(self, key: _Key) -> None:
        if key in self._tasks:
            self._wakers[key].set()
            return
        if self._is_stopped:
            return
        self._wakers[key] = asyncio.Event()
        task = asyncio.get_running_loop().create_task(self._work(key))
        self._tasks[key] = task
        task.add_done_callback(lambda done: self._ended(key, done))

    def _ended(self, key: _Key, task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            # A mistake in here must not have an administrator wait for ever.
            logs.error("coop.disposition.ended", group=key[0], error=repr(error))
            self._forget(key)
            self._refuse(key, KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, repr(error)))

    def _forget(self, key: _Key) -> None:
        self._tasks.pop(key, None)
        self._wakers.pop(key, None)

    async def _work(self, key: _Key) -> None:
        waker = self._wakers[key]
        pause_s = _PAUSE_FIRST_S
        said = ""
        while True:
            waker.clear()
            try:
                if not await self._round(key):
                    break
                if said:
                    logs.info("coop.disposition.works.again", group=key[0])
                said, pause_s = "", _PAUSE_FIRST_S
            except KafkaError as error:
                self._refuse(key, error)
                if error.message != said:
                    said = error.message
                    logs.error(
                        "coop.disposition.failed",
                        group=key[0],
                        partition=key[1][1],
                        reason=said,
                        next_step="records wait until it works, or for `anabranch groups skip`",
                    )
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause_s):
                        await waker.wait()
                pause_s = min(2 * pause_s, _PAUSE_MAX_S)
        self._forget(key)

    def _refuse(self, key: _Key, error: KafkaError) -> None:
        """Tell administrators that it did not work."""
        for waiting in self._asked.pop(key, {}).values():
            _answer(waiting, DecisionOutcome(error.code, error.message))

    async def _round(self, key: _Key) -> bool:
        """Take some records to the dead-letter topic; whether there may be more."""
        group_id, place = key
        topic = self._broker.topics.get_by_id(place[0])
        tracked = self._broker.groups.progress(group_id).get(place)
        progress = tracked.progress if tracked is not None else None
        asked = self._asked_of(key, progress)
        if topic is None or not topic.has_partition(place[1]):
            gone = KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "The topic was deleted.")
            self._refuse(key, gone)
            return False
        if progress is None:
            return False
        settings = self._settings(group_id)
        waiting = exhausted_offsets(progress)
        if settings.disposition == BLOCK_KEY:
            waiting = [offset for offset in waiting if offset in asked]
        if not waiting:
            return False
        origin = Origin(group_id, topic.name, place[1])
        copies = _Copies(self._broker, origin, topic, progress, settings)
        decisions = await copies.make(waiting)
        labels = (group_id, topic.name)
        self._letters[labels] = self._letters.get(labels, 0) + copies.letters
        answer = await self._decide(origin, topic, decisions)
        for decision, outcome in zip(decisions, answer.outcomes, strict=True):
            _answer(self._asked.get(key, {}).pop(decision.offset, []), outcome)
        if not self._asked.get(key):
            self._asked.pop(key, None)
        self._broker.wake_fetches()
        return True

    def _asked_of(self, key: _Key, progress: PartitionProgress | None) -> _Asked:
        """What administrators asked for; those whose record does not wait are told so."""
        asked = self._asked.get(key, {})
        for offset in list(asked):
            try:
                waiting_attempt(progress, offset)
            except KafkaError as error:
                _answer(asked.pop(offset), DecisionOutcome(error.code, error.message))
        return asked

    async def _decide(
        self, origin: Origin, topic: Topic, decisions: list[Decision]
    ) -> DecisionsAnswer:
        command = TakeDecisions(
            group_id=origin.group_id,
            topic=topic.name,
            topic_id=topic.topic_id,
            partition=origin.partition,
            log_start_offset=topic.partitions[origin.partition].log.log_start_offset,
            decisions=tuple(decisions),
        )
        answer = await _outcome_of(self._broker.groups.submit(origin.group_id, command))
        assert isinstance(answer, DecisionsAnswer)
        return answer


class _Copies:
    """Copies of some records of a partition, in the making."""

    def __init__(
        self,
        broker: "Broker",
        origin: Origin,
        topic: Topic,
        progress: PartitionProgress,
        settings: CooperativeSettings,
    ) -> None:
        self._broker = broker
        self._origin = origin
        self._topic = topic
        self._source = topic.partitions[origin.partition]
        self._progress = progress
        self._settings = settings
        self._diverted = set(progress.diverted)
        self._target: Partition | None = None
        self.letters = 0
        self._offsets = exhausted_offsets(progress)
        # The records of the last batch that was looked through.
        self._looked_for: set[int] = set()
        self._found: dict[int, FoundRecord] = {}

    async def make(self, offsets: list[int]) -> list[Decision]:
        """Have copies of records in the dead-letter topic; what can be decided then.

        KafkaError when there is none that could be copied.
        """
        decisions: list[Decision] = []
        failed_keys: set[int] = set()
        failure: KafkaError | None = None
        for offset in offsets:
            key_hash = self._progress.attempts[offset].key_hash
            if key_hash in failed_keys:
                continue
            try:
                diverts = await self._copy(offset)
            except KafkaError as error:
                failure = failure or error
                failed_keys.add(key_hash)
                continue
            decisions.append(Decision(Action.DLQ, offset, key_hash, diverts))
            if len(decisions) == _ROUND_RECORDS:
                break
        if not decisions and failure is not None:
            raise failure
        if self._target is not None and self._broker.must_sync(self._target, acks=-1):
            await _sync(self._broker, self._target)
        return decisions

    async def _copy(self, offset: int) -> bool:
        """Copy a record if it is still in the log; whether its key is to be diverted."""
        broker, origin = self._broker, self._origin
        found = await self._find(offset)
        if found is None:
            return False
        attempt = self._progress.attempts[offset]
        rule = self._source.slot_rule
        diverts = self._settings.disposition == DLQ_KEY and is_ordered(found.record, rule)
        if diverts:
            self._divert(attempt.key_hash)
        name = dlq_topic_name(self._settings.dlq_topic, self._topic.name)
        self._target = target = dlq_partition(broker, name, self._topic, origin.partition)
        letter = dead_letter(found, origin, attempt, broker.now_ms())
        target.log.append(memoryview(letter), now_ms=broker.now_ms())
        broker.purgatory.mark(target, len(letter))
        self.letters += 1
        return diverts

    async def _find(self, offset: int) -> FoundRecord | None:
        """A record, if it is still in the log; those of its batch are found with it."""
        if offset not in self._looked_for:
            batch = read_batch(self._source.log, offset)
            if batch is None:
                return None
            # As many as this round is about: others are found in their own.
            wanted = [one for one in self._offsets if offset <= one < batch.next_offset]
            del wanted[_ROUND_RECORDS:]
            self._looked_for = {offset, *wanted}
            self._found = await asyncio.get_running_loop().run_in_executor(
                self._broker.background, find_records, batch.content, self._looked_for
            )
        return self._found.get(offset)

    def _divert(self, key_hash: int) -> None:
        """See whether one more key may be diverted."""
        if key_hash in self._diverted:
            return
        if len(self._diverted) >= self._settings.max_ranges:
            origin = self._origin
            raise KafkaError(
                ErrorCode.POLICY_VIOLATION,
                f"{len(self._diverted)} keys of {origin.topic}-{origin.partition} are diverted, "
                "and coop.max.ranges allows no more. Release some with `anabranch groups release`.",
            )
        self._diverted.add(key_hash)


async def _sync(broker: "Broker", target: Partition) -> None:
    """Wait until a partition is on disk."""
    synced: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def tell(is_safe: bool) -> None:
        if not synced.done():
            synced.set_result(is_safe)

    broker.flusher.sync(target.log, tell)
    if not await synced:
        raise KafkaError(
            ErrorCode.KAFKA_STORAGE_ERROR,
            f"The dead-letter topic {target.log.topic} is not on disk.",
        )


def _answer(waiting: list[Deferred[DecisionOutcome]], outcome: DecisionOutcome) -> None:
    for one in waiting:
        one.complete(outcome)


async def _outcome_of(outcome: Any) -> Any:
    """What a command led to, when it is there; what stands for it when it could not be written is
    raised."""
    if not isinstance(outcome, Deferred):
        return outcome
    found: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def take(value: Any) -> None:
        if not found.done():
            found.set_result(value)

    outcome.deliver_to(take, take)
    value = await found
    if isinstance(value, Exception):
        raise value
    return value
