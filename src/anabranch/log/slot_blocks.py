"""Runs of slot index blocks: what the kernels make of batches, and how to find a block in them.

A block says which slots the records of one batch are in. Little-endian, aligned to 8 bytes:

    0  base offset int64            16 CRC of the batch uint32
    8  last offset delta uint32     20 flags uint32 (1 sparse, 2 control, 4 unreadable)
    12 records count uint32         24 slots uint16 each, padded; then, if sparse, the records'
                                       offset deltas uint32 each, padded

Blocks have no fixed size, so a block is found by walking. A run keeps marks, every few kilobytes
of blocks, from which the walk is short. Runs never change: whoever got the bytes of one may read
them in a thread while the index grows.
"""

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Final, NamedTuple

MARK_BYTES: Final = 16 * 1024
"""How much lies between two marks at least."""

_SPARSE_FLAG = 1
_BLOCK = Struct("<qIIII")
_BLOCK_SIZE = _BLOCK.size
_unpack_block = _BLOCK.unpack_from


class Block(NamedTuple):
    """What a block says of its batch, and where the block ends in its run."""

    base_offset: int
    next_offset: int
    crc: int
    end: int


@dataclass(frozen=True, slots=True)
class BlockRun:
    """The blocks of consecutive batches from `first_offset` up to, without, `next_offset`.

    Both may lie in gaps around the batches. Block starts at `mark_positions` divide the blocks:
    those before a mark end below its offset, those behind it begin at or above it.
    """

    first_offset: int
    next_offset: int
    blocks: memoryview
    mark_offsets: Sequence[int]
    mark_positions: Sequence[int]

    def cut(self, from_offset: int, upto: int) -> memoryview:
        """The blocks of the batches that reach `from_offset` and begin below `upto`."""
        start, end = 0, len(self.blocks)
        if from_offset > self.first_offset:
            start = self._position_of(from_offset)
        if upto < self.next_offset:
            end = self._position_of(upto)
            if end < len(self.blocks):
                block = block_at(self.blocks, end)
                if block.base_offset < upto:
                    end = block.end
        return self.blocks[start:end] if start < end else _NO_BYTES

    def first_block(self) -> Block:
        return block_at(self.blocks, 0)

    def last_block(self) -> Block:
        position = self.mark_positions[-1]
        while (block := block_at(self.blocks, position)).end < len(self.blocks):
            position = block.end
        return block

    def _position_of(self, offset: int) -> int:
        """Where the first block begins whose batch reaches `offset`."""
        mark = bisect_right(self.mark_offsets, offset) - 1
        position = self.mark_positions[mark] if mark >= 0 else 0
        return skip_blocks(self.blocks, position, offset)


_NO_BYTES = memoryview(b"")


def block_at(blocks: bytes | memoryview, position: int) -> Block:
    base_offset, last_offset_delta, count, crc, flags = _unpack_block(blocks, position)
    end = position + _BLOCK_SIZE + (2 * count + 7 & ~7)
    if flags & _SPARSE_FLAG:
        end += 4 * count + 7 & ~7
    return Block(base_offset, base_offset + last_offset_delta + 1, crc, end)


def skip_blocks(blocks: bytes | memoryview, position: int, offset: int) -> int:
    """The end of the blocks from `position` on whose batches do not reach `offset`."""
    # This walks thousands of blocks where batches are small, so it makes no `Block` of each.
    size = len(blocks)
    while position < size:
        base_offset, last_offset_delta, count, _, flags = _unpack_block(blocks, position)
        if base_offset + last_offset_delta >= offset:
            break
        position += _BLOCK_SIZE + (2 * count + 7 & ~7)
        if flags & _SPARSE_FLAG:
            position += 4 * count + 7 & ~7
    return position


def new_run(first_offset: int, next_offset: int, blocks: bytes | memoryview) -> BlockRun:
    view = memoryview(blocks)
    return BlockRun(first_offset, next_offset, view, array("q", [first_offset]), array("q", [0]))


def join_runs(first: BlockRun, second: BlockRun) -> BlockRun:
    """One run of two that follow each other, with a mark wherever the last one is far enough."""
    offsets, positions = array("q", first.mark_offsets), array("q", first.mark_positions)
    shift = len(first.blocks)
    for offset, position in zip(second.mark_offsets, second.mark_positions, strict=True):
        if position + shift - positions[-1] >= MARK_BYTES:
            offsets.append(offset)
            positions.append(position + shift)
    blocks = memoryview(b"".join((first.blocks, second.blocks)))
    return BlockRun(first.first_offset, second.next_offset, blocks, offsets, positions)
