"""The slot index of a log: how it grows, and that it says what the log says."""

from dataclasses import replace
from pathlib import Path

import pytest
from log_kit import NOW_MS, SMALL, open_log
from slot_index_kit import (
    END,
    batches_of,
    block_of,
    build,
    check,
    indexed,
    keyed_batch,
    naive_blocks,
    offer,
    put,
    write_files,
)

from anabranch.branch.slots import DEFAULT_RULE, SlotRule
from anabranch.branch.split import index_batches
from anabranch.log import slot_index, slot_index_steps
from anabranch.log.compaction import CompactionRound, compact, plan_compaction, swap_cleaned
from anabranch.log.partition_log import PartitionLog
from anabranch.log.retention import apply_retention
from anabranch.log.slot_index import SlotIndexes, slot_indexes_of
from anabranch.log.slot_index_steps import BuildStep, LoadStep
from anabranch.model.errors import ErrorCode, KafkaError
from anabranch.wire.record_batch import CONTROL_FLAG, TRANSACTIONAL_FLAG

COMPACTED = replace(SMALL, cleanup_policy=frozenset({"compact"}), delete_retention_ms=1000)


def small_steps(monkeypatch: pytest.MonkeyPatch, step_bytes: int = 300) -> None:
    """Index a few batches a step instead of megabytes."""
    monkeypatch.setattr(slot_index, "STEP_BYTES", step_bytes)
    monkeypatch.setattr(slot_index, "SLICE_BYTES", step_bytes // 2)


def filled_log(folder: Path, batches: int = 30) -> PartitionLog:
    """A log of several segments with keys, null keys, and batches of one to four records."""
    log = open_log(folder)
    for i in range(batches):
        put(log, *(b"k%d" % (i * 7 + j) if (i + j) % 5 else None for j in range(1 + i % 4)))
    assert len(log.segments) > 2
    return log


# Growing


def test_a_log_without_readers_of_branches_has_no_index(tmp_path: Path) -> None:
    """Nothing is made or kept until somebody asks."""
    log = filled_log(tmp_path / "t-0")
    assert log.slot_indexes is None
    indexes = slot_indexes_of(log)
    assert log.slot_indexes is indexes is slot_indexes_of(log)
    assert indexes.size_bytes == 0
    log.close(NOW_MS)


@pytest.mark.parametrize("step_bytes", [1, 300, 2**22])
def test_it_is_built_when_it_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step_bytes: int
) -> None:
    """Steps of any size index all segments, once; what is appended later is added."""
    small_steps(monkeypatch, step_bytes)
    log = filled_log(tmp_path / "t-0")
    steps = build(log)
    assert steps == [BuildStep] * len(steps)
    assert len(steps) >= len(log.segments)
    assert indexed(log) == naive_blocks(log.segments)
    assert slot_indexes_of(log).size_bytes == len(naive_blocks(log.segments))
    assert build(log) == []
    put(log, b"one", b"two")
    assert build(log) == [BuildStep]
    assert indexed(log) == naive_blocks(log.segments)
    log.close(NOW_MS)


def test_only_segments_of_the_offsets_are_indexed(tmp_path: Path) -> None:
    """A range in one segment takes that segment's index from its start, and no other's."""
    log = filled_log(tmp_path / "t-0")
    middle = log.segments[1]
    build(log, from_offset=middle.base_offset + 1, upto=middle.next_offset)
    assert slot_indexes_of(log).size_bytes == len(naive_blocks([middle]))
    assert indexed(log, from_offset=middle.base_offset, upto=middle.next_offset) == naive_blocks(
        [middle]
    )
    with pytest.raises(ValueError, match="not indexed"):
        indexed(log, upto=middle.next_offset)
    log.close(NOW_MS)


def test_blocks_are_cut_at_the_offsets(tmp_path: Path) -> None:
    """Of every range of offsets the blocks of exactly the batches that touch it are given."""
    log = filled_log(tmp_path / "t-0")
    build(log)
    end = log.log_end_offset
    for from_offset in range(0, end + 1, 3):
        for upto in range(from_offset + 1, end + 2, 5):
            assert indexed(log, from_offset=from_offset, upto=upto) == naive_blocks(
                log.segments, from_offset=from_offset, upto=upto
            )
    assert indexed(log, from_offset=end) == b""
    assert indexed(log, from_offset=7, upto=7) == b""
    log.close(NOW_MS)


