"""How far a consumer is, for people and for metrics."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from anabranch.client.range_work import RangeWork
from anabranch.client.records import KeyRange, TopicPartition
from anabranch.model.units import SLOT_COUNT


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeProgress:
    """One key range.

    `lag_records` counts the records of the range that are not done. Those that were not fetched
    yet cannot be counted here; then `is_lag_exact` is False, and they count by the share of keys
    that the range has. With read_committed those of open transactions do not count.
    """

    topic: str
    partition: int
    key_range: KeyRange
    epoch: int
    state: str
    watermark: int
    position: int
    high_watermark: int
    in_flight: int
    buffered: int
    parked: int
    """Records that wait for a slow key, without their content."""
    lag_records: int
    is_lag_exact: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerProgress:
    """All ranges of a consumer, and what the group has done of their partitions.

    `stable_offsets` are those of the last commits: every record below is done, by whomever.
    `lease_left_s` is how long records may still be started without another answered heartbeat.
    """

    member_id: str | None
    member_epoch: int
    lease_left_s: float
    ranges: tuple[RangeProgress, ...]
    stable_offsets: Mapping[TopicPartition, int]

    @property
    def in_flight(self) -> int:
        return sum(one.in_flight for one in self.ranges)

    @property
    def buffered(self) -> int:
        return sum(one.buffered for one in self.ranges)

    @property
    def lag_records(self) -> int:
        return sum(one.lag_records for one in self.ranges)

    @property
    def is_lag_exact(self) -> bool:
        return all(one.is_lag_exact for one in self.ranges)


def range_progress(works: Iterable[RangeWork]) -> tuple[RangeProgress, ...]:
    return tuple(_of_range(work) for work in works)


def _of_range(work: RangeWork) -> RangeProgress:
    unseen_offsets = max(work.readable_end - work.position, 0)
    share = (work.slots.end - work.slots.first) / SLOT_COUNT
    return RangeProgress(
        topic=work.place.topic,
        partition=work.place.partition,
        key_range=work.key_range,
        epoch=work.token.epoch,
        state=work.state.value,
        watermark=work.watermark,
        position=work.position,
        high_watermark=work.high_watermark,
        in_flight=work.in_flight,
        buffered=work.buffered,
        parked=work.parked,
        lag_records=len(work.open) + round(unseen_offsets * share),
        is_lag_exact=work.readable_end >= 0 and (unseen_offsets == 0 or share == 1.0),
    )
