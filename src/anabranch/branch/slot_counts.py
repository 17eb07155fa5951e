"""How many records each slot has in a part of a log, from its slot index.

One call of a kernel counts them all, without the interpreter's lock: a few milliseconds for a
million records. Each slot may have a watermark of its own, below which its records do not count.
"""

from array import array
from collections.abc import Iterable, Sequence

from anabranch.branch import _kernels
from anabranch.model.units import SLOT_COUNT, SlotRange


class SlotCounts:
    """Gathers the blocks of a part of a log, and counts them when they are all there."""

    __slots__ = ("_blocks", "end_offset")

    def __init__(self, end_offset: int) -> None:
        self.end_offset = end_offset
        self._blocks: list[memoryview] = []

    def add(self, blocks: Iterable[memoryview]) -> None:
        """Take what follows in the log."""
        self._blocks.extend(blocks)

    def counts(self, watermarks: Sequence[tuple[SlotRange, int]]) -> dict[int, int]:
        """The records of each slot that has any from its watermark on, below the end.

        The ranges of the watermarks are in order, and all slots are in one. May run in a thread.
        """
        per_slot = array("q")
        for (first, end), watermark in watermarks:
            per_slot.extend(array("q", [watermark]) * (end - first))
        if len(per_slot) != SLOT_COUNT:
            raise ValueError(f"the watermarks are of {len(per_slot)} slots")
        # Memory order is little-endian wherever the kernels run.
        packed = per_slot.tobytes()
        joined = b"".join(self._blocks)
        found, _, _ = _kernels.progress(joined, packed, packed, self.end_offset)
        counts = array("Q", found)
        return {slot: count for slot, count in enumerate(counts) if count}
