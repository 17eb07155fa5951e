"""Filtered fetch: what it costs the broker to sort a log into branches, beside a plain fetch.

The topics are filled before. Each case begins with a server that was just started, so that nothing
is sorted or indexed yet, and one librdkafka consumer (the C driver) reads everything. A second read
by the same server finds all that it needs in the cache of sorted chunks, which is large enough.
Records per second and core are the log's records, whoever they belong to, divided by the CPU time
of all of the server's threads.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from anabranch.branch.slots import DEFAULT_RULE
from anabranch.branch.split import split_batches
from anabranch.broker.branch_reader import CHUNK_BYTES
from branches_site import (
    CODECS,
    cpu_seconds,
    create_branch_topic,
    create_topic,
    fill,
    records_of_branch,
)
from driver import Driver
from server_process import ServerProcess

GOAL_RECORDS_PER_S = 2_000_000

PLAIN = "plain fetch"
FIRST = "all, first read"
AGAIN = "all, from the cache"
ONE = "one, first read"
KERNEL = "kernel alone"

_KERNEL_SECONDS = 0.3
_LENGTH_AT, _LENGTH_PREFIX_BYTES = 8, 12


@dataclass(frozen=True, slots=True)
class Dataset:
    """A filled topic."""

    topic: str
    codec: str
    size: int
    count: int
    log_bytes: int


@dataclass(frozen=True, slots=True, order=True)
class Row:
    """What is measured."""

    size: int
    codec: str
    branches: int  # 0 for the plain topic
    reader: str

    @property
    def key(self) -> str:
        return f"{self.size} B, {self.codec}, {self.branches}, {self.reader}"


@dataclass(frozen=True, slots=True)
class Sample:
    """One read of a topic."""

    records: int  # of the log, whether they were sent or not
    value_bytes: int
    log_bytes: int
    cpu_seconds: float
    wall_seconds: float


Samples = dict[Row, list[Sample]]


def measure_filter(
    server: ServerProcess,
    data_dir: Path,
    *,
    counts: dict[int, int],
    branch_counts: Sequence[int],
    rounds: int,
    progress: Callable[[str], None],
) -> Samples:
    """The server is not running yet, and is not running after."""
    driver = Driver()
    samples: Samples = {}
    with server:
        datasets = []
        for size, count in counts.items():
            for codec in CODECS:
                progress(f"filter: fill {count:,} x {size} B, {codec}")
                datasets.append(_fill(server, data_dir, codec, size, count))
                for branches in branch_counts:
                    create_branch_topic(server, datasets[-1].topic, branches)
    for dataset in datasets:
        progress(f"filter: kernel, {dataset.size} B, {dataset.codec}")
        for branches in branch_counts:
            row = Row(dataset.size, dataset.codec, branches, KERNEL)
            samples[row] = [_measure_kernel(dataset, data_dir, branches)]
    for number in range(rounds):
        for dataset in datasets:
            title = f"filter, round {number + 1} of {rounds}: {dataset.size} B, {dataset.codec}"
            for branches in (0, *branch_counts):
                progress(f"{title}, {branches or 'no'} branches")
                _measure_reads(server, data_dir, driver, dataset, branches, samples)
    return samples


def _fill(server: ServerProcess, data_dir: Path, codec: str, size: int, count: int) -> Dataset:
    topic = create_topic(server, "filter")
    fill(server, topic, count=count, size=size, codec=codec)
    log_bytes = sum(path.stat().st_size for path in _segments(data_dir, topic))
    return Dataset(topic, codec, size, count, log_bytes)


def _measure_reads(
    server: ServerProcess,
    data_dir: Path,
    driver: Driver,
    dataset: Dataset,
    branches: int,
    samples: Samples,
) -> None:
    def read(reader: str, topic: str, partitions: int, count: int) -> None:
        cpu_before_s = cpu_seconds(server)
        result = driver.consume(server, topic, partitions=partitions, count=count)
        cpu_s = cpu_seconds(server) - cpu_before_s
        row = Row(dataset.size, dataset.codec, branches, reader)
        sample = Sample(
            records=dataset.count,
            value_bytes=dataset.count * dataset.size,
            log_bytes=dataset.log_bytes,
            cpu_seconds=cpu_s,
            wall_seconds=result.figures["total_seconds"],
        )
        samples.setdefault(row, []).append(sample)

    _forget_indexes(data_dir)
    if not branches:
        with server:
            read(PLAIN, dataset.topic, 1, dataset.count)
        return
    topic = f"{dataset.topic}.by-key-{branches}"
    with server:
        read(FIRST, topic, branches, dataset.count)
        read(AGAIN, topic, branches, dataset.count)
    _forget_indexes(data_dir)
    with server:
        read(ONE, topic, 1, records_of_branch(0, branches, dataset.count))


def _forget_indexes(data_dir: Path) -> None:
    """Remove the slot indexes, which are made again by the first read."""
    for path in data_dir.glob("filter-*/*.slots"):
        path.unlink()


def _segments(data_dir: Path, topic: str) -> list[Path]:
    return sorted((data_dir / f"{topic}-0").glob("*.log"))


# The kernel ---------------------------------------------------------------------------------------


def _measure_kernel(dataset: Dataset, data_dir: Path, branches: int) -> Sample:
    """Sort the topic in this process, one thread, in chunks as the broker makes them."""
    log = b"".join(path.read_bytes() for path in _segments(data_dir, dataset.topic))
    chunks = list(chunks_of(memoryview(log)))
    passes = 0
    began_s, cpu_before_s = time.perf_counter(), time.process_time()
    while passes == 0 or time.perf_counter() - began_s < _KERNEL_SECONDS:
        for chunk in chunks:
            split_batches(chunk, branches, DEFAULT_RULE)
        passes += 1
    cpu_s, wall_s = time.process_time() - cpu_before_s, time.perf_counter() - began_s
    return Sample(
        records=dataset.count,
        value_bytes=dataset.count * dataset.size,
        log_bytes=dataset.log_bytes,
        cpu_seconds=cpu_s / passes,
        wall_seconds=wall_s / passes,
    )


def chunks_of(log: memoryview, max_bytes: int = CHUNK_BYTES) -> Iterator[memoryview]:
    """Runs of whole batches, each of at most so many bytes or of one batch."""
    first = end = 0
    while end < len(log):
        length = int.from_bytes(log[end + _LENGTH_AT : end + _LENGTH_PREFIX_BYTES], "big")
        size = _LENGTH_PREFIX_BYTES + length
        if end > first and end + size - first > max_bytes:
            yield log[first:end]
            first = end
        end += size
    if end > first:
        yield log[first:end]


# The table ----------------------------------------------------------------------------------------


def cpu_per_record_ns(samples: list[Sample]) -> float:
    return median(sample.cpu_seconds / sample.records for sample in samples) * 1e9


def filter_rows(samples: Samples) -> list[list[str]]:
    """Compressed topics: MB are those of the values, as their consumers see them."""
    rows = [["records", "codec", "branches", "reader", "M records/s", "MB/s", "ns/record"]]
    rows[0] += ["x plain", "log/values"]
    rows.append(["", "", "", "", "per core", "per core", "CPU", "", ""])
    for row in sorted(samples, key=_row_order):
        ns = cpu_per_record_ns(samples[row])
        plain = samples.get(Row(row.size, row.codec, 0, PLAIN))
        one = samples[row][0]
        rows.append(
            [
                f"{row.size} B",
                row.codec,
                str(row.branches or "-"),
                row.reader,
                f"{1000 / ns:,.2f}",
                f"{row.size * 1000 / ns:,.0f}",
                f"{ns:,.0f}",
                f"{ns / cpu_per_record_ns(plain):,.1f}" if plain and row.reader != KERNEL else "",
                f"{one.log_bytes / one.value_bytes:.2f}",
            ]
        )
    return rows


def _row_order(row: Row) -> tuple[int, int, int, int]:
    readers = (PLAIN, FIRST, AGAIN, ONE, KERNEL)
    return row.size, CODECS.index(row.codec), row.branches, readers.index(row.reader)


def filter_goal(samples: Samples) -> str:
    rates = {
        row.branches: 1e9 / cpu_per_record_ns(taken)
        for row, taken in sorted(samples.items())
        if (row.size, row.codec, row.reader) == (100, "none", FIRST)
    }
    worst = min(rates.values())
    figures = ", ".join(f"{rate / 1e6:.2f} M at {count}" for count, rate in rates.items())
    return (
        f"Goal: one core filters at least 2 M uncompressed records of 100 B a second: {figures} "
        f"branches: {'reached' if worst >= GOAL_RECORDS_PER_S else 'NOT REACHED'}"
    )
