"""Transactions in a log: the last stable offset, what readers of committed records see, files."""

import os
import shutil
import struct
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from log_kit import NOW_MS, SMALL, batch_of, open_log

from anabranch.log.compaction import CompactionRound, compact, plan_compaction, swap_cleaned
from anabranch.log.log_config import LogConfig
from anabranch.log.markers import append_marker
from anabranch.log.partition_log import PartitionLog
from anabranch.log.retention import apply_retention, remove_segments
from anabranch.log.transactions import (
    AbortedTransaction,
    Transactions,
    aborted_in_records,
    read_transaction_index,
)
from anabranch.model.errors import ErrorCode, KafkaError
from anabranch.wire.control_records import ABORT, COMMIT, build_marker, read_marker
from anabranch.wire.record_batch import TRANSACTIONAL_FLAG, iter_headers, iter_records

COMPACTED = replace(SMALL, cleanup_policy=frozenset({"compact"}), delete_retention_ms=1000)


class Writer:
    """A producer with its sequence."""

    def __init__(self, log: PartitionLog, producer_id: int, epoch: int = 0) -> None:
        self.log = log
        self.producer_id = producer_id
        self.epoch = epoch
        self.sequence = 0

    def write(
        self, value: bytes = b"v", *, key: bytes | None = b"k", count: int = 1, txn: bool = True
    ) -> int:
        batch = batch_of(
            count,
            value,
            key=key,
            producer=(self.producer_id, self.epoch, self.sequence),
            attributes=TRANSACTIONAL_FLAG if txn else 0,
        )
        info = self.log.append(batch, now_ms=NOW_MS, has_transactional_id=txn)
        self.sequence += count
        return info.first_offset

    def end(self, control_type: int, *, epoch: int | None = None, coordinator: int = 0) -> int:
        return append_marker(
            self.log,
            control_type,
            producer_id=self.producer_id,
            producer_epoch=self.epoch if epoch is None else epoch,
            coordinator_epoch=coordinator,
            now_ms=NOW_MS,
        ).first_offset


def read_committed(log: PartitionLog, offset: int, max_bytes: int = 2**20) -> list[int]:
    """Offsets that a consumer hands out, which goes about it as the Java client does."""
    found: list[int] = []
    end = log.last_stable_offset
    while offset < end:
        chunk = log.read(offset, max_bytes, upto=end)
        if not chunk:
            break
        waiting = sorted(
            aborted_in_records(log.transactions, offset, chunk), key=lambda one: one.first_offset
        )
        aborted: set[int] = set()
        for position, header in iter_headers(chunk):
            while waiting and waiting[0].first_offset <= header.last_offset:
                aborted.add(waiting.pop(0).producer_id)
            batch = chunk[position : position + header.size_bytes]
            if header.is_control:
                if read_marker(batch)[0] == ABORT:
                    aborted.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in aborted):
                found += [one.offset for one in iter_records(batch) if one.offset >= offset]
            next_offset = header.next_offset
        offset = next_offset
    return found


def test_a_marker_is_a_control_batch_of_one_record() -> None:
    """The key is a version and a type, the value a version and the coordinator's epoch."""
    batch = build_marker(
        COMMIT, producer_id=7, producer_epoch=3, coordinator_epoch=9, timestamp=NOW_MS
    )
    ((_, header),) = iter_headers(batch)
    assert header.is_control and header.is_transactional
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 3, -1)
    (record,) = iter_records(batch)
    assert (record.key, record.value) == (bytes.fromhex("00000001"), bytes.fromhex("000000000009"))
    assert read_marker(batch) == (COMMIT, 9)


def test_the_last_stable_offset_is_where_the_oldest_open_transaction_begins(
    tmp_path: Path,
) -> None:
    """It waits for the oldest one, whoever else ends, and then goes to the next or the end."""
    log = open_log(tmp_path / "t-0")
    one, other = Writer(log, 1), Writer(log, 2)
    Writer(log, 3).write(txn=False)
    assert log.last_stable_offset == 1
    one.write()
    other.write()
    one.write()
    assert log.last_stable_offset == 1
    other.end(COMMIT)
    assert log.last_stable_offset == 1
    other.write()
    one.end(ABORT)
    assert (log.last_stable_offset, log.log_end_offset) == (5, 7)
    other.end(COMMIT)
    assert log.last_stable_offset == log.log_end_offset == 8
    assert read_committed(log, 0) == [0, 2, 5]


