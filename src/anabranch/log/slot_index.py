"""The slot index of a log: for every segment, which slots its records are in.

Two bytes a record answer what would otherwise take a pass over the log: how many records of a key
range follow a committed offset, and where the first of them is. The index of a segment grows from
its first batch on, by blocks that filtered reads yield for free (`note`) and by steps that read
what nobody has read (`missing`). It is kept in memory while it is used and in a file beside the
segment (`slot_index_file`); both can be lost at any time, because it can be made again.

Only the event loop calls `SlotIndexes`. What takes long is a step: `missing` and `next_write` make
one, its `run` may be called in a thread, and `add` takes what it found:

    while (step := indexes.missing(rule, from_offset, upto)) is not None:
        await loop.run_in_executor(executor, step.run)
        indexes.add(step)
    blocks = indexes.blocks(rule, from_offset, upto)

Rules:
- what is indexed is what the log has: a segment that compaction or retention takes away takes its
  index and its file along, and steps and blocks that were made from it before are void;
- blocks never change, so whoever got some may read them in a thread while the index grows;
- the file of a segment is only ever renamed to its place on the event loop, where nothing can
  replace the segment meanwhile.
"""

import contextlib
import logging
import os
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from operator import attrgetter
from pathlib import Path
from typing import Final

from anabranch.branch.slots import SlotRule
from anabranch.log.partition_log import PartitionLog
from anabranch.log.segment import SLOTS_SUFFIX, Segment
from anabranch.log.slot_blocks import block_at, skip_blocks
from anabranch.log.slot_index_steps import (
    BuildStep,
    IndexStep,
    LoadStep,
    SegmentSlots,
    WriteStep,
)
from anabranch.model.errors import ErrorCode, KafkaError

STEP_BYTES: Final = 4 * 1024 * 1024
"""How much of a segment one step indexes."""
SLICE_BYTES: Final = 256 * 1024
"""How much of it becomes one run of blocks; the walk to a block is shorter for smaller ones."""

_LOG = logging.getLogger(__name__)
_base_offset = attrgetter("base_offset")


