"""What kafka-transactions must be able to see of transactions, and to end."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from group_tool_checks import rows
from tool_checks import Target
from tools import CLASSES, start_program

TRANSACTIONS = "kafka-transactions"
LISTED = "TransactionalId Coordinator ProducerId TransactionState"
DESCRIBED = (
    "CoordinatorId TransactionalId ProducerId ProducerEpoch TransactionState TransactionTimeoutMs"
    " CurrentTransactionStartTimeMs TransactionDurationMs TopicPartitions"
)
PRODUCERS = (
    "ProducerId ProducerEpoch LatestCoordinatorEpoch LastSequence LastTimestamp"
    " CurrentTransactionStartOffset"
)
HANGING = (
    "Topic Partition ProducerId ProducerEpoch CoordinatorEpoch StartOffset LastTimestamp"
    " Duration(min)"
)
TIMEOUT_MS = "600000"
PATIENCE_SECONDS = 60


@dataclass(frozen=True, slots=True)
class Left:
    """A transaction whose producer is gone; it has written to all partitions of its topic."""

    transactional_id: str
    topic: str

    @property
    def place(self) -> tuple[str, ...]:
        return ("--topic", self.topic, "--partition", "0")


@contextlib.contextmanager
def left_open(target: Target, purpose: str) -> Iterator[Left]:
    """Let kafka-producer-perf-test begin a transaction, and kill it before the end."""
    left = Left(f"tools-{purpose}-{time.time_ns() % 10**9}", target.new_topic(purpose))
    with start_program(
        target.classpath,
        CLASSES["kafka-producer-perf-test"],
        *("--bootstrap-server", target.bootstrap_servers, "--topic", left.topic),
        *("--num-records", "1000000", "--record-size", "10", "--throughput", "10"),
        *("--transactional-id", left.transactional_id, "--transaction-duration-ms", TIMEOUT_MS),
        *("--command-property", f"transaction.timeout.ms={TIMEOUT_MS}"),
    ):
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not producers(target, left):
            assert time.monotonic() < deadline, "the producer did not begin"
    yield left


def producers(target: Target, left: Left) -> list[list[str]]:
    """Who has written to the partition."""
    output = target.run(TRANSACTIONS, "describe-producers", *left.place)
    return rows(output, *PRODUCERS.split())


def sees_an_open_one(target: Target) -> None:
    """list with its filters, describe, describe-producers and find-hanging."""
    with left_open(target, "open") as left:
        ((producer_id, epoch, coordinator_epoch, *_, start),) = producers(target, left)
        assert (coordinator_epoch, start) == ("-1", "0")
        pattern = ("--transactional-id-pattern", left.transactional_id[:-1] + ".")
        output = target.run(TRANSACTIONS, "list", *pattern)
        ((transactional_id, node, *rest),) = rows(output, *LISTED.split())
        assert (transactional_id, rest) == (left.transactional_id, [producer_id, "Ongoing"])
        output = target.run(TRANSACTIONS, "list", "--duration-filter", "3600000", *pattern)
        assert not rows(output, *LISTED.split()), output
        describe = ("describe", "--transactional-id", left.transactional_id)
        output = target.run(TRANSACTIONS, *describe)
        ((*found, _, _, places),) = rows(output, *DESCRIBED.split())
        expected = [node, left.transactional_id, producer_id, epoch, "Ongoing", TIMEOUT_MS]
        assert (found, places) == (expected, f"{left.topic}-0"), output
        find = ("find-hanging", "--topic", left.topic, "--max-transaction-timeout", "0")
        output = target.run(TRANSACTIONS, *find)
        assert not rows(output, *HANGING.split()), output
        output = target.run(TRANSACTIONS, "describe", "--transactional-id", "nobody", code=1)
        assert "the ID could not be found" in output, output


def aborts_in_a_partition(target: Target) -> None:
    """abort by the start offset, and by the producer."""
    with left_open(target, "abort") as left:
        ((producer_id, epoch, *_, start),) = producers(target, left)
        output = target.run(TRANSACTIONS, "abort", *left.place, "--start-offset", "7", code=1)
        assert "Could not find any open transactions starting at offset 7" in output, output
        target.run(TRANSACTIONS, "abort", *left.place, "--start-offset", start)
        ((*_, coordinator_epoch, _, _, open_from),) = producers(target, left)
        assert open_from == "None"
        numbers = ("--producer-id", producer_id, "--coordinator-epoch", coordinator_epoch)
        newer = ("--producer-epoch", str(int(epoch) + 1))
        target.run(TRANSACTIONS, "abort", *left.place, *numbers, *newer)
        output = target.run(
            TRANSACTIONS, "abort", *left.place, *numbers, "--producer-epoch", epoch, code=1
        )
        assert "invalid producer epoch" in output, output


def terminates(target: Target) -> None:
    """forceTerminateTransaction ends it in all its partitions."""
    with left_open(target, "terminate") as left:
        terminate = ("forceTerminateTransaction", "--transactionalId", left.transactional_id)
        target.run(TRANSACTIONS, *terminate)
        ((*_, open_from),) = producers(target, left)
        assert open_from == "None"
        pattern = ("--transactional-id-pattern", left.transactional_id)
        ((*_, state),) = rows(target.run(TRANSACTIONS, "list", *pattern), *LISTED.split())
        assert state in ("CompleteAbort", "Empty"), state


TRANSACTION_TOOL_CHECKS: dict[str, Callable[[Target], None]] = {
    "kafka-transactions list, describe, find-hanging": sees_an_open_one,
    "kafka-transactions abort": aborts_in_a_partition,
    "kafka-transactions forceTerminateTransaction": terminates,
}
