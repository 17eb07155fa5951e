"""What DescribeTransactions and ListTransactions say of a transactional id."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from anabranch.coordinator.group.topic_regex import match_topics, why_invalid
from anabranch.coordinator.transaction.state import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_TIMESTAMP,
    Preparation,
    TopicPartition,
    Transaction,
    TransactionState,
)
from anabranch.model.errors import ErrorCode, KafkaError

_STATE_NAMES = frozenset(state.value for state in TransactionState)
NO_DURATION = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedTransaction:
    error: ErrorCode = ErrorCode.NONE
    transactional_id: str
    state: str = ""
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH
    timeout_ms: int = 0
    start_timestamp_ms: int = NO_TIMESTAMP
    # In order; those of a decided transaction whose marker is still missing.
    partitions: tuple[TopicPartition, ...] = ()
    # Of a prepared one, whose state is Ongoing.
    preparation: Preparation | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedTransaction:
    transactional_id: str
    producer_id: int
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ListFilters:
    """Which transactions are wanted; what is empty lets everything pass."""

    states: Collection[str] = ()
    producer_ids: Collection[int] = ()
    # Those that began longer ago than this, from version 1 on (KIP-994).
    duration_ms: int = NO_DURATION
    # An RE2 expression that the whole id matches, from version 2 on (KIP-1152).
    transactional_id_pattern: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ListAnswer:
    unknown_states: tuple[str, ...]
    transactions: tuple[ListedTransaction, ...]


def describe_transaction(
    transactional_id: str,
    transaction: Transaction | None,
    missing: frozenset[TopicPartition] | None = None,
) -> DescribedTransaction:
    """One transactional id; `missing` are the partitions without a marker, where that is known."""
    if not transactional_id:
        error = ErrorCode.INVALID_REQUEST
        return DescribedTransaction(error=error, transactional_id=transactional_id)
    if transaction is None:
        error = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        return DescribedTransaction(error=error, transactional_id=transactional_id)
    partitions = transaction.partitions if missing is None else missing
    return DescribedTransaction(
        transactional_id=transactional_id,
        state=transaction.state.value,
        producer_id=transaction.producer_id,
        producer_epoch=transaction.producer_epoch,
        timeout_ms=transaction.timeout_ms,
        start_timestamp_ms=transaction.start_timestamp_ms,
        partitions=tuple(sorted(partitions)),
        preparation=transaction.preparation,
    )


def list_transactions(
    transactions: Iterable[Transaction], filters: ListFilters, now_ms: int
) -> ListAnswer:
    """The transactions that pass all filters, by id; INVALID_REGULAR_EXPRESSION is raised.

    A filter of states is names as describe shows them. One that means nothing matches nothing, and
    is told to whoever asked.
    """
    pattern = filters.transactional_id_pattern
    passed = [one for one in transactions if _passes(one, filters, now_ms)]
    if pattern:
        _check_pattern(pattern)
        names = match_topics([pattern], [one.transactional_id for one in passed])[pattern]
        passed = [one for one in passed if one.transactional_id in names]
    return ListAnswer(
        unknown_states=tuple(sorted(set(filters.states) - _STATE_NAMES)),
        transactions=tuple(
            ListedTransaction(
                transactional_id=one.transactional_id,
                producer_id=one.producer_id,
                state=one.state.value,
            )
            for one in sorted(passed, key=lambda one: one.transactional_id)
        ),
    )


def _check_pattern(pattern: str) -> None:
    reason = why_invalid(pattern)
    if reason is not None:
        raise KafkaError(
            ErrorCode.INVALID_REGULAR_EXPRESSION,
            f"The pattern of transactional ids {pattern!r} is no RE2 expression: {reason}.",
        )


def _passes(transaction: Transaction, filters: ListFilters, now_ms: int) -> bool:
    if filters.producer_ids and transaction.producer_id not in filters.producer_ids:
        return False
    if filters.states and transaction.state.value not in filters.states:
        return False
    # An id that has not begun a transaction counts as one that began long ago, as in Kafka.
    age_ms = now_ms - transaction.start_timestamp_ms
    return filters.duration_ms < 0 or age_ms > filters.duration_ms
