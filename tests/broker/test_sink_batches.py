"""Batches of sinks across shards: whole wherever the broker dies, and whichever journal fails."""

from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from transaction_kit import JOURNAL, TIMEOUT_MS, TOPIC, Transactions, failing_append

from anabranch.broker.deferred import Deferred
from anabranch.coordinator.transaction import commands as c
from anabranch.coordinator.transaction.sink_state import Listed
from anabranch.coordinator.transaction.state import TransactionVersion
from anabranch.engine.journal.partitions import partition_for
from anabranch.engine.log_directory import DirectoryError
from anabranch.log.partition_log import PartitionLog
from anabranch.model.errors import ErrorCode, KafkaError
from anabranch.observe import metrics as m

Make = Callable[..., Transactions]
SHARDS = 5
FIVE = f"transaction.state.log.num.partitions={SHARDS}"
FLUSHING = "flush.on.acks.all=true"
SINK = "sink"
TASKS = ("task-0", "task-2", "task-3")
NONE = ErrorCode.NONE
ABORT, COMMIT = 0, 1


def test_these_names_are_in_different_shards() -> None:
    """So that what follows is about several journals."""
    assert len({partition_for(name, SHARDS) for name in (SINK, *TASKS)}) == 4


def result(transactions: Transactions, outcome: Any) -> Any:
    """An outcome, also where the disk has to be waited for."""
    if not isinstance(outcome, Deferred):
        return outcome
    found: list[Any] = []
    outcome.deliver_to(found.append)
    while not found and transactions.loop.finish_jobs():
        pass
    (answer,) = found
    return answer


def begin(transactions: Transactions, name: str, *partitions: int) -> Listed:
    """A task's transaction, with a record in each partition of the topic."""
    submit = transactions.broker.transactions.submit
    answer = result(
        transactions,
        submit(name, c.InitProducerId(transactional_id=name, timeout_ms=TIMEOUT_MS)),
    )
    assert answer.error is NONE, answer
    one = Listed(
        transactional_id=name,
        producer_id=answer.producer_id,
        producer_epoch=answer.producer_epoch,
    )
    added = submit(
        name,
        c.AddPartitionsToTxn(
            transactional_id=name,
            producer_id=one.producer_id,
            producer_epoch=one.producer_epoch,
            partitions=tuple((TOPIC, number) for number in partitions),
            transaction_version=TransactionVersion.TV_2,
        ),
    )
    assert result(transactions, added).error is NONE
    for number in partitions:
        transactions.write((one.producer_id, one.producer_epoch), number)
    return one


def prepare(transactions: Transactions, one: Listed, batch_id: int) -> tuple[Any, int]:
    command = c.PrepareTxn(
        transactional_id=one.transactional_id,
        producer_id=one.producer_id,
        producer_epoch=one.producer_epoch,
        sink_id=SINK,
        batch_id=batch_id,
    )
    outcome = result(transactions, transactions.broker.transactions.sinks.prepare(command))
    answer, last_batch_id = outcome
    return answer.error, last_batch_id


def tasks(
    transactions: Transactions, batch_id: int, names: tuple[str, ...] = TASKS
) -> list[Listed]:
    """Each writes to both partitions and prepares."""
    ready = [begin(transactions, name, 0, 1) for name in names]
    for one in ready:
        assert prepare(transactions, one, batch_id)[0] is NONE
    return ready


def commit(transactions: Transactions, batch_id: int, batch: list[Listed]) -> Any:
    sinks = transactions.broker.transactions.sinks
    return result(transactions, sinks.commit(SINK, batch_id, batch))


def states(transactions: Transactions, names: tuple[str, ...] = TASKS) -> list[str]:
    return [transactions.broker.transactions.describe(name).state for name in names]


def last_batch(transactions: Transactions) -> int | None:
    answer = result(transactions, transactions.broker.transactions.sinks.ask(SINK))
    return None if answer.sink is None else answer.sink.last_batch_id


def check_whole(transactions: Transactions, batch: list[Listed], kind: int) -> None:
    """Each transaction has a marker of this kind, and no other, in both partitions."""
    wanted = {(kind, one.producer_id, one.producer_epoch + 1) for one in batch}
    for partition in (0, 1):
        log = transactions.log(partition)
        assert set(transactions.markers(partition)) == wanted
        assert log.last_stable_offset == log.log_end_offset


# What is usual ------------------------------------------------------------------------------------


