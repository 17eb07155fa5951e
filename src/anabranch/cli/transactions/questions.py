"""What is asked about transactions, and the two ways to end one.

librdkafka's admin client has none of this, so brokers are asked by our own codecs: those that
coordinate transactions for what a transactional id is doing, the leaders of partitions for what
their logs have open.
"""

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from anabranch.cli.connection import Troubles, client_config, open_admin
from anabranch.cli.errors import CliError
from anabranch.cli.groups.consumer_details import can_ask
from anabranch.cli.options import Connection
from anabranch.cli.raw_client import RawClient
from anabranch.model.errors import ErrorCode
from anabranch.wire.api import Api
from anabranch.wire.messages.describe_producers import (
    DESCRIBE_PRODUCERS,
    DescribeProducersRequest,
    TopicRequest,
)
from anabranch.wire.messages.describe_transactions import (
    DESCRIBE_TRANSACTIONS,
    DescribeTransactionsRequest,
)
from anabranch.wire.messages.find_coordinator import (
    FIND_COORDINATOR,
    KEY_TYPE_TRANSACTION,
    FindCoordinatorRequest,
)
from anabranch.wire.messages.init_producer_id import INIT_PRODUCER_ID, InitProducerIdRequest
from anabranch.wire.messages.list_transactions import LIST_TRANSACTIONS, ListTransactionsRequest
from anabranch.wire.messages.sink_batches import PreparedTxn, SinksQuestion
from anabranch.wire.messages.write_txn_markers import (
    WRITE_TXN_MARKERS,
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)

if TYPE_CHECKING:
    from confluent_kafka.admin import ClusterMetadata

TopicPartitionKey = tuple[str, int]

_FIRST_WITH_MANY_KEYS: Final = 4
_FIRST_WITH_DURATION: Final = 1
_FIRST_WITH_PATTERN: Final = 2
_PAUSE_S: Final = 0.05
# What two-phase commit has in place of a timeout; nobody else may ask for so long a time.
_NO_TIMEOUT_MS: Final = (1 << 31) - 1
_FENCING_TIMEOUT_MS: Final = 60_000
# What passes by itself: a coordinator that starts, a transaction whose markers are being written.
_PASSING: Final = frozenset(
    {
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.CONCURRENT_TRANSACTIONS,
    }
)
_NEXT_STEPS: Final = {
    ErrorCode.TRANSACTIONAL_ID_NOT_FOUND: "see `anabranch transactions list`",
    ErrorCode.INVALID_REGULAR_EXPRESSION: "correct --pattern, which is an RE2 expression",
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "see `anabranch topics list`",
    ErrorCode.INVALID_TOPIC_EXCEPTION: "name the source of the branch topic",
    ErrorCode.INVALID_PRODUCER_EPOCH: "see `anabranch transactions describe-producers`",
    ErrorCode.TRANSACTION_COORDINATOR_FENCED: "see `anabranch transactions describe-producers`",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "use credentials that may do this (--command-config)",
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "use credentials that may do this"
    " (--command-config)",
}
_TRY_AGAIN: Final = "try again, the broker may be starting"
_NEXT_STEP_ELSE: Final = "look at the broker's log"


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A broker of the cluster."""

    id: int
    host: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Who can be asked."""

    connection: Connection
    metadata: "ClusterMetadata"
    nodes: dict[int, Node]


