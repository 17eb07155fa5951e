"""The progress of all groups of a shard, and a decision about it in the making.

Rules
- Progress hangs on a committed offset of the group: the stable offset is projected there when
  progress begins and whenever it moves, and when that offset is forgotten, so is the progress. So
  whoever deletes a group, its offsets or a topic finds nothing of it later. While there are slots
  that nobody has spoken of, there is no stable offset, and -1 is committed: for clients that is as
  if nothing were.
- What is acknowledged in transactions that are open is in the book too, but apart (see
  `pending_acks`).
- `ProgressBook.replay` is the only way the book changes.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, assert_never

from anabranch.coordinator.cooperative.pending_acks import PendingAcks
from anabranch.coordinator.cooperative.progress import (
    PartitionProgress,
    with_all_done,
    with_attempts,
    with_diverted,
    without_attempts,
    without_diverted,
)
from anabranch.coordinator.cooperative.records import (
    SNAPSHOT_EVERY,
    AckedRange,
    AcksForgotten,
    AcksPending,
    AcksSettled,
    Place,
    ProgressDelta,
    ProgressForgotten,
    ProgressRecord,
    ProgressSettled,
    ProgressWritten,
)
from anabranch.coordinator.cooperative.window import state_bytes

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Tracked:
    """Progress as the journal has it, and the sequence of its last record.

    `needs_snapshot` says that it is not what the journal has: a delta would be added to what the
    journal says, and bring back what was lost.
    """

    progress: PartitionProgress
    sequence: int = 0
    needs_snapshot: bool = False


GroupProgress = Mapping[Place, Tracked]

_NO_PROGRESS: dict[Place, Tracked] = {}


class ProgressBook:
    """What the groups of one shard have done, where they acknowledge records one by one."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[Place, Tracked]] = {}
        # What the journal has and nobody goes on with, and its last sequence: to be forgotten.
        self._left: dict[str, dict[Place, int]] = {}
        # Of transactions that are open.
        self.pending = PendingAcks()
        self._state_bytes = 0

    @property
    def state_bytes(self) -> int:
        """About how much memory all of it takes."""
        return self._state_bytes + self.pending.state_bytes

    def __bool__(self) -> bool:
        return bool(self._groups or self._left)

    def __iter__(self) -> Iterator[str]:
        """The groups that have progress."""
        return iter(self._groups)

    def of_group(self, group_id: str) -> GroupProgress:
        return self._groups.get(group_id, _NO_PROGRESS)

    def left_of(self, group_id: str) -> Mapping[Place, int]:
        """Where the journal has progress of a group that does not count."""
        return self._left.get(group_id, {})

    def replay(self, record: ProgressRecord) -> None:
        if isinstance(record, AcksPending | AcksForgotten | AcksSettled):
            self.pending.replay(record)
            return
        place = (record.topic_id, record.partition)
        known = self._groups.get(record.group_id, _NO_PROGRESS).get(place)
        match record:
            case ProgressWritten():
                value = record.value
                if isinstance(value, PartitionProgress):
                    self._put(record.group_id, place, Tracked(value, record.sequence))
                elif known is not None and record.sequence == known.sequence + 1:
                    progress = apply_delta(known.progress, value)
                    self._put(record.group_id, place, Tracked(progress, record.sequence))
            case ProgressForgotten():
                self._drop(record.group_id, place)
                self.pending.forget(record.group_id, place)
            case ProgressSettled() if known is not None:
                if record.progress is None:
                    self._drop(record.group_id, place)
                    self._left.setdefault(record.group_id, {})[place] = known.sequence
                else:
                    settled = dataclasses.replace(
                        known, progress=record.progress, needs_snapshot=True
                    )
                    self._put(record.group_id, place, settled)
            case ProgressSettled():
                pass  # it is about what was read, and nothing was
            case _:
                assert_never(record)

    def _put(self, group_id: str, place: Place, tracked: Tracked) -> None:
        places = self._groups.setdefault(group_id, {})
        before = places.get(place)
        self._state_bytes += state_bytes(tracked.progress)
        self._state_bytes -= state_bytes(before.progress) if before is not None else 0
        places[place] = tracked
        _remove(self._left, group_id, place)

    def _drop(self, group_id: str, place: Place) -> None:
        known = _remove(self._groups, group_id, place)
        if known is not None:
            self._state_bytes -= state_bytes(known.progress)
        _remove(self._left, group_id, place)


def _remove(groups: dict[str, dict[Place, T]], group_id: str, place: Place) -> T | None:
    places = groups.get(group_id, {})
    removed = places.pop(place, None)
    if removed is not None and not places:
        del groups[group_id]
    return removed


def with_acked(progress: PartitionProgress, acked: Iterable[AckedRange]) -> PartitionProgress:
    ranges = [(one.slots, one.watermark, one.done) for one in acked]
    return with_all_done(progress, ranges) if ranges else progress


def expired(progress: PartitionProgress, log_start_offset: int) -> list[AckedRange]:
    """What the log does not have any more, as if it were done.

    Slots that nobody has spoken of (a watermark of -1) begin where their first owner does.
    """
    return [
        AckedRange(interval.slots, log_start_offset)
        for interval in progress.intervals
        if 0 <= interval.watermark < log_start_offset
    ]


def apply_delta(progress: PartitionProgress, delta: ProgressDelta) -> PartitionProgress:
    """The progress after what a delta says."""
    progress = with_acked(progress, delta.acked)
    if delta.failed:
        progress = with_attempts(progress, {one.offset: one.attempt for one in delta.failed})
    if delta.forgiven:
        progress = without_attempts(progress, delta.forgiven)
    for key in delta.diverted:
        progress = with_diverted(progress, key.key_hash, key.offset)
    for key_hash in delta.released:
        progress = without_diverted(progress, key_hash)
    return dataclasses.replace(progress, leader_epoch=delta.leader_epoch)


class ProgressDraft:
    """The progress of one group with the changes of one decision; the book stays as it is."""

    def __init__(self, group_id: str, known: GroupProgress) -> None:
        self.group_id = group_id
        self._known = known
        self._changed: dict[Place, Tracked] = {}
        self.records: list[Any] = []

    def get(self, place: Place) -> Tracked | None:
        return self._changed.get(place) or self._known.get(place)

    def begin(self, place: Place, progress: PartitionProgress) -> None:
        """All that is known of a partition, whatever was known before."""
        known = self.get(place)
        sequence = 0 if known is None else known.sequence + 1
        self._write(place, Tracked(progress, sequence), progress)

    def add(self, place: Place, delta: ProgressDelta, progress: PartitionProgress) -> None:
        """More of what is known, which makes it `progress`."""
        known = self.get(place)
        assert known is not None, "a delta adds to something"
        sequence = known.sequence + 1
        is_snapshot = known.needs_snapshot or not sequence % SNAPSHOT_EVERY
        self._write(place, Tracked(progress, sequence), progress if is_snapshot else delta)

    def forget(self, place: Place, sequence: int) -> None:
        """Nothing is known any more; the last that is said of a partition in a decision."""
        self.records.append(
            ProgressForgotten(
                group_id=self.group_id,
                topic_id=place[0],
                partition=place[1],
                sequence=sequence,
            )
        )

    def _write(
        self, place: Place, tracked: Tracked, value: PartitionProgress | ProgressDelta
    ) -> None:
        self._changed[place] = tracked
        self.records.append(
            ProgressWritten(
                group_id=self.group_id,
                topic_id=place[0],
                partition=place[1],
                sequence=tracked.sequence,
                value=value,
            )
        )
