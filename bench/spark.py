"""Spark on Anabranch: `format("anabranch")` beside Spark's own `format("kafka")`, on two brokers.

    .venv/bin/python bench/spark.py                 # under 20 minutes
    .venv/bin/python bench/spark.py --quick         # under 4 minutes: shows that it works
    .venv/bin/python bench/spark.py --only work     # or scan, small; more than one may be

scan    a topic read as fast as it goes, in a batch query and as a stream; sums by key of a stream
small   micro-batches of three records; from `produce` to `foreachBatch`
work    1 ms of Python for every record: the connector's three tasks beside 1, 4 and 8 branches

Topics have three partitions. Both brokers, this checkout's and Apache Kafka, have their default
settings, take turns, and the one that is not measured is frozen with SIGSTOP. Spark runs in this
machine's local mode with two slots, for `work` with 24. CPU seconds are those of the JVM and of all
Python below it; the broker's are counted apart. Tables go to stdout as Markdown, all single figures
and all plans to a JSON file in bench/results/. Needs pyspark, Java 17 and Maven.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from apache_kafka import apache_kafka, missing_tools
from broker import RESULTS, SETTLE_SECONDS, Progress
from machine import describe_machine
from server_process import BUILD, ServerError, ServerProcess, anabranch, terminated_as_exit

if TYPE_CHECKING:
    from spark_latency import Latency, Overhead
    from spark_scan import Sample
    from spark_site import Site
    from spark_work import Worked

PARTS = ("scan", "small", "work")
TRIGGERS_MS = (0, 100)
DAEMON = "anabranch.spark.daemon"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much is measured."""

    scan_rows: int
    scan_batches: int
    scan_rounds: int
    has_warm_up: bool
    small_batches: int
    latency_seconds: float
    work_rows: int


FULL = Plan(
    scan_rows=2_000_000,
    scan_batches=5,
    scan_rounds=3,
    has_warm_up=True,
    small_batches=20,
    latency_seconds=8.0,
    work_rows=240_000,
)
QUICK = Plan(
    scan_rows=300_000,
    scan_batches=3,
    scan_rounds=1,
    has_warm_up=False,
    small_batches=5,
    latency_seconds=2.0,
    work_rows=27_000,
)


@dataclass(slots=True)
class Bench:
    """The parts of one run, with the figures so far."""

    plan: Plan
    site: Site
    servers: tuple[ServerProcess, ...]
    progress: Progress
    samples: list[Sample] = field(default_factory=list)
    overheads: list[Overhead] = field(default_factory=list)
    latencies: list[Latency] = field(default_factory=list)
    runs: list[Worked] = field(default_factory=list)

    def run(self, part: str) -> None:
        {"scan": self._scan, "small": self._small, "work": self._work}[part]()

    @contextmanager
    def _awake(self, server: ServerProcess) -> Iterator[None]:
        server.resume()
        # Apache Kafka wakes up fenced by its own controller.
        time.sleep(SETTLE_SECONDS)
        try:
            yield
        finally:
            server.pause()

    def _scan(self) -> None:
        from spark_scan import AGGREGATIONS, SCAN_SOURCES, Scans
        from spark_site import CONNECTOR, OURS, create_topic, fill

        with self.site.session(2):
            scans = {}
            for server in self.servers:
                self.progress(f"scan: filling a topic of {server.name}")
                with self._awake(server):
                    topic = create_topic(server, "scan")
                    fill(server, topic, self.plan.scan_rows)
                scans[server.name] = Scans(self.site, server, topic, self.plan.scan_rows)
            batches = self.plan.scan_batches
            for number in range(not self.plan.has_warm_up, self.plan.scan_rounds + 1):
                # The first round warms up the JIT compiler, and is not counted.
                rounds = f"round {number} of {self.plan.scan_rounds}" if number else "warm-up"
                for server in self.servers:
                    self.progress(f"scan, {rounds}: {server.name}")
                    one = scans[server.name]
                    with self._awake(server):
                        taken = []
                        for source in SCAN_SOURCES:
                            taken += [one.batch(source), one.stream(source, batches)]
                        for how in AGGREGATIONS:
                            for source in (CONNECTOR, OURS):
                                taken.append(one.aggregation(source, how, batches))
                    if number:
                        self.samples += [replace(sample, round=number) for sample in taken]

    def _small(self) -> None:
        from spark_latency import measure_latency, measure_overhead
        from spark_site import CONNECTOR, OURS

        with self.site.session(2):
            for server in self.servers:
                with self._awake(server):
                    for source in (CONNECTOR, OURS):
                        self.progress(f"small: batches of {source.label} on {server.name}")
                        self.overheads.append(
                            measure_overhead(self.site, server, source, self.plan.small_batches)
                        )
                        for trigger_ms in TRIGGERS_MS:
                            self.progress(f"small: latency of {source.label} on {server.name}")
                            self.latencies.append(
                                measure_latency(
                                    self.site,
                                    server,
                                    source,
                                    trigger_ms=trigger_ms,
                                    seconds=self.plan.latency_seconds,
                                )
                            )

    def _work(self) -> None:
        from spark_site import create_topic, fill
        from spark_work import SLOTS, WORK_SOURCES, measure_work

        # Two workers for each task: they are forked from a process that has imported everything.
        with self.site.session(SLOTS, **{"spark.python.daemon.module": DAEMON}):
            for server in self.servers:
                with self._awake(server):
                    topics = {}
                    # A little first: workers are started, and the JVM has seen the query.
                    for rows in (SLOTS * 1100, self.plan.work_rows):
                        topics[rows] = create_topic(server, "work")
                        fill(server, topics[rows], rows)
                    self.progress(f"work: warm-up on {server.name}")
                    small = next(iter(topics))
                    measure_work(self.site, server, topics[small], WORK_SOURCES[-1], small)
                    rows = self.plan.work_rows
                    taken = []
                    for source in reversed(WORK_SOURCES):
                        self.progress(f"work: {source.label} on {server.name}")
                        taken.append(measure_work(self.site, server, topics[rows], source, rows))
                    self.runs += reversed(taken)

    def report(self) -> str:
        """All tables, and how the goals were met."""
        import spark_tables as tables

        parts, goals = [], []
        if self.samples:
            parts.append(f"#### Scans and sums\n\n{tables.scan_table(self.samples)}")
            goals += tables.scan_goals(self.samples)
        if self.runs:
            parts.append(f"#### 1 ms for each record\n\n{tables.work_table(self.runs)}")
            goals += tables.work_goals(self.runs)
        if self.overheads:
            parts.append(f"#### Small micro-batches\n\n{tables.overhead_table(self.overheads)}")
            parts.append(f"#### Latency\n\n{tables.latency_table(self.latencies)}")
        plans = tables.plans_of(self.samples, self.runs)
        if plans:
            parts.append(f"#### Plans\n\n{tables.exchange_table(plans)}")
        if goals:
            parts.append("#### Goals\n\n" + "\n".join(f"* {goal}" for goal in goals))
        return "\n\n".join(parts)

    def results(self) -> dict[str, Any]:
        import spark_tables as tables

        figures = {
            "samples": [asdict(one) for one in self.samples],
            "work": [asdict(one) for one in self.runs],
            "small": [asdict(one) for one in self.overheads],
            "latency": [asdict(one) for one in self.latencies],
        }
        plans = tables.plans_of(self.samples, self.runs)
        for one in [*figures["samples"], *figures["work"]]:
            del one["plan"]
        short = {name: tables.short_plan(plan) for name, plan in plans.items()}
        return {**figures, "plans": plans, "short_plans": short}