@pytest.mark.parametrize("overrides", [(), (FLUSHING,)])
def test_a_batch(make_transactions: Make, overrides: tuple[str, ...]) -> None:
    """Nothing can be read before, everything after; a batch that is run again is dropped."""
    transactions = make_transactions(FIVE, *overrides)
    batch = tasks(transactions, 4)
    assert transactions.log().last_stable_offset == 0
    assert last_batch(transactions) is None
    found = dict(transactions.broker.transactions.collect_metrics())
    assert found[m.TRANSACTIONS_PREPARED] == {(): 3}
    assert commit(transactions, 4, batch) == c.BatchAnswer(last_batch_id=4)
    check_whole(transactions, batch, COMMIT)
    assert states(transactions) == ["CompleteCommit"] * 3
    assert last_batch(transactions) == 4
    replay = c.BatchAnswer(last_batch_id=4, is_replay=True)
    assert commit(transactions, 4, batch) == replay
    again = [begin(transactions, "task-9", 0)]
    assert prepare(transactions, again[0], 4) == (NONE, 4)
    assert states(transactions, ("task-9",)) == ["CompleteAbort"]
    assert commit(transactions, 4, again) == replay
    found = dict(transactions.broker.transactions.collect_metrics())
    assert found[m.SINK_BATCHES] == {("committed",): 1, ("replayed",): 2}
    assert found[m.TRANSACTIONS_PREPARED] == {(): 0}


def test_prepared_before_the_batch_was_committed_otherwise(make_transactions: Make) -> None:
    """An attempt that comes too late is aborted, and so is what nobody lists."""
    transactions = make_transactions(FIVE)
    first = tasks(transactions, 0, TASKS[:1])
    lost = tasks(transactions, 0, TASKS[1:])
    commit(transactions, 0, first)
    assert states(transactions) == ["CompleteCommit", "CompleteAbort", "CompleteAbort"]
    answer = commit(transactions, 1, lost)
    assert answer.error is ErrorCode.PRODUCER_FENCED
    assert [one.listed for one in answer.refused] == lost
    assert last_batch(transactions) == 0


def test_aborting_a_batch(make_transactions: Make) -> None:
    """What is prepared is aborted; asked again nothing happens."""
    transactions = make_transactions(FIVE)
    batch = tasks(transactions, 0)
    sinks = transactions.broker.transactions.sinks
    for _ in range(2):
        answers = result(transactions, sinks.abort(SINK, batch))
        assert [answer.error for answer in answers] == [NONE] * 3
        check_whole(transactions, batch, ABORT)
    assert last_batch(transactions) is None


# Crashes ------------------------------------------------------------------------------------------


def copy_after_each_append(
    transactions: Transactions, monkeypatch: pytest.MonkeyPatch, folder: Path
) -> list[tuple[str, Path]]:
    """From now on, copy the folder whenever a log was appended to, with the name of the log."""
    copies: list[tuple[str, Path]] = []
    real = PartitionLog.append

    def append(log: PartitionLog, batch: memoryview, **how: Any) -> Any:
        info = real(log, batch, **how)
        copies.append((log.folder.name, transactions.copied(folder / f"killed-{len(copies)}")))
        return info

    monkeypatch.setattr(PartitionLog, "append", append)
    return copies


