"""The driver's planning of one batch: what is left of its offsets, how the load lies, the splits.

The load is measured where a batch is: a small fetch from its middle tells which slots have how many
records, on any broker, and earlier samples count half of the next one each time. So the cuts of the
next batch follow a load that moves.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

from pyspark.sql.datasource import InputPartition

from anabranch.branch.record_columns import read_records
from anabranch.branch.slots import DEFAULT_RULE
from anabranch.model.units import SlotRange
from anabranch.spark.errors import LinkError
from anabranch.spark.options import SourceOptions
from anabranch.spark.source_positions import Positions
from anabranch.spark.splits import Cut, Place, Split, Wish, cut_by_load, split_counts

# With 8,000 records for eight ranges the largest is within 3% of its share; with 1,000 it was 11%
# too large, which is time that seven others wait for it.
_SAMPLE_MAX_BYTES = 1024 * 1024
_SAMPLE_MIN_BYTES = 64 * 1024
_SAMPLES_MAX_BYTES = 8 * 1024 * 1024
# So many offsets are looked at from their beginning on, instead of from their middle.
_SMALL_INTERVAL = 8000
_FORGETTING = 0.5
_LEAST_WEIGHT = 0.25

Interval = tuple[int, int]


def sample_bytes(partitions: int) -> int:
    """How much of each partition is looked at: less of each when they are many."""
    share = _SAMPLES_MAX_BYTES // partitions
    return max(_SAMPLE_MIN_BYTES, min(_SAMPLE_MAX_BYTES, share))


class Planner:
    """Cuts batches into splits, and remembers the load; lives in the driver."""

    def __init__(self, options: SourceOptions, positions: Positions) -> None:
        self._options = options
        self._positions = positions
        self._loads: dict[Place, dict[int, float]] = {}
        self._cuts: dict[Place, Cut] = {}
        self._wish = Wish(
            branches=options.branches,
            min_partitions=options.min_partitions,
            max_records=options.max_records_per_partition,
            min_records=options.min_records_per_branch,
        )

    def partitions(
        self, start: Mapping[Place, int], end: Mapping[Place, int]
    ) -> Sequence[InputPartition]:
        """The tasks of a batch, the largest partitions first."""
        intervals = self._intervals(start, end)
        sizes = {place: upto - first for place, (first, upto) in intervals.items()}
        counts = split_counts(sizes, self._wish)
        self._measure({place: intervals[place] for place, count in counts.items() if count > 1})
        self._tell_who_filters({place for place, count in counts.items() if count > 1})
        found = []
        for place in sorted(intervals):
            cut = cut_by_load(counts[place], self._loads.get(place, {}), self._cuts.get(place, ()))
            self._cuts[place] = cut
            # Only where records may be left out by a task must it know how.
            rule = self._positions.rule(place[0]) if len(cut) > 1 else DEFAULT_RULE
            firsts = tuple(slots.first for slots in cut)
            found += [
                InputPartition((self._split(place, intervals[place], slots, firsts), rule))
                for slots in cut
            ]
        return found

    def _tell_who_filters(self, cut: set[Place]) -> None:
        """Say once that a broker knows no key ranges: the result is the same, the cost is not."""
        if cut and not all(map(self._positions.filters, cut)):
            self._positions.tell(
                "the broker knows no key ranges, as Anabranch's does: records are filtered by key"
                " range in the tasks, each of which reads all of its partition"
            )

    def _split(
        self, place: Place, interval: Interval, slots: SlotRange, firsts: tuple[int, ...]
    ) -> Split:
        topic_id = self._positions.topic_id(place[0])
        return Split(place[0], topic_id, place[1], *interval, slots, firsts)

    def _intervals(
        self, start: Mapping[Place, int], end: Mapping[Place, int]
    ) -> dict[Place, Interval]:
        """The offsets of a batch that there still are, without partitions that have none."""
        lost = self._positions.lost
        there = set(self._positions.places())
        for place in sorted(set(end) - there):
            if end[place] > start.get(place, 0):
                lost(f"{place[0]}-{place[1]} is gone, up to offset {end[place]} was to be read")
        wanted = {
            place: (start.get(place, 0), upto)
            for place, upto in end.items()
            if place in there and upto != start.get(place, 0)
        }
        beginnings = self._positions.beginnings(wanted)
        found: dict[Place, Interval] = {}
        for place, (first, upto) in wanted.items():
            beginning = beginnings[place]
            if upto < first:
                # The log was cut, which was told: what there is of the new one is read.
                first = beginning
            elif first < beginning:
                lost(
                    f"{place[0]}-{place[1]} begins at offset {beginning}, offsets from {first} were"
                    " to be read"
                )
                first = beginning
            if first < upto:
                found[place] = (first, upto)
        return found

    def _measure(self, intervals: Mapping[Place, Interval]) -> None:
        """Look into the middle of some intervals."""
        if not intervals:
            return
        starts = {
            place: first if upto - first <= _SMALL_INTERVAL else (first + upto) // 2
            for place, (first, upto) in intervals.items()
        }
        try:
            samples = self._positions.link.sample(
                starts, sample_bytes(len(starts)), self._options.isolation_level
            )
        except LinkError:
            return  # cuts are as they were, which is never wrong
        for place, records in samples.items():
            rule = self._positions.rule(place[0])
            slots = read_records(records, rule, from_offset=intervals[place][0]).slots
            loads = {
                slot: weight * _FORGETTING
                for slot, weight in self._loads.get(place, {}).items()
                if weight * _FORGETTING >= _LEAST_WEIGHT
            }
            for slot, count in Counter(slots).items():
                loads[slot] = loads.get(slot, 0.0) + count
            self._loads[place] = loads
