"""Many workers on one partition: cooperative consumption side by side with what others offer.

    .venv/bin/python bench/cooperative.py                 # about 35 minutes
    .venv/bin/python bench/cooperative.py --quick         # about 4 minutes: shows that it works
    .venv/bin/python bench/cooperative.py --only pauses   # or rates, balance; more than one may be

rates    1 to 64 workers, 0, 1 and 10 ms of work, even and uneven keys: ours in one and in several
         processes, a plain group, Confluent's Parallel Consumer and a share group on Apache Kafka
balance  16 members, uneven keys: the load of the busiest one before and after ranges move
pauses   how long keys pause when members join and leave

Needs Java 17 and Maven for the peers; without them `rates` has ours alone. Everything stays on
loopback. Tables go to stdout, all single figures go to a JSON file in bench/results/.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from apache_kafka import apache_kafka, missing_tools
from branches import aligned
from broker import RESULTS, Progress
from cooperative_balance import BalancePlan, balance_goal, balance_rows, measure_balance
from cooperative_load import LoadError
from cooperative_pause import PausePlan, measure_pauses, pause_goal, pause_rows
from cooperative_rate import RatePlan, cpu_rows, measure_rates, rate_figures, rate_goals, rate_rows
from machine import describe_machine
from server_process import BUILD, ServerError, ServerProcess, anabranch, terminated_as_exit

# What makes groups of Apache Kafka form sooner; it has no part in what is measured then.
KAFKA_OVERRIDES = (
    "group.initial.rebalance.delay.ms=0",
    "group.consumer.min.heartbeat.interval.ms=1000",
    "group.consumer.heartbeat.interval.ms=1000",
    "group.share.min.heartbeat.interval.ms=1000",
    "group.share.heartbeat.interval.ms=1000",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much is measured."""

    rates: RatePlan
    balance: BalancePlan
    pauses: PausePlan


FULL = Plan(
    rates=RatePlan(
        workers=(1, 4, 16, 64),
        work_us=(0, 1_000, 10_000),
        rounds=2,
        seconds=3.0,
        records_max=60_000,
    ),
    balance=BalancePlan(seconds=180.0, settle_seconds=20.0, interval_ms=5_000),
    pauses=PausePlan(cycles=4, every_s=2.0),
)
QUICK = Plan(
    rates=RatePlan(workers=(1, 64), work_us=(0, 10_000), rounds=1, seconds=1.0, records_max=20_000),
    balance=BalancePlan(seconds=40.0, settle_seconds=5.0, interval_ms=1_000),
    pauses=PausePlan(cycles=1, every_s=1.0),
)

PARTS = {
    "rates": "Many workers on one partition: records per second (share of the ideal)",
    "balance": "Load of 16 members, Zipf 1.0, 100,000 keys",
    "pauses": "Keys that move: from the last record at the old owner to the first at the new one",
}


Table = Callable[[Sequence[Sequence[str]], int], str]


def plain_table(rows: Sequence[Sequence[str]], left: int) -> str:
    return aligned(rows, left=left)


def markdown_table(rows: Sequence[Sequence[str]], left: int) -> str:
    """The same for docs/reference/benchmarks.md: two rows of headings become one."""
    heads = [f"{name} ({unit})" if unit else name for name, unit in zip(*rows[:2], strict=True)]
    rule = ["---" if column < left else "---:" for column in range(len(heads))]
    lines = ["| " + " | ".join(row) + " |" for row in [heads, *rows[2:]]]
    return "\n".join([lines[0], "|" + "|".join(rule) + "|", *lines[1:]])


