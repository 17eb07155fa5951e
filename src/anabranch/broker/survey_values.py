"""What a survey says of groups and topics: values that nobody changes."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLag:
    """One partition of a group: all that it has committed on, or is assigned."""

    topic: str
    partition: int
    # None: nothing was committed, and lag counts from the log's start.
    committed_offset: int | None
    leader_epoch: int
    metadata: str
    committed_ms: int | None
    # None: there is no such partition any more.
    log_start_offset: int | None
    log_end_offset: int | None
    # By `model.lag`. Where a group reads by key range it is the records that it has yet to do, as
    # far as that is known without reading them, and otherwise no less than these.
    lag_records: int | None
    # How long ago the first record was written that is not committed; 0 without lag.
    lag_ms: int | None
    # Who owns it; None when nobody does, or several.
    member_id: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSummary:
    """One group with all its partitions, by topic and number."""

    group_id: str
    # "Classic" or "Consumer".
    type: str
    protocol_type: str
    state: str
    # The group epoch, or the generation of a classic group.
    epoch: int
    members: int
    # Whether it shares partitions by key range, or commits record by record.
    is_sharing: bool
    # All that it reads: of its partitions, and those that members are subscribed to.
    topics: tuple[str, ...]
    partitions: tuple[PartitionLag, ...]
    # The sum of what is known, None when nothing is; the longest.
    lag_records: int | None
    lag_ms: int | None
    # Over the last surveys, None before there are two.
    consume_per_s: float | None
    produce_per_s: float | None
    # How the lag changes.
    trend_per_s: float | None
    # How long it takes to have no lag if all goes on like this; None: for ever, or unknown.
    drain_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSummary:
    """One topic. A branch topic shows its source's records and takes no room of its own."""

    name: str
    partitions: int
    is_internal: bool
    # Of a branch topic: the topic whose records it shows.
    source: str | None
    records: int
    size_bytes: int
    produce_per_s: float | None
    # The groups that read it.
    groups: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """Everything, sorted by name."""

    taken_ms: int
    groups: Mapping[str, GroupSummary]
    topics: Mapping[str, TopicSummary]


class LagSample(NamedTuple):
    """One point of a group's history."""

    at_ms: int
    lag_records: int | None
    consume_per_s: float | None
    produce_per_s: float | None
