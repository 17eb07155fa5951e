"""The slot index of one segment in memory, and the steps that fill, load and write it.

A step is made on the event loop, from which it takes what it needs: slices of the log, blocks that
never change, paths. Its `run` changes nothing but the step, so it may be called in a thread, and
`SlotIndexes.add` takes the result on the loop again. `size_bytes` says how much there is to do; a
small step is done faster than handed over.
"""

import logging
from pathlib import Path
from typing import Final, TypeAlias

from anabranch.branch.slots import SlotRule
from anabranch.branch.split import index_batches
from anabranch.log.segment import SLOTS_SUFFIX, Segment, Slice
from anabranch.log.slot_blocks import BlockRun, join_runs, new_run, skip_blocks
from anabranch.log.slot_index_file import read_slots, write_slots
from anabranch.model.errors import ErrorCode, KafkaError

RUN_BYTES_MAX: Final = 256 * 1024
"""Runs are joined up to this size; the loop copies so much in some 0.1 ms."""

_LOG = logging.getLogger(__name__)


class SegmentSlots:
    """The index of one segment, as far as it is in memory."""

    __slots__ = (
        "indexed_offset",
        "is_being_written",
        "is_only_on_disk",
        "is_refused",
        "runs",
        "segment",
        "size_bytes",
        "written_offset",
    )

    def __init__(self, segment: Segment, *, is_only_on_disk: bool) -> None:
        self.segment = segment
        self.runs: list[BlockRun] = []
        self.size_bytes = 0
        # All batches below it have their blocks in `runs`.
        self.indexed_offset = segment.base_offset
        # What the file holds, as far as known, and whether it must be read before anything else.
        self.written_offset = segment.base_offset
        self.is_only_on_disk = is_only_on_disk
        self.is_being_written = False
        self.is_refused = False  # by the disk, which is not asked twice

    @property
    def path(self) -> Path:
        return self.segment.path(SLOTS_SUFFIX)

    @property
    def is_unwritten(self) -> bool:
        return bool(self.runs) and self.runs[-1].next_offset > self.written_offset

    def covers(self, upto: int) -> bool:
        return self.indexed_offset >= min(upto, self.segment.next_offset)

    def extend(self, first_offset: int, next_offset: int, blocks: bytes) -> None:
        """Take those of the blocks of all batches in [`first_offset`, `next_offset`) that are new.

        Nothing may be missing before them.
        """
        if first_offset > self.indexed_offset or next_offset <= self.indexed_offset:
            return
        position = skip_blocks(blocks, 0, self.indexed_offset)
        if position == len(blocks):
            self.indexed_offset = next_offset
        else:
            rest = memoryview(blocks)[position:]
            self.append(new_run(self.indexed_offset, next_offset, rest))

    def append(self, run: BlockRun) -> None:
        """Take blocks that follow the last ones; runs of similar size become one."""
        self.indexed_offset = run.next_offset
        self.size_bytes += len(run.blocks)
        runs = self.runs
        while runs and len(runs[-1].blocks) < min(
            2 * len(run.blocks), RUN_BYTES_MAX - len(run.blocks)
        ):
            run = join_runs(runs.pop(), run)
        runs.append(run)

    def drop_runs(self) -> None:
        self.runs = []
        self.size_bytes = 0
        self.indexed_offset = self.segment.base_offset


class BuildStep:
    """Some batches that are not indexed yet."""

    __slots__ = ("_rule", "_slices", "first_offset", "found", "size_bytes", "slots")

    def __init__(self, slots: SegmentSlots, rule: SlotRule, slices: list[Slice]) -> None:
        self.slots = slots
        self.first_offset = slots.indexed_offset
        self._slices = slices
        self.size_bytes = sum(len(piece.batches) for piece in slices)
        self.found: list[tuple[int, bytes]] = []  # next offset, blocks
        self._rule = rule

    def run(self) -> None:
        """Index the batches; KAFKA_STORAGE_ERROR when the disk changed what was written."""
        try:
            for next_offset, batches in self._slices:
                self.found.append((next_offset, index_batches(batches, self._rule)))
        except ValueError as error:
            raise KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"{self.slots.segment.path()} is damaged ({error}); stop the broker without a"
                " clean shutdown mark to have the log recovered",
            ) from error
        finally:
            self._slices = []  # they hold the segment's map


class LoadStep:
    """A file that may hold the index of a segment."""

    __slots__ = ("_rule", "found", "size_bytes", "slots")

    def __init__(self, slots: SegmentSlots, rule: SlotRule, size_bytes: int) -> None:
        self.slots = slots
        self.size_bytes = size_bytes
        self.found: BlockRun | None = None
        self._rule = rule

    def run(self) -> None:
        segment = self.slots.segment
        self.found = read_slots(self.slots.path, self._rule, segment.base_offset, segment.path())


class WriteStep:
    """Blocks that are to be in a segment's file."""

    __slots__ = ("_last_position", "_rule", "_runs", "next_offset", "size_bytes", "slots", "tmp")

    def __init__(self, slots: SegmentSlots, rule: SlotRule) -> None:
        self.slots = slots
        self.size_bytes = slots.size_bytes
        self.tmp: Path | None = None
        self._runs = list(slots.runs)
        self.next_offset = self._runs[-1].next_offset
        self._rule = rule
        last_block = self._runs[-1].last_block()
        self._last_position = slots.segment.position_of(last_block.base_offset)

    def run(self) -> None:
        slots = self.slots
        try:
            self.tmp = write_slots(
                slots.path, self._rule, slots.segment.base_offset, self._last_position, self._runs
            )
        except OSError as error:
            _LOG.warning("%s could not be written: %s", slots.path, error)


IndexStep: TypeAlias = BuildStep | LoadStep | WriteStep