def test_blocks_of_reads_are_taken(tmp_path: Path) -> None:
    """A reader from the start to the end leaves nothing to be built."""
    log = filled_log(tmp_path / "t-0")
    offset = 0
    while offset < log.log_end_offset:
        offset = offer(log, offset, 400)
    assert build(log) == []
    assert indexed(log) == naive_blocks(log.segments)
    log.close(NOW_MS)


def test_blocks_that_do_not_continue_the_index_are_not_taken(tmp_path: Path) -> None:
    """After a hole nothing is taken; over what is there, only what is new."""
    log = filled_log(tmp_path / "t-0")
    indexes = slot_indexes_of(log)
    offer(log, 3, 300)
    assert indexes.size_bytes == 0
    first_end = offer(log, 0, 300)
    first_bytes = indexes.size_bytes
    assert 0 < first_bytes < len(naive_blocks(log.segments[:1]))
    offer(log, 0, 300)
    offer(log, first_end + 4, 300)
    assert indexes.size_bytes == first_bytes
    offer(log, 0)
    assert indexes.size_bytes == len(naive_blocks(log.segments[:1]))
    check(log)
    log.close(NOW_MS)


def test_blocks_beyond_their_segment_are_not_taken(tmp_path: Path) -> None:
    """Blocks of two segments at once are nobody's; what they cover is built."""
    log = filled_log(tmp_path / "t-0")
    end = log.segments[1].next_offset
    blocks = naive_blocks(log.segments[:2])
    slot_indexes_of(log).note(DEFAULT_RULE, log.replacements, end, blocks)
    slot_indexes_of(log).note(DEFAULT_RULE, log.replacements, end, b"")
    assert slot_indexes_of(log).size_bytes == 0
    check(log)
    log.close(NOW_MS)