def test_a_marker_without_records_ends_nothing(tmp_path: Path) -> None:
    """A transaction that wrote nothing here leaves its marker and no more."""
    log = open_log(tmp_path / "t-0")
    Writer(log, 1).end(ABORT)
    assert log.last_stable_offset == 1
    assert log.producer_states.transactions.aborted == []


def test_all_writes_in_a_transaction_belong_to_it(tmp_path: Path) -> None:
    """A producer with an open transaction may not write beside it."""
    log = open_log(tmp_path / "t-0")
    writer = Writer(log, 1)
    writer.write()
    with pytest.raises(KafkaError) as refused:
        writer.write(txn=False)
    assert refused.value.code == ErrorCode.INVALID_TXN_STATE
    writer.end(COMMIT)
    assert writer.write(txn=False) == 2


def test_a_transactional_batch_needs_a_transactional_id(tmp_path: Path) -> None:
    """Nobody slips into a transaction without having told the coordinator."""
    log = open_log(tmp_path / "t-0")
    batch = batch_of(1, producer=(1, 0, 0), attributes=TRANSACTIONAL_FLAG)
    with pytest.raises(KafkaError) as refused:
        log.append(batch, now_ms=NOW_MS)
    assert refused.value.code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


def test_old_markers_are_refused(tmp_path: Path) -> None:
    """Neither an earlier producer's nor an earlier coordinator's marker ends a transaction."""
    log = open_log(tmp_path / "t-0")
    writer = Writer(log, 1, epoch=4)
    writer.write()
    with pytest.raises(KafkaError) as refused:
        writer.end(ABORT, epoch=3)
    assert refused.value.code == ErrorCode.INVALID_PRODUCER_EPOCH
    writer.end(COMMIT, coordinator=5)
    writer.write()
    with pytest.raises(KafkaError) as refused:
        writer.end(COMMIT, coordinator=4)
    assert refused.value.code == ErrorCode.TRANSACTION_COORDINATOR_FENCED
    assert log.last_stable_offset == 2


def test_a_marker_of_a_newer_epoch_fences_what_comes_late(tmp_path: Path) -> None:
    """After it the producer goes on with the new epoch at sequence 0 (KIP-890)."""
    log = open_log(tmp_path / "t-0")
    writer = Writer(log, 1)
    writer.write()
    writer.end(COMMIT, epoch=1)
    with pytest.raises(KafkaError) as refused:
        writer.write()
    assert refused.value.code == ErrorCode.INVALID_PRODUCER_EPOCH
    assert Writer(log, 1, epoch=1).write() == 2


def test_the_index_file_is_kafkas(tmp_path: Path) -> None:
    """Version, producer, first offset, marker and last stable offset, big-endian, per entry."""
    log = open_log(tmp_path / "t-0")
    one, other = Writer(log, 1), Writer(log, 2)
    one.write()
    other.write()
    other.end(ABORT)
    one.end(COMMIT)
    one.write()
    one.end(ABORT)
    log.roll(NOW_MS)
    path = log.folder / f"{0:020d}.txnindex"
    expected = struct.pack(">hqqqq", 0, 2, 1, 2, 0) + struct.pack(">hqqqq", 0, 1, 4, 5, 6)
    assert path.read_bytes() == expected
    Writer(log, 3).write(txn=False)
    log.roll(NOW_MS)
    assert not (log.folder / f"{6:020d}.txnindex").exists()


@pytest.mark.parametrize("clean", [True, False])
def test_transactions_survive_a_restart(tmp_path: Path, clean: bool) -> None:
    """Open ones stay open, aborted ones aborted, whether the log was closed or not."""
    log = open_log(tmp_path / "t-0")
    one, other = Writer(log, 1), Writer(log, 2)
    for _ in range(12):
        one.write()
        other.write()
        other.end(ABORT)
    expected = list(log.producer_states.transactions.aborted)
    assert len(log.segments) > 2
    log.close(NOW_MS) if clean else log._close_files()
    log = open_log(tmp_path / "t-0", clean=clean)
    assert log.last_stable_offset == 0
    assert log.producer_states.transactions.aborted == expected
    assert read_committed(log, 0) == []
    one.log = log
    one.end(COMMIT)
    assert read_committed(log, 0) == list(range(0, 36, 3))
    assert read_committed(log, 7, 200) == list(range(9, 36, 3))


