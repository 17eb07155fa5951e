"""How long a classic group takes to be stable again: Anabranch beside Apache Kafka, one run.

    .venv/bin/python bench/rebalance.py            # about 25 minutes
    .venv/bin/python bench/rebalance.py --quick    # 2.5 minutes: shows that it works

Groups of 10 and of 100 simulated members (rebalance_member.py) with an eager and a cooperative
protocol are formed, joined by one more member and left by one, again and again; so are groups of 10
librdkafka consumers. An event comes at a given part of the heartbeat interval after the last one,
the same for both brokers, because a rebalance lasts until every member's next heartbeat: that
dominates the figures with the stock interval of 3 s, hence the same with 0.2 s, and the time after
the last JoinGroup alone.

Both brokers run with their default settings apart from ports and folders; so the first rebalance of
a group waits group.initial.rebalance.delay.ms = 3000, twice, because others join meanwhile. The
brokers are measured in turns, and the one that is not measured is frozen with SIGSTOP. Everything
stays on loopback. The table goes to stdout, all samples go to a JSON file in bench/results/.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Coroutine
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import uvloop
from confluent_kafka.admin import AdminClient, NewTopic

from apache_kafka import apache_kafka, missing_tools
from broker import RESULTS, SETTLE_SECONDS, Progress
from machine import describe_machine
from rebalance_group import PARTITIONS_PER_MEMBER, SimulatedGroup, wait_for_coordinator
from rebalance_librdkafka import LibrdkafkaGroup
from rebalance_plan import (
    FULL,
    QUICK,
    REAL_MEMBERS,
    STOCK_HEARTBEAT_MS,
    Plan,
    Scenario,
    Step,
    steps,
)
from rebalance_protocol import TOPIC, RebalanceError
from rebalance_table import (
    AFTER_LAST_JOIN,
    GENERATIONS,
    SERVER_CPU,
    UNTIL_STABLE,
    Row,
    extra_generations,
    rebalance_table,
    row_order,
)
from server_process import BUILD, ServerError, ServerProcess, anabranch, terminated_as_exit


class Candidate:
    """One of the two brokers, with the samples collected so far, in milliseconds."""

    def __init__(self, server: ServerProcess, *, settle_seconds: float) -> None:
        self.server = server
        self.samples: dict[Row, list[float]] = defaultdict(list)
        self._settle_seconds = settle_seconds
        self._is_frozen = False
        self._group_count = 0

    def start(self, warm_up_seconds: float) -> None:
        """Start, let the JIT compiler see a group come, go and rebalance uncounted, freeze."""
        self.server.start()
        run(self._warm_up(warm_up_seconds))
        self.freeze()

    def freeze(self) -> None:
        if not self._is_frozen:
            self.server.pause()
            self._is_frozen = True

    def wake(self) -> None:
        if self._is_frozen:
            self.server.resume()
            self._is_frozen = False
            time.sleep(self._settle_seconds)

    def run(self, step: Step, seed: int) -> None:
        """One step of a round; the same seed makes the same choices."""
        choice = random.Random(seed)
        if step.scenario is None:
            self._ensure_topic()
            run(self._both_real(step.repetitions, seed))
        else:
            run(self._simulated(step.scenario, step.is_cooperative, choice))

    # Simulated members ----------------------------------------------------------------------------

    async def _simulated(
        self, scenario: Scenario, is_cooperative: bool, choice: random.Random
    ) -> None:
        interval_s = scenario.heartbeat_ms / 1000
        group = await self._new_group(scenario.members, is_cooperative, interval_s)
        row = Row(
            is_real=False,
            members=scenario.members,
            heartbeat_ms=scenario.heartbeat_ms,
            is_cooperative=is_cooperative,
            event="form",
        )
        try:
            formed = await group.join(scenario.members)
            self.samples[row].append(formed.seconds * 1000)
            cpu_before = self.server.cpu_seconds()
            for delay in delays(2 * scenario.repetitions, choice, interval_s):
                await group.wait_after_stable(delay)
                if len(group) == scenario.members:
                    event, rebalance = "join", await group.join()
                else:
                    event, rebalance = "leave", await group.leave(choice)
                for part, value in (
                    (UNTIL_STABLE, rebalance.seconds * 1000),
                    (AFTER_LAST_JOIN, rebalance.after_last_join_seconds * 1000),
                    (GENERATIONS, rebalance.generations),
                ):
                    self.samples[replace(row, event=event, part=part)].append(value)
            cpu_seconds = self.server.cpu_seconds() - cpu_before
            cpu = replace(row, event="join or leave", part=SERVER_CPU)
            self.samples[cpu].append(cpu_seconds * 1000 / (2 * scenario.repetitions))
        finally:
            await group.close()

    async def _new_group(
        self, members: int, is_cooperative: bool, interval_s: float
    ) -> SimulatedGroup:
        self._group_count += 1
        group_id = f"group-{self._group_count}"
        await wait_for_coordinator(self.server.port, group_id)
        return SimulatedGroup(
            port=self.server.port,
            group_id=group_id,
            is_cooperative=is_cooperative,
            partition_count=members * PARTITIONS_PER_MEMBER,
            heartbeat_interval_s=interval_s,
        )

    async def _warm_up(self, seconds: float) -> None:
        group = await self._new_group(50, is_cooperative=False, interval_s=0.02)
        choice = random.Random(0)
        try:
            # One member alone sits through the initial delay once, not twice.
            await group.join(1)
            await group.join(49)
            deadline_s = time.monotonic() + seconds
            while time.monotonic() < deadline_s:
                await group.join()
                await group.leave(choice)
        finally:
            await group.close()

    # Real members ---------------------------------------------------------------------------------

    def _ensure_topic(self) -> None:
        servers = self.server.bootstrap_servers
        admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
        count = REAL_MEMBERS * PARTITIONS_PER_MEMBER
        if TOPIC not in admin.list_topics(timeout=30).topics:
            topic = NewTopic(TOPIC, num_partitions=count, replication_factor=1)
            admin.create_topics([topic])[TOPIC].result(30)
        deadline_s = time.monotonic() + 30
        while time.monotonic() < deadline_s:
            found = admin.list_topics(TOPIC, timeout=30).topics[TOPIC]
            leaders = [partition.leader for partition in found.partitions.values()]
            if len(leaders) == count and min(leaders) >= 0:
                return
            time.sleep(0.1)
        raise RebalanceError(f"{self.server.name}: {TOPIC} has no leaders after 30 s")

    async def _both_real(self, repetitions: int, seed: int) -> None:
        # Both protocols at once: nearly all of their time is librdkafka's heartbeat interval.
        await asyncio.gather(*(self._real(repetitions, is_coop, seed) for is_coop in (False, True)))

    async def _real(self, repetitions: int, is_cooperative: bool, seed: int) -> None:
        group_id = f"real-{seed}-{'cooperative' if is_cooperative else 'eager'}"
        await wait_for_coordinator(self.server.port, group_id)
        group = LibrdkafkaGroup(
            bootstrap_servers=self.server.bootstrap_servers,
            group_id=group_id,
            topic=TOPIC,
            partition_count=REAL_MEMBERS * PARTITIONS_PER_MEMBER,
            is_cooperative=is_cooperative,
        )
        row = Row(
            is_real=True,
            members=REAL_MEMBERS,
            heartbeat_ms=STOCK_HEARTBEAT_MS,
            is_cooperative=is_cooperative,
            event="form",
        )
        choice = random.Random(seed)
        await group.start()
        try:
            self.samples[row].append(await group.join(REAL_MEMBERS) * 1000)
            joins = delays(repetitions, choice, STOCK_HEARTBEAT_MS / 1000)
            leaves = delays(repetitions, choice, STOCK_HEARTBEAT_MS / 1000)
            for join_delay, leave_delay in zip(joins, leaves, strict=True):
                await group.wait_after_stable(join_delay)
                self.samples[replace(row, event="join")].append(await group.join() * 1000)
                await group.wait_after_stable(leave_delay)
                self.samples[replace(row, event="leave")].append(await group.leave(choice) * 1000)
        finally:
            await group.close()


def delays(count: int, choice: random.Random, interval_s: float) -> list[float]:
    """Parts of the heartbeat interval, evenly spread, in random order."""
    parts = [(place + 0.5) / count * interval_s for place in range(count)]
    choice.shuffle(parts)
    return parts


def run(coroutine: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(coroutine)


def measure(plan: Plan, pair: tuple[Candidate, Candidate], progress: Progress) -> int:
    """Run the plan; returns the number of complete rounds."""
    began_s = time.monotonic()
    done = 0
    with contextlib.ExitStack() as stack:
        for candidate in pair:
            progress(f"{candidate.server.name}: start and warm-up")
            stack.callback(candidate.server.stop)
            candidate.start(plan.warm_up_seconds)
        order = list(pair)
        while done < plan.rounds:
            round_began_s = time.monotonic()
            for step in steps(plan):
                for candidate, other in (order, reversed(order)):
                    name = candidate.server.name
                    progress(f"round {done + 1} of {plan.rounds}, {step.title}: {name}")
                    other.freeze()
                    candidate.wake()
                    candidate.run(step, seed=done)
                # Whoever runs goes on with the next step: A B, B A, A B, ...
                order.reverse()
            done += 1
            now_s = time.monotonic()
            if now_s - began_s + (now_s - round_began_s) > plan.budget_seconds:
                break
    return done


def write_results(plan: Plan, rounds: int, pair: tuple[Candidate, Candidate]) -> Path:
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / time.strftime("rebalance-%Y%m%d-%H%M%S.json")
    document = {
        "machine": describe_machine(),
        "plan": asdict(plan),
        "complete_rounds": rounds,
        "unit": "ms, but for generations, which are counted",
        "brokers": {
            candidate.server.name: {
                "version": candidate.server.version,
                "samples": {
                    row.key: candidate.samples[row]
                    for row in sorted(candidate.samples, key=row_order)
                },
            }
            for candidate in pair
        },
    }
    path.write_text(json.dumps(document, indent=1) + "\n")
    return path


def heading(pair: tuple[Candidate, Candidate], rounds: int) -> str:
    machine = describe_machine()
    theirs, ours = (candidate.server for candidate in pair)
    return (
        f"{theirs.name} {theirs.version} and {ours.name} {ours.version} in turns, "
        f"{rounds} round{'s' if rounds > 1 else ''}; from a join or leave until all members are\n"
        f"stable, in milliseconds. Both brokers have default settings, so `form` waits "
        f"group.initial.rebalance.delay.ms = 3000 twice.\n"
        f"{machine['cpus']} x {machine['cpu']}, {machine['memory_gb']} GB, Linux "
        f"{machine['kernel']}, Python {machine['python']}, load average {machine['load_average']}\n"
        f"p99 is the nearest rank: the largest value when n is below 100. "
        f"Server CPU is per event, one sample per round.\n"
        f"Ratios: more than 1.00x means that Anabranch is faster.\n"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--quick", action="store_true", help="few events, about 2.5 minutes")
    parser.add_argument("--rounds", type=int, help="another number of rounds")
    arguments = parser.parse_args()
    if missing := missing_tools():
        print(f"bench: skipped, needs {' and '.join(missing)} on PATH", file=sys.stderr)
        return 0
    plan = QUICK if arguments.quick else FULL
    if arguments.rounds:
        plan = replace(plan, rounds=arguments.rounds)
    progress = Progress()
    (BUILD / "bench").mkdir(parents=True, exist_ok=True)
    with terminated_as_exit(), tempfile.TemporaryDirectory(dir=BUILD / "bench") as work:
        try:
            pair = (
                Candidate(
                    apache_kafka(data_dir=Path(work) / "kafka"), settle_seconds=SETTLE_SECONDS
                ),
                Candidate(anabranch(data_dir=Path(work) / "anabranch"), settle_seconds=0.5),
            )
            rounds = measure(plan, pair, progress)
        except (RebalanceError, ServerError) as problem:
            progress.done()
            print(f"bench: {problem}", file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            return 130
    progress.done()
    print(heading(pair, rounds))
    theirs, ours = (candidate.samples for candidate in pair)
    print(rebalance_table(theirs, ours))
    print(
        f"\ncooperative joins of simulated members that took more than two generations: "
        f"Kafka {extra_generations(theirs)}, Anabranch {extra_generations(ours)}"
    )
    print(f"all samples: {write_results(plan, rounds, pair)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
