"""What there is to see of groups and topics, for people and for metrics: lag, time, rates.

One survey is shared by all who ask while it is fresh. Nothing is surveyed until somebody asks; from
then on samples are taken every few seconds, for rates and history, until nobody has asked for some
minutes: a broker that nobody watches pays nothing.

A survey works in slices of a fraction of a millisecond, so each group and topic is told as it was
when its turn came. What cannot be read is left out, and never fails the rest.
"""

import asyncio
import contextlib
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from anabranch.broker.survey_rates import History, Pace, Rates, drain_s
from anabranch.broker.survey_reading import GroupReader, Reading, Slices
from anabranch.broker.survey_values import (
    GroupSummary,
    LagSample,
    PartitionLag,
    Survey,
    TopicSummary,
)
from anabranch.broker.topics import Topic
from anabranch.coordinator.group.classic_state import CONSUMER_PROTOCOL_TYPE
from anabranch.coordinator.group.consumer_state import ConsumerGroup
from anabranch.coordinator.group.shard import Group
from anabranch.observe import logs

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker

__all__ = [
    "GroupSummary",
    "LagSample",
    "PartitionLag",
    "Survey",
    "Surveyor",
    "TopicSummary",
]

SAMPLE_EVERY_S = 5.0
# Samples are taken for so long after the last question.
WATCHED_MS = 5 * 60_000
FRESH_MS = 1_000
# What a page shows at the oldest, and how long it waits for something newer.
RECENT_MAX_MS = 15_000
MOMENT_S = 0.05


