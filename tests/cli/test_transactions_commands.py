"""`anabranch transactions`: what open transactions look like, and how they are ended."""

import time
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest
from command_result import Result
from confluent_kafka.admin import NewTopic
from groups_kit import TIMEOUT_S, GroupsKit

from anabranch.cli.doctor import questions
from anabranch.wire.messages.end_txn import END_TXN, EndTxnRequest
from anabranch.wire.messages.init_producer_id import INIT_PRODUCER_ID, InitProducerIdRequest
from anabranch.wire.messages.produce import PRODUCE
from anabranch.wire.messages.sink_batches import PrepareTxn
from anabranch.wire.record_batch import TRANSACTIONAL_FLAG, Record, build_batch
from support.broker_process import BrokerProcess
from support.raw_client import RawClient, produce_request
from support.transactional_clients import Confluent, TransactionError

_names = count(1)
Transactions = Callable[..., Result]


@pytest.fixture(scope="module")
def group_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """One broker for all tests, on which an older producer can let a transaction hang."""
    overrides = {"transaction.partition.verification.enable": "false"}
    broker = BrokerProcess(tmp_path_factory.mktemp("transactions") / "data", overrides)
    broker.start()
    yield broker
    broker.kill()


@pytest.fixture
def transactions(run: Callable[..., Result], group_broker: BrokerProcess) -> Transactions:
    """`anabranch transactions ...` on the broker of this module."""

    def run_transactions(verb: str, *arguments: object, **options: Any) -> Result:
        server = ("--bootstrap-server", group_broker.bootstrap)
        return run("transactions", verb, *arguments, *server, **options)

    return run_transactions


class Open:
    """A producer of librdkafka with a transaction open in two partitions of a topic."""

    def __init__(self, kit: GroupsKit) -> None:
        number = next(_names)
        self.id, self.topic = f"tx-{number}", f"written-{number}"
        kit.topic(self.topic, partitions=2)
        self.producer = Confluent(kit.bootstrap, self.id)
        self.producer.begin()
        for partition in (0, 1):
            self.producer.send(self.topic, b"v", partition=partition)

    @property
    def place(self) -> tuple[str, ...]:
        return ("--topic", self.topic, "--partition", "0")


@pytest.fixture
def opened(kit: GroupsKit) -> Iterator[Open]:
    one = Open(kit)
    yield one
    one.producer.close()


def open_from(transactions: Transactions, opened: Open) -> dict[int, int | None]:
    """Where the open transaction of each partition begins."""
    result = transactions("describe-producers", "--topic", opened.topic, "--format", "json")
    assert result.code == 0, result.err
    return {row["partition"]: row["current_transaction_start_offset"] for row in result.document}


def test_list(transactions: Transactions, opened: Open) -> None:
    """Each id with its state, in Kafka's words; filters leave the others out."""
    result = transactions("list", "--pattern", opened.id)
    assert result.code == 0, result.err
    head, row = result.out.splitlines()
    assert head.split() == ["TRANSACTIONAL-ID", "COORDINATOR", "PRODUCER-ID", "TRANSACTION-STATE"]
    assert row.split()[:2] == [opened.id, "1"] and row.split()[3] == "Ongoing"
    producer_id = int(row.split()[2])
    for filters in (("--state", "ongoing"), ("--producer-id", producer_id), ()):
        rows = transactions("list", *filters, "--format", "json").document
        assert {
            "transactional_id": opened.id,
            "coordinator": 1,
            "producer_id": producer_id,
            "state": "Ongoing",
        } in rows
    for filters in (("--state", "Empty"), ("--producer-id", 99999), ("--longer-than", "1h")):
        result = transactions("list", *filters, "--format", "json")
        assert result.code == 0, result.err
        assert opened.id not in {row["transactional_id"] for row in result.document}
    opened.producer.commit()
    result = transactions("list", "--longer-than", "0s", "--format", "json")
    assert opened.id not in {row["transactional_id"] for row in result.document}


def test_list_refuses(transactions: Transactions, opened: Open) -> None:
    """A broken pattern by the broker, a broken duration or state by us."""
    result = transactions("list", "--pattern", "(")
    assert result.code == 1
    assert "INVALID_REGULAR_EXPRESSION - correct --pattern" in result.err
    assert transactions("list", "--longer-than", "soon").code == 2
    assert transactions("list", "--state", "Dreaming").code == 2