def test_index_files_that_a_crash_left_wrong_are_made_anew(tmp_path: Path) -> None:
    """What was not synced is read from the log again, not from files beside it."""
    log = open_log(tmp_path / "t-0")
    writer = Writer(log, 1)
    while len(log.segments) < 4:
        writer.write()
        writer.end(ABORT)
    expected = list(log.producer_states.transactions.aborted)
    log._close_files()
    paths = sorted(log.folder.glob("*.txnindex"))
    paths[1].write_bytes(b"")
    paths[2].unlink()
    log = open_log(tmp_path / "t-0", clean=False)
    assert log.producer_states.transactions.aborted == expected
    found: list[AbortedTransaction] = []
    for path in paths:
        found += read_transaction_index(path) or []
    assert found == [one for one in expected if one.last_offset < log.segments[-1].base_offset]


def test_a_damaged_index_file_is_made_anew(tmp_path: Path) -> None:
    """A file that cannot be right is not believed, even after an orderly stop."""
    log = open_log(tmp_path / "t-0")
    writer = Writer(log, 1)
    while len(log.segments) < 3:
        writer.write()
        writer.end(ABORT)
    expected = list(log.producer_states.transactions.aborted)
    log.close(NOW_MS)
    path = min(log.folder.glob("*.txnindex"))
    path.write_bytes(path.read_bytes()[:-1])
    log = open_log(tmp_path / "t-0")
    assert log.producer_states.transactions.aborted == expected


def test_the_index_goes_with_its_segment(tmp_path: Path) -> None:
    """Retention removes the file, and what it told is forgotten; open ones may lose records."""
    log = open_log(tmp_path / "t-0")
    holder, writer = Writer(log, 9), Writer(log, 1)
    holder.write()
    while len(log.segments) < 4:
        writer.write()
        writer.end(ABORT)
    remove_segments(log, log.segments[:2], NOW_MS).run()
    start = log.segments[0].base_offset
    assert len(list(log.folder.glob("*.txnindex"))) == 1
    assert log.producer_states.transactions.aborted[0].last_offset >= start
    assert log.last_stable_offset == start == log.log_start_offset
    apply_retention(log, NOW_MS)


def values(log: PartitionLog) -> list[tuple[int, bytes | None]]:
    """Records of all batches that are left, whoever may see them; markers as None."""
    found: list[tuple[int, bytes | None]] = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        chunk = log.read(offset, 2**20)
        for position, header in iter_headers(chunk):
            batch = chunk[position : position + header.size_bytes]
            for record in iter_records(batch):
                found.append((record.offset, None if header.is_control else record.value))
            offset = header.next_offset
    return found


def test_compaction_removes_what_was_aborted(tmp_path: Path) -> None:
    """An aborted record replaces nothing and goes; markers stay a while after the last record."""
    log = open_log(tmp_path / "t-0", COMPACTED)
    plain, writer = Writer(log, 1), Writer(log, 2)
    plain.write(b"old", key=b"k", txn=False)
    writer.write(b"no", key=b"k")
    writer.end(ABORT)
    writer.write(b"yes", key=b"j")
    writer.end(COMMIT)
    plain.write(b"end", key=b"z", txn=False)
    log.roll(NOW_MS)
    checkpoint = compact(log, None, NOW_MS)
    assert values(log) == [(0, b"old"), (2, None), (3, b"yes"), (4, None), (5, b"end")]
    assert log.producer_states.transactions.aborted == []
    assert not list(log.folder.glob("*.txnindex"))
    assert read_committed(log, 0) == [0, 3, 5]
    plain.write(b"new", key=b"z", txn=False)
    log.roll(NOW_MS)
    compact(log, checkpoint, NOW_MS + 1001)
    assert values(log) == [(0, b"old"), (3, b"yes"), (4, None), (6, b"new")]


def test_a_marker_that_alone_tells_an_epoch_stays(tmp_path: Path) -> None:
    """Without it a producer of the earlier epoch would be let in again."""
    log = open_log(tmp_path / "t-0", COMPACTED)
    writer = Writer(log, 2)
    writer.write(b"no", key=b"k")
    writer.end(ABORT, epoch=1)
    Writer(log, 1).write(b"end", key=b"z", txn=False)
    log.roll(NOW_MS)
    checkpoint = compact(log, None, NOW_MS)
    Writer(log, 3).write(b"end", key=b"z", txn=False)
    log.roll(NOW_MS)
    compact(log, checkpoint, NOW_MS + 5000)
    assert (1, None) in values(log)