class Bench:
    """The parts of one run, with the figures so far."""

    def __init__(self, plan: Plan, work: Path, progress: Progress, table: Table) -> None:
        self.results: dict[str, Any] = {}
        self._table = table
        self._plan = plan
        self._work = work
        self._progress = progress

    def run(self, part: str) -> str:
        """Measure one part; returns its table."""
        measure: dict[str, Callable[[Path], str]] = {
            "rates": self._rates,
            "balance": self._balance,
            "pauses": self._pauses,
        }
        return measure[part](self._work / part)

    def log_tail(self) -> str:
        """The end of the brokers' logs, which do not outlive the run."""
        logs = sorted(self._work.glob("*.log"), key=lambda path: path.stat().st_mtime)
        return "\n".join(logs[-1].read_text().splitlines()[-20:]) if logs else ""

    def _rates(self, folder: Path) -> str:
        with ExitStack() as stack:
            ours = stack.enter_context(anabranch(data_dir=folder.with_name("rates-ours")))
            kafka: ServerProcess | None = None
            if missing := missing_tools():
                self._progress(f"without peers: {' and '.join(missing)} is not on PATH")
            else:
                data_dir = folder.with_name("rates-kafka")
                server = apache_kafka(data_dir=data_dir, overrides=KAFKA_OVERRIDES)
                kafka = stack.enter_context(server)
            plan = self._plan.rates
            outcomes, failures = measure_rates(ours, kafka, folder, plan, self._progress)
        self.results["rates"] = rate_figures(outcomes)
        self.results["rate_failures"] = failures
        cpu = "CPU time of a record, consumers + broker, with the most workers"
        notes = rate_goals(outcomes) + [f"failed: {one}" for one in failures]
        tables = [self._table(rate_rows(outcomes), 2), "\n".join(notes)]
        return "\n\n".join([*tables, cpu, self._table(cpu_rows(outcomes), 2)])

    def _balance(self, folder: Path) -> str:
        plan = self._plan.balance
        overrides = [f"coop.resplit.interval.ms={plan.interval_ms}"]
        data_dir = folder.with_name("balance-ours")
        with anabranch(data_dir=data_dir, overrides=overrides) as server:
            balance = measure_balance(server, folder, plan, self._progress)
        self.results["balance"] = asdict(balance)
        return f"{self._table(balance_rows(balance), 1)}\n\n{balance_goal(balance)}"

    def _pauses(self, folder: Path) -> str:
        with anabranch(data_dir=folder.with_name("pauses-ours")) as server:
            pauses = measure_pauses(server, folder, self._plan.pauses, self._progress)
        figures = asdict(pauses)
        del figures["unmoved_ms"]  # tens of thousands
        self.results["pauses"] = figures
        return f"{self._table(pause_rows(pauses), 1)}\n\n{pause_goal(pauses)}"


def heading(version: str, load_before: str) -> str:
    machine = describe_machine()
    return (
        f"Anabranch {version}, one partition, values of 100 B, batches of 16 KB.\n"
        f"{machine['cpus']} x {machine['cpu']}, {machine['memory_gb']} GB, Linux "
        f"{machine['kernel']}, Python {machine['python']}, {machine['java']};\n"
        f"load average {load_before} before and {machine['load_average']} after"
    )


def write_results(plan: Plan, version: str, results: dict[str, Any]) -> Path:
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / time.strftime("cooperative-%Y%m%d-%H%M%S.json")
    document = {
        "machine": describe_machine(),
        "version": version,
        "plan": asdict(plan),
        "results": results,
    }
    path.write_text(json.dumps(document, indent=1) + "\n")
    return path


def parse_arguments() -> tuple[Plan, list[str], Table]:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--quick", action="store_true", help="small amounts, about 4 minutes")
    parser.add_argument("--rounds", type=int, help="another number of rounds of rates")
    parser.add_argument(
        "--only", action="append", choices=PARTS, help="this part; may be given more than once"
    )
    parser.add_argument(
        "--workers", action="append", type=int, help="rates with so many workers; may be repeated"
    )
    parser.add_argument(
        "--work-ms", action="append", type=float, help="rates with such work; may be repeated"
    )
    parser.add_argument("--markdown", action="store_true", help="tables as in the documentation")
    arguments = parser.parse_args()
    plan = QUICK if arguments.quick else FULL
    rates = replace(
        plan.rates,
        rounds=arguments.rounds or plan.rates.rounds,
        workers=tuple(arguments.workers or plan.rates.workers),
        work_us=tuple(
            [round(1000 * work_ms) for work_ms in arguments.work_ms]
            if arguments.work_ms
            else plan.rates.work_us
        ),
    )
    plan = replace(plan, rates=rates)
    parts = [part for part in PARTS if not arguments.only or part in arguments.only]
    return plan, parts, markdown_table if arguments.markdown else plain_table


def main() -> int:
    plan, parts, table = parse_arguments()
    progress = Progress()
    load_before = " ".join(f"{load:.1f}" for load in os.getloadavg())
    (BUILD / "bench").mkdir(parents=True, exist_ok=True)
    with terminated_as_exit(), tempfile.TemporaryDirectory(dir=BUILD / "bench") as work:
        bench = Bench(plan, Path(work), progress, table)
        version = anabranch(data_dir=Path(work) / "version").version
        try:
            for part in parts:
                text = bench.run(part)
                progress.done()
                print(f"\n{PARTS[part]}\n\n{text}", flush=True)
        except (LoadError, ServerError) as problem:
            progress.done()
            print(f"bench: {problem}\n{bench.log_tail()}", file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            return 130
    print(f"\n{heading(version, load_before)}")
    print(f"all figures: {write_results(plan, version, bench.results)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