def test_describe(transactions: Transactions, opened: Open) -> None:
    """The producer, the timeout, since when and where; one that is not there is told by itself."""
    result = transactions("describe", opened.id)
    assert result.code == 0, result.err
    head, row = result.out.splitlines()
    assert head.split()[0] == "COORDINATOR-ID" and head.split()[-1] == "TOPIC-PARTITIONS"
    assert row.split()[1] == opened.id
    assert row.split()[4:6] == ["Ongoing", "60000"]
    assert row.split()[-1] == f"{opened.topic}-0,{opened.topic}-1"
    wrong = opened.id + "x"
    result = transactions("describe", opened.id, wrong, "--format", "json")
    assert result.code == 1
    assert (
        f"There is no transactional id '{wrong}' - its coordinator does not know it" in result.err
    )
    assert f"did you mean '{opened.id}'?" in result.err
    (document,) = result.document
    assert document["coordinator"]["id"] == 1
    assert document["partitions"] == [
        {"topic": opened.topic, "partition": 0},
        {"topic": opened.topic, "partition": 1},
    ]
    assert 0 <= document["duration_ms"] < 600_000
    opened.producer.abort()
    (document,) = transactions("describe", opened.id, "--format", "json").document
    assert (document["state"], document["partitions"]) == ("CompleteAbort", [])
    assert document["duration_ms"] is None


def test_a_prepared_transaction(
    transactions: Transactions, opened: Open, group_broker: BrokerProcess
) -> None:
    """It is Ongoing as in Kafka; describe says for which batch it waits, and it can be aborted."""
    (document,) = transactions("describe", opened.id, "--format", "json").document
    assert document["prepared_for"] is None
    request = EndTxnRequest(
        transactional_id=opened.id,
        producer_id=document["producer_id"],
        producer_epoch=document["producer_epoch"],
        committed=False,
        prepare=PrepareTxn(sink_id="shop", batch_id=7),
    )
    with RawClient(group_broker.bootstrap) as client:
        assert client.send(END_TXN, 5, request).error_code == 0
    result = transactions("describe", opened.id)
    head, row = result.out.splitlines()
    assert "PREPARED-FOR" in head and "batch 7 of sink shop" in row
    (document,) = transactions("describe", opened.id, "--format", "json").document
    assert document["state"] == "Ongoing"
    assert (document["prepared_for"]["sink"], document["prepared_for"]["batch"]) == ("shop", 7)
    rows = transactions("list", "--state", "Ongoing", "--format", "json").document
    assert opened.id in {row["transactional_id"] for row in rows}
    assert transactions("abort", opened.id, "--yes").code == 0
    (document,) = transactions("describe", opened.id, "--format", "json").document
    assert (document["state"], document["prepared_for"]) == ("CompleteAbort", None)


def test_describe_producers(transactions: Transactions, opened: Open) -> None:
    """What a partition has open, and where it begins."""
    result = transactions("describe-producers", "--topic", f"{opened.topic}:1")
    assert result.code == 0, result.err
    head, row = result.out.splitlines()
    assert head.split()[-2:] == ["LAST-TIMESTAMP", "CURRENT-TRANSACTION-START-OFFSET"]
    assert row.split()[:2] == [opened.topic, "1"] and row.split()[-1] == "0"
    opened.producer.commit()
    assert open_from(transactions, opened) == {0: None, 1: None}
    assert transactions("describe-producers").code == 2
    result = transactions("describe-producers", "--topic", f"{opened.topic}:9")
    assert result.code == 1
    assert "has no partition 9" in result.err


def test_abort_by_id(transactions: Transactions, opened: Open) -> None:
    """It ends in all partitions, and its producer is fenced; looking before changes nothing."""
    result = transactions("abort", opened.id, "--dry-run")
    assert (result.code, result.err) == (0, "Nothing was aborted (--dry-run).\n")
    assert f"{opened.topic}-0,{opened.topic}-1" in result.out
    result = transactions("abort", opened.id)
    assert result.code == 2
    assert "pass --yes" in result.err
    assert open_from(transactions, opened) == {0: 0, 1: 0}
    result = transactions("abort", opened.id, "--yes")
    assert (result.code, result.err) == (0, "Aborted 1 transaction.\n")
    assert open_from(transactions, opened) == {0: None, 1: None}
    with pytest.raises(TransactionError):
        opened.producer.commit()
    result = transactions("abort", opened.id, "--yes")
    assert result.code == 1
    assert "it has no open transaction (CompleteAbort)" in result.err


def test_abort_in_a_partition(transactions: Transactions, opened: Open) -> None:
    """It ends there alone, and it is said that it does not hang."""
    result = transactions("abort", *opened.place, "--start-offset", "7", "--yes")
    assert result.code == 1
    assert f"No transaction that begins at offset 7 is open in {opened.topic}-0" in result.err
    assert "the open ones begin at 0" in result.err
    arguments = (*opened.place, "--start-offset", "0", "--format", "json")
    result = transactions("abort", *arguments, "--dry-run")
    assert result.document[0]["status"] == "open"
    result = transactions("abort", *arguments, "--yes")
    assert result.code == 0, result.err
    assert f"transactional id '{opened.id}' has it open" in result.err
    (row,) = result.document
    assert (row["status"], row["start_offset"], row["coordinator_epoch"]) == ("aborted", 0, 0)
    assert open_from(transactions, opened) == {0: None, 1: 0}
    result = transactions("abort", *arguments, "--yes")
    assert result.code == 1
    assert "none is open there" in result.err