def test_compaction_stops_before_an_open_transaction(tmp_path: Path) -> None:
    """What may yet be aborted replaces nothing, in its own segment or before."""
    log = open_log(tmp_path / "t-0", COMPACTED)
    plain, writer = Writer(log, 1), Writer(log, 2)
    plain.write(b"old", key=b"k", txn=False)
    log.roll(NOW_MS)
    plain.write(b"x", key=b"y", txn=False)
    writer.write(b"perhaps", key=b"k")
    plain.write(b"more", key=b"y", txn=False)
    log.roll(NOW_MS)
    before = values(log)
    assert compact(log, None, NOW_MS) == 1
    assert values(log) == before


def test_compaction_keeps_the_list_of_what_it_did_not_clean(tmp_path: Path) -> None:
    """A round that ends early leaves later transactions, their records and their file alone."""
    log = open_log(tmp_path / "t-0", COMPACTED)
    writer, holder = Writer(log, 2), Writer(log, 5)
    writer.write(b"no", key=b"a")
    writer.end(ABORT)
    log.roll(NOW_MS)
    writer.write(b"no", key=b"b")
    writer.end(ABORT)
    holder.write(b"open", key=b"c")
    log.roll(NOW_MS)
    compact(log, None, NOW_MS)
    (left,) = log.producer_states.transactions.aborted
    assert (left.first_offset, left.last_offset) == (2, 3)
    log._close_files()
    log = open_log(tmp_path / "t-0", COMPACTED, clean=False, recovery_point=4)
    assert log.producer_states.transactions.aborted == [left]


def test_a_round_that_ends_within_a_segment_keeps_the_rest_of_its_list(tmp_path: Path) -> None:
    """The cleaned segment has a file for what the round did not come to, also after a crash."""
    log = open_log(tmp_path / "t-0", COMPACTED)
    writer = Writer(log, 2)
    for key in (b"a", b"b", b"c"):
        writer.write(b"yes", key=key)
        writer.end(COMMIT)
        writer.write(b"no", key=key)
        writer.end(ABORT)
    log.roll(NOW_MS)
    cleaning = CompactionRound(plan_compaction(log, None, NOW_MS), keys_max=1)
    cleaning.build_map()
    cleaned = cleaning.clean_next()
    assert cleaned is not None
    assert cleaning.end_offset == 4
    before = log.producer_states.transactions.aborted[1:]
    crashed = tmp_path / "crashed-0"
    for suffix in (".txnindex", ".index", ".timeindex", ".log"):
        path = cleaned.segment.path(suffix + ".cleaned")
        os.link(path, path.with_name(path.name.replace(".cleaned", ".swap")))
    shutil.copytree(log.folder, crashed)
    for path in [*crashed.glob("*.cleaned"), *log.folder.glob("*.swap")]:
        path.unlink()
    removal = swap_cleaned(log, cleaned)
    assert removal is not None
    removal.run()
    assert log.producer_states.transactions.aborted == before
    assert read_committed(log, 0) == [0, 4, 8]
    assert log.close(NOW_MS)
    for folder in (log.folder, crashed):
        again = open_log(folder, COMPACTED, clean=folder == log.folder, recovery_point=12)
        assert again.producer_states.transactions.aborted == before
        assert read_committed(again, 0) == [0, 4, 8]
        again.close(NOW_MS)


def test_the_list_is_no_longer_than_it_must_be(tmp_path: Path) -> None:
    """Transactions that began after what was read are not in it, nor those that ended before."""
    log = open_log(tmp_path / "t-0")
    writers = [Writer(log, n) for n in range(4)]
    for writer in writers[:3]:
        writer.write()
    for writer in writers[:3]:
        writer.end(ABORT)
    writers[3].write()
    writers[3].end(ABORT)
    found = log.producer_states.transactions.aborted_between
    assert [one.producer_id for one in found(0, 2)] == [0, 1]
    assert [one.producer_id for one in found(4, 6)] == [1, 2]
    assert [one.producer_id for one in found(6, 8)] == [3]
    writers[0].write()
    writers[1].write()
    writers[1].end(ABORT)
    writers[0].end(ABORT)
    assert [one.producer_id for one in found(8, 9)] == [0]