def measure(plan: Plan, parts: list[str], work: Path, progress: Progress) -> Bench:
    from spark_site import Site

    servers = (anabranch(data_dir=work / "anabranch"), apache_kafka(data_dir=work / "kafka"))
    bench = Bench(plan, Site(work), servers, progress)
    with ExitStack() as stack:
        for server in servers:
            progress(f"{server.name}: start")
            stack.enter_context(server)
            server.pause()
        stack.callback(bench.site.close)
        for part in parts:
            bench.run(part)
    return bench


def heading(bench: Bench) -> str:
    import pyspark

    from spark_site import connector_jars

    machine = describe_machine()
    jar = next(jar.stem for jar in connector_jars() if "sql-kafka" in jar.stem)
    brokers = " and ".join(f"{server.name} {server.version}" for server in bench.servers)
    return (
        f"{brokers}; Spark {pyspark.__version__}, {jar}; three partitions.\n"
        f"{machine['cpus']} x {machine['cpu']}, {machine['memory_gb']} GB, Linux"
        f" {machine['kernel']}, Python {machine['python']}, load average {machine['load_average']}"
    )


def write_results(bench: Bench) -> Path:
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / time.strftime("spark-%Y%m%d-%H%M%S.json")
    document = {
        "machine": describe_machine(),
        "versions": {server.name: server.version for server in bench.servers},
        "plan": asdict(bench.plan),
        "results": bench.results(),
    }
    path.write_text(json.dumps(document, indent=1) + "\n")
    return path


def missing_needs() -> list[str]:
    has_spark = importlib.util.find_spec("pyspark") is not None
    return [*missing_tools(), *([] if has_spark else ["pyspark (make setup-spark)"])]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--quick", action="store_true", help="small amounts, under 4 minutes")
    parser.add_argument("--rounds", type=int, help="another number of rounds of scans")
    parser.add_argument(
        "--only", action="append", choices=PARTS, help="this part; may be given more than once"
    )
    arguments = parser.parse_args()
    if missing := missing_needs():
        print(f"bench: skipped, needs {' and '.join(missing)}", file=sys.stderr)
        return 0
    plan = QUICK if arguments.quick else FULL
    if arguments.rounds:
        plan = replace(plan, scan_rounds=arguments.rounds)
    parts = [part for part in PARTS if not arguments.only or part in arguments.only]
    # Only now: it imports pyspark.
    from spark_site import SparkBenchError

    progress = Progress()
    (BUILD / "bench").mkdir(parents=True, exist_ok=True)
    with terminated_as_exit(), tempfile.TemporaryDirectory(dir=BUILD / "bench") as work:
        try:
            bench = measure(plan, parts, Path(work), progress)
        except (ServerError, SparkBenchError) as problem:
            progress.done()
            print(f"bench: {problem}", file=sys.stderr)
            return 1
        progress.done()
        print(f"{heading(bench)}\n\n{bench.report()}\n\nall figures: {write_results(bench)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
