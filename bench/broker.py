"""Anabranch beside Apache Kafka: the same load, the same machine, one run.

    .venv/bin/python bench/broker.py            # about ten minutes
    .venv/bin/python bench/broker.py --quick    # about a minute: shows that it works

Both brokers run with their default settings, apart from ports, folders and topics of four
partitions; so do the clients, apart from the consumer's rest when its own queue is full. The
brokers are measured in turns (A, B, A, B, ...), and the one that is not measured is frozen with
SIGSTOP meanwhile. Everything stays on loopback. The table goes to stdout, all single figures go
to a JSON file in bench/results/.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic

from apache_kafka import apache_kafka, missing_tools
from driver import Driver, DriverError, Measurement
from machine import describe_machine
from metrics import table
from server_process import BUILD, ServerError, ServerProcess, anabranch, terminated_as_exit

RESULTS = Path(__file__).resolve().parent / "results"
PARTITIONS = 4
RECORD_SIZES = (100, 1024)
# A frozen Apache Kafka wakes up fenced, because its heartbeats to its own controller are
# overdue; it needs a moment to lead its partitions again.
SETTLE_SECONDS = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much is measured."""

    rounds: int
    starts: int
    produce_counts: dict[int, int]
    latency_count: int
    rps_seconds: float
    idle_seconds: float
    budget_seconds: float


FULL = Plan(
    rounds=5,
    starts=3,
    produce_counts={100: 3_000_000, 1024: 600_000},
    latency_count=5_000,
    rps_seconds=3.0,
    idle_seconds=5.0,
    budget_seconds=900.0,
)
QUICK = Plan(
    rounds=2,
    starts=1,
    produce_counts={100: 500_000, 1024: 100_000},
    latency_count=1_000,
    rps_seconds=0.7,
    idle_seconds=1.0,
    budget_seconds=60.0,
)