def test_abort_by_producer(transactions: Transactions, opened: Open, kit: GroupsKit) -> None:
    """All three numbers name a transaction too; an epoch that is too old the broker refuses."""
    successor = Confluent(kit.bootstrap, opened.id)
    successor.begin()
    successor.send(opened.topic, b"w")
    successor.close()
    (row,) = transactions(
        "describe-producers", "--topic", f"{opened.topic}:0", "--format", "json"
    ).document
    assert (row["current_transaction_start_offset"], row["producer_epoch"] > 0) == (2, True)
    producer = (*opened.place, "--producer-id", row["producer_id"], "--coordinator-epoch", "0")
    result = transactions("abort", *producer, "--producer-epoch", "0", "--yes")
    assert result.code == 1
    assert "the broker says INVALID_PRODUCER_EPOCH" in result.err
    epoch = ("--producer-epoch", row["producer_epoch"])
    result = transactions("abort", *producer, *epoch, "--yes", "--format", "json")
    assert result.code == 0, result.err
    assert (result.document[0]["status"], result.document[0]["start_offset"]) == ("aborted", 2)
    assert open_from(transactions, opened)[0] is None
    result = transactions("abort", *producer, *epoch, "--yes")
    assert result.code == 1
    assert f"No transaction of producer {row['producer_id']} is open in" in result.err


def test_abort_has_to_know_what(transactions: Transactions, opened: Open) -> None:
    """One way to name a transaction, and all of it."""
    for arguments, said in (
        ((), "say which: a TRANSACTIONAL-ID, or --topic"),
        ((opened.id, "--partition", "0"), "exclude each other"),
        (("",), "at least one character"),
        (opened.place, "say which transaction of the partition"),
        ((*opened.place, "--producer-id", "5"), "say which transaction of the partition"),
        (
            (*opened.place, "--start-offset", "0", "--producer-id", "5"),
            "say which transaction of the partition",
        ),
    ):
        result = transactions("abort", *arguments, "--yes")
        assert result.code == 2, arguments
        assert said in result.err
    result = transactions("abort", "nobody-knows-me", "--yes")
    assert result.code == 1
    assert "There is no transactional id" in result.err
    result = transactions(
        "abort", "--topic", opened.topic, "--partition", "7", "--start-offset", "0", "--yes"
    )
    assert result.code == 1
    assert "has no partition 7" in result.err


def test_find_hanging(
    transactions: Transactions,
    opened: Open,
    kit: GroupsKit,
    group_broker: BrokerProcess,
    run: Callable[..., Result],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Open in a partition, and of no coordinator: that is found, by doctor too, with a way out."""
    kit.admin.create_topics(
        [NewTopic(f"{opened.topic}.cut", 2, 1, config={"branch.source.topic": opened.topic})]
    )[f"{opened.topic}.cut"].result(TIMEOUT_S)
    arguments = ("find-hanging", "--max-transaction-timeout", "0ms", "--format", "json")
    result = transactions(*arguments)
    assert (result.code, result.document) == (0, []), result.err
    hanging = _hang(group_broker.bootstrap, opened.topic)
    result = transactions(*arguments, "--topic", opened.topic)
    assert result.code == 0, result.err
    (row,) = result.document
    assert (row["topic"], row["partition"], row["producer_id"]) == (opened.topic, 1, hanging)
    way_out = f"abort --topic {opened.topic} --partition 1 --start-offset {row['start_offset']}"
    assert way_out in result.err
    with monkeypatch.context() as patched:
        patched.setattr(questions, "_TRANSACTION_MS", 0)
        server = ("--bootstrap-server", group_broker.bootstrap)
        seen = run("doctor", "--only", "broker", "--watch", "0", "--format", "json", *server)
    assert seen.code == 1
    (found,) = [one for one in seen.document if one["check"] == "transactions"]
    assert (found["status"], found["subject"]) == ("problem", f"{opened.topic}-1")
    assert way_out in found["next_step"]
    result = transactions("find-hanging", "--topic", opened.topic)
    assert len(result.out.splitlines()) == 1, "it was written to a moment ago"
    assert transactions(*way_out.split(), "--yes").code == 0
    assert transactions(*arguments).document == []


def _hang(bootstrap: str, topic: str) -> int:
    """Let a transaction hang in partition 1, which its coordinator was never told of."""
    name = f"hanging-{next(_names)}"
    with RawClient(bootstrap) as client:
        asked = InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=60_000)
        producer = client.send(INIT_PRODUCER_ID, 4, asked)
        assert producer.error_code == 0
        batch = build_batch(
            [Record(0, int(time.time() * 1000) - 1000, None, b"v")],
            base_offset=0,
            partition_leader_epoch=-1,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            base_sequence=0,
            attributes=TRANSACTIONAL_FLAG,
        )
        request = produce_request(topic, 1, batch)
        request.transactional_id = name
        answer = client.send(PRODUCE, 9, request)
    assert answer.responses[0].partition_responses[0].error_code == 0
    producer_id: int = producer.producer_id
    return producer_id
