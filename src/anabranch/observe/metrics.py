"""What is measured: what a metric is, and the table of those about groups and transactions.

Whoever counts keeps plain numbers (`Histogram` here, counters where they are counted); names,
labels and sentences are in the table, which the reference page is made from. `text_format` writes
the text.

Labels are bounded: no metric has a member or a client in its labels, and `metrics.granularity` and
`metrics.series.max` bound how much there is of groups, topics and partitions. Here are the metrics
of groups and transactions; those of the broker itself are in `broker_metrics`, those that have the
names of kafka_exporter in `exporter_metrics`, and all of them in `table`.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum


class Kind(Enum):
    """The words are those of the text format."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    """One line of the table; a counter is named with its `_total`."""

    name: str
    kind: Kind
    documentation: str
    labels: tuple[str, ...] = ()


BUILD_INFO = Metric("anabranch_build_info", Kind.GAUGE, "1, with the version.", ("version",))
GROUPS = Metric(
    "anabranch_groups",
    Kind.GAUGE,
    "Groups by the protocol of their members and by state.",
    ("protocol", "state"),
)
GROUP_MEMBERS = Metric(
    "anabranch_group_members",
    Kind.GAUGE,
    "Members by the protocol that they speak; classic ones may be in consumer groups.",
    ("protocol",),
)
GROUP_HEARTBEATS = Metric(
    "anabranch_group_heartbeats_total",
    Kind.COUNTER,
    "Heartbeats that were answered, refusals among them.",
    ("protocol",),
)
GROUP_REBALANCES = Metric(
    "anabranch_group_rebalances_total",
    Kind.COUNTER,
    "Rebalances that began: group epochs of consumer groups, generations of classic ones.",
    ("protocol", "cause"),
)
GROUP_REBALANCE_DURATION = Metric(
    "anabranch_group_rebalance_duration_seconds",
    Kind.HISTOGRAM,
    "From the first change of a settled group until it is settled again: every member of a "
    "consumer group has caught up, or a classic group is Stable.",
    ("protocol",),
)
GROUP_PARTITIONS_MOVED = Metric(
    "anabranch_group_partitions_moved_total",
    Kind.COUNTER,
    "Partitions that came to a member of a consumer group that did not have them.",
)
GROUP_PARTITIONS_MOVING = Metric(
    "anabranch_group_partitions_moving",
    Kind.GAUGE,
    "Partitions of consumer groups that are on their way to another member now.",
)
GROUP_HANDOVER_DURATION = Metric(
    "anabranch_group_handover_duration_seconds",
    Kind.HISTOGRAM,
    "From the target that gives a partition, or a key range of one, to another member until that "
    "member has it.",
    ("unit",),
)
GROUP_FENCINGS = Metric(
    "anabranch_group_fencings_total",
    Kind.COUNTER,
    "Requests of members that were refused because the group has gone on without them.",
    ("protocol", "error"),
)
GROUP_STABLE_OFFSET = Metric(
    "anabranch_group_stable_offset",
    Kind.GAUGE,
    "The offset of a source's partition below which a group has finished everything, by what it "
    "committed on the branch topic.",
    ("group", "topic", "partition", "branch_topic"),
)
GROUP_UNPROCESSED_RECORDS = Metric(
    "anabranch_group_unprocessed_records",
    Kind.GAUGE,
    "Records of a source's partition that a group has not finished, by what it committed on the "
    "branch topic.",
    ("group", "topic", "partition", "branch_topic"),
)
GROUP_WINDOW_OFFSETS = Metric(
    "anabranch_group_window_offsets",
    Kind.GAUGE,
    "Offsets from the stable offset of a group that commits record by record up to the last one "
    "that a member was shown.",
    ("group", "topic", "partition"),
)
GROUP_WINDOW_RANGES = Metric(
    "anabranch_group_window_ranges",
    Kind.GAUGE,
    "Ranges of records that a group has done, with gaps before them.",
    ("group", "topic", "partition"),
)
GROUP_STALLED_SECONDS = Metric(
    "anabranch_group_stalled_seconds",
    Kind.GAUGE,
    "How long the stable offset has stood still although there are records to finish.",
    ("group", "topic", "partition"),
)
GROUP_WINDOW_STAGE = Metric(
    "anabranch_group_window_stage",
    Kind.GAUGE,
    "0, or what is done about a window that fills: 1 it was told, 2 nobody is shown new offsets, "
    "3 a record that is stuck was taken from its member.",
    ("group", "topic", "partition"),
)
GROUP_STUCK_RECORDS = Metric(
    "anabranch_group_stuck_records_total",
    Kind.COUNTER,
    "Records that a member did not finish in time, each time that happened.",
)
GROUP_LOAD_IMBALANCE = Metric(
    "anabranch_group_load_imbalance",
    Kind.GAUGE,
    "The load of the busiest member of a group that shares partitions, over the mean of all.",
    ("group",),
)
GROUP_HOT_SLOTS = Metric(
    "anabranch_group_hot_slots",
    Kind.GAUGE,
    "Slots, keys mostly, that are more work than a fair share: no assignment can split them.",
    ("group", "topic", "partition"),
)
GROUP_BLOCKED_RECORDS = Metric(
    "anabranch_group_blocked_records",
    Kind.GAUGE,
    "Records after their last attempt, which wait for somebody to decide about them or for the "
    "dead-letter topic.",
    ("group", "topic", "partition"),
)
GROUP_DIVERTED_KEYS = Metric(
    "anabranch_group_diverted_keys",
    Kind.GAUGE,
    "Keys whose records go to the dead-letter topic until somebody releases them.",
    ("group", "topic", "partition"),
)
GROUP_DEAD_LETTERS = Metric(
    "anabranch_group_dead_letters_total",
    Kind.COUNTER,
    "Records that were copied to a dead-letter topic.",
    ("group", "topic"),
)
INDIVIDUAL_COMMIT_BYTES = Metric(
    "anabranch_individual_commit_bytes",
    Kind.GAUGE,
    "About how much memory all that groups have done record by record takes; see "
    "`coop.max.state.bytes`.",
)
TRANSACTIONS = Metric(
    "anabranch_transactions",
    Kind.GAUGE,
    "Transactional ids by the state of their transaction; what stays in `PrepareCommit` or "
    "`PrepareAbort` waits for a partition that cannot be written to.",
    ("state",),
)
TRANSACTION_OLDEST_SECONDS = Metric(
    "anabranch_transaction_oldest_seconds",
    Kind.GAUGE,
    "How long ago the oldest transaction began that has not ended: readers of committed records "
    "wait for it.",
)
TRANSACTION_MARKERS = Metric(
    "anabranch_transaction_markers_total",
    Kind.COUNTER,
    "Markers that ended a transaction in a partition, and attempts that failed and are repeated.",
    ("outcome",),
)
TRANSACTION_TIMEOUTS = Metric(
    "anabranch_transaction_timeouts_total",
    Kind.COUNTER,
    "Transactions that were aborted because their producer did not end them in time.",
)
TRANSACTIONS_PREPARED = Metric(
    "anabranch_transactions_prepared",
    Kind.GAUGE,
    "Ongoing transactions that are prepared and wait for the batch of a sink.",
)
SINK_BATCHES = Metric(
    "anabranch_sink_batches_total",
    Kind.COUNTER,
    "Batches of sinks that were committed, and those that were dropped because they had been.",
    ("outcome",),
)

METRICS = (
    BUILD_INFO,
    GROUPS,
    GROUP_MEMBERS,
    GROUP_HEARTBEATS,
    GROUP_REBALANCES,
    GROUP_REBALANCE_DURATION,
    GROUP_PARTITIONS_MOVED,
    GROUP_PARTITIONS_MOVING,
    GROUP_HANDOVER_DURATION,
    GROUP_FENCINGS,
    GROUP_STABLE_OFFSET,
    GROUP_UNPROCESSED_RECORDS,
    GROUP_WINDOW_OFFSETS,
    GROUP_WINDOW_RANGES,
    GROUP_STALLED_SECONDS,
    GROUP_WINDOW_STAGE,
    GROUP_STUCK_RECORDS,
    GROUP_LOAD_IMBALANCE,
    GROUP_HOT_SLOTS,
    GROUP_BLOCKED_RECORDS,
    GROUP_DIVERTED_KEYS,
    GROUP_DEAD_LETTERS,
    INDIVIDUAL_COMMIT_BYTES,
    TRANSACTIONS,
    TRANSACTION_OLDEST_SECONDS,
    TRANSACTION_MARKERS,
    TRANSACTION_TIMEOUTS,
    TRANSACTIONS_PREPARED,
    SINK_BATCHES,
)


class Histogram:
    """Durations, counted by the smallest of the bounds that they do not exceed."""

    BOUNDS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
    # For what takes microseconds on a good day.
    FINE_BOUNDS_S = (
        0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5,
        1.0, 2.5, 10.0,
    )  # fmt: skip

    __slots__ = ("bounds_s", "counts", "sum_s")

    def __init__(self, bounds_s: tuple[float, ...] = BOUNDS_S) -> None:
        self.bounds_s = bounds_s
        self.counts = [0] * (len(bounds_s) + 1)
        self.sum_s = 0.0

    def observe(self, duration_s: float) -> None:
        self.counts[bisect_left(self.bounds_s, duration_s)] += 1
        self.sum_s += duration_s

    @property
    def count(self) -> int:
        return sum(self.counts)


Labels = tuple[str, ...]
Value = float | Histogram
# The value of each combination of labels, in the order of the table.
Values = Mapping[Labels, Value]


class Stream:
    """Values that are made one after the other as they are asked for: there may be very many."""

    __slots__ = ("pairs",)

    def __init__(self, pairs: Iterable[tuple[Labels, Value]]) -> None:
        self.pairs = pairs


Families = Iterable[tuple[Metric, Values | Stream]]
Source = Callable[[], Families]