def test_offered_and_built_blocks_mix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads and steps that overlap in any way end in the same index."""
    small_steps(monkeypatch)
    log = filled_log(tmp_path / "t-0", 60)
    indexes = slot_indexes_of(log)
    offset = 0
    while (step := indexes.missing(DEFAULT_RULE, 0, END)) is not None:
        other = indexes.missing(DEFAULT_RULE, 0, END)
        assert other is not None
        step.run()
        offset = offer(log, offset, 250)
        indexes.add(step)
        other.run()
        indexes.add(other)
        indexes.add(step)
    assert indexed(log) == naive_blocks(log.segments)
    log.close(NOW_MS)


def test_a_step_that_was_overtaken_adds_the_rest(tmp_path: Path) -> None:
    """A step counts from where a reader has come to meanwhile, also inside of one of its slices."""
    log = filled_log(tmp_path / "t-0")
    indexes = slot_indexes_of(log)
    step = indexes.missing(DEFAULT_RULE, 0, 1)
    assert step is not None
    offer(log, 0, 300)
    assert 0 < indexes.size_bytes < len(naive_blocks(log.segments[:1]))
    step.run()
    indexes.add(step)
    assert indexes.size_bytes == len(naive_blocks(log.segments[:1]))
    check(log)
    log.close(NOW_MS)


def test_appends_between_a_step_and_its_end(tmp_path: Path) -> None:
    """A step over the active segment covers what was there when it was made."""
    log = open_log(tmp_path / "t-0")
    put(log, b"a")
    indexes = slot_indexes_of(log)
    step = indexes.missing(DEFAULT_RULE, 0, END)
    assert step is not None
    put(log, b"b")
    step.run()
    log.roll(NOW_MS)
    put(log, b"c")
    indexes.add(step)
    assert indexed(log, upto=1) == naive_blocks(log.segments, upto=1)
    check(log)
    log.close(NOW_MS)


# What the log may hold


@pytest.mark.parametrize("codec", range(5))
@pytest.mark.parametrize(
    "rule", [DEFAULT_RULE, SlotRule(True), SlotRule(False, b"order"), SlotRule(True, b"order")]
)
def test_all_codecs_and_rules(tmp_path: Path, codec: int, rule: SlotRule) -> None:
    """Compressed batches and every rule give the slots that the records say."""
    log = open_log(tmp_path / "t-0")
    for i in range(12):
        put(log, b"k%d" % i, None, b"", b"long" * 20, codec=codec)
        put(log, b"k%d" % i, None, codec=codec, headers=(("x", b"1"), ("order", b"o%d" % i)))
    check(log, rule)
    assert len(log.segments) > 1
    log.close(NOW_MS)


def test_control_batches(tmp_path: Path) -> None:
    """A control batch has a block without records."""
    log = open_log(tmp_path / "t-0")
    written = keyed_batch(b"a", producer=(1, 0, 0), attributes=TRANSACTIONAL_FLAG)
    marker = keyed_batch(
        b"\0\0\0\1",
        value=b"\0\0\0\0\0\0",
        producer=(1, 0, -1),
        attributes=TRANSACTIONAL_FLAG | CONTROL_FLAG,
    )
    for batch in (written, marker):
        log.append(batch, now_ms=NOW_MS, is_client=False)
    put(log, b"b")
    check(log)
    assert len(indexed(log, from_offset=1, upto=2)) == 24
    log.close(NOW_MS)


def test_an_unreadable_batch(tmp_path: Path) -> None:
    """A batch that the disk changed is one entry; the index goes on behind it."""
    log = open_log(tmp_path / "t-0")
    for key in (b"a", b"b", b"c"):
        put(log, key, key)
    second = log.segments[0].position_of(2)
    path = log.segments[0].path()
    content = bytearray(path.read_bytes())
    content[second + 65] ^= 1
    with path.open("r+b") as file:
        file.write(content)
    check(log)
    log.close(NOW_MS)


def test_a_damaged_length_is_an_error(tmp_path: Path) -> None:
    """Where no next batch can be found, whoever needs the index is told, as a reader would be."""
    log = open_log(tmp_path / "t-0")
    put(log, b"a")
    put(log, b"b")
    with log.segments[0].path().open("r+b") as file:
        file.seek(log.segments[0].position_of(1) + 8)
        file.write(b"\0\1\0\0")
    indexes = slot_indexes_of(log)
    step = indexes.missing(DEFAULT_RULE, 0, END)
    assert step is not None
    with pytest.raises(KafkaError) as found:
        step.run()
    assert found.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    log.close(NOW_MS)


def compacted_log(folder: Path) -> PartitionLog:
    """A log whose head is compacted: sparse batches, batches that are gone, an empty one."""
    log = open_log(folder, COMPACTED)
    put(log, b"x", producer=(7, 0, 0))
    for i in range(16):
        put(log, b"a", b"k%d" % i, b"b", codec=i % 5)
    for _ in range(12):
        put(log, b"a")
    put(log, b"x")
    log.roll(NOW_MS)
    put(log, b"a")
    return log


def test_compacted_segments(tmp_path: Path) -> None:
    """Gaps, sparse batches and empty ones are indexed, from reads and by steps alike."""
    for is_read in (False, True):
        log = compacted_log(tmp_path / f"t-{is_read}")
        build(log)
        compact(log, None, NOW_MS)
        expected = naive_blocks(log.segments)
        block_flags = [block_of(batch)[20] for s in log.segments for batch in batches_of(s)]
        assert 1 in block_flags
        offset = 0
        while is_read and offset < log.log_end_offset:
            offset = offer(log, offset, 300)
        assert build(log) == [] if is_read else build(log)
        assert indexed(log) == expected
        for from_offset in range(0, log.log_end_offset, 3):
            assert indexed(log, from_offset=from_offset, upto=from_offset + 9) == naive_blocks(
                log.segments, from_offset=from_offset, upto=from_offset + 9
            )
        log.close(NOW_MS)
        log = open_log(log.folder, COMPACTED)
        assert BuildStep not in build(log)
        assert indexed(log) == expected
        log.close(NOW_MS)


def test_a_segment_that_compaction_emptied_at_its_end(tmp_path: Path) -> None:
    """A segment whose last batches are gone is indexed to its end, and its file is written once."""
    log = open_log(tmp_path / "t-0", replace(COMPACTED, segment_bytes=400))
    put(log, b"a", b"b")
    put(log, b"c")
    put(log, b"c")
    log.roll(NOW_MS)
    put(log, b"c", value=bytes(300))
    log.roll(NOW_MS)
    compact(log, None, NOW_MS)
    first = log.segments[0]
    assert first.position_of(2) == first.size_bytes
    assert first.next_offset == 4
    check(log)
    indexes = slot_indexes_of(log)
    assert write_files(indexes) == 2
    assert indexes.release() > 0
    assert build(log) == [LoadStep, LoadStep]
    assert indexed(log) == naive_blocks(log.segments)
    assert write_files(indexes, with_unfinished=True) == 0
    assert build(log) == []
    log.close(NOW_MS)


# Never stale


def test_what_was_read_before_compaction_is_not_taken_after_it(tmp_path: Path) -> None:
    """Blocks and steps of a segment that is replaced meanwhile are void."""
    log = compacted_log(tmp_path / "t-0")
    indexes = slot_indexes_of(log)
    step = indexes.missing(DEFAULT_RULE, 0, END)
    replacements = log.replacements
    batches = log.read(0, 2**20)
    next_offset = log.segments[0].next_offset
    assert step is not None
    compact(log, None, NOW_MS)
    step.run()
    indexes.add(step)
    indexes.note(DEFAULT_RULE, replacements, next_offset, index_batches(batches, DEFAULT_RULE))
    assert indexes.size_bytes == 0
    check(log)
    log.close(NOW_MS)


def test_a_swap_drops_the_index_of_the_replaced(tmp_path: Path) -> None:
    """Memory of replaced segments goes at once; that of the others stays."""
    log = compacted_log(tmp_path / "t-0")
    build(log)
    cleaning = CompactionRound(plan_compaction(log, None, NOW_MS))
    cleaning.build_map()
    cleaned = cleaning.clean_next()
    assert cleaned is not None
    kept = [s for s in log.segments if s.base_offset not in cleaned.replaces]
    assert swap_cleaned(log, cleaned) is not None
    assert slot_indexes_of(log).size_bytes == len(naive_blocks(kept))
    check(log)
    log.close(NOW_MS)


def test_retention_drops_the_index(tmp_path: Path) -> None:
    """Segments that retention removed take their index along; steps of them are void."""
    log = filled_log(tmp_path / "t-0")
    indexes = slot_indexes_of(log)
    step = indexes.missing(DEFAULT_RULE, 0, END)
    assert step is not None
    batches = log.read(0, 2**20)
    log.delete_records_before(log.segments[1].next_offset)
    apply_retention(log, NOW_MS)
    step.run()
    indexes.add(step)
    first_offset = log.segments[0].base_offset
    indexes.note(DEFAULT_RULE, log.replacements, 4, index_batches(batches, DEFAULT_RULE))
    assert indexes.size_bytes == 0
    check(log)
    assert indexes.blocks(DEFAULT_RULE, 0, first_offset) == []
    log.close(NOW_MS)


def test_another_rule_drops_the_index(tmp_path: Path) -> None:
    """What was indexed, stepped or read by another rule does not count under the new one."""
    log = filled_log(tmp_path / "t-0")
    other = SlotRule(is_null_key_ordered=True)
    check(log)
    assert indexed(log) != naive_blocks(log.segments, other)
    put(log, None)
    indexes = slot_indexes_of(log)
    step = indexes.missing(DEFAULT_RULE, 0, END)
    assert step is not None
    indexes.use(other)
    assert indexes.size_bytes == 0
    step.run()
    indexes.add(step)
    offer(log, 0, rule=DEFAULT_RULE)
    assert indexes.size_bytes == 0
    offer(log, 0, rule=other)
    assert indexes.size_bytes > 0
    check(log, other)
    check(log, DEFAULT_RULE)
    log.close(NOW_MS)


def test_a_closed_log_has_no_index(tmp_path: Path) -> None:
    """Steps that end after the log was closed change nothing; new ones are refused."""
    log = filled_log(tmp_path / "t-0")
    indexes = slot_indexes_of(log)
    step = indexes.missing(DEFAULT_RULE, 0, END)
    assert step is not None
    log.close(NOW_MS)
    step.run()
    indexes.add(step)
    indexes.note(DEFAULT_RULE, log.replacements, 1, naive_blocks(log.segments, upto=1))
    assert indexes.size_bytes == 0
    with pytest.raises(KafkaError):
        indexes.missing(DEFAULT_RULE, 0, END)


# Memory


def test_blocks_stay_while_the_index_grows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was handed out is not moved or changed by growth, joining, release or the log's end."""
    monkeypatch.setattr(slot_index_steps, "RUN_BYTES_MAX", 300)
    log = open_log(tmp_path / "t-0", replace(SMALL, segment_bytes=4000))
    held: list[tuple[list[memoryview], bytes]] = []
    for i in range(60):
        put(log, b"k%d" % i, None)
        offer(log, 2 * i)
        held.append((slot_indexes_of(log).blocks(DEFAULT_RULE, 0, END), naive_blocks(log.segments)))
    log.roll(NOW_MS)
    assert write_files(slot_indexes_of(log)) >= 1
    assert slot_indexes_of(log).release() > 0
    log.close(NOW_MS)
    for views, expected in held:
        assert b"".join(views) == expected


