"""Uneven cuts of the slots: what each output has, and what goes nowhere."""

import random
import struct
import sys
from itertools import pairwise

import pytest
from batch_kit import (
    RULES,
    control_batch,
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
from anabranch.branch.cuts import DROPPED, CutTable, cut_table, joined_table
from anabranch.branch.slots import SlotRule, slot_of_key, slots_of_branch
from anabranch.branch.split import SplitChunk, split_batches
from anabranch.model.units import ALL_SLOTS, SLOT_COUNT, SlotRange
from anabranch.wire.record_batch import Record, build_batch, iter_records, read_header

ALL = 2**62
KEYS = [b"k%d" % i for i in range(40)]
seeds = st.integers(0, 2**32)


def entries(table: CutTable) -> tuple[int, ...]:
    return struct.unpack(f"<{SLOT_COUNT}H", table.table)


def owner_of(outputs: list[list[SlotRange]], slot: int) -> int | None:
    """The output that has the slot, by looking at every range."""
    for output, ranges in enumerate(outputs):
        if any(first <= slot < end for first, end in ranges):
            return output
    return None


@st.composite
def some_outputs(draw: st.DrawFn) -> list[list[SlotRange]]:
    """Disjoint ranges in any order, some next to each other, dealt to outputs or to none."""
    edges = draw(st.lists(st.integers(0, SLOT_COUNT), max_size=30))
    rng = random.Random(draw(seeds))
    outputs: list[list[SlotRange]] = [[] for _ in range(draw(st.integers(1, 12)))]
    for first, end in pairwise(sorted([0, *edges, SLOT_COUNT])):
        if rng.randrange(4):
            rng.choice(outputs).append(SlotRange(first, end))
    for ranges in outputs:
        rng.shuffle(ranges)
    return outputs


def outputs_of(chunk: SplitChunk) -> list[bytes]:
    """Everything that each output has."""
    return [
        bytes(chunk.read(b, chunk.first_offset, ALL, ALL, min_one_batch=False).records)
        for b in range(chunk.branches)
    ]


def batch_of(keys: list[bytes], base_offset: int = 0) -> bytes:
    records = [Record(base_offset + i, 1000, key, b"value") for i, key in enumerate(keys)]
    return build_batch(records, base_offset=base_offset)


# --- Tables -------------------------------------------------------------------------------------


@settings(max_examples=60)
@given(some_outputs())
def test_table_has_the_output_of_each_slot(outputs: list[list[SlotRange]]) -> None:
    """A slot's entry is the output with a range around it, or says that there is none."""
    table = joined_table(outputs)
    assert table.outputs == tuple(map(tuple, outputs))
    found = entries(table)
    edges = {edge for ranges in outputs for cut in ranges for edge in cut}
    for slot in {0, SLOT_COUNT - 1, *edges, *(edge - 1 for edge in edges)} - {-1, SLOT_COUNT}:
        owner = owner_of(outputs, slot)
        assert found[slot] == (DROPPED if owner is None else owner)
    for first, end in pairwise(sorted({0, SLOT_COUNT, *edges})):
        assert len(set(found[first:end])) == 1


def test_one_output_for_each_cut() -> None:
    """Cuts need not be in order nor cover all slots, and an empty one has no records."""
    cuts = [SlotRange(10, 20), SlotRange(5, 5), SlotRange(0, 7)]
    table = cut_table(cuts)
    assert entries(table)[:21] == (*[2] * 7, *[DROPPED] * 3, *[0] * 10, DROPPED)
    assert set(entries(table)[21:]) == {DROPPED}
    assert entries(cut_table([])) == (DROPPED,) * SLOT_COUNT
    assert entries(cut_table([ALL_SLOTS])) == (0,) * SLOT_COUNT
    assert table != cut_table(cuts)  # compared by identity, so quick to look up


@pytest.mark.parametrize(
    "cuts",
    [
        [(0, 10), (9, 20)],
        [(0, 10), (0, 10)],
        [(3, 4), (0, 65536)],
        [(-1, 10)],
        [(0, 65537)],
        [(10, 9)],
        [(70000, 70001)],
    ],
)
def test_cuts_that_make_no_sense(cuts: list[tuple[int, int]]) -> None:
    """No slot has two owners, and there are no others than 65,536."""
    with pytest.raises(ValueError, match="slots"):
        cut_table([SlotRange(*cut) for cut in cuts])


def test_as_many_outputs_as_branches() -> None:
    """A chunk has at most 1,024 outputs, equal or not."""
    cuts = [SlotRange(i, i + 1) for i in range(1025)]
    assert entries(cut_table(cuts[:1024]))[:1025] == (*range(1024), DROPPED)
    with pytest.raises(ValueError, match="1025 outputs"):
        cut_table(cuts)


# --- Splitting ----------------------------------------------------------------------------------


@settings(max_examples=150)
@given(seeds, some_outputs(), st.sampled_from(RULES))
def test_outputs_are_the_models(seed: int, outputs: list[list[SlotRange]], rule: SlotRule) -> None:
    """Every output has exactly the bytes that a slow model gives it, batch by batch."""
    batches = random_log(random.Random(seed), 10)
    if not batches:
        return
    log = memoryview(b"".join(batches))
    chunk = split_batches(log, joined_table(outputs), rule)
    parts = [
        split_model(batch, len(outputs), rule, lambda slot, _: owner_of(outputs, slot))
        for batch in batches
    ]
    assert chunk.branches == len(outputs)
    assert outputs_of(chunk) == [b"".join(column) for column in zip(*parts, strict=True)]
    assert chunk.index == split_batches(log, 3, rule).index
    assert chunk.next_offset == read_header(batches[-1]).next_offset
    for b, column in enumerate(zip(*parts, strict=True)):
        for k, batch in enumerate(batches):
            header = read_header(batch)
            rest = b"".join(column[k:])
            assert chunk.touched_bytes(b, header.base_offset) == len(rest)
            got = chunk.read(b, header.base_offset, header.next_offset, 0, min_one_batch=True)
            assert got.records == column[k]


@pytest.mark.parametrize("count", [1, 2, 3, 7, 64, 1024])
def test_equal_cuts_by_table(count: int) -> None:
    """A table of equal cuts gives the same bytes as the cuts by number."""
    log = memoryview(b"".join(random_log(random.Random(count), 40)))
    table = cut_table([slots_of_branch(i, count) for i in range(count)])
    by_table, by_number = (split_batches(log, cuts, SlotRule()) for cuts in (table, count))
    assert outputs_of(by_table) == outputs_of(by_number)
    assert by_table.index == by_number.index


@settings(max_examples=60)
@given(seeds, some_outputs(), st.sampled_from(RULES))
def test_stock_readers_find_the_records_of_the_cuts(
    seed: int, outputs: list[list[SlotRange]], rule: SlotRule
) -> None:
    """Each record of a slot that somebody has is in that output once, and no other record is."""
    batches = [b for b in random_log(random.Random(seed), 10) if not read_header(b).is_control]
    if not batches:
        return
    expected: list[list[Record]] = [[] for _ in outputs]
    for batch in batches:
        for record in read_by_aiokafka(batch):
            owner = owner_of(outputs, slot_of_record(record, rule))
            if owner is not None:
                expected[owner].append(record)
    chunk = split_batches(memoryview(b"".join(batches)), joined_table(outputs), rule)
    for output, records in zip(outputs_of(chunk), expected, strict=True):
        assert [r for batch in cut(output) for r in read_by_aiokafka(batch)] == records
        assert [r for batch in cut(output) for r in read_by_kafka_python(batch)] == records


def test_ranges_of_one_member_alone() -> None:
    """One output of several ranges, as one fetch needs it; all else is left out."""
    mine = sorted(slot_of_key(key) for key in KEYS)[::2]
    table = joined_table([[SlotRange(slot, slot + 1) for slot in mine]])
    chunk = split_batches(memoryview(batch_of(KEYS)), table, SlotRule())
    (output,) = outputs_of(chunk)
    keys = [record.key for record in iter_records(output)]
    assert keys == [key for key in KEYS if slot_of_key(key) in mine]
    assert len(keys) == 20
    assert len(read_index(chunk.index)[0].slots) == 40  # the index has all the same


@pytest.mark.parametrize("owner", [0, 2, None])
def test_unreadable_batch_is_of_slot_0(owner: int | None) -> None:
    """A damaged batch goes to whoever has slot 0, or nowhere when nobody has it."""
    bad = patched(batch_of(KEYS, 40), 57, ">i", 41)
    log = memoryview(batch_of(KEYS) + bad + batch_of(KEYS, 80))
    outputs = [[SlotRange(1 + i * 20000, 1 + (i + 1) * 20000)] for i in range(3)]
    if owner is not None:
        outputs[owner].append(SlotRange(0, 1))
    chunk = split_batches(log, joined_table(outputs), SlotRule())
    for output, found in enumerate(outputs_of(chunk)):
        batches = cut(found)
        assert (bad in batches) == (output == owner)
        assert len(batches) == 2 + (output == owner)


def test_control_batches_are_in_all_outputs() -> None:
    """Even in that of a member without slots: who reads must see how transactions end."""
    marker = control_batch(random.Random(1), 5)
    empty = build_batch([], base_offset=7, last_offset=900)
    chunk = split_batches(
        memoryview(marker + empty), cut_table([SlotRange(5, 9), SlotRange(9, 9)]), SlotRule()
    )
    assert outputs_of(chunk) == [marker, marker]
    assert chunk.next_offset == 901


def test_batches_of_nobody_are_nowhere() -> None:
    """Batches without an owner take no room, and their offsets count as looked at."""
    log = memoryview(batch_of(KEYS) + batch_of(KEYS, 40))
    slots = {slot_of_key(key) for key in KEYS}
    free = next(slot for slot in range(SLOT_COUNT) if slot not in slots)
    chunk = split_batches(log, cut_table([SlotRange(free, free + 1)]), SlotRule())
    assert len(chunk.output) == 0
    assert chunk.read(0, 0, ALL, ALL, min_one_batch=True) == (b"", 0, 80)
    assert split_batches(log, cut_table([]), SlotRule()).next_offset == 80


def test_what_nobody_has_of_one_batch_does_not_count_for_the_next() -> None:
    """A batch is left out only if nobody has any of its own records."""
    mine = next(key for key in KEYS if slot_of_key(key) < 30000)
    other = next(key for key in KEYS if slot_of_key(key) >= 30000 and len(key) == len(mine))
    batches = [batch_of([other] * 3), batch_of([other, *[mine] * 3], 3)]
    chunk = split_batches(
        memoryview(b"".join(batches)), cut_table([SlotRange(0, 30000)]), SlotRule()
    )
    (output,) = outputs_of(chunk)
    assert [record.offset for record in iter_records(output)] == [4, 5, 6]


def test_numbers_that_no_output_has_drop() -> None:
    """Whatever the table says, nothing is written outside of the outputs."""
    log = batch_of(KEYS)
    for number in (2, 3, 1023, 1024, 1025, 40000, DROPPED):
        table = struct.pack("<H", number) * SLOT_COUNT
        output, starts, *_ = _kernels.split(log, [], 2, False, None, table)
        assert (output, starts) == (b"", bytes(24))
    mixed = struct.pack("<2H", 1, 40000) * (SLOT_COUNT // 2)
    output, starts, *_ = _kernels.split(log, [], 2, False, None, mixed)
    assert struct.unpack("<3Q", starts) == (0, 0, len(output))
    assert [r.key for r in iter_records(output)] == [k for k in KEYS if not slot_of_key(k) % 2]


def test_table_is_checked_and_let_go() -> None:
    """A table is bytes of the right size; nothing of it is kept."""
    log = batch_of(KEYS)
    for bad in (b"", bytes(2 * SLOT_COUNT - 1), bytes(2 * SLOT_COUNT + 2)):
        with pytest.raises(ValueError, match="a uint16 for each of 65536 slots"):
            _kernels.split(log, [], 2, False, None, bad)
    with pytest.raises(TypeError):
        _kernels.split(log, [], 2, False, None, bytearray(2 * SLOT_COUNT))  # type: ignore[arg-type]
    table = bytes(2 * SLOT_COUNT)
    before = sys.getrefcount(table)
    for _ in range(50):
        _kernels.split(log, [], 2, False, None, table)
    assert sys.getrefcount(table) == before
    assert _kernels.split(log, [], 2, False, None, None) == _kernels.split(log, [], 2, False, None)


@settings(max_examples=200)
@given(seeds, some_outputs(), st.sampled_from(RULES))
def test_damage_stays_in_its_batch(
    seed: int, outputs: list[list[SlotRange]], rule: SlotRule
) -> None:
    """Wrong bytes under a right CRC change nothing of what outputs have of other batches."""
    rng = random.Random(seed)
    batches = random_log(rng, 6)
    if not batches:
        return
    victim = rng.randrange(len(batches))
    damaged = [*batches]
    damaged[victim] = mutated(rng, batches[victim])
    parts = parts_of(damaged, outputs, rule)
    intact = parts_of(batches, outputs, rule)
    assert parts[:victim] + parts[victim + 1 :] == intact[:victim] + intact[victim + 1 :]
    if read_header(damaged[victim]).is_control:
        assert parts[victim] == [damaged[victim]] * len(outputs)
    elif damaged[victim] in parts[victim]:
        assert sum(map(bool, parts[victim])) == 1
    else:
        assert all(with_crc(part) == part for part in parts[victim] if part)


def parts_of(
    batches: list[bytes], outputs: list[list[SlotRange]], rule: SlotRule
) -> list[list[bytes]]:
    """What each output has of each batch."""
    output, starts, ends, *_ = _kernels.split(
        b"".join(batches),
        payloads_of(batches),
        len(outputs),
        rule.is_null_key_ordered,
        rule.ordering_header,
        joined_table(outputs).table,
    )
    count = len(batches)
    origins = struct.unpack(f"<{len(outputs) + 1}Q", starts)
    assert origins[-1] == len(output)
    parts: list[list[bytes]] = [[] for _ in batches]
    for b in range(len(outputs)):
        edges = (0, *struct.unpack_from(f"<{count}I", ends, 4 * count * b))
        assert origins[b] + edges[-1] == origins[b + 1]
        for k, (start, end) in enumerate(pairwise(edges)):
            parts[k].append(output[origins[b] + start : origins[b] + end])
    return parts
