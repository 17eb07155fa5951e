"""A shard of transactions at work: markers, time, and a journal or a log that fails."""

import sqlite3
from collections.abc import Callable
from typing import Any

import pytest
from transaction_kit import (
    ID,
    JOURNAL,
    TIMEOUT_MS,
    TOPIC,
    TV_0,
    Transactions,
    failing_append,
)

from anabranch.broker.broker import Broker
from anabranch.broker.deferred import Deferred
from anabranch.coordinator.transaction import commands as c
from anabranch.coordinator.transaction.state import LAST_EPOCH
from anabranch.engine.log_directory import DirectoryError
from anabranch.model.errors import ErrorCode, KafkaError

Make = Callable[..., Transactions]
Lines = list[tuple[str, dict[str, Any]]]
NONE, NOT_COORDINATOR = ErrorCode.NONE, ErrorCode.NOT_COORDINATOR
CONCURRENT = ErrorCode.CONCURRENT_TRANSACTIONS
ABORT, COMMIT = 0, 1
RETRY_MS = 100


def names(lines: Lines) -> list[str]:
    return [name for name, _ in lines]


def refusal(act: Callable[[], Any]) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        act()
    return caught.value.code


# The journal ------------------------------------------------------------------------------------


def test_the_journal_is_made_for_the_first_producer(transactions: Transactions) -> None:
    """Compacted, uncompressed, in segments of its own size; queries do not make it."""
    broker = transactions.broker
    assert broker.topics.get(JOURNAL) is None
    assert broker.transactions.all_transactions() == []
    described = broker.transactions.describe(ID)
    assert described.error is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    assert broker.topics.get(JOURNAL) is None
    transactions.init()
    journal = broker.topics.get(JOURNAL)
    assert journal is not None
    assert journal.configs == {
        "cleanup.policy": "compact",
        "compression.type": "uncompressed",
        "segment.bytes": "104857600",
        "max.message.bytes": str(64 * 1024 * 1024),
    }
    assert [one.transactional_id for one in broker.transactions.all_transactions()] == [ID]


def test_a_journal_that_a_client_makes(transactions: Transactions) -> None:
    """It may have other settings and partitions than ours, and is compacted all the same."""
    broker = transactions.broker
    broker.create_topic(JOURNAL, 3, {"cleanup.policy": "delete", "segment.bytes": "2097152"})
    journal = broker.topics.get(JOURNAL)
    assert journal is not None and len(journal.partitions) == 3
    assert journal.configs["cleanup.policy"] == "compact"
    assert journal.configs["segment.bytes"] == "2097152"
    transactions.init()


def test_a_journal_that_cannot_be_made(
    transactions: Transactions, monkeypatch: pytest.MonkeyPatch, lines: Lines
) -> None:
    """Clients look for the coordinator again, and the next attempt may succeed."""

    def refuse(*_: Any) -> Any:
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "no room")

    with monkeypatch.context() as patch:
        patch.setattr(Broker, "create_topic", refuse)
        assert refusal(transactions.init) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert names(lines) == ["coordinator.journal.failed"]
    assert transactions.init() == (0, 0)


# Markers ----------------------------------------------------------------------------------------


def test_a_marker_that_cannot_be_written(
    transactions: Transactions, monkeypatch: pytest.MonkeyPatch, lines: Lines
) -> None:
    """The decision stands and is answered; the marker is tried again until it is there."""
    producer = transactions.init()
    transactions.begin(producer, 0, 1)
    with monkeypatch.context() as broken:
        broken.setattr(transactions.log(1), "append", failing_append)
        assert transactions.end(producer).error is NONE
        assert transactions.state == "PrepareCommit"
        assert transactions.broker.transactions.describe(ID).partitions == ((TOPIC, 1),)
        assert transactions.end(producer).error is CONCURRENT
        transactions.pass_ms(3 * RETRY_MS)
        assert transactions.state == "PrepareCommit"
    assert names(lines) == ["transaction.markers.failed"]
    transactions.pass_ms(RETRY_MS)
    assert transactions.state == "CompleteCommit"
    assert transactions.markers(0) == transactions.markers(1) == [(COMMIT, producer[0], 1)]
    metrics = transactions.broker.transactions.metrics
    assert (metrics.markers_written, metrics.markers_failed) == (2, 4)


