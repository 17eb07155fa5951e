"""Random logs split into branches: together they are the log, and damage stays where it is."""

import random
import struct
from collections import defaultdict

from batch_kit import (
    CODECS,
    CONTROL,
    RULES,
    SPARSE,
    UNREADABLE,
    cut,
    mutated,
    patched,
    payloads_of,
    random_log,
    read_by_aiokafka,
    read_by_kafka_python,
    read_index,
    slot_of_record,
    split_model,
    with_crc,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.branch import _kernels
from anabranch.branch.slots import SlotRule, branch_of_slot
from anabranch.branch.split import SplitChunk, index_batches, split_batches
from anabranch.wire.compression import decompress
from anabranch.wire.record_batch import HEADER_SIZE, Record, iter_records, read_header

branch_counts = st.sampled_from((1, 2, 3, 5, 8, 24, 100, 1024))
seeds = st.integers(0, 2**32)
ALL = 2**62


def outputs_of(chunk: SplitChunk) -> list[bytes]:
    """Everything that each branch has."""
    return [
        bytes(chunk.read(b, chunk.first_offset, ALL, ALL, min_one_batch=False).records)
        for b in range(chunk.branches)
    ]


@settings(max_examples=150)
@given(seeds, branch_counts, st.sampled_from(RULES))
def test_split_is_the_models(seed: int, branches: int, rule: SlotRule) -> None:
    """Every branch has exactly the bytes that a slow model gives it, batch by batch."""
    batches = random_log(random.Random(seed), 10)
    if not batches:
        return
    chunk = split_batches(memoryview(b"".join(batches)), branches, rule)
    parts = [split_model(batch, branches, rule) for batch in batches]
    assert outputs_of(chunk) == [b"".join(column) for column in zip(*parts, strict=True)]
    assert chunk.first_offset == read_header(batches[0]).base_offset
    assert chunk.next_offset == read_header(batches[-1]).next_offset
    assert chunk.source_bytes == sum(map(len, batches))


@settings(max_examples=100)
@given(seeds, branch_counts, st.sampled_from(RULES))
def test_branches_are_the_log(seed: int, branches: int, rule: SlotRule) -> None:
    """Stock readers find each record of the log in exactly one branch, as it was."""
    batches = random_log(random.Random(seed), 10)
    if not batches:
        return
    log = {
        record.offset: (record, header_fields(batch))
        for batch in batches
        if not read_header(batch).is_control
        for record in read_by_aiokafka(batch)
    }
    markers = [batch for batch in batches if read_header(batch).is_control]
    found: dict[int, tuple[Record, tuple[int, ...]]] = {}
    branch_of_key: dict[bytes, int] = {}
    chunk = split_batches(memoryview(b"".join(batches)), branches, rule)
    for branch, output in enumerate(outputs_of(chunk)):
        seen_markers = []
        last_offset = -1
        for batch in cut(output):
            if read_header(batch).is_control:
                seen_markers.append(batch)
                continue
            records = read_by_aiokafka(batch)
            assert records == read_by_kafka_python(batch)
            for record in records:
                assert last_offset < record.offset
                last_offset = record.offset
                assert record.offset not in found
                found[record.offset] = (record, header_fields(batch))
                if record.key is not None and rule.ordering_header is None:
                    assert branch_of_key.setdefault(record.key, branch) == branch
        assert seen_markers == markers
    assert found == log


def header_fields(batch: bytes) -> tuple[int, ...]:
    """What a rebuilt batch keeps of its header."""
    header = read_header(batch)
    return (
        header.base_offset,
        header.partition_leader_epoch,
        header.attributes & ~7,
        header.last_offset_delta,
        header.base_timestamp,
        header.max_timestamp,
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
    )


@settings(max_examples=100)
@given(seeds, st.sampled_from(RULES))
def test_index_has_the_slots(seed: int, rule: SlotRule) -> None:
    """The index has a block for each batch with the slot of each record, whatever the branches."""
    batches = random_log(random.Random(seed), 10)
    log = memoryview(b"".join(batches))
    index = index_batches(log, rule)
    blocks = read_index(index)
    for batch, block in zip(batches, blocks, strict=True):
        header = read_header(batch)
        records = [] if header.is_control else list(iter_records(batch))
        offsets = tuple(record.offset for record in records)
        is_sparse = offsets != tuple(header.base_offset + i for i in range(len(offsets)))
        assert block.base_offset == header.base_offset
        assert block.last_offset_delta == header.last_offset_delta
        assert block.crc == header.crc
        assert block.flags == CONTROL * header.is_control + SPARSE * is_sparse
        assert block.offsets == offsets
        assert block.slots == tuple(slot_of_record(record, rule) for record in records)
    if batches:
        assert split_batches(log, 3, rule).index == index


def test_a_key_stays_in_its_branch_between_counts() -> None:
    """Doubling the branches splits each in two: no record moves to a branch of other ranges."""
    batches = random_log(random.Random(5), 30)
    log = memoryview(b"".join(batches))
    four, eight = (outputs_of(split_batches(log, n, SlotRule())) for n in (4, 8))
    offsets: dict[int, dict[int, set[int]]] = {4: defaultdict(set), 8: defaultdict(set)}
    for n, outputs in ((4, four), (8, eight)):
        for branch, output in enumerate(outputs):
            for batch in cut(output):
                offsets[n][branch] |= {record.offset for record in iter_records(batch)}
    for branch in range(4):
        assert offsets[4][branch] == offsets[8][2 * branch] | offsets[8][2 * branch + 1]


# --- Damage -------------------------------------------------------------------------------------


def split_parts(batches: list[bytes], branches: int, rule: SlotRule) -> list[list[bytes]]:
    """What each branch has of each batch, checked to be all of the output."""
    output, starts, ends, _, index = _kernels.split(
        b"".join(batches),
        payloads_of(batches),
        branches,
        rule.is_null_key_ordered,
        rule.ordering_header,
    )
    assert len(read_index(index)) == len(batches)
    count = len(batches)
    edges = struct.unpack(f"<{branches + 1}Q", starts)
    all_ends = struct.unpack(f"<{branches * count}I", ends)
    parts: list[list[bytes]] = [[] for _ in batches]
    for branch in range(branches):
        start = 0
        for k, end in enumerate(all_ends[branch * count : (branch + 1) * count]):
            parts[k].append(output[edges[branch] + start : edges[branch] + end])
            start = end
        assert edges[branch] + start == edges[branch + 1]
    assert edges[-1] == len(output)
    return parts


@settings(max_examples=400)
@given(seeds, branch_counts, st.sampled_from(RULES))
def test_damage_stays_in_its_batch(seed: int, branches: int, rule: SlotRule) -> None:
    """Wrong bytes under a right CRC never take a neighbour's records or their own batch's away."""
    rng = random.Random(seed)
    batches = random_log(rng, 6)
    if not batches:
        return
    intact = split_parts(batches, branches, rule)
    victim = rng.randrange(len(batches))
    damaged = [*batches]
    damaged[victim] = mutated(rng, batches[victim])
    parts = split_parts(damaged, branches, rule)
    assert parts[:victim] + parts[victim + 1 :] == intact[:victim] + intact[victim + 1 :]
    check_victim(damaged[victim], parts[victim])


def check_victim(batch: bytes, parts: list[bytes]) -> None:
    """A damaged batch is in the first branch as it is, or its records are all there once."""
    header = read_header(batch)
    if header.is_control:
        assert parts == [batch] * len(parts)
        return
    if header.records_count == 0:
        assert not any(parts)
        return
    if parts[0] == batch:
        assert not any(parts[1:])
        return
    kept = [part for part in parts if part]
    assert all(with_crc(part) == part for part in kept)
    assert sum(read_header(part).records_count for part in kept) == header.records_count
    if kept != [batch]:
        plain = decompress(header.codec, batch[HEADER_SIZE:], max_bytes=1 << 20)
        assert sum(len(part) - HEADER_SIZE for part in kept) == len(plain)


@settings(max_examples=200)
@given(seeds)
def test_cut_or_random_bytes(seed: int) -> None:
    """A log cut anywhere, or garbage in its framing, is a ValueError or a sound result."""
    rng = random.Random(seed)
    log = bytearray(b"".join(random_log(rng, 5)))
    if rng.randrange(2):
        del log[rng.randrange(len(log) + 1) :]
    for _ in range(rng.randrange(3)):
        if log:
            log[rng.randrange(len(log))] = rng.randrange(256)
    for branches in (0, 3):
        try:
            payloads = [None] * len(_kernels.compressed_batches(log))
            _, _, ends, next_offsets, index = _kernels.split(log, payloads, branches, False, b"o")
        except ValueError:
            continue
        offsets = struct.unpack(f"<{len(next_offsets) // 8}q", next_offsets)
        assert list(offsets) == sorted(set(offsets))
        assert len(ends) == 4 * branches * len(offsets)
        _kernels.progress(index, bytes(16), bytes(24), ALL)


def test_every_codec_is_understood() -> None:
    """A batch under each codec is taken apart, one under a codec that does not exist is not."""
    batches = random_log(random.Random(3), 200)
    chunk = split_batches(memoryview(b"".join(batches)), 4, SlotRule())
    blocks = read_index(chunk.index)
    assert not any(block.flags & UNREADABLE for block in blocks)
    read = {read_header(b).codec for b, block in zip(batches, blocks, strict=True) if block.slots}
    assert read == set(CODECS)
    strange = patched(next(b for b in batches if read_header(b).codec), 21, ">h", 5)
    chunk = split_batches(memoryview(strange), 4, SlotRule())
    assert outputs_of(chunk) == [strange, b"", b"", b""]
    assert branch_of_slot(0, 4) == 0