def test_small_runs_are_joined(tmp_path: Path) -> None:
    """Thousands of small additions end in a handful of runs."""
    log = open_log(tmp_path / "t-0", replace(SMALL, segment_bytes=2**20))
    for i in range(2000):
        put(log, b"k%d" % i)
        offer(log, i)
    views = slot_indexes_of(log).blocks(DEFAULT_RULE, 0, END)
    assert len(views) <= 14
    assert b"".join(views) == naive_blocks(log.segments)
    log.close(NOW_MS)


def test_release_keeps_what_is_not_on_disk(tmp_path: Path) -> None:
    """Only sealed segments whose files are written are dropped from memory, and come back."""
    log = filled_log(tmp_path / "t-0")
    build(log)
    indexes: SlotIndexes = slot_indexes_of(log)
    full_bytes = indexes.size_bytes
    assert indexes.release() == 0
    assert write_files(indexes) == len(log.segments) - 1
    active_bytes = len(naive_blocks(log.segments[-1:]))
    assert indexes.release() == full_bytes - active_bytes
    assert indexes.size_bytes == active_bytes
    offer(log, 0)  # what is on disk is not begun anew
    assert indexes.size_bytes == active_bytes
    assert build(log) == [LoadStep] * (len(log.segments) - 1)
    assert indexed(log) == naive_blocks(log.segments)
    assert write_files(indexes) == 0
    log.close(NOW_MS)


