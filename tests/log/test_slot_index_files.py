"""The files of slot indexes: taken over when they are right, never when they are not."""

import os
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from struct import pack_into

import pytest
from crc32c import crc32c
from log_kit import NOW_MS, SMALL, open_log
from slot_index_kit import (
    END,
    build,
    check,
    indexed,
    naive_blocks,
    offer,
    put,
    slots_files,
    write_files,
)

from anabranch.branch.slots import DEFAULT_RULE, SlotRule
from anabranch.log import slot_index_file
from anabranch.log.compaction import CompactionRound, compact, plan_compaction, swap_cleaned
from anabranch.log.partition_log import PartitionLog, remove_folder
from anabranch.log.retention import apply_retention
from anabranch.log.segment import SLOTS_SUFFIX
from anabranch.log.slot_index import slot_indexes_of
from anabranch.log.slot_index_steps import BuildStep, LoadStep

COMPACTED = replace(SMALL, cleanup_policy=frozenset({"compact"}), delete_retention_ms=1000)


def filled_log(folder: Path, batches: int = 30, value: bytes = b"value") -> PartitionLog:
    """A log of several segments."""
    log = open_log(folder)
    for i in range(batches):
        put(log, *(b"k%d" % (i + j) for j in range(1 + i % 4)), value=value)
    assert len(log.segments) > 2
    return log


def names_of(log: PartitionLog) -> list[str]:
    return [segment.path(SLOTS_SUFFIX).name for segment in log.segments]


# An orderly life


def test_files_of_sealed_segments_are_written_once(tmp_path: Path) -> None:
    """A sealed segment that is indexed to its end gets its file, the active one does not."""
    log = filled_log(tmp_path / "t-0")
    indexes = slot_indexes_of(log)
    assert indexes.next_write() is None
    build(log, upto=log.segments[0].next_offset)
    assert write_files(indexes) == 1
    assert slots_files(log.folder) == names_of(log)[:1]
    build(log)
    assert write_files(indexes) == len(log.segments) - 2
    assert slots_files(log.folder) == names_of(log)[:-1]
    assert write_files(indexes) == 0
    log.roll(NOW_MS)
    assert write_files(indexes) == 1
    assert slots_files(log.folder) == names_of(log)[:-1]
    log.close(NOW_MS)


def test_a_file_is_written_by_one_step_at_a_time(tmp_path: Path) -> None:
    """While a step writes a segment's file, there is no second one for it."""
    log = filled_log(tmp_path / "t-0")
    build(log, upto=1)
    indexes = slot_indexes_of(log)
    step = indexes.next_write()
    assert step is not None
    assert indexes.next_write() is None
    step.run()
    assert slots_files(log.folder) != names_of(log)[:1]
    indexes.add(step)
    assert slots_files(log.folder) == names_of(log)[:1]
    log.close(NOW_MS)


def test_a_reopened_log_continues_its_index(tmp_path: Path) -> None:
    """After an orderly stop nothing is built again, and the active segment's index goes on."""
    log = filled_log(tmp_path / "t-0")
    assert set(build(log)) == {BuildStep}
    assert log.close(NOW_MS)
    assert slots_files(log.folder) == names_of(log)
    log = open_log(log.folder)
    assert log.slot_indexes is None
    assert build(log) == [LoadStep] * len(log.segments)
    assert indexed(log) == naive_blocks(log.segments)
    end = log.log_end_offset
    put(log, b"new")
    assert offer(log, end) == end + 1
    assert build(log) == []
    assert indexed(log) == naive_blocks(log.segments)
    assert log.close(NOW_MS)
    log = open_log(log.folder)
    put(log, b"newer")
    assert build(log) == [*[LoadStep] * len(log.segments), BuildStep]
    assert indexed(log) == naive_blocks(log.segments)
    log.close(NOW_MS)


def test_an_index_that_was_not_used_stays_as_it_is(tmp_path: Path) -> None:
    """A life without readers of branches neither loads nor removes the files."""
    log = filled_log(tmp_path / "t-0")
    build(log)
    log.close(NOW_MS)
    names = names_of(log)
    log = open_log(log.folder)
    put(log, b"new")
    log.close(NOW_MS)
    assert slots_files(log.folder) == names
    log = open_log(log.folder)
    assert build(log).count(BuildStep) == 1
    assert indexed(log) == naive_blocks(log.segments)
    log.close(NOW_MS)


