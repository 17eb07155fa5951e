"""Transactional produce beside Apache Kafka: the Java producer, commits 100 ms apart.

    .venv/bin/python bench/transactions.py            # about five minutes
    .venv/bin/python bench/transactions.py --quick    # about two minutes

One producer of the Java client with its default settings sends records of 1 KB to four partitions
as fast as it can: without transactions, in transactions of 100 ms, and in transactions of one
record. Both brokers run with their default settings apart from ports and folders. They are measured
in turns, and the one that is not measured is frozen with SIGSTOP. The table goes to stdout, all
single figures go to a JSON file in bench/results/. Needs Java 17 and Maven.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic

from apache_kafka import apache_kafka, fetch_jars, missing_tools
from broker import RESULTS, SETTLE_SECONDS, Progress
from machine import describe_machine
from metrics import Metric, table
from server_process import BUILD, ServerError, ServerProcess, anabranch, terminated_as_exit

PARTITION_COUNT = 4
RECORD_BYTES = 1024
_LOAD = Path(__file__).resolve().parent / "TransactionLoad.java"

METRICS = (
    Metric("none", "produce 1 KB, no transactions", "MB/s", True, 1),
    Metric("100ms", "produce 1 KB, commits 100 ms apart", "MB/s", True, 1),
    Metric("commit_p50_100ms", "  commit p50", "ms", False, 1),
    Metric("commit_p99_100ms", "  commit p99", "ms", False, 1),
    Metric("cpu_100ms", "  server CPU", "s/GB", False, 2),
    Metric("1", "transactions of one record", "per s", True),
    Metric("commit_p50_1", "  commit p50", "ms", False, 2),
    Metric("commit_p99_1", "  commit p99", "ms", False, 2),
    Metric("cpu_1", "  server CPU", "ms each", False, 2),
)


class LoadError(Exception):
    """The producer failed, or some of its records did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much is measured."""

    rounds: int
    seconds: float


FULL = Plan(rounds=5, seconds=5.0)
QUICK = Plan(rounds=3, seconds=3.0)


@functools.cache
def load_classpath() -> str:
    """The compiled producer with the client that comes with Apache Kafka."""
    lib = fetch_jars()
    classes = BUILD / "bench" / "transaction-load"
    command = ["javac", "-cp", f"{lib}/*", "-d", str(classes), str(_LOAD)]
    subprocess.run(command, check=True)
    return f"{classes}:{lib}/*"


class Side:
    """One of the two brokers, with the figures collected so far."""

    def __init__(self, server: ServerProcess) -> None:
        self.server = server
        self.figures: dict[str, list[float]] = defaultdict(list)
        self._topic_count = 0

    def measure(self, kind: str, seconds: float) -> None:
        topic = self._new_topic()
        cpu_before = self.server.cpu_seconds()
        result = self._load(topic, seconds, kind)
        cpu_seconds = self.server.cpu_seconds() - cpu_before
        # Half as long again as what is counted goes into warming up, which costs CPU time as well.
        share = 2 / 3
        gigabytes = result["records"] * RECORD_BYTES / 1e9
        if kind == "1":
            self.figures[kind].append(result["transactions"] / result["seconds"])
            self.figures["cpu_1"].append(cpu_seconds * share * 1e3 / result["transactions"])
        else:
            self.figures[kind].append(gigabytes * 1e3 / result["seconds"])
            self.figures[f"cpu_{kind}"].append(cpu_seconds * share / gigabytes)
        if kind != "none":
            for name in ("commit_p50", "commit_p99"):
                self.figures[f"{name}_{kind}"].append(result[f"{name}_ms"])

    def _load(self, topic: str, seconds: float, kind: str) -> dict[str, float]:
        numbers = map(str, (PARTITION_COUNT, RECORD_BYTES, seconds))
        done = subprocess.run(
            [
                *("java", "-Xmx256m", "-cp", load_classpath(), "TransactionLoad"),
                *(self.server.bootstrap_servers, topic, *numbers, kind),
            ],
            capture_output=True,
            text=True,
            timeout=60 + 10 * seconds,
            check=False,
        )
        if done.returncode:
            raise LoadError(f"{self.server.name}: {done.stderr[-1500:]}")
        result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
        if result["failed"]:
            raise LoadError(f"{self.server.name}: {result['failed']} records failed")
        return result

    def _new_topic(self) -> str:
        self._topic_count += 1
        name = f"transactions-{self._topic_count}"
        admin = AdminClient({"bootstrap.servers": self.server.bootstrap_servers, "log_level": 0})
        for future in admin.create_topics([NewTopic(name, PARTITION_COUNT, 1)]).values():
            future.result(30)
        return name


def measure(plan: Plan, sides: tuple[Side, Side], progress: Progress) -> None:
    with contextlib.ExitStack() as stack:
        for side in sides:
            progress(f"{side.server.name}: start and warm-up")
            stack.enter_context(side.server)
            kept, side.figures = side.figures, defaultdict(list)
            side.measure("100ms", plan.seconds)
            side.figures = kept
            side.server.pause()
        for number in range(plan.rounds):
            for side in sides:
                side.server.resume()
                time.sleep(SETTLE_SECONDS)
                for kind in ("none", "100ms", "1"):
                    progress(f"round {number + 1} of {plan.rounds}, {side.server.name}: {kind}")
                    side.measure(kind, plan.seconds)
                side.server.pause()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds")
    arguments = parser.parse_args()
    if missing := missing_tools():
        print(f"bench: skipped, needs {' and '.join(missing)} on PATH", file=sys.stderr)
        return 0
    plan = QUICK if arguments.quick else FULL
    progress = Progress()
    (BUILD / "bench").mkdir(parents=True, exist_ok=True)
    with terminated_as_exit(), tempfile.TemporaryDirectory(dir=BUILD / "bench") as work:
        theirs = Side(apache_kafka(data_dir=Path(work) / "kafka"))
        ours = Side(anabranch(data_dir=Path(work) / "anabranch"))
        try:
            measure(plan, (theirs, ours), progress)
        except (LoadError, ServerError) as problem:
            progress.done()
            print(f"bench: {problem}", file=sys.stderr)
            return 1
    progress.done()
    machine = describe_machine()
    print(
        f"{theirs.server.name} {theirs.server.version} and {ours.server.name}"
        f" {ours.server.version} in turns, {plan.rounds} rounds of {plan.seconds:.0f} s,"
        f" load average {machine['load_average']}\n"
        "Ratios: more than 1.00x means that Anabranch is better.\n"
    )
    print(table(theirs.figures, ours.figures, METRICS))
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / time.strftime("transactions-%Y%m%d-%H%M%S.json")
    figures = {side.server.name: side.figures for side in (theirs, ours)}
    path.write_text(json.dumps({"machine": machine, "figures": figures}, indent=1) + "\n")
    print(f"\nall figures: {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