def test_a_topic_that_goes_while_markers_are_missing(
    transactions: Transactions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is nothing left to be ended there, and the transaction completes."""
    transactions.broker.create_topic("gone", 1)
    producer = transactions.init()
    transactions.submit(
        c.AddPartitionsToTxn(
            transactional_id=ID,
            producer_id=producer[0],
            producer_epoch=producer[1],
            partitions=(("gone", 0), ("gone", 7), (TOPIC, 0)),
        )
    )
    topic = transactions.broker.topics.get("gone")
    assert topic is not None
    monkeypatch.setattr(topic.partitions[0].log, "append", failing_append)
    assert transactions.end(producer).error is NONE
    assert transactions.state == "PrepareCommit"
    transactions.broker.delete_topic(topic)
    transactions.pass_ms(RETRY_MS)
    assert transactions.state == "CompleteCommit"
    assert len(transactions.markers(0)) == 1


def test_a_branch_topic_gets_no_marker(transactions: Transactions) -> None:
    """Its partitions are those of the source, which it would end somebody else's transaction in."""
    transactions.broker.create_topic("branches", -1, {"branch.source.topic": TOPIC})
    producer = transactions.init()
    transactions.submit(
        c.AddPartitionsToTxn(
            transactional_id=ID,
            producer_id=producer[0],
            producer_epoch=producer[1],
            partitions=(("branches", 0),),
        )
    )
    assert transactions.end(producer).error is NONE
    assert transactions.state == "CompleteCommit"
    assert transactions.markers() == []


def test_somebody_newer_has_ended_it(transactions: Transactions, lines: Lines) -> None:
    """A marker that is fenced is not needed any more: an admin, say, has ended the transaction."""
    producer = transactions.init()
    transactions.begin(producer, 0)
    entry = transactions.log().producer_states.entries[producer[0]]
    entry.coordinator_epoch = 1_000
    assert transactions.end(producer).error is NONE
    assert transactions.state == "CompleteCommit"
    assert transactions.markers() == []
    assert names(lines) == ["transaction.marker.fenced"]


def test_markers_wake_whoever_waits(
    transactions: Transactions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parked fetches of the partitions learn that there is more to read, also from a timer."""
    woken: list[int] = []
    monkeypatch.setattr(
        transactions.broker.purgatory, "mark", lambda partition, size: woken.append(size)
    )
    producer = transactions.init()
    transactions.begin(producer, 0)
    woken.clear()
    before = transactions.log().size_bytes
    transactions.end(producer)
    assert transactions.log().size_bytes - before in woken


# Time -------------------------------------------------------------------------------------------


def test_time_runs_for_each_transaction(transactions: Transactions) -> None:
    """The next transaction has all of its time, whatever the one before has left of its own."""
    producer = transactions.init()
    transactions.begin(producer, 0, version=TV_0)
    transactions.pass_ms(TIMEOUT_MS - 1)
    transactions.end(producer, version=TV_0)
    transactions.begin(producer, 0, version=TV_0)
    transactions.pass_ms(TIMEOUT_MS - 1)
    assert transactions.state == "Ongoing"
    transactions.pass_ms(1)
    assert transactions.state == "CompleteAbort"
    assert transactions.broker.transactions.metrics.timed_out == 1


def test_the_last_epoch_is_aborted_with_another_producer_id(
    transactions: Transactions, monkeypatch: pytest.MonkeyPatch, lines: Lines
) -> None:
    """While no producer id can be had the transaction stays open; then the next one takes over."""
    producer_id, _ = transactions.init()
    for _ in range(LAST_EPOCH):
        producer_id, epoch = transactions.init()
    assert epoch == LAST_EPOCH
    transactions.begin((producer_id, epoch), 0)
    real = transactions.broker.producer_ids.next

    def refuse() -> int:
        raise sqlite3.OperationalError("database or disk is full")

    transactions.broker.producer_ids.next = refuse  # type: ignore[method-assign]
    transactions.pass_ms(TIMEOUT_MS)
    assert transactions.state == "Ongoing"
    assert names(lines) == ["producer.ids.failed"]
    transactions.broker.producer_ids.next = real  # type: ignore[method-assign]
    transactions.pass_ms(RETRY_MS)
    assert transactions.state == "CompleteAbort"
    assert transactions.transaction.producer_id == producer_id + 1


def test_ids_that_nobody_uses_are_forgotten(make_transactions: Make) -> None:
    """After transactional.id.expiration.ms, but not while a transaction is open."""
    transactions = make_transactions("transactional.id.expiration.ms=1000")
    coordinator = transactions.broker.transactions
    transactions.begin(transactions.init(), 0)
    transactions.pass_ms(5_000)
    transactions.loop.run(coordinator.expire_ids())
    assert transactions.state == "Ongoing"
    transactions.pass_ms(TIMEOUT_MS)
    transactions.loop.run(coordinator.expire_ids())
    assert coordinator.all_transactions() == []
    transactions.close()
    again = make_transactions()
    assert again.broker.transactions.all_transactions() == []


def test_a_timer_whose_decision_fails_comes_again(
    transactions: Transactions, monkeypatch: pytest.MonkeyPatch, lines: Lines
) -> None:
    """A bug costs a transaction time, and is told."""
    transactions.begin(transactions.init(), 0)
    real = transactions.driver.shard.decide

    def broken(command: c.Command, now_ms: int) -> Any:
        if isinstance(command, c.TimerFired):
            raise RuntimeError("broken")
        return real(command, now_ms)

    with monkeypatch.context() as patch:
        patch.setattr(transactions.driver.shard, "decide", broken)
        transactions.pass_ms(TIMEOUT_MS)
    assert names(lines) == ["coordinator.timer.failed"]
    assert transactions.state == "Ongoing"
    transactions.pass_ms(10_000)
    assert transactions.state == "CompleteAbort"


# A journal that fails ---------------------------------------------------------------------------


def test_a_decision_that_cannot_be_written(
    transactions: Transactions, monkeypatch: pytest.MonkeyPatch, lines: Lines
) -> None:
    """It was not made, no marker is written, and the producer can ask again."""
    producer = transactions.init()
    transactions.begin(producer, 0)
    log = transactions.driver.partition.log
    with monkeypatch.context() as broken:
        broken.setattr(log, "append", failing_append)
        assert refusal(lambda: transactions.end(producer)) is NOT_COORDINATOR
    assert names(lines) == ["coordinator.shard.failed"]
    assert transactions.state == "Ongoing"
    assert transactions.markers() == []
    assert transactions.end(producer).error is NONE
    assert transactions.state == "CompleteCommit"


def test_a_completion_that_cannot_be_written(
    transactions: Transactions, monkeypatch: pytest.MonkeyPatch, lines: Lines
) -> None:
    """The decision is durable and answered; markers are written again, and then it completes."""
    producer = transactions.init()
    transactions.begin(producer, 0, version=TV_0)
    log = transactions.driver.partition.log
    real = log.append
    appends: list[int] = []

    def append(batch: memoryview, **how: Any) -> Any:
        appends.append(1)
        return real(batch, **how) if len(appends) == 1 else failing_append()

    with monkeypatch.context() as broken:
        broken.setattr(log, "append", append)
        assert transactions.end(producer, version=TV_0).error is NONE
        # Read again once; the completion failed again, and the shard rests for a while.
        assert len(appends) == 3
        assert refusal(transactions.init) is NOT_COORDINATOR
        with pytest.raises(KafkaError):
            transactions.broker.transactions.describe(ID)
        listed = refusal(transactions.broker.transactions.all_transactions)
        assert listed is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    transactions.pass_ms(1_000)
    assert transactions.state == "CompleteCommit"
    assert set(transactions.markers()) == {(COMMIT, *producer)}
    transactions.begin(producer, 0, version=TV_0)
    transactions.pass_ms(5_000)
    assert transactions.state == "Ongoing"
    assert transactions.log().last_stable_offset < transactions.log().log_end_offset


def test_a_journal_that_cannot_be_read(
    make_transactions: Make, monkeypatch: pytest.MonkeyPatch, lines: Lines
) -> None:
    """Everything is refused until the broker is started again; nothing is lost."""
    first = make_transactions()
    producer = first.init()
    first.begin(producer, 0)
    first.close()
    path = first.folder / f"{JOURNAL}-0" / f"{0:020}.log"
    whole = path.read_bytes()
    path.write_bytes(whole[:70] + bytes([whole[70] ^ 1]) + whole[71:])
    broken = make_transactions()
    assert names(lines) == ["coordinator.shard.refused"]
    assert refusal(broken.init) is NOT_COORDINATOR
    broken.pass_ms(2 * TIMEOUT_MS)
    broken.loop.run(broken.broker.transactions.expire_ids())
    assert names(lines) == ["coordinator.shard.refused", "coordinator.chore.failed"]
    broken.close()
    path.write_bytes(whole)
    assert make_transactions().state == "Ongoing"


def test_a_record_that_is_too_large(
    transactions: Transactions, monkeypatch: pytest.MonkeyPatch, lines: Lines
) -> None:
    """Only the request suffers that would have made it: the shard goes on."""
    producer = transactions.init()

    def too_large(*args: Any, **kwargs: Any) -> Any:
        raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE, "too large")

    with monkeypatch.context() as broken:
        broken.setattr(transactions.driver.partition.log, "append", too_large)
        code = refusal(lambda: transactions.begin(producer, 0))
    assert code is ErrorCode.UNKNOWN_SERVER_ERROR
    assert lines == []
    assert transactions.state == "Empty"


def test_a_sync_that_fails(make_transactions: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """A decision that the disk may not have is answered as none, and no marker is written."""
    transactions = make_transactions()
    producer = transactions.init()
    transactions.begin(producer, 0)
    transactions.close()
    transactions = make_transactions("flush.on.acks.all=true")
    answers: list[Any] = []
    outcome = transactions.end(producer)
    assert isinstance(outcome, Deferred)
    outcome.deliver_to(answers.append)
    assert transactions.state == "PrepareCommit" and transactions.markers() == []

    def refuse(*_: Any) -> None:
        raise OSError("the disk is gone")

    with monkeypatch.context() as broken:
        broken.setattr("os.fdatasync", refuse)
        broken.setattr("os.fsync", refuse)
        transactions.loop.finish_jobs()
    assert answers[0].code is NOT_COORDINATOR
    assert transactions.markers() == []
    assert refusal(transactions.init) is NOT_COORDINATOR
    with pytest.raises(DirectoryError):
        transactions.close()


def test_a_task_that_waited_while_the_shard_was_loaded_anew(make_transactions: Make) -> None:
    """Its markers were written by the loaded shard: written late they would end the next one."""
    transactions = make_transactions()
    producer = transactions.init()
    transactions.begin(producer, 0, version=TV_0)
    transactions.close()
    transactions = make_transactions("flush.on.acks.all=true")
    for partition in (0, 1):
        transactions.broker.topics.partition(TOPIC, partition).syncs_acks_all = False
    outcome = transactions.end(producer, version=TV_0)
    assert isinstance(outcome, Deferred)
    transactions.driver.load()
    assert len(transactions.markers()) == 1
    assert transactions.state == "CompleteCommit"
    transactions.submit(
        c.AddPartitionsToTxn(
            transactional_id=ID,
            producer_id=producer[0],
            producer_epoch=producer[1],
            partitions=((TOPIC, 0),),
        )
    )
    transactions.write(producer, 0)
    while transactions.loop.finish_jobs():
        pass
    assert len(transactions.markers()) == 1
    assert transactions.log().last_stable_offset < transactions.log().log_end_offset


def test_stopping(transactions: Transactions) -> None:
    """A broker on its way down decides nothing more, and no timer runs."""
    transactions.begin(transactions.init(), 0)
    transactions.broker.transactions.stop()
    assert refusal(transactions.init) is NOT_COORDINATOR
    assert transactions.loop.armed == []


def test_an_abort_by_time_that_cannot_be_written(
    transactions: Transactions, monkeypatch: pytest.MonkeyPatch, lines: Lines
) -> None:
    """It is told once, and comes again with what was read from the journal."""
    transactions.begin(transactions.init(), 0)
    log = transactions.driver.partition.log
    with monkeypatch.context() as broken:
        broken.setattr(log, "append", failing_append)
        transactions.pass_ms(TIMEOUT_MS)
        assert transactions.state == "Ongoing"
    assert set(names(lines)) == {"coordinator.shard.failed"}
    transactions.pass_ms(1_000)
    assert transactions.state == "CompleteAbort"


def test_markers_that_reach_the_disk_after_the_stop(make_transactions: Make, lines: Lines) -> None:
    """The broker completes nothing any more then; the next start does."""
    transactions = make_transactions()
    producer = transactions.init()
    transactions.begin(producer, 0)
    transactions.broker.topics.partition(TOPIC, 0).syncs_acks_all = True
    outcome = transactions.end(producer)
    assert isinstance(outcome, Deferred)
    transactions.broker.transactions.stop()
    transactions.loop.finish_jobs()
    assert lines == []
    assert transactions.driver.shard.transaction(ID).state.is_decided  # type: ignore[union-attr]
    transactions.close()
    assert make_transactions().state == "CompleteCommit"


def test_a_loaded_shard_that_fails_stops_at_once(
    make_transactions: Make, monkeypatch: pytest.MonkeyPatch, lines: Lines
) -> None:
    """Where a completion cannot be written, the other transactions wait with their markers too."""
    transactions = make_transactions()
    producers = {}
    for name in ("a", "b"):
        answer = transactions.broker.transactions.submit(
            name, c.InitProducerId(transactional_id=name, timeout_ms=TIMEOUT_MS)
        )
        producers[name] = (answer.producer_id, answer.producer_epoch)
    with monkeypatch.context() as broken:
        for number, name in enumerate(producers):
            broken.setattr(transactions.log(number), "append", failing_append)
            fields = {
                "transactional_id": name,
                "producer_id": producers[name][0],
                "producer_epoch": producers[name][1],
            }
            for command in (
                c.AddPartitionsToTxn(partitions=((TOPIC, number),), **fields),
                c.EndTxn(is_commit=True, **fields),
            ):
                transactions.broker.transactions.submit(name, command)
    lines.clear()
    log = transactions.driver.partition.log
    with monkeypatch.context() as broken:
        broken.setattr(log, "append", failing_append)
        transactions.driver._fail("a test")
    written = [len(transactions.markers(number)) for number in (0, 1)]
    assert sorted(written) == [0, 1]
    transactions.pass_ms(1_000)
    states = {one.state.value for one in transactions.broker.transactions.all_transactions()}
    assert states == {"CompleteCommit"}
