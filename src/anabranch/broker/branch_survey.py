"""Finding out how far groups are with partitions of sources, one partition after the other."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from anabranch.branch.progress import (
    Progress,
    RangeStart,
    Tally,
    plan_of,
    plan_tally,
    progress_of,
    progress_tally,
    replay_tally,
    scan_starts,
)
from anabranch.branch.slots import SlotRule
from anabranch.broker.deferred import Deferred
from anabranch.broker.slot_scans import SlotScans
from anabranch.broker.topics import Topic
from anabranch.coordinator.group.commands import CommittedOffset
from anabranch.coordinator.group.offsets import committed_offset

T = TypeVar("T")
U = TypeVar("U")

# Partitions that are looked at together let others have the loop after so long.
_TURN_MS = 5

Offsets = Mapping[tuple[str, int], CommittedOffset]


class Subject(NamedTuple):
    """A partition of a source, and the topic by way of which a group reads it.

    The topic is a branch topic; for plans it may be the source itself.
    """

    group_id: str
    topic: Topic
    partition: int
    planned_ranges: int = 0

    @property
    def source(self) -> Topic:
        return self.topic.source or self.topic


@dataclass(frozen=True, slots=True)
class SourceProgress:
    """How far a group is with a partition of a source."""

    subject: Subject
    progress: Progress
    plan: tuple[RangeStart, ...]
    rule: SlotRule
    newest_commit_ms: int
    read_ms: int


Outcome = SourceProgress | Exception


class Surveyor:
    """Surveys subjects; lives on the event loop."""

    def __init__(
        self,
        executor: Executor,
        offsets: Callable[[str], Offsets],
        now_ms: Callable[[], int],
        steady_ms: Callable[[], int],
    ) -> None:
        self._scans = SlotScans(executor)
        self._offsets = offsets
        self._now_ms = now_ms
        self._steady_ms = steady_ms

    def survey_all(
        self,
        subjects: Iterable[Subject],
        last_result: Callable[[Subject], SourceProgress | None] = lambda subject: None,
    ) -> Deferred[list[Outcome]]:
        """How far groups are; where a last result is known, less has to be looked at."""
        return _Tour(
            lambda subject: self._survey(subject, last_result(subject)), subjects, self._steady_ms
        ).done

    def _survey(self, subject: Subject, last: SourceProgress | None) -> Deferred[SourceProgress]:
        """Find out how far a group is; the answer may be there at once."""
        topic, number = subject.topic, subject.partition
        indexes = [number] if topic.layout is None else topic.layout.indexes_of(number)
        offsets = self._offsets(subject.group_id)
        committed = [committed_offset(offsets, topic.name, topic.topic_id, i) for i in indexes]
        commits = [None if one is None else one.offset for one in committed]
        partition = subject.source.partitions[number]
        rule, log = partition.slot_rule, partition.log
        start, end = log.log_start_offset, log.high_watermark
        known = last.progress if last is not None and last.rule == rule else None
        starts = scan_starts(commits, start, end, known)
        newest_ms = max([one.commit_timestamp_ms for one in committed if one], default=-1)
        read_ms = self._now_ms()

        def scan(tally: Tally) -> Deferred[Tally]:
            return self._scans.scan(partition, min(starts), tally)

        def survey(counted: Tally, plan: tuple[RangeStart, ...] = ()) -> SourceProgress:
            progress = progress_of(counted, commits, start)
            return SourceProgress(subject, progress, plan, rule, newest_ms, read_ms)

        def plan(counted: Tally) -> Deferred[SourceProgress]:
            begun = scan(plan_tally(starts, subject.planned_ranges, end))
            return _and_then(begun, lambda planned: replay(counted, planned))

        def replay(counted: Tally, planned: Tally) -> Deferred[SourceProgress]:
            replays = scan(replay_tally(starts, planned.firsts, end))
            return replays.then(lambda replayed: survey(counted, plan_of(planned.firsts, replayed)))

        counted = scan(progress_tally(starts, end))
        return _and_then(counted, plan) if subject.planned_ranges else counted.then(survey)


class _Tour:
    """Subjects that are surveyed one after the other, without keeping the loop for long."""

    def __init__(
        self,
        survey: Callable[[Subject], Deferred[SourceProgress]],
        subjects: Iterable[Subject],
        steady_ms: Callable[[], int],
    ) -> None:
        self.done: Deferred[list[Outcome]] = Deferred()
        self._survey = survey
        self._subjects = deque(subjects)
        self._steady_ms = steady_ms
        self._found: list[Outcome] = []
        self._is_waiting = False
        self._is_suspended = False
        self._go_on()

    def _go_on(self) -> None:
        began_ms = self._steady_ms()
        while self._subjects and not self.done.is_done:
            if self._steady_ms() - began_ms >= _TURN_MS:
                asyncio.get_running_loop().call_later(0, self._go_on)
                return
            self._is_waiting = True
            try:
                outcome = self._survey(self._subjects.popleft())
            except Exception as error:
                self._take(error)
            else:
                outcome.deliver_to(self._take, self._take)
            if self._is_waiting:
                self._is_suspended = True
                return
        self.done.complete(self._found)

    def _take(self, outcome: Outcome) -> None:
        self._found.append(outcome)
        self._is_waiting = False
        if self._is_suspended:
            self._is_suspended = False
            self._go_on()


def _and_then(first: Deferred[T], follow: Callable[[T], Deferred[U]]) -> Deferred[U]:
    """What follows from an outcome, when that comes later too."""
    later: Deferred[U] = Deferred()
    later.on_cancel = first.cancel

    def deliver(value: T) -> None:
        try:
            second = follow(value)
        except Exception as error:
            later.fail(error)
        else:
            later.on_cancel = second.cancel
            second.deliver_to(later.complete, later.fail)

    first.deliver_to(deliver, later.fail)
    return later
