"""A log against a list of batches: whatever is done to it, in any order, both agree.

The model keeps every appended batch as bytes. A crash copies the folder as it is at that moment,
tears the newest segment at some byte (or adds garbage), and goes on with the recovered copy.
"""

import logging
import os
import shutil
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from log_kit import NOW_MS, batch_of, open_log

from anabranch.log.log_config import LogConfig
from anabranch.log.retention import apply_retention
from anabranch.wire.record_batch import iter_headers

CONFIG = LogConfig(segment_bytes=900, index_interval_bytes=160, segment_ms=5000, retention_ms=-1)


class LogMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        # Thousands of syncs: a file system in memory, where there is one, keeps this test fast.
        in_memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        self.root = Path(tempfile.mkdtemp(prefix="log-machine-", dir=in_memory))
        logging.getLogger("anabranch.log.recovery").setLevel(logging.ERROR)
        self.generation = 0
        self.floor = 0  # a crash can leave the log empty, but not before its start
        self.batches: list[tuple[int, int, bytes]] = []  # first offset, last offset, bytes
        self.producers: dict[int, list[tuple[int, int, int, int]]] = {1: [], 2: []}

    @initialize()
    def create(self) -> None:
        self.log = open_log(self.root / "t-0", CONFIG)

    def teardown(self) -> None:
        if hasattr(self, "log"):
            self.log.close(NOW_MS)
        shutil.rmtree(self.root)
        logging.getLogger("anabranch.log.recovery").setLevel(logging.NOTSET)

    @property
    def end(self) -> int:
        return max(self.batches[-1][1] + 1 if self.batches else 0, self.floor)

    def _appended(self, sent: memoryview, count: int, info: object) -> None:
        assert info == (self.end, self.end + count - 1, -1, False)
        self.batches.append((self.end, self.end + count - 1, bytes(sent)))

    @rule(
        count=st.integers(1, 4),
        size=st.integers(0, 250),
        age_ms=st.integers(-6000, 6000),
    )
    def append(self, count: int, size: int, age_ms: int) -> None:
        sent = batch_of(count, bytes(size // count), timestamp=NOW_MS + age_ms)
        self._appended(sent, count, self.log.append(sent, now_ms=NOW_MS))

    @rule(producer_id=st.sampled_from([1, 2]), count=st.integers(1, 3))
    def append_idempotent(self, producer_id: int, count: int) -> None:
        known = self.producers[producer_id]
        sequence = known[-1][1] + 1 if known else 0
        sent = batch_of(count, b"v", producer=(producer_id, 0, sequence))
        end = self.end
        self._appended(sent, count, self.log.append(sent, now_ms=NOW_MS))
        known.append((sequence, sequence + count - 1, end, end + count - 1))

    @rule(producer_id=st.sampled_from([1, 2]), back=st.integers(1, 5))
    def append_again(self, producer_id: int, back: int) -> None:
        known = self.producers[producer_id]
        if back > len(known) or known[-back][2] < self.log.segments[0].base_offset:
            return
        first_sequence, last_sequence, first, last = known[-back]
        sent = batch_of(
            last_sequence - first_sequence + 1, b"v", producer=(producer_id, 0, first_sequence)
        )
        assert self.log.append(sent, now_ms=NOW_MS) == (first, last, -1, True)

    @rule(data=st.data(), max_bytes=st.integers(1, 2000), min_one=st.booleans())
    def read(self, data: st.DataObject, max_bytes: int, min_one: bool) -> None:
        start, end = self.log.log_start_offset, self.log.log_end_offset
        offset = data.draw(st.integers(start, end))
        upto = data.draw(st.none() | st.integers(offset, end))
        found = bytes(self.log.read(offset, max_bytes, min_one_batch=min_one, upto=upto))
        limit = end if upto is None else upto
        wanted = [b for first, last, b in self.batches if last >= offset and last < limit]
        assert b"".join(wanted).startswith(found)
        sizes = [header.size_bytes for _, header in iter_headers(found)]
        assert sum(sizes) == len(found)
        assert len(found) <= max_bytes or (min_one and len(sizes) == 1)
        if wanted and (min_one or len(wanted[0]) <= max_bytes):
            assert found

    @rule()
    def roll(self) -> None:
        self.log.roll(NOW_MS)

    @rule(data=st.data())
    def delete_records(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(self.log.log_start_offset, self.log.log_end_offset))
        assert self.log.delete_records_before(offset) == offset

    @rule()
    def apply_retention(self) -> None:
        apply_retention(self.log, NOW_MS)

    @rule()
    def flush(self) -> None:
        self.log.flush(NOW_MS)
        assert self.log.recovery_point == self.end

    @rule()
    def drop_maps(self) -> None:
        self.log.close_idle()
        self.log.close_idle()

    @rule()
    def reopen(self) -> None:
        start = self.log.log_start_offset
        assert self.log.close(NOW_MS)
        self.log = open_log(self.log.folder, CONFIG, log_start_offset=start)
        assert self.log.log_start_offset == start
        assert self.log.unflushed_messages == 0

    @rule(data=st.data(), garbage=st.binary(max_size=80), from_start=st.booleans())
    @precondition(lambda self: self.batches)
    def crash(self, data: st.DataObject, garbage: bytes, from_start: bool) -> None:
        """Keep what was synced, tear the rest at any byte, and recover."""
        log = self.log
        self.generation += 1
        copy = self.root / f"t-0-{self.generation}"
        shutil.copytree(log.folder, copy)
        active = log.segments[-1]
        synced = active.position_of(min(log.recovery_point, log.log_end_offset))
        if log.log_start_offset > active.base_offset:
            synced = max(synced, active.position_of(log.log_start_offset))
        cut = data.draw(st.integers(synced, active.size_bytes))
        torn = copy / active.path().name
        torn.write_bytes(torn.read_bytes()[:cut] + garbage)
        log.close(NOW_MS)
        self.batches = [
            (first, last, content)
            for first, last, content in self.batches
            if first < active.base_offset or active.position_of(first) + len(content) <= cut
        ]
        if not self.batches or self.batches[-1][1] < log.log_start_offset:
            self.floor = log.log_start_offset
        self.floor = max(self.floor, active.base_offset)
        end = self.batches[-1][1] + 1 if self.batches else 0
        for known in self.producers.values():
            known[:] = [batch for batch in known if batch[3] < end]
        self.log = open_log(
            copy,
            CONFIG,
            clean=False,
            recovery_point=0 if from_start else log.recovery_point,
            log_start_offset=log.log_start_offset,
        )
        assert self.log.recovery_point <= self.log.log_end_offset

    @invariant()
    def offsets_agree(self) -> None:
        if hasattr(self, "log"):
            assert self.log.log_end_offset == self.end
            assert self.log.size_bytes == sum(
                path.stat().st_size for path in self.log.folder.glob("*.log")
            )

    @invariant()
    def indexes_point_at_batches(self) -> None:
        for segment in self.log.segments if hasattr(self, "log") else ():
            index = segment.offset_index
            for relative, position in zip(index.relative_offsets, index.positions, strict=True):
                header = segment.header_at(position)
                assert header.last_offset == segment.base_offset + relative


LogMachine.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestLogMachine = LogMachine.TestCase
