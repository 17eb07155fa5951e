"""Which groups somebody should look at, and why."""

from collections.abc import Sequence
from dataclasses import dataclass

from anabranch.broker.broker import Broker
from anabranch.broker.survey import GroupSummary, Survey
from anabranch.console import words
from anabranch.coordinator.cooperative.retries import exhausted_offsets
from anabranch.model.errors import KafkaError

# Lag that grows by less than that is noise, and so is less than a twentieth of what arrives.
_TREND_MIN_PER_S = 1.0
_TREND_SHARE = 0.05
_SETTLED = frozenset({"Stable", "Empty", "Dead"})


@dataclass(frozen=True, slots=True)
class Attention:
    """One thing about one group; the most urgent kind has the smallest rank."""

    group_id: str
    rank: int
    what: str
    sentence: str
    lag_records: int | None


def needs_attention(broker: Broker, survey: Survey) -> Sequence[Attention]:
    """All that there is, the most urgent first, and by lag."""
    found = [*_blocked(broker)]
    for group in survey.groups.values():
        why = _about(broker, group)
        if why is not None:
            found.append(why)
    return sorted(found, key=lambda one: (one.rank, -(one.lag_records or 0), one.group_id))


def _about(broker: Broker, group: GroupSummary) -> Attention | None:
    if group.state not in _SETTLED:
        under_way = broker.timeline.under_way(group.group_id)
        since = ""
        if under_way is not None:
            since = f" since {words.duration(max(broker.now_ms() - under_way.at_ms, 0))}"
        return Attention(
            group.group_id,
            1,
            "rebalancing",
            f"It is {group.state}{since}, with {_count(group.members, 'member')}.",
            group.lag_records,
        )
    if not group.lag_records:
        return None
    if not group.members:
        return Attention(
            group.group_id,
            3,
            "empty with lag",
            f"Nobody reads, and {_count(group.lag_records, 'record')} wait.",
            group.lag_records,
        )
    trend = group.trend_per_s
    if trend is None or trend < max(_TREND_MIN_PER_S, _TREND_SHARE * (group.produce_per_s or 0)):
        return None
    return Attention(
        group.group_id,
        2,
        "lag grows",
        f"{_count(group.lag_records, 'record')} behind, {words.rate(trend)} more: "
        f"{words.rate(group.produce_per_s)} arrive and {words.rate(group.consume_per_s)} are read.",
        group.lag_records,
    )


def _blocked(broker: Broker) -> list[Attention]:
    found = []
    for group_id in broker.groups.groups_with_progress():
        try:
            progress = broker.groups.progress(group_id)
        except KafkaError:
            continue
        count = sum(len(exhausted_offsets(tracked.progress)) for tracked in progress.values())
        if count:
            found.append(
                Attention(
                    group_id,
                    0,
                    "blocked records",
                    f"{_count(count, 'record')} had the last attempt, and somebody must decide.",
                    None,
                )
            )
    return found


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