def test_an_unfinished_index_can_be_released(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sealed segment that is indexed in part is written on demand, and continued when loaded."""
    small_steps(monkeypatch)
    log = filled_log(tmp_path / "t-0")
    indexes = slot_indexes_of(log)
    step = indexes.missing(DEFAULT_RULE, 0, END)
    assert step is not None
    step.run()
    indexes.add(step)
    assert indexes.next_write() is None
    assert write_files(indexes, with_unfinished=True) == 1
    assert indexes.release() > 0
    assert indexes.size_bytes == 0
    first_end = log.segments[0].next_offset
    untouched = filled_log(tmp_path / "t-1")
    steps = build(untouched, upto=first_end)
    untouched.close(NOW_MS)
    assert build(log, upto=first_end) == [LoadStep, *steps[1:]]
    assert indexed(log, upto=first_end) == naive_blocks(log.segments[:1])
    log.close(NOW_MS)


def test_late_steps_do_not_double_the_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step that ends after the index was released, or loaded by another one, adds nothing."""
    small_steps(monkeypatch)
    log = filled_log(tmp_path / "t-0")
    indexes = slot_indexes_of(log)
    steps = [indexes.missing(DEFAULT_RULE, 0, END) for _ in range(2)]
    for step in steps:
        assert step is not None
        step.run()
        indexes.add(step)
        assert (indexes.size_bytes > 0) == (step is steps[0])
        assert write_files(indexes, with_unfinished=True) == (step is steps[0])
        indexes.release()
        assert indexes.size_bytes == 0
    loads = [indexes.missing(DEFAULT_RULE, 0, END) for _ in range(2)]
    for load in loads:
        assert isinstance(load, LoadStep)
        load.run()
        indexes.add(load)
    check(log)
    log.close(NOW_MS)


def test_a_step_that_has_run_holds_no_part_of_the_log(tmp_path: Path) -> None:
    """Once its blocks are made, a step does not keep the segment's map alive."""
    log = filled_log(tmp_path / "t-0")
    step = slot_indexes_of(log).missing(DEFAULT_RULE, 0, 1)
    assert step is not None
    mapped = log.segments[0]._map
    assert mapped is not None
    step.run()
    log.close(NOW_MS)
    assert mapped.closed
