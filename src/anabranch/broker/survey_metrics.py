"""Metrics of topics, partitions and groups, from a survey.

Values are made one after the other as they are written, so that ten thousand of them can be made in
slices; they are of one survey, which nobody changes, but ends of logs are read as they are by then.
"""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from anabranch.broker.survey_values import GroupSummary, Survey
from anabranch.broker.topics import Topic
from anabranch.log.partition_log import PartitionLog
from anabranch.observe import broker_metrics as b
from anabranch.observe import exporter_metrics as e
from anabranch.observe.metrics import Labels, Metric, Stream, Value, Values

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker

Pairs = Iterator[tuple[Labels, Value]]


def collect(broker: "Broker", survey: Survey) -> Iterator[tuple[Metric, Values | Stream]]:
    """All metrics that a survey has something for."""
    yield from _topics(broker, survey)
    groups = survey.groups.values()
    yield e.GROUP_MEMBERS, {(group.group_id,): group.members for group in groups}
    yield e.GROUP_CURRENT_OFFSET, Stream(_current_offsets(groups))
    yield e.GROUP_CURRENT_OFFSET_SUM, Stream(_current_offset_sums(groups))
    yield e.GROUP_LAG, Stream(_lags(groups))
    yield e.GROUP_LAG_SUM, Stream(_lag_sums(groups))
    yield (
        b.GROUP_LAG_RECORDS,
        {(g.group_id,): g.lag_records for g in groups if g.lag_records is not None},
    )
    yield (
        b.GROUP_LAG_SECONDS,
        {(g.group_id,): g.lag_ms / 1000 for g in groups if g.lag_ms is not None},
    )
    yield b.GROUP_TOPIC_LAG_SECONDS, Stream(_topic_lag_seconds(groups))
    yield b.GROUP_OLDEST_UNACKED, Stream(_oldest_unacked(groups))


# Topics -------------------------------------------------------------------------------------------


def _topics(broker: "Broker", survey: Survey) -> Iterator[tuple[Metric, Values | Stream]]:
    node_id = broker.node_id
    yield e.BROKERS, {(): 1}
    yield e.BROKER_INFO, {(str(node_id), address): 1 for address in _addresses(broker)}
    topics = [topic for topic in broker.topics if topic.name in survey.topics]
    yield e.TOPIC_PARTITIONS, {(topic.name,): len(topic.partitions) for topic in topics}
    yield e.CURRENT_OFFSET, Stream((k, log.high_watermark) for k, log in _logs(topics))
    yield e.OLDEST_OFFSET, Stream((k, log.log_start_offset) for k, log in _logs(topics))
    yield e.LEADER, Stream((k, node_id) for k, _ in _logs(topics))
    yield e.REPLICAS, Stream((k, 1) for k, _ in _logs(topics))
    yield e.IN_SYNC_REPLICAS, Stream((k, int(log.failed is None)) for k, log in _logs(topics))
    yield e.LEADER_IS_PREFERRED, Stream((k, 1) for k, _ in _logs(topics))
    yield e.UNDER_REPLICATED, Stream((k, int(log.failed is not None)) for k, log in _logs(topics))
    own = [topic for topic in topics if topic.source is None]
    yield (
        b.MESSAGES_IN,
        Stream(((t.name,), sum(p.log.high_watermark for p in t.partitions)) for t in own),
    )
    yield b.BYTES_IN, Stream(((t.name,), sum(p.bytes_in for p in t.partitions)) for t in own)
    yield b.LOG_SIZE, Stream(((t.name,), survey.topics[t.name].size_bytes) for t in own)
    yield b.LOGS_FAILED, {(): sum(log.failed is not None for _, log in _logs(own))}


def _addresses(broker: "Broker") -> list[str]:
    return sorted({f"{host}:{port}" for host, port in broker.endpoints.values()})


def _logs(topics: Iterable[Topic]) -> Iterator[tuple[Labels, PartitionLog]]:
    for topic in topics:
        name = topic.name
        for number, partition in enumerate(topic.partitions):
            yield (name, str(number)), partition.log


# Groups -------------------------------------------------------------------------------------------


def _current_offsets(groups: Iterable[GroupSummary]) -> Pairs:
    for group in groups:
        for one in group.partitions:
            if one.committed_offset is not None:
                yield (group.group_id, one.topic, str(one.partition)), one.committed_offset


def _current_offset_sums(groups: Iterable[GroupSummary]) -> Pairs:
    for group in groups:
        sums: dict[str, int] = {}
        for one in group.partitions:
            if one.committed_offset is not None:
                sums[one.topic] = sums.get(one.topic, 0) + one.committed_offset
        for topic, total in sums.items():
            yield (group.group_id, topic), total


def _lags(groups: Iterable[GroupSummary]) -> Pairs:
    for group in groups:
        for one in group.partitions:
            if one.lag_records is not None:
                yield (group.group_id, one.topic, str(one.partition)), one.lag_records


def _lag_sums(groups: Iterable[GroupSummary]) -> Pairs:
    for group in groups:
        sums: dict[str, int] = {}
        for one in group.partitions:
            if one.lag_records is not None:
                sums[one.topic] = sums.get(one.topic, 0) + one.lag_records
        for topic, total in sums.items():
            yield (group.group_id, topic), total


def _topic_lag_seconds(groups: Iterable[GroupSummary]) -> Pairs:
    for group in groups:
        longest_ms: dict[str, int] = {}
        for one in group.partitions:
            if one.lag_ms is not None:
                longest_ms[one.topic] = max(longest_ms.get(one.topic, 0), one.lag_ms)
        for topic, lag_ms in longest_ms.items():
            yield (group.group_id, topic), lag_ms / 1000


def _oldest_unacked(groups: Iterable[GroupSummary]) -> Pairs:
    for group in groups:
        for one in group.partitions if group.is_sharing else ():
            if one.lag_ms is not None:
                yield (group.group_id, one.topic, str(one.partition)), one.lag_ms / 1000