def test_steps_run_in_other_threads(tmp_path: Path) -> None:
    """Building, writing and loading may happen in any thread while the log takes records."""
    log = filled_log(tmp_path / "t-0")
    indexes = slot_indexes_of(log)

    def in_thread(run: Callable[[], None]) -> None:
        thread = threading.Thread(target=run)
        thread.start()
        put(log, b"meanwhile")
        thread.join()

    for _ in range(2):
        while (step := indexes.missing(DEFAULT_RULE, 0, END)) is not None:
            in_thread(step.run)
            indexes.add(step)
            if log.log_end_offset > 400:
                break
        while (write := indexes.next_write()) is not None:
            in_thread(write.run)
            indexes.add(write)
        indexes.release()
    check(log)
    log.close(NOW_MS)


# Files that are of no use


def flip(position: int) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        content = bytearray(path.read_bytes())
        content[position] ^= 4
        path.write_bytes(content)

    return damage


def patch(position: int, value: int, width: str) -> Callable[[Path], None]:
    """Another value in the header, with a checksum that is right."""

    def damage(path: Path) -> None:
        content = bytearray(path.read_bytes())
        pack_into(f"<{width}", content, position, value)
        pack_into("<I", content, 60, crc32c(content[:60]))
        path.write_bytes(content)

    return damage


def cut(size: int) -> Callable[[Path], None]:
    return lambda path: os.truncate(path, size if size >= 0 else path.stat().st_size + size)


def extend(path: Path) -> None:
    path.write_bytes(path.read_bytes() + bytes(8))


def unmark(path: Path) -> None:
    """No marks, in a file that is in order otherwise."""
    content = bytearray(path.read_bytes()[:-16])
    pack_into("<I", content, 20, 0)
    pack_into("<I", content, 56, crc32c(content[64:]))
    pack_into("<I", content, 60, crc32c(content[:60]))
    path.write_bytes(content)


