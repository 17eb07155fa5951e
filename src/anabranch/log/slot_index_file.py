"""The file that keeps a segment's slot index: `<base offset>.slots` beside the segment.

Little-endian. A header of 64 bytes, then the blocks, then the marks to find blocks by: the offsets
(int64 each), then the positions among the blocks (int64 each).

    0  magic                            24 base offset of the segment int64
    8  format version uint16            32 the offset after the last indexed batch int64
    10 rule uint16 (1: null keys are    40 where in the segment that batch begins uint64
       ordered, 2: a header orders)     48 size of the blocks uint64
    12 digest of that header's name     56 CRC-32C of blocks and marks uint32
    20 number of marks uint32           60 CRC-32C of the header up to here uint32

The file is not synced: it can be made again from the segment, and the checksums tell whether the
disk has all of it. Whether the segment is still the one that was indexed is told by its first and
its last indexed batch, which must have the CRCs that their blocks say. That is a second guard:
whoever replaces or cuts a segment removes the file.
"""

import contextlib
import os
import sys
from array import array
from collections.abc import Sequence
from hashlib import blake2b
from itertools import count
from pathlib import Path
from struct import Struct
from typing import Final

from crc32c import crc32c

from anabranch.branch.slots import SlotRule
from anabranch.log.checkpoints import TMP_SUFFIX
from anabranch.log.slot_blocks import Block, BlockRun
from anabranch.model.errors import KafkaError
from anabranch.wire.record_batch import HEADER_SIZE, read_header

FORMAT_VERSION: Final = 1

_MAGIC = b"anaslots"
_HEADER = Struct("<8sHH8sIqqQQI")
_HEADER_CRC = Struct("<I")
_FILE_HEADER_SIZE = _HEADER.size + _HEADER_CRC.size
_MARK_SIZE = 16
_NULL_KEY_ORDERED = 1
_HAS_ORDERING_HEADER = 2
_NO_DIGEST = bytes(8)

_attempts = count()


def write_slots(
    path: Path, rule: SlotRule, base_offset: int, last_position: int, runs: Sequence[BlockRun]
) -> Path:
    """Write the file of `runs` under a name of its own, which the caller changes to `path`.

    Each attempt has another name, so that two of them never share a file. OSError when the disk
    refuses; nothing is left behind then. Safe off the event loop.
    """
    offsets, positions = _marks(runs)
    content = [*(run.blocks for run in runs), memoryview(offsets), memoryview(positions)]
    crc = 0
    for part in content:
        crc = crc32c(part, crc)
    header = _HEADER.pack(
        _MAGIC, FORMAT_VERSION, *_rule_fields(rule), len(positions) // 8, base_offset,
        runs[-1].last_block().next_offset, last_position,
        sum(len(run.blocks) for run in runs), crc,
    )  # fmt: skip
    tmp = path.with_name(f"{path.name}.{next(_attempts)}{TMP_SUFFIX}")
    try:
        with tmp.open("wb") as file:
            file.write(header + _HEADER_CRC.pack(crc32c(header)))
            file.writelines(content)
    except BaseException:
        with contextlib.suppress(OSError):
            tmp.unlink()
        raise
    return tmp


def read_slots(path: Path, rule: SlotRule, base_offset: int, log_path: Path) -> BlockRun | None:
    """The index in `path` if it is there, sound, of this rule and of the segment in `log_path`.

    Safe off the event loop.
    """
    try:
        found = _parse(memoryview(path.read_bytes()), rule, base_offset)
        if found is None:
            return None
        run, last_position = found
        with log_path.open("rb") as log_file:
            fd = log_file.fileno()
            is_of_segment = _is_batch_of(fd, 0, run.first_block()) and _is_batch_of(
                fd, last_position, run.last_block()
            )
    except (OSError, KafkaError):
        return None
    return run if is_of_segment else None


def _parse(content: memoryview, rule: SlotRule, base_offset: int) -> tuple[BlockRun, int] | None:
    """The blocks of a file and where its last batch begins; None when anything is wrong."""
    if len(content) < _FILE_HEADER_SIZE:
        return None
    header, body = content[: _HEADER.size], content[_FILE_HEADER_SIZE:]
    if _HEADER_CRC.unpack_from(content, _HEADER.size)[0] != crc32c(header):
        return None
    (magic, version, rule_flags, digest, marks_count, found_base_offset, next_offset,
     last_position, blocks_size, crc) = _HEADER.unpack(header)  # fmt: skip
    if (
        (magic, version, found_base_offset) != (_MAGIC, FORMAT_VERSION, base_offset)
        or (rule_flags, digest) != _rule_fields(rule)
        or len(body) != blocks_size + _MARK_SIZE * marks_count
        or not blocks_size
        or not marks_count
        or crc32c(body) != crc
    ):
        return None
    marks = array("q", bytes(body[blocks_size:]))
    if sys.byteorder == "big":
        marks.byteswap()
    offsets, positions = marks[:marks_count], marks[marks_count:]
    return BlockRun(base_offset, next_offset, body[:blocks_size], offsets, positions), last_position


def _is_batch_of(fd: int, position: int, block: Block) -> bool:
    """Whether the batch at `position` of a segment's file is the one that `block` is about."""
    header = read_header(os.pread(fd, HEADER_SIZE, position))
    found = (header.base_offset, header.next_offset, header.crc)
    return found == (block.base_offset, block.next_offset, block.crc)


def _rule_fields(rule: SlotRule) -> tuple[int, bytes]:
    """What the header says of the rule."""
    flags = _NULL_KEY_ORDERED if rule.is_null_key_ordered else 0
    if rule.ordering_header is None:
        return flags, _NO_DIGEST
    digest = blake2b(rule.ordering_header, digest_size=len(_NO_DIGEST)).digest()
    return flags | _HAS_ORDERING_HEADER, digest


def _marks(runs: Sequence[BlockRun]) -> tuple[bytes, bytes]:
    """The marks of all runs as the file has them."""
    offsets, positions = array("q"), array("q")
    shift = 0
    for run in runs:
        offsets.extend(run.mark_offsets)
        positions.extend(position + shift for position in run.mark_positions)
        shift += len(run.blocks)
    if sys.byteorder == "big":
        offsets.byteswap()
        positions.byteswap()
    return offsets.tobytes(), positions.tobytes()