class Surveyor:
    """The surveys of one broker; lives on the event loop."""

    def __init__(self, broker: "Broker", steady_ms: Callable[[], int]) -> None:
        self._broker = broker
        self._steady_ms = steady_ms
        self._reader = GroupReader(broker)
        self._paces: dict[str, Pace] = {}
        self._topic_paces: dict[str, Pace] = {}
        self._histories: dict[str, History] = {}
        self._last: Survey | None = None
        self._last_began_ms = 0
        # How many surveys were begun, and which of them the last one is.
        self._last_number = 0
        self._task: asyncio.Task[Survey] | None = None
        self._begun = 0
        self._sampler: asyncio.Task[None] | None = None
        self._asked_ms = 0

    def stop(self) -> None:
        """Take no more samples."""
        for task in (self._sampler, self._task):
            if task is not None:
                task.cancel()
        self._sampler = None
        self._reader.windows.stop()

    # Questions ------------------------------------------------------------------------------------

    async def survey(self, max_age_ms: int = FRESH_MS) -> Survey:
        """Everything as it was at most so long ago; 0 is for one that begins now."""
        self._note_question()
        return await self._survey(max_age_ms)

    async def recent(self) -> Survey:
        """For pages: a new survey if it is made in a moment, else the last one, if that will do.

        Of thousands of groups one takes a while, and a page that is watched asks every second.
        """
        self._note_question()
        age_ms = self._steady_ms() - self._last_began_ms
        if self._last is None or age_ms > RECENT_MAX_MS:
            return await self._survey(FRESH_MS)
        if age_ms > FRESH_MS:
            # It goes on when nobody waits any more, and is there for the next who asks.
            await asyncio.wait({self._begin()}, timeout=MOMENT_S)
        return self._last

    async def group(self, group_id: str) -> GroupSummary | None:
        """One group as it is now, its times exact; None when there is no such group.

        KafkaError when it cannot be read.
        """
        self._note_question()
        group = self._broker.groups.group(group_id)
        if group is None:
            return None
        reading = await self._reader.read(group, Slices(), is_exact=True)
        return self._summary(group, reading)

    def history(self, group_id: str) -> Sequence[LagSample]:
        """The last samples of a group, oldest first; none before somebody asked for a survey."""
        history = self._histories.get(group_id)
        return history.samples() if history is not None else ()

    # Surveys --------------------------------------------------------------------------------------

    async def _survey(self, max_age_ms: int) -> Survey:
        oldest_ms = self._steady_ms() - max_age_ms if max_age_ms > 0 else sys.maxsize
        begun_before = self._begun
        while True:
            is_newer = self._last_number > begun_before or self._last_began_ms >= oldest_ms
            if self._last is not None and is_newer:
                return self._last
            # Whoever gives up waiting leaves it to the others.
            await asyncio.shield(self._begin())

    def _begin(self) -> "asyncio.Task[Survey]":
        """The survey that is being made; begun if none is."""
        if self._task is None:
            self._task = asyncio.create_task(self._take_next())
        return self._task

    async def _take_next(self) -> Survey:
        began_ms = self._steady_ms()
        self._begun += 1
        number = self._begun
        try:
            self._last = await self._take()
            self._last_began_ms, self._last_number = began_ms, number
            return self._last
        finally:
            # Here and not in a callback: whoever asks when it is done must find none that runs.
            self._task = None

    async def _take(self) -> Survey:
        taken_ms = self._broker.now_ms()
        slices = Slices()
        self._reader.times.begin_round()
        groups: dict[str, GroupSummary] = {}
        readers: dict[str, list[str]] = {}
        for group_id in self._broker.groups.group_ids():
            if slices.is_over:
                await slices.pause()
            summary = await self._group_or_none(group_id, slices)
            if summary is not None:
                groups[group_id] = summary
                for topic in summary.topics:
                    readers.setdefault(topic, []).append(group_id)
        self._forget_others(groups)
        topics: dict[str, TopicSummary] = {}
        for found in list(self._broker.topics):
            if slices.is_over:
                await slices.pause()
            topics[found.name] = await self._topic(found, readers.get(found.name, ()), slices)
        for gone in self._topic_paces.keys() - topics.keys():
            del self._topic_paces[gone]
        return Survey(taken_ms=taken_ms, groups=groups, topics=topics)

    async def _group_or_none(self, group_id: str, slices: Slices) -> GroupSummary | None:
        """A group, unless it went meanwhile or cannot be read."""
        try:
            group = self._broker.groups.group(group_id)
            if group is None:
                return None
            return self._summary(group, await self._reader.read(group, slices))
        except Exception as error:
            # Its shard cannot be read now, or this is a bug; the others are shown all the same.
            logs.warning("survey.group.failed", group=group_id, reason=repr(error))
            return None

    def _forget_others(self, groups: Iterable[str]) -> None:
        kept = set(groups)
        self._reader.forget_others(kept)
        for gone in self._paces.keys() - kept:
            del self._paces[gone]
        for gone in self._histories.keys() - kept:
            del self._histories[gone]

    def _summary(self, group: Group, reading: Reading) -> GroupSummary:
        lags = [one.lag_records for one in reading.partitions if one.lag_records is not None]
        times = [one.lag_ms for one in reading.partitions if one.lag_ms is not None]
        lag_records = sum(lags) if lags else None
        rates = self._rates(group.group_id, reading, lag_records)
        is_consumer = isinstance(group, ConsumerGroup)
        return GroupSummary(
            group_id=group.group_id,
            type="Consumer" if is_consumer else "Classic",
            protocol_type=(
                CONSUMER_PROTOCOL_TYPE
                if isinstance(group, ConsumerGroup)
                else group.protocol_type or ""
            ),
            state=group.state.value,
            epoch=(group.group_epoch if isinstance(group, ConsumerGroup) else group.generation_id),
            members=len(group.members),
            is_sharing=self._is_sharing(group),
            topics=reading.topics,
            partitions=reading.partitions,
            lag_records=lag_records,
            lag_ms=max(times) if times else None,
            consume_per_s=rates.consume_per_s,
            produce_per_s=rates.produce_per_s,
            trend_per_s=rates.trend_per_s,
            drain_s=drain_s(lag_records, rates.trend_per_s),
        )

    def _is_sharing(self, group: Group) -> bool:
        if isinstance(group, ConsumerGroup) and (group.sharing_members or group.held_ranges):
            return True
        return bool(self._broker.groups.progress(group.group_id))

    def _rates(self, group_id: str, reading: Reading, lag_records: int | None) -> Rates:
        pace = self._paces.get(group_id)
        if pace is None:
            pace = self._paces[group_id] = Pace()
        now_ms = self._steady_ms()
        subject = hash(tuple([(one.topic, one.partition) for one in reading.partitions]))
        pace.note(now_ms, reading.produced, lag_records or 0, subject)
        return pace.rates(now_ms, reading.produced, lag_records or 0)

    async def _topic(self, topic: Topic, groups: Sequence[str], slices: Slices) -> TopicSummary:
        logs_of = [partition.log for partition in (topic.source or topic).partitions]
        records = size_bytes = produced = 0
        for number, log in enumerate(logs_of):
            if not number % 64 and slices.is_over:
                await slices.pause()
            records += log.high_watermark - log.log_start_offset
            produced += log.high_watermark
            size_bytes += log.size_bytes if topic.source is None else 0
        pace = self._topic_paces.get(topic.name)
        if pace is None:
            pace = self._topic_paces[topic.name] = Pace()
        now_ms = self._steady_ms()
        pace.note(now_ms, produced, 0, (topic.topic_id, len(logs_of)))
        return TopicSummary(
            name=topic.name,
            partitions=len(topic.partitions),
            is_internal=topic.is_internal,
            source=topic.source.name if topic.source is not None else None,
            records=records,
            size_bytes=size_bytes,
            produce_per_s=pace.rates(now_ms, produced, 0).produce_per_s,
            groups=tuple(groups),
        )

    # Samples --------------------------------------------------------------------------------------

    def _note_question(self) -> None:
        self._asked_ms = self._steady_ms()
        if self._sampler is None:
            self._sampler = asyncio.ensure_future(self._sample())

    async def _sample(self) -> None:
        """Take samples until nobody has asked for a while."""
        try:
            while self._steady_ms() - self._asked_ms <= WATCHED_MS:
                with contextlib.suppress(Exception):  # it is in the log, and the next may do better
                    await self._keep(await self._survey(max_age_ms=int(SAMPLE_EVERY_S * 500)))
                await asyncio.sleep(SAMPLE_EVERY_S)
        finally:
            self._sampler = None

    async def _keep(self, survey: Survey) -> None:
        """Add a survey to the history of its groups."""
        slices = Slices()
        for group_id, group in survey.groups.items():
            if slices.is_over:
                await slices.pause()
            history = self._histories.get(group_id)
            if history is None:
                history = self._histories[group_id] = History()
            history.add(
                LagSample(
                    survey.taken_ms, group.lag_records, group.consume_per_s, group.produce_per_s
                )
            )
