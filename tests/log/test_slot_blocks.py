"""Runs of slot index blocks: finding blocks by offset, and joining runs."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from slot_index_kit import block_of, xxh64

from anabranch.branch._kernels import xxh64 as compiled_xxh64
from anabranch.log import slot_blocks
from anabranch.log.slot_blocks import join_runs, new_run
from anabranch.wire.record_batch import Record, build_batch


def batch_at(base_offset: int, count: int, span: int) -> bytes:
    """A batch of `count` records at every second offset, over `span` offsets at least."""
    records = [Record(base_offset + 2 * i, 0, b"k%d" % i, b"") for i in range(count)]
    last_offset = base_offset + max(span - 1, 2 * count - 1)
    return build_batch(records, base_offset=base_offset, last_offset=last_offset)


@pytest.mark.parametrize("size", [0, 1, 3, 4, 7, 8, 12, 31, 32, 33, 63, 64, 100])
def test_the_kit_has_the_hash_of_the_kernels(size: int) -> None:
    """Two ways to compute XXH64 agree on keys of all sizes."""
    data = bytes(range(size))
    assert xxh64(data) == compiled_xxh64(data)


@settings(max_examples=150, deadline=None)
@given(
    shapes=st.lists(
        st.tuples(st.integers(0, 5), st.integers(0, 9), st.integers(1, 8)), min_size=1, max_size=25
    ),
    cuts=st.lists(st.integers(0, 24), max_size=6),
    data=st.data(),
    mark_bytes=st.sampled_from([1, 40, 200, slot_blocks.MARK_BYTES]),
)
def test_a_cut_has_the_blocks_of_the_offsets(
    shapes: list[tuple[int, int, int]], cuts: list[int], data: st.DataObject, mark_bytes: int
) -> None:
    """Whatever runs were joined, a cut has the blocks that reach its start up to its end."""
    blocks: list[tuple[int, int, bytes]] = []
    offset = 100
    for gap, count, span in shapes:
        batch = batch_at(offset + gap, count, span)
        base_offset, offset = offset + gap, offset + gap + max(span, 2 * count)
        blocks.append((base_offset, offset, block_of(batch)))
    edges = sorted({0, len(blocks), *(cut for cut in cuts if cut < len(blocks))})
    runs = []
    first_offset = 100
    for start, end in pairwise(edges):
        content = b"".join(block for _, _, block in blocks[start:end])
        runs.append(new_run(first_offset, blocks[end - 1][1], content))
        first_offset = blocks[end - 1][1]
    joined = runs[0]
    before, slot_blocks.MARK_BYTES = slot_blocks.MARK_BYTES, mark_bytes  # type: ignore[misc]
    try:
        for run in runs[1:]:
            joined = join_runs(joined, run)
    finally:
        slot_blocks.MARK_BYTES = before  # type: ignore[misc]
    assert bytes(joined.blocks) == b"".join(block for _, _, block in blocks)
    assert (joined.first_offset, joined.next_offset) == (100, offset)
    first, last = joined.first_block(), joined.last_block()
    assert (first.base_offset, first.next_offset) == blocks[0][:2]
    assert (last.base_offset, last.next_offset) == blocks[-1][:2]
    assert last.end == len(joined.blocks)
    from_offset = data.draw(st.integers(95, offset + 5))
    upto = data.draw(st.integers(95, offset + 5))
    wanted = [block for base, after, block in blocks if after > from_offset and base < upto]
    if from_offset < upto:
        assert bytes(joined.cut(from_offset, upto)) == b"".join(wanted)


def test_marks_make_walks_short() -> None:
    """A large run of many small ones is entered near the block that is looked for."""
    run = new_run(0, 10, block_of(batch_at(0, 3, 10)))
    for base_offset in range(10, 30_000, 10):
        block = block_of(batch_at(base_offset, 3, 10))
        run = join_runs(run, new_run(base_offset, base_offset + 10, block))
    gaps = [after - before for before, after in pairwise(run.mark_positions)]
    assert len(run.blocks) > 5 * slot_blocks.MARK_BYTES
    assert len(gaps) >= 5
    assert all(slot_blocks.MARK_BYTES <= gap <= slot_blocks.MARK_BYTES + 100 for gap in gaps)
