"""How long a group takes to be stable again: Anabranch beside Apache Kafka, one run.

    .venv/bin/python bench/rebalance.py                    # about 25 minutes
    .venv/bin/python bench/rebalance.py --quick            # 3 minutes: shows that it works
    .venv/bin/python bench/rebalance.py --only consumer    # or classic, wire, stock, growth, kept
    .venv/bin/python bench/rebalance.py --only stock --members 10,100 --rounds 5

Groups are formed, joined by one more member and left by one, again and again: classic groups, eager
and cooperative, and groups of the consumer protocol (KIP-848); of simulated members, which are
connections that say what a stock client says (rebalance_member.py, rebalance_consumer_member.py),
and of librdkafka consumers. "Stable" is observed at the members only, in the same way at both
brokers. Consumer groups also see their topic grow from 100 to 1,000 partitions, are left alone to
count their heartbeats, and are measured for the records that go on meanwhile.

An event comes at a given part of the heartbeat interval after the last one, because a rebalance
lasts until members hear of it by their next heartbeat. Classic members choose that interval
themselves, 3 s in stock clients, hence rows with 0.2 s and the time after the last JoinGroup alone.
In the consumer protocol the broker tells it: rows say "told" when both brokers have their default
settings, and "Kafka tuned" when Kafka's group is set to an interval of 100 ms, the shortest that
stock Java clients keep, and to assign at once; Anabranch's side of those rows has its defaults.

Both brokers run with their default settings apart from ports, folders and the lower limit for that
interval; so the first rebalance of a classic group waits group.initial.rebalance.delay.ms = 3000,
twice, because others join meanwhile. The brokers are measured in turns, and the one that is not
measured is frozen with SIGSTOP. Everything stays on loopback. The table goes to stdout, all samples
go to a JSON file in bench/results/.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
import tempfile
import time
from collections.abc import Coroutine, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import uvloop

from apache_kafka import apache_kafka, missing_tools
from broker import RESULTS, SETTLE_SECONDS, Progress
from machine import describe_machine
from rebalance_classic import run_classic, warm_up_classic
from rebalance_consumer import run_consumer, warm_up_consumer
from rebalance_plan import CLASSIC, FULL, PARTS, QUICK, Plan, Step, steps
from rebalance_protocol import RebalanceError
from rebalance_site import (
    ANABRANCH_SETTINGS,
    KAFKA_OVERRIDES,
    KAFKA_SETTINGS,
    GroupSettings,
    Site,
)
from rebalance_table import extra_generations, rebalance_table, row_order
from server_process import BUILD, ServerError, ServerProcess, anabranch, terminated_as_exit


class Candidate:
    """One of the two brokers: awake while it is measured, frozen while the other is."""

    def __init__(
        self,
        server: ServerProcess,
        settings: tuple[GroupSettings, ...],
        *,
        settle_seconds: float,
    ) -> None:
        self.server = server
        self.site = Site(server, settings)
        self._settle_seconds = settle_seconds
        self._is_frozen = False

    def start(self, plan: Plan) -> None:
        """Start, let the JIT compiler see groups come, go and rebalance uncounted, freeze."""
        self.server.start()
        if CLASSIC in plan.parts:
            run(warm_up_classic(self.site, plan.warm_up_seconds))
        if plan.parts - {CLASSIC}:
            run(warm_up_consumer(self.site, plan.warm_up_seconds))
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
        try:
            run((run_classic if step.part == CLASSIC else run_consumer)(self.site, step, seed))
        except RebalanceError as problem:
            # A group that is never stable is a finding, and no reason to lose the other rows.
            self.site.failures.append(f"{step.title}: {problem}")


def run(coroutine: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(coroutine)


def measure(
    plan: Plan, sizes: Sequence[int], pair: tuple[Candidate, Candidate], progress: Progress
) -> int:
    """Run the plan; returns the number of complete rounds."""
    began_s = time.monotonic()
    done = 0
    with contextlib.ExitStack() as stack:
        for candidate in pair:
            progress(f"{candidate.server.name}: start and warm-up")
            stack.callback(candidate.server.stop)
            candidate.start(plan)
        order = list(pair)
        while done < plan.rounds:
            round_began_s = time.monotonic()
            for step in steps(plan, sizes, is_first_round=done == 0):
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
        "plan": asdict(plan) | {"parts": sorted(plan.parts)},
        "complete_rounds": rounds,
        "unit": "ms; generations are counted, heartbeats are per second, kept is in percent",
        "brokers": {
            candidate.server.name: {
                "version": candidate.server.version,
                "failures": candidate.site.failures,
                "double_ownership_seconds": candidate.site.double_ownerships,
                "samples": {
                    row.key: candidate.site.samples[row]
                    for row in sorted(candidate.site.samples, key=row_order)
                },
            }
            for candidate in pair
        },
    }
    path.write_text(json.dumps(document, indent=1) + "\n")
    return path


def heading(plan: Plan, pair: tuple[Candidate, Candidate], rounds: int) -> str:
    machine = describe_machine()
    theirs, ours = (candidate.server for candidate in pair)
    classic = "so `form` of a\nclassic group waits group.initial.rebalance.delay.ms = 3000 twice"
    return (
        f"{theirs.name} {theirs.version} and {ours.name} {ours.version} in turns, "
        f"{rounds} round{'s' if rounds > 1 else ''}; from a join or leave until all members are\n"
        f"stable, as the members see it. Both brokers have default settings"
        f"{', ' + classic if CLASSIC in plan.parts else ''}, but for\n"
        f"rows with `Kafka tuned`: there Kafka's group has "
        f"{', '.join(f'{name}={value}' for name, value in KAFKA_SETTINGS[-1].configs.items())}.\n"
        f"{machine['cpus']} x {machine['cpu']}, {machine['memory_gb']} GB, Linux "
        f"{machine['kernel']}, Python {machine['python']}, load average {machine['load_average']}\n"
        f"p99 is the nearest rank: the largest value when n is below 100 (of what is kept, the "
        f"smallest). Server CPU is per event.\n"
        f"Ratios: more than 1.00x means that Anabranch is better.\n"
    )


def findings(candidate: Candidate) -> str:
    """What the rows cannot say of a broker."""
    site, name = candidate.site, candidate.server.name
    doubled = site.double_ownerships
    longest = f", the longest for {max(doubled) * 1000:.0f} ms" if doubled else ""
    lines = [f"{name}: partitions that two librdkafka members had at once: {len(doubled)}{longest}"]
    lines += [f"{name}: FAILED {failure[:300]}" for failure in site.failures]
    return "\n".join(lines)


def parse_arguments() -> tuple[Plan, list[int]]:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--quick", action="store_true", help="few events, about 3 minutes")
    parser.add_argument("--rounds", type=int, help="another number of rounds, however long")
    parser.add_argument(
        "--only",
        action="append",
        choices=PARTS,
        help="this part of the rows; may be given more than once",
    )
    parser.add_argument("--members", help="only groups of these sizes, for example 10,100")
    arguments = parser.parse_args()
    plan = QUICK if arguments.quick else FULL
    if arguments.rounds:
        plan = replace(plan, rounds=arguments.rounds, budget_seconds=float("inf"))
    if arguments.only:
        plan = replace(plan, parts=frozenset().union(*(PARTS[name] for name in arguments.only)))
    sizes = [int(size) for size in arguments.members.split(",")] if arguments.members else []
    return plan, sizes


def main() -> int:
    plan, sizes = parse_arguments()
    if missing := missing_tools():
        print(f"bench: skipped, needs {' and '.join(missing)} on PATH", file=sys.stderr)
        return 0
    progress = Progress()
    (BUILD / "bench").mkdir(parents=True, exist_ok=True)
    with terminated_as_exit(), tempfile.TemporaryDirectory(dir=BUILD / "bench") as work:
        theirs = apache_kafka(data_dir=Path(work) / "kafka", overrides=KAFKA_OVERRIDES)
        ours = anabranch(data_dir=Path(work) / "anabranch")
        pair = (
            Candidate(theirs, KAFKA_SETTINGS, settle_seconds=SETTLE_SECONDS),
            Candidate(ours, ANABRANCH_SETTINGS, settle_seconds=0.5),
        )
        try:
            rounds = measure(plan, sizes, pair, progress)
        except (RebalanceError, ServerError) as problem:
            progress.done()
            print(f"bench: {problem}", file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            return 130
    progress.done()
    print(heading(plan, pair, rounds))
    samples = [candidate.site.samples for candidate in pair]
    print(rebalance_table(*samples))
    if CLASSIC in plan.parts:
        counts = [extra_generations(side) for side in samples]
        print(
            f"\ncooperative joins of simulated members that took more than two generations: "
            f"Kafka {counts[0]}, Anabranch {counts[1]}"
        )
    for candidate in pair:
        print(findings(candidate))
    print(f"all samples: {write_results(plan, rounds, pair)}")
    return 1 if pair[1].site.failures else 0


if __name__ == "__main__":
    sys.exit(main())
