"""Transactions and crashes: wherever the broker dies, what was decided is what happens."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transaction_kit import (
    JOURNAL,
    NOW_MS,
    TIMEOUT_MS,
    TOPIC,
    TV_0,
    TV_2,
    Producer,
    Transactions,
)

from anabranch.coordinator.transaction.state import TransactionVersion
from anabranch.log.partition_log import PartitionLog
from anabranch.model.errors import ErrorCode

Make = Callable[..., Transactions]
NONE = ErrorCode.NONE
ABORT, COMMIT = 0, 1


def copy_after_each_append(
    transactions: Transactions, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> list[tuple[str, Path]]:
    """From now on, copy the folder whenever a log was appended to, with the name of the log."""
    copies: list[tuple[str, Path]] = []
    real = PartitionLog.append

    def append(log: PartitionLog, batch: memoryview, **how: Any) -> Any:
        info = real(log, batch, **how)
        folder = transactions.copied(tmp_path / f"killed-{len(copies)}")
        copies.append((log.folder.name, folder))
        return info

    monkeypatch.setattr(PartitionLog, "append", append)
    return copies


@pytest.mark.parametrize("version", [TV_0, TV_2])
@pytest.mark.parametrize("is_commit", [True, False])
def test_killed_at_every_step_of_an_end(
    make_transactions: Make,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    is_commit: bool,
    version: TransactionVersion,
) -> None:
    """After the decision, between markers, before the completion: the outcome is the same."""
    first = make_transactions()
    producer = first.init()
    first.begin(producer, 0, 1, version=version)
    before = first.copied(tmp_path / "before")
    with monkeypatch.context() as patch:
        copies = copy_after_each_append(first, patch, tmp_path)
        told = first.end(producer, is_commit=is_commit, version=version)
    assert told.error is NONE
    journal = f"{JOURNAL}-0"
    assert [name for name, _ in copies] == [journal, f"{TOPIC}-0", f"{TOPIC}-1", journal]
    for _, folder in copies:
        again = make_transactions(folder=folder)
        check_ended(again, producer, is_commit=is_commit, version=version)
        assert again.end(producer, is_commit=is_commit, version=version) == told
        again.close()
    undecided = make_transactions(folder=before)
    assert undecided.state == "Ongoing"
    assert undecided.end(producer, is_commit=is_commit, version=version) == told
    check_ended(undecided, producer, is_commit=is_commit, version=version)


def check_ended(
    transactions: Transactions,
    producer: Producer,
    *,
    is_commit: bool,
    version: TransactionVersion,
) -> None:
    assert transactions.state == ("CompleteCommit" if is_commit else "CompleteAbort")
    producer_id, epoch = producer
    marker = (COMMIT if is_commit else ABORT, producer_id, epoch + version.bumps_epoch)
    for partition in (0, 1):
        log = transactions.log(partition)
        assert set(transactions.markers(partition)) == {marker}
        assert log.last_stable_offset == log.log_end_offset
        aborted = [one.producer_id for one in log.transactions.aborted_between(0, 1)]
        assert aborted == ([] if is_commit else [producer_id])


@pytest.mark.parametrize("version", [TV_0, TV_2])
@pytest.mark.parametrize("is_commit", [True, False])
def test_killed_at_every_step_with_offsets(
    make_transactions: Make,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    is_commit: bool,
    version: TransactionVersion,
) -> None:
    """Offsets that are committed with a transaction have its outcome, wherever the broker dies."""
    first = make_transactions()
    for number, is_ended_so in enumerate((True, is_commit)):
        producer = first.init()
        first.begin(producer, 0, 1, version=version)
        first.commit_offset(producer, 10 + number, version)
        with monkeypatch.context() as patch:
            copies = copy_after_each_append(first, patch, tmp_path / str(number))
            first.end(producer, is_commit=is_ended_so, version=version)
    names = [name for name, _ in copies]
    assert sorted(names[1:-1]) == ["__consumer_offsets-0", f"{TOPIC}-0", f"{TOPIC}-1"]
    for _, folder in copies:
        again = make_transactions(folder=folder)
        assert again.state == ("CompleteCommit" if is_commit else "CompleteAbort")
        assert again.committed_offset == (11 if is_commit else 10)
        log = again.log(0, "__consumer_offsets")
        assert log.last_stable_offset == log.log_end_offset
        again.commit_offset(again.init(), 99)
        again.close()


def test_the_next_transaction_after_a_kill(
    make_transactions: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """In version 0 the epoch stays, and no marker of the transaction before ends the next one."""
    first = make_transactions()
    producer = first.init()
    first.begin(producer, 0, 1, version=TV_0)
    with monkeypatch.context() as patch:
        copies = copy_after_each_append(first, patch, tmp_path)
        first.end(producer, version=TV_0)
    for _, folder in copies:
        again = make_transactions(folder=folder)
        again.begin(producer, 0, version=TV_0)
        again.pass_ms(1_000)
        assert again.log().last_stable_offset < again.log().log_end_offset
        assert again.end(producer, is_commit=False, version=TV_0).error is NONE
        assert again.markers()[-1][0] == ABORT
        again.close()


@pytest.mark.parametrize("cut_bytes", [1, 60])
def test_a_decision_that_was_half_written(
    make_transactions: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cut_bytes: int
) -> None:
    """It was not made: the transaction is open, and its producer asks again."""
    first = make_transactions()
    producer = first.init()
    first.begin(producer, 0, 1)
    with monkeypatch.context() as patch:
        copies = copy_after_each_append(first, patch, tmp_path)
        told = first.end(producer)
    _, folder = copies[0]
    (segment,) = (folder / f"{JOURNAL}-0").glob("*.log")
    os.truncate(segment, first_end_bytes(folder) - cut_bytes)
    again = make_transactions(folder=folder)
    assert again.state == "Ongoing"
    assert again.markers() == []
    assert again.end(producer) == told


def first_end_bytes(folder: Path) -> int:
    """Where the records of a journal end; the file may be longer, with nothing in it."""
    (segment,) = (folder / f"{JOURNAL}-0").glob("*.log")
    return len(segment.read_bytes().rstrip(b"\0"))


def test_an_open_transaction_after_a_restart(make_transactions: Make) -> None:
    """It goes on, and its time runs from when it began."""
    first = make_transactions()
    producer = first.init()
    first.begin(producer, 0)
    first.close()
    again = make_transactions(now_ms=NOW_MS + TIMEOUT_MS // 2)
    again.write(producer, 0)
    again.pass_ms(TIMEOUT_MS // 2 - 1)
    assert again.state == "Ongoing"
    again.pass_ms(1)
    assert again.state == "CompleteAbort"
    assert again.markers() == [(ABORT, producer[0], producer[1] + 1)]


def test_time_that_was_up_while_the_broker_was_down(make_transactions: Make) -> None:
    """The transaction is aborted as soon as the loop runs."""
    first = make_transactions()
    first.begin(first.init(), 0)
    first.close()
    again = make_transactions(now_ms=NOW_MS + 2 * TIMEOUT_MS)
    assert again.state == "Ongoing"
    again.pass_ms(0)
    assert again.state == "CompleteAbort"
    assert again.log().last_stable_offset == again.log().log_end_offset


def test_the_epoch_of_markers_grows_with_every_start(make_transactions: Make) -> None:
    """A coordinator of before the restart is told apart from the one of after it."""
    epochs = []
    for _ in range(3):
        transactions = make_transactions()
        producer = transactions.init()
        transactions.begin(producer, 0)
        transactions.end(producer)
        entry = transactions.log().producer_states.entries[producer[0]]
        epochs.append(entry.coordinator_epoch)
        transactions.close()
    assert epochs == sorted(set(epochs))


def test_the_journal_is_on_disk_before_a_start_writes_markers(
    make_transactions: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Where answers wait for the disk, no marker may outlive its decision either."""
    first = make_transactions()
    producer = first.init()
    first.begin(producer, 0)
    with monkeypatch.context() as patch:
        copies = copy_after_each_append(first, patch, tmp_path)
        first.end(producer)
    unflushed: list[int] = []
    real = PartitionLog.append
    opened: dict[str, PartitionLog] = {}
    really_open = PartitionLog.open.__func__  # type: ignore[attr-defined]

    def remember(cls: Any, folder: Path, **how: Any) -> PartitionLog:
        log: PartitionLog = really_open(cls, folder, **how)
        log.recovery_point = 0
        opened[log.folder.name] = log
        return log

    def append(log: PartitionLog, batch: memoryview, **how: Any) -> Any:
        if log.topic == TOPIC:
            unflushed.append(opened[f"{JOURNAL}-0"].unflushed_messages)
        return real(log, batch, **how)

    monkeypatch.setattr(PartitionLog, "open", classmethod(remember))
    monkeypatch.setattr(PartitionLog, "append", append)
    make_transactions("flush.on.acks.all=true", folder=copies[0][1])
    assert unflushed == [0]