class Progress:
    """One line on stderr: rewritten on a terminal, one per step elsewhere."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    def __call__(self, text: str) -> None:
        line = f"[{time.monotonic() - self._began:5.0f} s] {text}"
        if sys.stderr.isatty():
            sys.stderr.write(f"\r\033[K{line}")
        else:
            sys.stderr.write(line + "\n")
        sys.stderr.flush()

    def step(self, title: str, name: str) -> None:
        self(f"{title}: {name}")

    def done(self) -> None:
        if sys.stderr.isatty():
            sys.stderr.write("\r\033[K")


class Candidate:
    """One of the two brokers, with the figures collected so far."""

    def __init__(self, make_server: Callable[[], ServerProcess], driver: Driver) -> None:
        self.figures: dict[str, list[float]] = defaultdict(list)
        self.server = make_server()
        self._make_server = make_server
        self._driver = driver
        self._topic_count = 0

    def measure_start(self, plan: Plan) -> None:
        """A start on an empty folder, and the memory it takes when nobody uses it."""
        with self._make_server() as server:
            self.figures["start_seconds"].append(server.start_seconds)
            time.sleep(plan.idle_seconds)
            memory = server.memory()
        self.figures["idle_rss"].append(memory.rss_bytes / 1e6)
        self.figures["idle_anonymous"].append(memory.anonymous_bytes / 1e6)

    def wake(self) -> None:
        """Thaw the server and wait until it leads all partitions of a topic again."""
        self.server.resume()
        time.sleep(SETTLE_SECONDS)
        servers = self.server.bootstrap_servers
        self._admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})

    def freeze(self) -> None:
        # The admin client would go on asking the frozen server for metadata.
        del self._admin
        self.server.pause()

    def warm_up(self, plan: Plan) -> None:
        """Let the JIT compiler and the page cache see the load once, without counting it."""
        kept, self.figures = self.figures, defaultdict(list)
        self.round(plan, lambda _: None, scale=0.34)
        self.figures = kept

    def round(self, plan: Plan, progress: Callable[[str], None], *, scale: float = 1.0) -> None:
        topics = []
        for size in RECORD_SIZES:
            count = int(plan.produce_counts[size] * scale)
            for acks in ("1", "all"):
                progress(f"produce {size} B, acks={acks}")
                topics.append(self._new_topic())
                self._produce(topics[-1], count, size, acks)
            progress(f"consume {size} B")
            self._consume(topics[-1], count + PARTITIONS, size)
        progress("one-record latency")
        topics.append(self._new_topic())
        self._latency(topics[-1], int(plan.latency_count * scale))
        progress("requests per second")
        self._requests(topics[-1], plan.rps_seconds * scale)
        for future in self._admin.delete_topics(topics).values():
            future.result(30)

    def measure_memory(self) -> None:
        memory = self.server.memory()
        self.figures["loaded_rss"].append(memory.rss_bytes / 1e6)
        self.figures["loaded_anonymous"].append(memory.anonymous_bytes / 1e6)
        self.figures["peak_rss"].append(memory.peak_rss_bytes / 1e6)

    def _new_topic(self) -> str:
        self._topic_count += 1
        name = f"bench-{self._topic_count}"
        topic = NewTopic(name, num_partitions=PARTITIONS, replication_factor=1)
        for future in self._admin.create_topics([topic]).values():
            future.result(30)
        self._wait_for_leaders(name)
        return name

    def _wait_for_leaders(self, name: str) -> None:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            topic = self._admin.list_topics(name, timeout=30).topics[name]
            leaders = [partition.leader for partition in topic.partitions.values()]
            if len(leaders) == PARTITIONS and min(leaders) >= 0:
                return
            time.sleep(0.1)
        raise DriverError(f"{self.server.name}: {name} has no leaders after 30 s")

    def _produce(self, topic: str, count: int, size: int, acks: str) -> None:
        result = self._driver.produce(
            self.server, topic, partitions=PARTITIONS, count=count, size=size, acks=acks
        )
        self._throughput(f"produce_{size}_acks_{acks}", result, size)
        if acks == "all":
            self._cpu("cpu_produce", result, size)

    def _consume(self, topic: str, count: int, size: int) -> None:
        result = self._driver.consume(self.server, topic, partitions=PARTITIONS, count=count)
        self._throughput(f"consume_{size}", result, size)
        self._cpu("cpu_consume", result, size)

    def _throughput(self, key: str, result: Measurement, size: int) -> None:
        seconds = result.figures["seconds"]
        amount = result.figures["messages"] / 1e3 if size < 1000 else result.figures["bytes"] / 1e6
        self.figures[key].append(amount / seconds)

    def _cpu(self, key: str, result: Measurement, size: int) -> None:
        amount = result.figures["messages"] / 1e6 if size < 1000 else result.figures["bytes"] / 1e9
        self.figures[f"{key}_{size}"].append(result.server_cpu_seconds / amount)

    def _latency(self, topic: str, count: int) -> None:
        result = self._driver.latency(self.server, topic, count=count, size=100)
        for name in ("p50", "p99", "p999"):
            self.figures[f"latency_{name}"].append(result.figures[f"{name}_us"])
        requests = result.figures["messages"] + result.figures["warm_up_messages"]
        self.figures["cpu_latency"].append(result.server_cpu_seconds * 1e6 / requests)

    def _requests(self, topic: str, seconds: float) -> None:
        for key, request, pipeline in (
            ("rps_metadata", "metadata", 1),
            ("rps_metadata_x8", "metadata", 8),
            ("rps_api_versions", "api-versions", 1),
        ):
            result = self._driver.rps(
                self.server, request, topic, pipeline=pipeline, seconds=seconds
            )
            requests = result.figures["requests"]
            self.figures[key].append(requests / 1e3 / result.figures["seconds"])
            if key == "rps_metadata":
                # The driver's warm-up of a tenth is in the CPU time but not in the count.
                self.figures["cpu_rps_metadata"].append(
                    result.server_cpu_seconds * 1e6 / (requests * 1.1)
                )


def measure(plan: Plan, theirs: Candidate, ours: Candidate, progress: Progress) -> int:
    """Run the plan; returns the number of complete rounds."""
    pair = (theirs, ours)
    deadline = time.monotonic() + plan.budget_seconds
    for number in range(plan.starts):
        for candidate in pair:
            progress(f"{candidate.server.name}: start {number + 1} of {plan.starts}")
            candidate.measure_start(plan)
    with contextlib.ExitStack() as stack:
        for candidate in pair:
            progress(f"{candidate.server.name}: warm-up")
            stack.enter_context(candidate.server)
            candidate.wake()
            candidate.warm_up(plan)
            candidate.freeze()
        done = 0
        while done < plan.rounds and (done == 0 or time.monotonic() < deadline):
            for candidate in pair:
                title = f"round {done + 1} of {plan.rounds}, {candidate.server.name}"
                progress(f"{title}: settle")
                candidate.wake()
                candidate.round(plan, functools.partial(progress.step, title))
                candidate.measure_memory()
                candidate.freeze()
            done += 1
    return done


def write_results(plan: Plan, rounds: int, theirs: Candidate, ours: Candidate) -> Path:
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / time.strftime("broker-%Y%m%d-%H%M%S.json")
    document = {
        "machine": describe_machine(),
        "plan": asdict(plan),
        "complete_rounds": rounds,
        "partitions": PARTITIONS,
        "brokers": {
            candidate.server.name: {
                "version": candidate.server.version,
                "figures": candidate.figures,
            }
            for candidate in (theirs, ours)
        },
    }
    path.write_text(json.dumps(document, indent=1) + "\n")
    return path


def server_makers(work: Path) -> tuple[Callable[[], ServerProcess], Callable[[], ServerProcess]]:
    """Each call makes a server on a fresh folder and free ports."""
    count = 0

    def folder(name: str) -> Path:
        nonlocal count
        count += 1
        return work / f"{name}-{count}"

    return (
        lambda: apache_kafka(data_dir=folder("kafka")),
        lambda: anabranch(data_dir=folder("anabranch")),
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--quick", action="store_true", help="small amounts, about a minute")
    parser.add_argument("--rounds", type=int, help="another number of rounds")
    arguments = parser.parse_args()
    if missing := missing_tools():
        print(f"bench: skipped, needs {' and '.join(missing)} on PATH", file=sys.stderr)
        return 0
    plan = QUICK if arguments.quick else FULL
    if arguments.rounds:
        plan = Plan(**(asdict(plan) | {"rounds": arguments.rounds}))
    progress = Progress()
    (BUILD / "bench").mkdir(parents=True, exist_ok=True)
    with terminated_as_exit(), tempfile.TemporaryDirectory(dir=BUILD / "bench") as work:
        try:
            driver = Driver()
            make_theirs, make_ours = server_makers(Path(work))
            theirs, ours = Candidate(make_theirs, driver), Candidate(make_ours, driver)
            rounds = measure(plan, theirs, ours, progress)
        except (DriverError, ServerError) as problem:
            progress.done()
            print(f"bench: {problem}", file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            return 130
    progress.done()
    print(heading(theirs.server, ours.server, rounds))
    print(table(theirs.figures, ours.figures))
    print(f"\nall figures: {write_results(plan, rounds, theirs, ours)}")
    return 0


def heading(theirs: ServerProcess, ours: ServerProcess, rounds: int) -> str:
    machine = describe_machine()
    return (
        f"{theirs.name} {theirs.version} and {ours.name} {ours.version} in turns, {rounds} rounds,"
        f" {PARTITIONS} partitions, librdkafka's defaults,\n"
        f"both brokers with default settings apart from ports and folders.\n"
        f"{machine['cpus']} x {machine['cpu']}, {machine['memory_gb']} GB, Linux "
        f"{machine['kernel']}, Python {machine['python']}, load average {machine['load_average']}\n"
        f"Ratios: more than 1.00x means that Anabranch is better.\n"
    )


if __name__ == "__main__":
    sys.exit(main())
