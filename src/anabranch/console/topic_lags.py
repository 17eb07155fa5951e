"""The lag of every group on every topic, from one survey."""

from collections.abc import Mapping
from typing import NamedTuple

from anabranch.broker.survey import GroupSummary, Survey
from anabranch.broker.survey_reading import Slices


class TopicLag(NamedTuple):
    """One group on one topic."""

    group_id: str
    # None: nothing is known of any partition.
    lag_records: int | None
    lag_ms: int | None
    partitions: int


TopicLags = Mapping[str, Mapping[str, TopicLag]]
"""By topic and group."""


class LagsByTopic:
    """Made once for each survey, whoever asks."""

    def __init__(self) -> None:
        self._survey: Survey | None = None
        self._lags: TopicLags = {}

    async def of(self, survey: Survey) -> TopicLags:
        if survey is not self._survey:
            self._lags = await _lags_of(survey)
            self._survey = survey
        return self._lags


async def _lags_of(survey: Survey) -> TopicLags:
    found: dict[str, dict[str, TopicLag]] = {}
    slices = Slices()
    for group in survey.groups.values():
        for topic, lag in lags_of_group(group).items():
            found.setdefault(topic, {})[group.group_id] = lag
        if slices.is_over:
            await slices.pause()
    return found


def lags_of_group(group: GroupSummary) -> dict[str, TopicLag]:
    """One group, by topic; topics that it has nothing of are there without a lag."""
    records: dict[str, int | None] = dict.fromkeys(group.topics)
    times: dict[str, int | None] = dict.fromkeys(group.topics)
    counts = dict.fromkeys(group.topics, 0)
    for one in group.partitions:
        counts[one.topic] = counts.get(one.topic, 0) + 1
        if one.lag_records is not None:
            records[one.topic] = (records.get(one.topic) or 0) + one.lag_records
        if one.lag_ms is not None:
            times[one.topic] = max(times.get(one.topic) or 0, one.lag_ms)
    return {
        topic: TopicLag(group.group_id, records.get(topic), times.get(topic), count)
        for topic, count in counts.items()
    }