def test_a_long_list_is_not_looked_through_to_its_end(tmp_path: Path) -> None:
    """The search ends where everything that began earlier is known to have ended."""
    transactions = Transactions()
    for n in range(100):
        transactions.begin(1, 2 * n)
        transactions.end(1, 2 * n + 1, ABORT)

    class Counted(list[AbortedTransaction]):
        looks = 0

        def __getitem__(self, index: object) -> AbortedTransaction:  # type: ignore[override]
            self.looks += 1
            return super().__getitem__(index)  # type: ignore[index]

    counted = Counted(transactions.aborted)
    transactions.aborted = counted
    assert len(transactions.aborted_between(10, 14)) == 2
    assert counted.looks < 20


def test_a_flush_brings_the_index_to_the_disk(tmp_path: Path) -> None:
    """Once the recovery point is beyond a segment, its file is believed."""
    log = open_log(tmp_path / "t-0")
    writer = Writer(log, 1)
    writer.write()
    writer.end(ABORT)
    log.roll(NOW_MS)
    writer.write()
    log.roll(NOW_MS)
    job = log.begin_flush(NOW_MS)
    assert job is not None
    synced = [path.name for path in job.sealed_paths if path.suffix == ".txnindex"]
    assert synced == [f"{0:020d}.txnindex"]
    job.run()
    log.end_flush(job, None)


class TransactionsMachine(RuleBasedStateMachine):
    """Writers, markers, rolls, restarts and retention, against a plain list of what happened."""

    config: LogConfig = replace(SMALL, segment_bytes=600)

    def __init__(self) -> None:
        super().__init__()
        self.tmp = tempfile.TemporaryDirectory()
        self.log = open_log(Path(self.tmp.name) / "t-0", self.config)
        self.writers = {n: Writer(self.log, n) for n in range(4)}
        # (offset, producer, whether it is known to be committed or aborted)
        self.written: list[list[object]] = []
        self.open: dict[int, list[list[object]]] = {}

    @initialize()
    def begin(self) -> None:
        self.write(0, True, 1)

    @rule(n=st.integers(0, 3), txn=st.booleans(), count=st.integers(1, 3))
    def write(self, n: int, txn: bool, count: int) -> None:
        txn = txn or n in self.open
        first = self.writers[n].write(txn=txn, count=count)
        for offset in range(first, first + count):
            entry: list[object] = [offset, None if txn else True]
            self.written.append(entry)
            if txn:
                self.open.setdefault(n, []).append(entry)

    @rule(n=st.integers(0, 3), commits=st.booleans(), bumps=st.booleans())
    def end(self, n: int, commits: bool, bumps: bool) -> None:
        writer = self.writers[n]
        writer.end(COMMIT if commits else ABORT, epoch=writer.epoch + bumps)
        if bumps:
            writer.epoch += 1
            writer.sequence = 0
        for entry in self.open.pop(n, []):
            entry[1] = commits

    @rule()
    def roll(self) -> None:
        self.log.roll(NOW_MS)

    @rule(clean=st.booleans(), flushed=st.booleans())
    def restart(self, clean: bool, flushed: bool) -> None:
        if flushed:
            self.log.flush(NOW_MS)
        point, start = self.log.recovery_point, self.log.log_start_offset
        if clean:
            assert self.log.close(NOW_MS)
        else:
            self.log._close_files()
        self.log = open_log(
            self.log.folder, self.config, clean=clean, recovery_point=point, log_start_offset=start
        )
        for writer in self.writers.values():
            writer.log = self.log

    @rule()
    def retain(self) -> None:
        if len(self.log.segments) > 3:
            remove_segments(self.log, self.log.segments[:1], NOW_MS).run()

    @rule(share=st.floats(0, 1), max_bytes=st.sampled_from([1, 300, 2**20]))
    def read(self, share: float, max_bytes: int) -> None:
        start, end = self.log.log_start_offset, self.log.last_stable_offset
        offset = start + int((end - start) * share)
        expected = [o for o, state in self.written if state is True and offset <= o < end]  # type: ignore[operator]
        assert read_committed(self.log, offset, max_bytes) == expected

    @invariant()
    def stable_offset(self) -> None:
        first = min((o[0][0] for o in self.open.values()), default=self.log.log_end_offset)  # type: ignore[type-var]
        assert self.log.last_stable_offset == max(first, self.log.log_start_offset)  # type: ignore[type-var]

    def teardown(self) -> None:
        self.log.close(NOW_MS)
        self.tmp.cleanup()


TestTransactions = TransactionsMachine.TestCase
TestTransactions.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