def test_killed_at_every_step_of_a_batch(
    make_transactions: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """From the batch's record on it is committed whole; the driver that asks again hears it."""
    first = make_transactions(FIVE)
    batch = tasks(first, 7)
    before = first.copied(tmp_path / "before")
    with monkeypatch.context() as patch:
        copies = copy_after_each_append(first, patch, tmp_path)
        assert commit(first, 7, batch).error is NONE
    places = [f"{JOURNAL}-{partition_for(name, SHARDS)}" for name in TASKS]
    one_each = [(place, f"{TOPIC}-0", f"{TOPIC}-1", place) for place in places]
    sinks = f"{JOURNAL}-{partition_for(SINK, SHARDS)}"
    assert [name for name, _ in copies] == [sinks, *chain(*one_each), sinks]
    for _, folder in copies:
        again = make_transactions(FIVE, folder=folder)
        assert states(again) == ["CompleteCommit"] * 3
        check_whole(again, batch, COMMIT)
        assert commit(again, 7, batch) == c.BatchAnswer(last_batch_id=7, is_replay=True)
        again.close()
    undecided = make_transactions(FIVE, folder=before)
    assert states(undecided) == ["Ongoing"] * 3
    assert undecided.log().last_stable_offset == 0
    assert commit(undecided, 7, batch) == c.BatchAnswer(last_batch_id=7)
    check_whole(undecided, batch, COMMIT)


def test_a_power_failure_cannot_leave_a_part(make_transactions: Make) -> None:
    """Where answers wait for the disk, nothing is committed before the batch is on it."""
    transactions = make_transactions(FIVE, FLUSHING)
    batch = tasks(transactions, 0)
    outcome = transactions.broker.transactions.sinks.commit(SINK, 0, batch)
    assert isinstance(outcome, Deferred)
    assert states(transactions) == ["Ongoing"] * 3
    abort = c.AbortTransaction(transactional_id=TASKS[0])
    refused = transactions.broker.transactions.submit(TASKS[0], abort)
    assert result(transactions, refused).error is ErrorCode.CONCURRENT_TRANSACTIONS
    assert result(transactions, outcome) == c.BatchAnswer(last_batch_id=0)
    check_whole(transactions, batch, COMMIT)


# Journals that fail -------------------------------------------------------------------------------


def test_a_journal_that_fails_after_the_decision(
    make_transactions: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batch is committed; its transaction there is as soon as the journal can be written."""
    transactions = make_transactions(FIVE)
    batch = tasks(transactions, 0)
    broken = transactions.broker.transactions.driver(TASKS[1]).partition.log
    real = PartitionLog.append

    def append(log: PartitionLog, data: memoryview, **how: Any) -> Any:
        return failing_append() if log is broken else real(log, data, **how)

    with monkeypatch.context() as patch:
        patch.setattr(PartitionLog, "append", append)
        assert commit(transactions, 0, batch) == c.BatchAnswer(last_batch_id=0)
        assert states(transactions) == ["CompleteCommit", "Ongoing", "CompleteCommit"]
        # It is read again, and belongs to its batch all the same.
        abort = c.AbortTransaction(transactional_id=TASKS[1])
        refused = transactions.broker.transactions.submit(TASKS[1], abort)
        assert refused.error is ErrorCode.CONCURRENT_TRANSACTIONS
    transactions.pass_ms(5_000)
    assert states(transactions) == ["CompleteCommit"] * 3
    check_whole(transactions, batch, COMMIT)


def test_a_sink_whose_journal_cannot_be_read(make_transactions: Make) -> None:
    """Nobody knows what it has decided: what is prepared waits, the others go on."""
    transactions = make_transactions(FIVE)
    batch = tasks(transactions, 0)
    coordinator = transactions.broker.transactions
    begin(transactions, "task-7", 0)
    assert partition_for("task-7", SHARDS) != partition_for(SINK, SHARDS)
    coordinator.driver(SINK)._refuse("it cannot be read")
    for name, error in ((TASKS[0], ErrorCode.CONCURRENT_TRANSACTIONS), ("task-7", NONE)):
        answer = coordinator.submit(name, c.AbortTransaction(transactional_id=name))
        assert answer.error is error
    with pytest.raises(KafkaError) as caught:
        coordinator.sinks.commit(SINK, 0, batch)
    assert caught.value.code is ErrorCode.NOT_COORDINATOR
    assert coordinator.sinks.ask(SINK).code is ErrorCode.NOT_COORDINATOR


def test_a_transaction_whose_journal_cannot_be_read(make_transactions: Make) -> None:
    """The batch is not committed, and the one that is in the way is named."""
    transactions = make_transactions(FIVE)
    batch = tasks(transactions, 0)
    coordinator = transactions.broker.transactions
    coordinator.driver(TASKS[1])._refuse("it cannot be read")
    with pytest.raises(KafkaError, match=TASKS[1]) as caught:
        coordinator.sinks.commit(SINK, 0, batch)
    assert caught.value.code is ErrorCode.NOT_COORDINATOR
    assert last_batch(transactions) is None


def test_a_sync_that_fails(make_transactions: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that the disk may not have is answered with an error, and nothing is committed."""
    transactions = make_transactions(FIVE, FLUSHING)
    batch = tasks(transactions, 0)
    outcome = transactions.broker.transactions.sinks.commit(SINK, 0, batch)

    def refuse(*_: Any) -> None:
        raise OSError("the disk is gone")

    with monkeypatch.context() as broken:
        broken.setattr("os.fdatasync", refuse)
        broken.setattr("os.fsync", refuse)
        assert result(transactions, outcome).code is ErrorCode.NOT_COORDINATOR
    assert transactions.markers() == []
    with pytest.raises(DirectoryError):
        transactions.close()


# Forgetting ---------------------------------------------------------------------------------------


def test_nothing_is_prepared_for_good(make_transactions: Make) -> None:
    """After `transaction.prepared.retention.ms` what nobody has committed is aborted."""
    retention = "transaction.prepared.retention.ms=300000"
    transactions = make_transactions(FIVE, retention)
    batch = tasks(transactions, 0)
    transactions.pass_ms(299_000)
    assert states(transactions) == ["Ongoing"] * 3
    transactions.close()
    transactions = make_transactions(FIVE, retention, now_ms=transactions.now_ms)
    transactions.pass_ms(1_000)
    assert states(transactions) == ["CompleteAbort"] * 3
    check_whole(transactions, batch, ABORT)