def remove(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize(
    "damage",
    [
        *(pytest.param(flip(at), id=f"flip-{at}") for at in (0, 8, 10, 13, 22, 30, 38, 44, 50)),
        *(pytest.param(flip(at), id=f"flip-{at}") for at in (57, 61, 64, 80, 84, 88, 90, 200)),
        *(pytest.param(flip(at), id=f"flip{at}") for at in (-1, -9, -17)),
        *(pytest.param(cut(size), id=f"cut-{size}") for size in (0, 1, 63, 64, 100, -1, -16)),
        pytest.param(extend, id="longer"),
        pytest.param(remove, id="missing"),
        pytest.param(patch(0, 1, "Q"), id="magic"),
        pytest.param(patch(8, 2, "H"), id="other-version"),
        pytest.param(patch(10, 1, "H"), id="null-keys-ordered"),
        pytest.param(patch(10, 2, "H"), id="ordering-header"),
        pytest.param(patch(12, 1, "Q"), id="other-header"),
        pytest.param(patch(24, 1, "q"), id="other-segment"),
        pytest.param(patch(32, 2**40, "q"), id="claims-more"),
        pytest.param(patch(40, 1, "Q"), id="other-position"),
        pytest.param(patch(40, 2**40, "Q"), id="position-beyond-the-segment"),
        pytest.param(patch(48, 2**40, "Q"), id="huge"),
        pytest.param(unmark, id="no-marks"),
    ],
)
def test_a_file_that_is_not_right_is_made_again(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    """Whatever happened to a file, the index is what the log says, and so is the next file."""
    log = filled_log(tmp_path / "t-0")
    build(log)
    log.close(NOW_MS)
    damage(log.segments[0].path(SLOTS_SUFFIX))
    log = open_log(log.folder)
    steps = build(log)
    assert steps.count(BuildStep) == 1
    assert indexed(log) == naive_blocks(log.segments)
    assert write_files(slot_indexes_of(log)) == 1
    log.close(NOW_MS)
    log = open_log(log.folder)
    assert BuildStep not in build(log)
    assert indexed(log) == naive_blocks(log.segments)
    log.close(NOW_MS)


@pytest.mark.parametrize(
    "other", [SlotRule(True), SlotRule(False, b"h"), SlotRule(False, b""), SlotRule(True, b"g")]
)
def test_a_file_of_another_rule_is_made_again(tmp_path: Path, other: SlotRule) -> None:
    """Changing how records find their slots makes all files useless, there and back."""
    log = filled_log(tmp_path / "t-0")
    put(log, None, headers=(("h", b"x"), ("g", b"y"), ("", b"z")))
    build(log)
    log.close(NOW_MS)
    for rule in (other, DEFAULT_RULE):
        log = open_log(log.folder)
        assert build(log, rule).count(BuildStep) == len(log.segments)
        assert indexed(log, rule) == naive_blocks(log.segments, rule)
        log.close(NOW_MS)


def test_a_file_of_the_same_shape_but_other_batches_is_made_again(tmp_path: Path) -> None:
    """A file from another log that ends at the same offsets and bytes is told by the CRCs."""
    log = filled_log(tmp_path / "t-0")
    other = filled_log(tmp_path / "t-1", value=b"other")
    build(other)
    other.close(NOW_MS)
    for name in slots_files(other.folder):
        shutil.copy(other.folder / name, log.folder / name)
    assert build(log).count(BuildStep) == len(log.segments)
    assert indexed(log) == naive_blocks(log.segments)
    log.close(NOW_MS)


def test_a_full_disk_costs_only_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A file that cannot be written is not tried again; the index works and can be released."""

    def full(*_: object) -> Path:
        raise OSError(28, "No space left on device")

    log = filled_log(tmp_path / "t-0")
    build(log)
    indexes = slot_indexes_of(log)
    monkeypatch.setattr("anabranch.log.slot_index_steps.write_slots", full)
    assert write_files(indexes) == len(log.segments) - 1
    assert write_files(indexes) == 0
    assert "No space left" in caplog.text
    assert indexed(log) == naive_blocks(log.segments)
    late = indexes.missing(DEFAULT_RULE, 0, END)
    assert late is None
    put(log, b"new")
    late = indexes.missing(DEFAULT_RULE, 0, END)
    assert late is not None
    late.run()
    log.roll(NOW_MS)
    assert write_files(indexes, with_unfinished=True) == 1
    assert indexes.release() == len(naive_blocks(log.segments, upto=log.log_end_offset - 1))
    indexes.add(late)  # it continues what is gone
    assert set(build(log)) == {BuildStep}
    assert indexed(log) == naive_blocks(log.segments)
    assert log.close(NOW_MS)
    assert slots_files(log.folder) == []


def test_a_failed_write_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was written of a file before the disk refused is removed."""

    class Full:
        def __init__(self, *_: object) -> None:
            raise OSError(28, "No space left on device")

    log = filled_log(tmp_path / "t-0")
    build(log)
    monkeypatch.setattr(slot_index_file, "_HEADER_CRC", type("Crc", (), {"pack": Full}))
    write_files(slot_indexes_of(log))
    monkeypatch.undo()
    assert slots_files(log.folder) == []
    log.close(NOW_MS)


# Recovery


def crashed(log: PartitionLog, torn_bytes: int = 0, recovery_point: int = 0) -> PartitionLog:
    """The log as it is after the process was killed and the tail of its file torn."""
    copy = log.folder.with_name(log.folder.name + "x")
    shutil.copytree(log.folder, copy)
    active = log.segments[-1]
    os.truncate(copy / active.path().name, active.size_bytes - torn_bytes)
    log.close(NOW_MS)
    return open_log(copy, log.config, clean=False, recovery_point=recovery_point)


def test_a_torn_tail_takes_its_index_along(tmp_path: Path) -> None:
    """Other records at the offsets that were cut off are indexed as they are."""
    log = filled_log(tmp_path / "t-0")
    build(log)
    log.close(NOW_MS)
    log = open_log(log.folder)
    recovered = crashed(log, torn_bytes=10)
    assert recovered.log_end_offset < log.log_end_offset
    assert slots_files(recovered.folder) == []
    for _ in range(4):
        put(recovered, b"other", b"records")
    assert LoadStep not in build(recovered)
    assert indexed(recovered) == naive_blocks(recovered.segments)
    recovered.close(NOW_MS)


def test_only_what_is_recovered_loses_its_index(tmp_path: Path) -> None:
    """Segments below the recovery point were synced whole, and keep their files."""
    log = filled_log(tmp_path / "t-0")
    build(log)
    log.close(NOW_MS)
    log = open_log(log.folder)
    point = log.segments[1].base_offset + 1
    names = names_of(log)
    recovered = crashed(log, recovery_point=point)
    assert slots_files(recovered.folder) == names[:1]
    steps = build(recovered)
    assert steps.count(LoadStep) == 1
    assert indexed(recovered) == naive_blocks(recovered.segments)
    recovered.close(NOW_MS)


def test_segments_that_recovery_drops_leave_no_file(tmp_path: Path) -> None:
    """Damage in the middle ends the log there; the files of what follows go."""
    log = filled_log(tmp_path / "t-0")
    build(log)
    write_files(slot_indexes_of(log))
    with log.segments[1].path().open("r+b") as file:
        file.seek(30)
        file.write(b"damage")
    recovered = crashed(log)
    assert len(recovered.segments) == 2
    assert slots_files(recovered.folder) == []
    check(recovered)
    recovered.close(NOW_MS)


def test_a_clean_stop_that_was_none(tmp_path: Path) -> None:
    """An active segment that is not what was closed is recovered, and its index made again."""
    log = filled_log(tmp_path / "t-0")
    build(log)
    log.close(NOW_MS)
    active = log.segments[-1]
    os.truncate(active.path(), active.size_bytes - 5)
    names = names_of(log)
    log = open_log(log.folder)
    assert slots_files(log.folder) == names[:-1]
    put(log, b"other")
    check(log)
    log.close(NOW_MS)


def test_a_kill_while_a_file_is_written(tmp_path: Path) -> None:
    """What a write step left under its own name is removed at the next start."""
    log = filled_log(tmp_path / "t-0")
    build(log)
    step = slot_indexes_of(log).next_write()
    assert step is not None
    step.run()
    assert len(slots_files(log.folder)) == 1
    recovered = crashed(log)
    assert slots_files(recovered.folder) == []
    check(recovered)
    recovered.close(NOW_MS)


def test_strays_are_removed(tmp_path: Path) -> None:
    """A file without its segment goes when the log is opened."""
    log = filled_log(tmp_path / "t-0")
    build(log)
    log.close(NOW_MS)
    stray = log.folder / f"{7:020d}{SLOTS_SUFFIX}"
    stray.write_bytes(b"stray")
    log = open_log(log.folder)
    assert slots_files(log.folder) == names_of(log)
    log.close(NOW_MS)


def test_a_log_that_restarts_behind_its_end(tmp_path: Path) -> None:
    """When deleted records outlive the log's files, no index of the old ones is left."""
    log = filled_log(tmp_path / "t-0")
    build(log)
    log.close(NOW_MS)
    log = open_log(log.folder, log_start_offset=log.log_end_offset + 10)
    assert slots_files(log.folder) == []
    put(log, b"new")
    check(log)
    log.close(NOW_MS)


# Compaction, retention, deletion


def compactable_log(folder: Path) -> PartitionLog:
    log = open_log(folder, COMPACTED)
    for i in range(24):
        put(log, b"a", b"k%d" % (i % 9), b"b")
    log.roll(NOW_MS)
    put(log, b"c")
    build(log)
    write_files(slot_indexes_of(log))
    assert slots_files(log.folder) == names_of(log)[:-1]
    return log


def test_compaction_removes_the_files_of_what_it_replaces(tmp_path: Path) -> None:
    """No file of the old segments is there once the new ones are."""
    log = compactable_log(tmp_path / "t-0")
    active = log.segments[-1].path(SLOTS_SUFFIX).name
    compact(log, None, NOW_MS)
    assert slots_files(log.folder) == []
    log.close(NOW_MS)
    assert slots_files(log.folder) == [active]
    log = open_log(log.folder, COMPACTED)
    check(log)
    log.close(NOW_MS)


def test_a_file_that_is_ready_after_compaction_is_not_put_in_place(tmp_path: Path) -> None:
    """A write step that runs over a swap does not leave the old index to the new segment."""
    log = open_log(tmp_path / "t-0", COMPACTED)
    for i in range(24):
        put(log, b"a", b"k%d" % (i % 9), b"b")
    log.roll(NOW_MS)
    build(log)
    indexes = slot_indexes_of(log)
    before = indexes.next_write()
    during = indexes.next_write()
    assert before is not None
    assert during is not None
    before.run()
    compact(log, None, NOW_MS)
    during.run()
    for step in (before, during):
        indexes.add(step)
    assert slots_files(log.folder) == []
    check(log)
    log.close(NOW_MS)


@pytest.mark.parametrize("renames_done", range(24))
def test_a_crash_in_a_swap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, renames_done: int
) -> None:
    """Wherever a swap was interrupted, the next start has no index of segments that are gone."""
    log = compactable_log(tmp_path / "t-0")
    log.config = replace(COMPACTED, segment_bytes=10_000)  # several become one
    cleaning = CompactionRound(plan_compaction(log, None, NOW_MS))
    cleaning.build_map()
    cleaned = cleaning.clean_next()
    assert cleaned is not None
    assert len(cleaned.replaces) == 3
    done = 0
    rename = os.rename

    def dying(*arguments: Path) -> None:
        nonlocal done
        if done == renames_done:
            raise KeyboardInterrupt
        rename(*arguments)
        done += 1

    with monkeypatch.context() as patched:
        patched.setattr(os, "rename", dying)
        try:
            swap_cleaned(log, cleaned)
        except KeyboardInterrupt:
            pass
        else:
            assert done <= renames_done
            assert done == 3 + 3 * 4 + 2 + 3
    copy = tmp_path / "copy"
    shutil.copytree(log.folder, copy)
    log.close(NOW_MS)
    point = log.segments[-1].base_offset
    reopened = open_log(copy, COMPACTED, clean=False, recovery_point=point)
    names = slots_files(copy)
    steps = build(reopened)
    assert steps.count(LoadStep) == len(names)
    assert steps.count(BuildStep) == len(reopened.segments) - len(names)  # all files were right
    assert indexed(reopened) == naive_blocks(reopened.segments)
    reopened.close(NOW_MS)


def test_retention_removes_the_files(tmp_path: Path) -> None:
    """Segments below the log's start take their files along; a write step after that is void."""
    log = filled_log(tmp_path / "t-0")
    build(log)
    indexes = slot_indexes_of(log)
    late = indexes.next_write()
    assert late is not None
    late.run()
    write_files(indexes)
    log.delete_records_before(log.segments[2].base_offset)
    apply_retention(log, NOW_MS)
    indexes.add(late)
    assert slots_files(log.folder) == names_of(log)[:-1]
    check(log)
    log.close(NOW_MS)


def test_a_deleted_log_leaves_nothing(tmp_path: Path) -> None:
    """The folder goes with everything in it; steps that end later do not bring it back."""
    log = filled_log(tmp_path / "t-0")
    build(log)
    indexes = slot_indexes_of(log)
    step, late = indexes.next_write(), indexes.next_write()
    assert step is not None
    assert late is not None
    step.run()
    renamed = log.delete()
    late.run()
    again = filled_log(tmp_path / "t-0")
    for ended in (step, late):
        indexes.add(ended)
    remove_folder(renamed)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["t-0"]
    assert slots_files(again.folder) == []
    again.close(NOW_MS)


def test_a_write_that_meets_a_new_log_of_the_name(tmp_path: Path) -> None:
    """A step of a deleted log never gives its file to a topic that was made anew."""
    log = filled_log(tmp_path / "t-0")
    build(log)
    indexes = slot_indexes_of(log)
    step = indexes.next_write()
    assert step is not None
    remove_folder(log.delete())
    again = filled_log(tmp_path / "t-0", value=b"other")
    step.run()
    indexes.add(step)
    assert slots_files(again.folder) == []
    check(again)
    again.close(NOW_MS)


def test_a_failed_log_writes_no_index(tmp_path: Path) -> None:
    """A log that will be recovered does not keep what it indexed."""
    log = filled_log(tmp_path / "t-0")
    build(log)
    log.failed = "syncing failed"
    assert not log.close(NOW_MS)
    assert slots_files(log.folder) == []