class SlotIndexes:
    """The indexes of one log's segments, all by one rule; see the module's docstring."""

    def __init__(self, log: PartitionLog) -> None:
        self.rule: SlotRule | None = None
        self._log = log
        self._slots: dict[Segment, SegmentSlots] = {}

    @property
    def size_bytes(self) -> int:
        """The memory that blocks take."""
        return sum(slots.size_bytes for slots in self._slots.values())

    def use(self, rule: SlotRule) -> None:
        """Go by this rule from now on; what was indexed by another one is dropped."""
        if rule != self.rule:
            self.rule = rule
            self._slots.clear()

    # Growing

    def note(self, rule: SlotRule, replacements: int, next_offset: int, blocks: bytes) -> None:
        """Take the blocks of consecutive batches of one segment, if they continue its index.

        `replacements` is the log's from when the batches were read: what was read from a segment
        that is gone says nothing about the one in its place. The last batch ends below
        `next_offset`, and no other one begins before it.
        """
        if self.rule is None:
            self.use(rule)
        log = self._log
        if rule != self.rule or replacements != log.replacements or log.is_closed or not blocks:
            return
        segment = self._segment_at(block_at(blocks, 0).base_offset)
        slots = self._slots_of(segment)
        if slots.is_only_on_disk or next_offset > segment.next_offset:
            return
        # Nothing here is worth an error: whoever needs the index reads the segment.
        with contextlib.suppress(OSError, KafkaError):
            if _continues(slots, blocks):
                slots.extend(slots.indexed_offset, next_offset, blocks)

    def missing(self, rule: SlotRule, from_offset: int, upto: int) -> BuildStep | LoadStep | None:
        """The next step to index [`from_offset`, `upto`), or None when it is in memory.

        Segments are indexed from their start. KAFKA_STORAGE_ERROR when the log cannot be read.
        """
        self.use(rule)
        if self._log.is_closed:
            raise self._storage_error("the log is closed")
        try:
            for segment in self._segments_between(from_offset, upto):
                slots = self._slots_of(segment)
                if slots.is_only_on_disk:
                    return LoadStep(slots, rule, _size_of(slots.path))
                if not slots.covers(upto):
                    slices = segment.slices(slots.indexed_offset, SLICE_BYTES, STEP_BYTES)
                    if slices:
                        return BuildStep(slots, rule, slices)
                    slots.indexed_offset = segment.next_offset  # compaction emptied the rest
        except OSError as error:
            raise self._storage_error(f"reading failed: {error}") from error
        return None

    def add(self, step: IndexStep) -> None:
        """Take what a step found or did, unless the log or the rule has changed since."""
        slots = step.slots
        is_void = self._log.is_closed or self._slots.get(slots.segment) is not slots
        if isinstance(step, WriteStep):
            self._take_file(step, is_void)
        elif is_void:
            return
        elif isinstance(step, LoadStep):
            self._take_loaded(step)
        elif not slots.is_only_on_disk:
            for next_offset, blocks in step.found:
                slots.extend(step.first_offset, next_offset, blocks)

    def _take_loaded(self, step: LoadStep) -> None:
        slots, run = step.slots, step.found
        if not slots.is_only_on_disk:
            return
        slots.is_only_on_disk = False
        slots.written_offset = slots.segment.base_offset
        if run is None or run.next_offset > slots.segment.next_offset:
            _LOG.info("%s is of no use and is made again", slots.path)
            return
        slots.append(run)
        slots.written_offset = run.next_offset

    # Using

    def blocks(self, rule: SlotRule, from_offset: int, upto: int) -> list[memoryview]:
        """The blocks of all batches that reach `from_offset` and begin below `upto`, in order.

        ValueError when `missing` would still have a step.
        """
        self.use(rule)
        found: list[memoryview] = []
        for segment in self._segments_between(from_offset, upto):
            slots = self._slots_of(segment)
            if slots.is_only_on_disk or not slots.covers(upto):
                raise ValueError(f"[{from_offset}, {upto}) of {self._log.folder} is not indexed")
            for run in slots.runs:
                if run.next_offset > from_offset and run.first_offset < upto:
                    cut = run.cut(from_offset, upto)
                    if cut:
                        found.append(cut)
        return found

    # Files and memory

    def next_write(self, *, with_unfinished: bool = False) -> WriteStep | None:
        """A step to bring a file up to date: of a sealed segment that is indexed to its end.

        With `with_unfinished`, of any sealed segment, so that `release` can drop it.
        """
        for slots in self._slots.values():
            segment = slots.segment
            if (
                slots.is_unwritten
                and not (segment.is_active or slots.is_being_written or slots.is_refused)
                and (with_unfinished or slots.covers(segment.next_offset))
            ):
                with contextlib.suppress(OSError, KafkaError):
                    step = WriteStep(slots, self._rule_in_use())
                    slots.is_being_written = True
                    return step
                slots.is_refused = True
        return None

    def release(self) -> int:
        """Drop from memory what can be read from its file again; returns how many bytes that is.

        A segment that the disk refused to write an index for is read again, if need be.
        """
        released_bytes = 0
        for slots in self._slots.values():
            is_kept = slots.is_unwritten and not slots.is_refused
            if slots.runs and not slots.segment.is_active and not is_kept:
                released_bytes += slots.size_bytes
                slots.drop_runs()
                slots.is_only_on_disk = not slots.is_refused
        return released_bytes

    def write_all(self) -> None:
        """Bring all files up to date, that of the active segment too; for the end of the log.

        May run in a thread, as the log's `close` does. Never fails: the index can be made again.
        """
        for slots in self._slots.values():
            if slots.is_unwritten:
                with contextlib.suppress(OSError, KafkaError):
                    step = WriteStep(slots, self._rule_in_use())
                    step.run()
                    self.add(step)

    def forget(self, segments: Iterable[Segment]) -> None:
        """Drop the indexes of segments that left the log; their files went with them."""
        for segment in segments:
            self._slots.pop(segment, None)

    def clear(self) -> None:
        self._slots.clear()

    def _take_file(self, step: WriteStep, is_void: bool) -> None:
        slots = step.slots
        slots.is_being_written = False
        if step.tmp is None:
            slots.is_refused = True
            return
        try:
            if is_void:
                os.unlink(step.tmp)
            else:
                os.replace(step.tmp, slots.path)
                slots.written_offset = max(slots.written_offset, step.next_offset)
        except OSError as error:
            # Files of a deleted log are gone, which is as well.
            if not is_void:
                slots.is_refused = True
                _LOG.warning("%s could not be put in its place: %s", slots.path, error)

    # Segments

    def _slots_of(self, segment: Segment) -> SegmentSlots:
        slots = self._slots.get(segment)
        if slots is None:
            is_on_disk = segment.path(SLOTS_SUFFIX).exists()
            slots = self._slots[segment] = SegmentSlots(segment, is_only_on_disk=is_on_disk)
        return slots

    def _segment_at(self, offset: int) -> Segment:
        """The segment that `offset` is in, or the first one when it is below all of them."""
        segments = self._log.segments
        return segments[max(bisect_right(segments, offset, key=_base_offset) - 1, 0)]

    def _segments_between(self, from_offset: int, upto: int) -> Iterator[Segment]:
        segments = self._log.segments
        first = max(bisect_right(segments, from_offset, key=_base_offset) - 1, 0)
        for i in range(first, len(segments)):
            segment = segments[i]
            if segment.base_offset >= upto or from_offset >= upto:
                return
            if segment.next_offset > from_offset:
                yield segment

    def _rule_in_use(self) -> SlotRule:
        assert self.rule is not None, "nothing is indexed without a rule"
        return self.rule

    def _storage_error(self, why: str) -> KafkaError:
        log = self._log
        return KafkaError(
            ErrorCode.KAFKA_STORAGE_ERROR,
            f"{log.topic}-{log.partition}: {why}; check the disk under {log.folder}",
        )


def slot_indexes_of(log: PartitionLog) -> SlotIndexes:
    """The slot indexes of a log, from now on."""
    if log.slot_indexes is None:
        log.slot_indexes = SlotIndexes(log)
    return log.slot_indexes


def _continues(slots: SegmentSlots, blocks: bytes) -> bool:
    """Whether no batch of the segment lies between what is indexed and the new ones of `blocks`."""
    position = skip_blocks(blocks, 0, slots.indexed_offset)
    if position == len(blocks):
        return False
    base_offset = block_at(blocks, position).base_offset
    if base_offset == slots.indexed_offset:
        return True
    # Compaction leaves gaps: the blocks fit all the same if theirs is the segment's next batch.
    segment = slots.segment
    next_position = segment.position_of(slots.indexed_offset)
    return (
        next_position < segment.size_bytes
        and segment.header_at(next_position).base_offset == base_offset
    )


def _size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