@dataclass(frozen=True, slots=True, kw_only=True)
class Filters:
    """Which transactions are wanted; what is empty lets everything pass."""

    states: tuple[str, ...] = ()
    producer_ids: tuple[int, ...] = ()
    duration_ms: int | None = None
    pattern: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """One line of a list of transactional ids."""

    transactional_id: str
    coordinator: int
    producer_id: int
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """The batch of a sink that an open transaction waits for."""

    sink: str
    batch: int
    since_ms: int

    def __str__(self) -> str:
        return f"batch {self.batch} of sink {self.sink}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """A transactional id as its coordinator describes it."""

    transactional_id: str
    coordinator: Node
    producer_id: int
    producer_epoch: int
    state: str
    timeout_ms: int
    start_time_ms: int | None  # None: no transaction is under way
    partitions: tuple[TopicPartitionKey, ...]
    prepared_for: Prepared | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerRow:
    """A producer that a partition remembers; None is what it does not have."""

    topic: str
    partition: int
    producer_id: int
    producer_epoch: int
    latest_coordinator_epoch: int | None
    last_sequence: int | None
    last_timestamp: int | None
    current_transaction_start_offset: int | None

    @property
    def place(self) -> TopicPartitionKey:
        return self.topic, self.partition


@dataclass(slots=True)
class Found:
    """What was found, and what could not be looked at."""

    rows: list[Any] = field(default_factory=list)
    failures: list[CliError] = field(default_factory=list)


def open_cluster(connection: Connection) -> Cluster:
    """The brokers of a cluster that has answered; CliError when they cannot be asked."""
    if not can_ask(connection):
        protocol = client_config(connection, Troubles())["security.protocol"]
        raise CliError(
            "Transactions cannot be looked at",
            f"the broker cannot be asked for them by {protocol}",
            "use a listener without TLS and SASL",
        )
    _, metadata = open_admin(connection)
    brokers: Iterable[Any] = metadata.brokers.values()
    nodes = {one.id: Node(id=one.id, host=one.host, port=one.port) for one in brokers}
    return Cluster(connection=connection, metadata=metadata, nodes=nodes)


def refused(what: str, code: int) -> CliError:
    """The failure of `what` because a broker answered with an error."""
    error = ErrorCode(code)
    otherwise = _TRY_AGAIN if error in _PASSING else _NEXT_STEP_ELSE
    return CliError(what, f"the broker says {error.name}", _NEXT_STEPS.get(error, otherwise))


def _send(cluster: Cluster, node: Node, api: Api, request: Any, least_version: int = 0) -> Any:
    with RawClient(node.host, node.port, cluster.connection.timeout_s) as client:
        answer = client.send(api, request, least_version=least_version)
    if answer is None:
        raise CliError(
            f"The broker at {node.host}:{node.port} cannot be asked for transactions",
            f"it does not serve {api.name} in version {max(least_version, api.versions.first)}",
            "use a newer broker",
        )
    return answer


def deadline_s(cluster: Cluster) -> float:
    return time.monotonic() + cluster.connection.timeout_s


def may_try_again(code: int, until_s: float) -> bool:
    """Whether an error may have passed after a pause, which is over when this returns."""
    if code not in _PASSING or time.monotonic() + _PAUSE_S > until_s:
        return False
    time.sleep(_PAUSE_S)
    return True


# Transactional ids ----------------------------------------------------------------------------


def list_transactions(cluster: Cluster, filters: Filters) -> Found:
    """The transactional ids of all brokers, by name."""
    request = ListTransactionsRequest(
        state_filters=list(filters.states),
        producer_id_filters=list(filters.producer_ids),
        duration_filter=-1 if filters.duration_ms is None else filters.duration_ms,
        transactional_id_pattern=filters.pattern,
    )
    least_version = 0
    if filters.duration_ms is not None:
        least_version = _FIRST_WITH_DURATION
    if filters.pattern is not None:
        least_version = _FIRST_WITH_PATTERN
    found = Found()
    for node in cluster.nodes.values():
        try:
            answer = _send(cluster, node, LIST_TRANSACTIONS, request, least_version)
        except CliError as error:
            found.failures.append(error)
            continue
        if answer.error_code:
            what = f"The transactions of broker {node.id} cannot be listed"
            found.failures.append(refused(what, answer.error_code))
        found.rows += [
            Listing(
                transactional_id=one.transactional_id,
                coordinator=node.id,
                producer_id=one.producer_id,
                state=one.transaction_state,
            )
            for one in answer.transaction_states
        ]
    found.rows.sort(key=lambda one: one.transactional_id)
    return found


def describe_transactions(cluster: Cluster, transactional_ids: Iterable[str]) -> Found:
    """What each transactional id is doing, in the order given."""
    found = Found()
    for transactional_id in transactional_ids:
        try:
            found.rows.append(describe_transaction(cluster, transactional_id))
        except CliError as error:
            found.failures.append(error)
    return found


def describe_transaction(cluster: Cluster, transactional_id: str) -> Described:
    """What one transactional id is doing; CliError when that cannot be known."""
    node = _coordinator(cluster, transactional_id)
    # A broker that knows nothing of sinks passes over the question.
    request = DescribeTransactionsRequest(
        transactional_ids=[transactional_id], sinks=SinksQuestion()
    )
    until_s = deadline_s(cluster)
    while True:
        (state,) = _send(cluster, node, DESCRIBE_TRANSACTIONS, request).transaction_states
        if not may_try_again(state.error_code, until_s):
            break
    if state.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
        raise _unknown(cluster, transactional_id)
    if state.error_code:
        what = f"Transactional id {transactional_id!r} cannot be described"
        raise refused(what, state.error_code)
    started_ms = state.transaction_start_time_ms
    return Described(
        transactional_id=transactional_id,
        coordinator=node,
        producer_id=state.producer_id,
        producer_epoch=state.producer_epoch,
        state=state.transaction_state,
        timeout_ms=state.transaction_timeout_ms,
        start_time_ms=started_ms if started_ms >= 0 else None,
        partitions=tuple(
            sorted((topic.topic, number) for topic in state.topics for number in topic.partitions)
        ),
        prepared_for=_prepared(state.prepared),
    )


def _prepared(told: PreparedTxn | None) -> Prepared | None:
    if told is None:
        return None
    return Prepared(sink=told.sink_id, batch=told.batch_id, since_ms=told.prepared_time_ms)


def _coordinator(cluster: Cluster, transactional_id: str) -> Node:
    request = FindCoordinatorRequest(
        key_type=KEY_TYPE_TRANSACTION, coordinator_keys=[transactional_id]
    )
    node = next(iter(cluster.nodes.values()))
    until_s = deadline_s(cluster)
    while True:
        answer = _send(cluster, node, FIND_COORDINATOR, request, _FIRST_WITH_MANY_KEYS)
        (found,) = answer.coordinators
        if not may_try_again(found.error_code, until_s):
            break
    if found.error_code:
        what = f"Transactional id {transactional_id!r} has no coordinator"
        raise refused(what, found.error_code)
    return Node(id=found.node_id, host=found.host, port=found.port)


def _unknown(cluster: Cluster, transactional_id: str) -> CliError:
    from difflib import get_close_matches

    known = [one.transactional_id for one in list_transactions(cluster, Filters()).rows]
    near = get_close_matches(transactional_id, known, n=1)
    return CliError(
        f"There is no transactional id {transactional_id!r}",
        "its coordinator does not know it",
        f"did you mean {near[0]!r}?" if near else "see `anabranch transactions list`",
    )


def fence(cluster: Cluster, described: Described) -> int:
    """Start a producer in the place of the one that there is, whose transaction is aborted so.

    The error of it: CONCURRENT_TRANSACTIONS when there was a transaction to be aborted.
    """
    is_endless = described.timeout_ms == _NO_TIMEOUT_MS
    request = InitProducerIdRequest(
        transactional_id=described.transactional_id,
        transaction_timeout_ms=_FENCING_TIMEOUT_MS if is_endless else described.timeout_ms,
        producer_id=-1,
        producer_epoch=-1,
    )
    code: int = _send(cluster, described.coordinator, INIT_PRODUCER_ID, request).error_code
    return code


# Partitions -----------------------------------------------------------------------------------


def describe_producers(cluster: Cluster, places: Iterable[TopicPartitionKey]) -> Found:
    """The producers that partitions remember; those that are there must be asked for only."""
    found = Found()
    by_leader: dict[int, dict[str, list[int]]] = {}
    for topic, partition in sorted(places):
        leader = cluster.metadata.topics[topic].partitions[partition].leader
        if leader in cluster.nodes:
            by_leader.setdefault(leader, {}).setdefault(topic, []).append(partition)
        else:
            found.failures.append(_without_leader(topic, partition))
    for leader, topics in by_leader.items():
        request = DescribeProducersRequest(
            topics=[TopicRequest(name=name, partition_indexes=ids) for name, ids in topics.items()]
        )
        try:
            answer = _send(cluster, cluster.nodes[leader], DESCRIBE_PRODUCERS, request)
        except CliError as error:
            found.failures.append(error)
            continue
        for topic in answer.topics:
            for partition in topic.partitions:
                if partition.error_code:
                    what = f"The producers of {topic.name}-{partition.partition_index} are unknown"
                    found.failures.append(refused(what, partition.error_code))
                found.rows += [
                    _producer(topic.name, partition.partition_index, one)
                    for one in partition.active_producers
                ]
    found.rows.sort(key=lambda row: (row.topic, row.partition, row.producer_id))
    return found


def _without_leader(topic: str, partition: int) -> CliError:
    return CliError(
        f"Partition {topic}-{partition} cannot be asked",
        "it has no leader",
        "start the broker that has it",
    )


def _producer(topic: str, partition: int, state: Any) -> ProducerRow:
    def known(number: int) -> int | None:
        return number if number >= 0 else None

    return ProducerRow(
        topic=topic,
        partition=partition,
        producer_id=state.producer_id,
        producer_epoch=state.producer_epoch,
        latest_coordinator_epoch=known(state.coordinator_epoch),
        last_sequence=known(state.last_sequence),
        last_timestamp=known(state.last_timestamp),
        current_transaction_start_offset=known(state.current_txn_start_offset),
    )


def write_abort_marker(
    cluster: Cluster,
    place: TopicPartitionKey,
    producer: tuple[int, int],
    coordinator_epoch: int,
) -> None:
    """Abort in one partition what a producer has open there; CliError when that failed."""
    topic, partition = place
    leader = cluster.metadata.topics[topic].partitions[partition].leader
    if leader not in cluster.nodes:
        raise _without_leader(topic, partition)
    marker = WritableTxnMarker(
        producer_id=producer[0],
        producer_epoch=producer[1],
        transaction_result=False,
        topics=[WritableTxnMarkerTopic(name=topic, partition_indexes=[partition])],
        coordinator_epoch=coordinator_epoch,
    )
    request = WriteTxnMarkersRequest(markers=[marker])
    answer = _send(cluster, cluster.nodes[leader], WRITE_TXN_MARKERS, request)
    code = answer.markers[0].topics[0].partitions[0].error_code
    if code:
        raise refused(f"The transaction in {topic}-{partition} was not aborted", code)
