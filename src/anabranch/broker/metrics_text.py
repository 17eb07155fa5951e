"""All metrics of a broker as text, for whoever serves them over HTTP.

A scrape is written in slices of a fraction of a millisecond, like the survey that it is made from,
so that it holds nobody up. `metrics.granularity` says which metrics there are, `metrics.series.max`
how many series at most.
"""

import asyncio
import contextlib
import shutil
from collections.abc import Iterable, Iterator
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from anabranch.broker import survey_metrics
from anabranch.broker.survey_reading import Slices
from anabranch.config.metrics_settings import METRICS_GRANULARITY, METRICS_SERIES_MAX
from anabranch.observe import broker_metrics as b
from anabranch.observe import process_metrics
from anabranch.observe.metrics import BUILD_INFO, Families, Labels, Metric, Stream, Values
from anabranch.observe.text_format import TextWriter, wants_openmetrics

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker
    from anabranch.broker.survey_values import Survey

# How many series are written between two looks at the clock: some tens of microseconds.
_GLANCE = 32
_TOO_FINE = {
    "partition": frozenset[str](),
    "topic": frozenset({"partition"}),
    "group": frozenset({"partition", "topic"}),
}


async def render_metrics(broker: "Broker", accept: str = "") -> tuple[bytes, str]:
    """The text and its content type, as a scraper's Accept header asks."""
    broker.loop_delay.watch()
    survey = await broker.surveyor.survey(max_age_ms=0)
    folders = [directory.path for directory in broker.engine.directories]
    # With ten thousand files open it takes the system tens of milliseconds to count them.
    measured = await asyncio.get_running_loop().run_in_executor(None, _measure, folders)
    too_fine = _TOO_FINE[broker.get_str(METRICS_GRANULARITY)]
    writer = TextWriter(
        is_open=wants_openmetrics(accept), series_max=broker.get_int(METRICS_SERIES_MAX)
    )
    slices = Slices()
    pieces: list[bytes] = []
    for metric, values in _collect(broker, survey, measured):
        if too_fine.intersection(metric.labels):
            continue
        lines = writer.family(metric, values)
        while piece := list(islice(lines, _GLANCE)):
            pieces.append("".join(piece).encode())
            if slices.is_over:
                await slices.pause()
    rest = "".join(writer.family(b.SERIES_LEFT_OUT, {(): writer.left_out})) + writer.end()
    return b"".join([*pieces, rest.encode()]), writer.content_type


def _measure(folders: list[Path]) -> list[tuple[Metric, Values]]:
    """What the system has to be asked for; in a thread."""
    free: dict[Labels, float] = {}
    for folder in folders:
        with contextlib.suppress(OSError):
            free[(str(folder),)] = shutil.disk_usage(folder).free
    info: dict[Labels, float] = {(version("anabranch"),): 1}
    return [(BUILD_INFO, info), (b.DISK_FREE, free), *process_metrics.collect()]


def _collect(
    broker: "Broker", survey: "Survey", measured: Families
) -> Iterator[tuple[Metric, Values | Stream]]:
    yield from measured
    # Those that are never many first: a limit on series shall not take them.
    for source in broker.metric_sources:
        yield from source()
    yield b.LOOP_DELAY, {(): broker.loop_delay.delays}
    yield b.FLUSH_DURATION, {(): broker.flusher.durations}
    yield from _branches(broker)
    yield from broker.transactions.collect_metrics()
    yield from _coarse_first(broker.groups.collect_metrics())
    yield from survey_metrics.collect(broker, survey)


def _coarse_first(families: Families) -> Iterable[tuple[Metric, Values | Stream]]:
    return sorted(families, key=lambda family: "partition" in family[0].labels)


def _branches(broker: "Broker") -> Iterator[tuple[Metric, Values | Stream]]:
    reader = broker.branches
    yield (
        b.BRANCH_READ_BYTES,
        {("scanned",): reader.scanned_bytes, ("sent",): reader.sent_bytes},
    )
    yield b.BRANCH_CACHE_LOOKUPS, {("hit",): reader.hits, ("miss",): reader.misses}
    yield b.BRANCH_CACHE_BYTES, {(): reader.cache.size_bytes}
