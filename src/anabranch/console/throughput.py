"""How much goes in and out, lately: samples that are taken while somebody looks.

Nothing is sampled before the first look, and no longer than some minutes after the last one.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from anabranch.broker.broker import Broker
from anabranch.broker.survey import Survey
from anabranch.observe import broker_metrics as b
from anabranch.observe import logs
from anabranch.observe.metrics import Metric

SAMPLE_EVERY_S = 2.0
SAMPLES_MAX = 150
_WATCHED_MS = 5 * 60_000
_SLICE = 2_000


@dataclass(frozen=True, slots=True)
class Sample:
    """Per second, over the time since the sample before; None when that cannot be said yet."""

    at_ms: int
    records_in: float | None
    records_out: float | None
    bytes_in: float | None
    bytes_out: float | None


class Throughput:
    """The last minutes of one broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._samples: deque[Sample] = deque(maxlen=SAMPLES_MAX)
        self._task: asyncio.Task[None] | None = None
        self._asked_ms = 0
        # When and how many bytes it was.
        self._bytes: tuple[int, float, float] | None = None

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def samples(self) -> Sequence[Sample]:
        """Oldest first; asking keeps them coming."""
        self._asked_ms = self._broker.now_ms()
        if self._task is None:
            await self._take()
            self._task = asyncio.create_task(self._go_on())
        return list(self._samples)

    async def _go_on(self) -> None:
        try:
            while self._broker.now_ms() - self._asked_ms <= _WATCHED_MS:
                await asyncio.sleep(SAMPLE_EVERY_S)
                await self._take()
        except Exception as error:
            logs.error("console.throughput.failed", error=repr(error))
        finally:
            self._task = None

    async def _take(self) -> None:
        survey = await self._broker.surveyor.survey(int(SAMPLE_EVERY_S * 1000))
        now_ms = self._broker.now_ms()
        bytes_in = await bytes_from_producers(self._broker)
        bytes_out = count_of(self._broker, b.BYTES_OUT)
        before, self._bytes = self._bytes, (now_ms, bytes_in, bytes_out)
        rate_in = rate_out = None
        if before is not None and now_ms > before[0]:
            # A topic that was deleted takes its count with it.
            seconds = (now_ms - before[0]) / 1000
            rate_in = max(bytes_in - before[1], 0) / seconds
            rate_out = max(bytes_out - before[2], 0) / seconds
        records_in, records_out = records_per_s(survey)
        self._samples.append(Sample(now_ms, records_in, records_out, rate_in, rate_out))


def count_of(broker: Broker, metric: Metric) -> float:
    """The sum of what is counted under a metric."""
    total = 0.0
    for source in broker.metric_sources:
        for found, values in source():
            if found is metric and isinstance(values, dict):
                total += sum(value for value in values.values() if isinstance(value, int | float))
    return total


async def bytes_from_producers(broker: Broker) -> int:
    """What was appended to all topics since the broker started."""
    total = seen = 0
    for topic in list(broker.topics):
        if topic.source is None and not topic.is_internal:
            total += sum([partition.bytes_in for partition in topic.partitions])
            seen += len(topic.partitions)
        if seen > _SLICE:
            seen = 0
            await asyncio.sleep(0)
    return total


def records_per_s(survey: Survey) -> tuple[float | None, float | None]:
    """What is written to topics, and what groups get done, as their commits say."""
    written = [
        topic.produce_per_s
        for topic in survey.topics.values()
        if topic.source is None and not topic.is_internal and topic.produce_per_s is not None
    ]
    read = [
        group.consume_per_s for group in survey.groups.values() if group.consume_per_s is not None
    ]
    return (sum(written) if written else None), (sum(read) if read else None)


# Drawing ----------------------------------------------------------------------------------------

WIDTH, HEIGHT = 300, 60


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a chart: `points` are those of an SVG polyline, `pieces` of them."""

    name: str
    css: str
    pieces: Sequence[str]
    last: float | None
    largest: float


def draw(
    samples: Sequence[Sample],
    series: Sequence[tuple[str, str, Callable[[Sample], float | None]]],
) -> Sequence[Line]:
    """Lines over the same time and to the same scale; gaps where nothing is known."""
    known = [of(one) for _, _, of in series for one in samples]
    largest = max((value for value in known if value is not None), default=0.0)
    span_ms = SAMPLES_MAX * SAMPLE_EVERY_S * 1000
    now_ms = samples[-1].at_ms if samples else 0
    lines = []
    for name, css, of in series:
        pieces: list[list[str]] = [[]]
        for one in samples:
            value = of(one)
            if value is None:
                pieces.append([])
                continue
            x = WIDTH * (1 - (now_ms - one.at_ms) / span_ms)
            y = HEIGHT - 2 - (HEIGHT - 6) * (value / largest if largest else 0)
            pieces[-1].append(f"{x:.1f},{y:.1f}")
        lines.append(
            Line(
                name,
                css,
                [" ".join(points) for points in pieces if points],
                of(samples[-1]) if samples else None,
                largest,
            )
        )
    return lines
