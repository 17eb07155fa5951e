"""Whatever is done to a log, in any order, its slot index is what its batches say.

Reads offer blocks, steps are made now and end later, files are written, dropped and loaded, while
the log takes records, rolls, is compacted, shortened, closed, opened and killed.
"""

import logging
import os
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from log_kit import NOW_MS, open_log
from slot_index_kit import END, build, indexed, keyed_batch, naive_blocks, write_files

from anabranch.branch.slots import DEFAULT_RULE, SlotRule
from anabranch.branch.split import index_batches
from anabranch.log import slot_index
from anabranch.log.compaction import CompactionRound, compact, plan_compaction, swap_cleaned
from anabranch.log.log_config import LogConfig
from anabranch.log.retention import apply_retention
from anabranch.log.slot_index import SlotIndexes, slot_indexes_of
from anabranch.log.slot_index_steps import IndexStep
from anabranch.wire.record_batch import CONTROL_FLAG, iter_headers

CONFIG = LogConfig(
    segment_bytes=900,
    index_interval_bytes=130,
    segment_ms=5000,
    retention_ms=-1,
    delete_retention_ms=1000,
)
# A topic takes null keys until it is made a compacted one.
KEYS = st.lists(st.sampled_from([None, b"a", b"b", b"", b"longer" * 9]), min_size=1, max_size=4)
QUIET = ("anabranch.log.recovery", "anabranch.log.slot_index")


class SlotIndexMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        in_memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        self.root = Path(tempfile.mkdtemp(prefix="slots-machine-", dir=in_memory))
        for name in QUIET:
            logging.getLogger(name).setLevel(logging.ERROR)
        self.sizes = (slot_index.STEP_BYTES, slot_index.SLICE_BYTES)
        self.generation = 0
        self.slot_rule = DEFAULT_RULE
        self.steps: list[tuple[SlotIndexes, IndexStep, bool]] = []  # has it run
        self.reads: list[tuple[SlotIndexes, SlotRule, int, int, bytes]] = []
        self.held: list[tuple[list[memoryview], bytes]] = []

    @initialize(step_bytes=st.sampled_from([100, 400, 2000]))
    def create(self, step_bytes: int) -> None:
        slot_index.STEP_BYTES, slot_index.SLICE_BYTES = step_bytes, step_bytes // 2  # type: ignore[misc]
        self.log = open_log(self.root / "t-0", CONFIG)

    def teardown(self) -> None:
        if hasattr(self, "log"):
            self.log.close(NOW_MS)
        for views, expected in self.held:
            assert b"".join(views) == expected
        shutil.rmtree(self.root)
        slot_index.STEP_BYTES, slot_index.SLICE_BYTES = self.sizes  # type: ignore[misc]
        for name in QUIET:
            logging.getLogger(name).setLevel(logging.NOTSET)

    # The log

    @rule(keys=KEYS, codec=st.integers(0, 4), size=st.sampled_from([0, 40, 100]))
    def append(self, keys: list[bytes | None], codec: int, size: int) -> None:
        self.log.append(keyed_batch(*keys, value=bytes(size), codec=codec), now_ms=NOW_MS)

    @rule(count=st.integers(1, 9))
    def append_several(self, count: int) -> None:
        for i in range(count):
            self.log.append(keyed_batch(b"k%d" % i, b"a"), now_ms=NOW_MS)

    @rule()
    def append_control(self) -> None:
        batch = keyed_batch(b"\0\0\0\1", value=b"", producer=(1, 0, -1), attributes=CONTROL_FLAG)
        self.log.append(batch, now_ms=NOW_MS, is_client=False)

    @rule()
    def roll(self) -> None:
        self.log.roll(NOW_MS)

    @rule()
    def flush(self) -> None:
        self.log.flush(NOW_MS)

    @rule()
    def drop_maps(self) -> None:
        self.log.close_idle()
        self.log.close_idle()

    @rule(segment_bytes=st.sampled_from([900, 2200]))
    def compact(self, segment_bytes: int) -> None:
        self.log.config = replace(CONFIG, segment_bytes=segment_bytes)
        compact(self.log, None, NOW_MS)

    @rule(data=st.data())
    def delete_records(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(self.log.log_start_offset, self.log.log_end_offset))
        self.log.delete_records_before(offset)
        apply_retention(self.log, NOW_MS)

    # Its ends

    @rule()
    def reopen(self) -> None:
        start = self.log.log_start_offset
        assert self.log.close(NOW_MS)
        self.log = open_log(self.log.folder, CONFIG, log_start_offset=start)

    @rule(data=st.data(), from_start=st.booleans())
    def crash(self, data: st.DataObject, from_start: bool) -> None:
        """Keep what was synced, tear the rest at any byte, and recover."""
        log = self.log
        active = log.segments[-1]
        synced = active.position_of(min(log.recovery_point, log.log_end_offset))
        if log.log_start_offset > active.base_offset:
            synced = max(synced, active.position_of(log.log_start_offset))
        self._continue_as(data.draw(st.integers(synced, active.size_bytes)), from_start)

    @rule(data=st.data())
    @precondition(lambda self: len(self.log.segments) > 1)
    def crash_in_a_swap(self, data: st.DataObject) -> None:
        """Die between two renames of a cleaning."""
        cleaning = CompactionRound(plan_compaction(self.log, None, NOW_MS))
        cleaning.build_map()
        cleaned = cleaning.clean_next()
        if cleaned is None:
            return
        left = data.draw(st.integers(0, 20))
        rename = os.rename

        def dying(*arguments: Path) -> None:
            nonlocal left
            if not left:
                raise KeyboardInterrupt
            left -= 1
            rename(*arguments)

        self.log.flush(NOW_MS)
        os.rename = dying  # type: ignore[assignment]
        try:
            swap_cleaned(self.log, cleaned)
        except KeyboardInterrupt:
            pass
        finally:
            os.rename = rename
        self._continue_as(self.log.segments[-1].size_bytes, False)

    def _continue_as(self, active_bytes: int, from_start: bool) -> None:
        log = self.log
        self.generation += 1
        copy = self.root / f"t-0-{self.generation}"
        shutil.copytree(log.folder, copy)
        os.truncate(copy / log.segments[-1].path().name, active_bytes)
        log.failed = "killed"
        log.close(NOW_MS)
        self.log = open_log(
            copy,
            CONFIG,
            clean=False,
            recovery_point=0 if from_start else log.recovery_point,
            log_start_offset=log.log_start_offset,
        )

    # The index

    @rule(data=st.data(), max_bytes=st.integers(1, 900))
    def read(self, data: st.DataObject, max_bytes: int) -> None:
        log = self.log
        offset = data.draw(st.integers(log.log_start_offset, log.log_end_offset))
        batches = log.read(offset, max_bytes)
        if batches:
            next_offset = [header for _, header in iter_headers(batches)][-1].next_offset
            blocks = index_batches(batches, self.slot_rule)
            self.reads.append(
                (slot_indexes_of(log), self.slot_rule, log.replacements, next_offset, blocks)
            )

    @rule(last_first=st.booleans())
    def end_reads(self, last_first: bool) -> None:
        for indexes, *arguments in reversed(self.reads) if last_first else self.reads:
            indexes.note(*arguments)
        self.reads.clear()

    @rule(data=st.data(), is_run=st.booleans())
    def begin_step(self, data: st.DataObject, is_run: bool) -> None:
        indexes = slot_indexes_of(self.log)
        from_offset = data.draw(st.integers(0, self.log.log_end_offset))
        step = indexes.missing(self.slot_rule, from_offset, END)
        if step is not None:
            if is_run:
                step.run()
            self.steps.append((indexes, step, is_run))

    @rule(with_unfinished=st.booleans(), is_run=st.booleans())
    def begin_write(self, with_unfinished: bool, is_run: bool) -> None:
        indexes = slot_indexes_of(self.log)
        step = indexes.next_write(with_unfinished=with_unfinished)
        if step is not None:
            if is_run:
                step.run()
            self.steps.append((indexes, step, is_run))

    @rule(is_run=st.booleans())
    def end_steps(self, is_run: bool) -> None:
        """Some end without having run, as they do when the broker stops."""
        for indexes, step, has_run in self.steps:
            if is_run and not has_run:
                step.run()
            indexes.add(step)
        self.steps.clear()

    @rule(with_unfinished=st.booleans())
    def release(self, with_unfinished: bool) -> None:
        write_files(slot_indexes_of(self.log), with_unfinished=with_unfinished)
        slot_indexes_of(self.log).release()

    @rule(is_null_key_ordered=st.booleans())
    def change_rule(self, is_null_key_ordered: bool) -> None:
        self.slot_rule = SlotRule(is_null_key_ordered)
        slot_indexes_of(self.log).use(self.slot_rule)

    @rule(data=st.data())
    def compare(self, data: st.DataObject) -> None:
        """Build what is missing for some offsets: it is what the log says."""
        log = self.log
        from_offset = data.draw(st.integers(0, log.log_end_offset))
        upto = data.draw(st.integers(from_offset, log.log_end_offset))
        for start, end in ((from_offset, upto), (0, END)):
            build(log, self.slot_rule, start, end)
            expected = (
                naive_blocks(log.segments, self.slot_rule, start, end) if start < end else b""
            )
            assert indexed(log, self.slot_rule, start, end) == expected
        self.held.append((slot_indexes_of(log).blocks(self.slot_rule, 0, END), expected))

    @invariant()
    def only_segments_have_files(self) -> None:
        if hasattr(self, "log"):
            names = {segment.path(".slots").name for segment in self.log.segments}
            found = {path.name for path in self.log.folder.glob("*.slots")}
            assert found <= names


SlotIndexMachine.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestSlotIndexMachine = SlotIndexMachine.TestCase
