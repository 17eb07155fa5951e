"""Branch topics: what they cost the broker, and what a group gains by them.

    .venv/bin/python bench/branches.py                 # about 15 minutes
    .venv/bin/python bench/branches.py --quick         # under 3 minutes: shows that it works
    .venv/bin/python bench/branches.py --only tail     # or filter, wire, work; more than one may be

filter  reading a filled topic's branches, beside a plain fetch and beside the kernel alone
tail    consumers that keep up with a producer: one plain one, eight of a branch each
wire    bytes received by eight consumers, beside eight that download all and filter for themselves
work    eight stock consumers with 2 ms of work for each record, on the plain and the branch topic

One broker of this checkout with its default settings, on a fresh folder for each part; clients with
librdkafka's defaults. Most figures are the broker's CPU time and bear a busy machine better than
seconds do. Everything stays on loopback. Tables go to stdout, all single figures go to a JSON file
in bench/results/.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from branches_filter import filter_goal, filter_rows, measure_filter
from branches_tail import CASES, GOAL_CASES, measure_tail, tail_goal, tail_rows
from branches_wire import measure_wire, wire_rows
from branches_work import measure_work, work_rows
from broker import RESULTS, Progress
from driver import DriverError
from machine import describe_machine
from server_process import BUILD, ServerError, anabranch, terminated_as_exit


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much is measured."""

    filter_counts: dict[int, int]
    filter_branches: tuple[int, ...]
    filter_rounds: int
    tail_seconds: float
    tail_rounds: int
    is_tail_explained: bool  # whether other numbers and settings of consumers are measured too
    wire_count: int
    work_count: int


FULL = Plan(
    filter_counts={100: 1_000_000, 1024: 150_000},
    filter_branches=(2, 8, 32),
    filter_rounds=3,
    tail_seconds=5.0,
    tail_rounds=3,
    is_tail_explained=True,
    wire_count=200_000,
    work_count=20_000,
)
QUICK = Plan(
    filter_counts={100: 200_000, 1024: 30_000},
    filter_branches=(8,),
    filter_rounds=1,
    tail_seconds=1.5,
    tail_rounds=2,
    is_tail_explained=False,
    wire_count=50_000,
    work_count=4_000,
)


class Bench:
    """The parts of one run, with the figures so far."""

    def __init__(self, plan: Plan, work: Path, progress: Progress) -> None:
        self.results: dict[str, Any] = {}
        self._plan = plan
        self._work = work
        self._progress = progress

    def run(self, part: str) -> str:
        """Measure one part; returns its table."""
        measure: dict[str, Callable[[Path], str]] = {
            "filter": self._filter,
            "tail": self._tail,
            "wire": self._wire,
            "work": self._group_at_work,
        }
        return measure[part](self._work / part)

    def log_tail(self) -> str:
        """The end of the broker's log, which does not outlive the run."""
        logs = sorted(self._work.glob("*.log"), key=lambda path: path.stat().st_mtime)
        return "\n".join(logs[-1].read_text().splitlines()[-20:]) if logs else ""

    def _filter(self, data_dir: Path) -> str:
        samples = measure_filter(
            anabranch(data_dir=data_dir),
            data_dir,
            counts=self._plan.filter_counts,
            branch_counts=self._plan.filter_branches,
            rounds=self._plan.filter_rounds,
            progress=self._progress,
        )
        self.results["filter"] = {
            row.key: [asdict(sample) for sample in taken] for row, taken in samples.items()
        }
        return f"{aligned(filter_rows(samples), left=4)}\n{filter_goal(samples)}"

    def _tail(self, data_dir: Path) -> str:
        with anabranch(data_dir=data_dir) as server:
            figures = measure_tail(
                server,
                rounds=self._plan.tail_rounds,
                seconds=self._plan.tail_seconds,
                cases=CASES if self._plan.is_tail_explained else GOAL_CASES,
                progress=self._progress,
            )
        self.results["tail"] = figures
        return f"{aligned(tail_rows(figures), left=2)}\n{tail_goal(figures)}"

    def _wire(self, data_dir: Path) -> str:
        with anabranch(data_dir=data_dir) as server:
            figures = measure_wire(server, self._plan.wire_count, self._progress)
        self.results["wire"] = figures
        return aligned(wire_rows(figures, self._plan.wire_count), left=2)

    def _group_at_work(self, data_dir: Path) -> str:
        with anabranch(data_dir=data_dir) as server:
            outcomes = measure_work(server, self._plan.work_count, self._progress)
        self.results["work"] = [asdict(outcome) for outcome in outcomes]
        return aligned(work_rows(outcomes), left=2)


PARTS = {
    "tail": "Hot tail: server CPU of the readers of one partition",
    "filter": "Filtered fetch: server CPU of reading a filled topic",
    "wire": "Bytes on the wire, 100 B records",
    "work": "A group at work: 2 ms for each record, 400 keys, one partition",
}


def aligned(rows: Sequence[Sequence[str]], *, left: int) -> str:
    """The rows as a table; two rows of headings, the first `left` columns flush left."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "  ".join(
            cell.ljust(width) if column < left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    lines.insert(2, "-" * max(map(len, lines)))
    return "\n".join(lines)


def heading(version: str) -> str:
    machine = describe_machine()
    return (
        f"Anabranch {version} with default settings, librdkafka's defaults, one partition.\n"
        f"{machine['cpus']} x {machine['cpu']}, {machine['memory_gb']} GB, Linux "
        f"{machine['kernel']}, Python {machine['python']}, load average {machine['load_average']}"
    )


def write_results(plan: Plan, version: str, results: dict[str, Any]) -> Path:
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / time.strftime("branches-%Y%m%d-%H%M%S.json")
    document = {
        "machine": describe_machine(),
        "version": version,
        "plan": asdict(plan),
        "results": results,
    }
    path.write_text(json.dumps(document, indent=1) + "\n")
    return path


def parse_arguments() -> tuple[Plan, list[str]]:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--quick", action="store_true", help="small amounts, under 3 minutes")
    parser.add_argument("--rounds", type=int, help="another number of rounds of filter and tail")
    parser.add_argument(
        "--only", action="append", choices=PARTS, help="this part; may be given more than once"
    )
    arguments = parser.parse_args()
    plan = QUICK if arguments.quick else FULL
    if arguments.rounds:
        plan = replace(plan, filter_rounds=arguments.rounds, tail_rounds=arguments.rounds)
    return plan, [part for part in PARTS if not arguments.only or part in arguments.only]


def main() -> int:
    plan, parts = parse_arguments()
    progress = Progress()
    (BUILD / "bench").mkdir(parents=True, exist_ok=True)
    with terminated_as_exit(), tempfile.TemporaryDirectory(dir=BUILD / "bench") as work:
        bench = Bench(plan, Path(work), progress)
        version = anabranch(data_dir=Path(work) / "version").version
        try:
            for part in parts:
                table = bench.run(part)
                progress.done()
                print(f"\n{PARTS[part]}\n\n{table}", flush=True)
        except (DriverError, ServerError) as problem:
            progress.done()
            print(f"bench: {problem}\n{bench.log_tail()}", file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            return 130
    print(f"\n{heading(version)}\nall figures: {write_results(plan, version, bench.results)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
