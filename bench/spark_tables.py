"""The figures of the benchmark of Spark as Markdown, and what was aimed at."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from statistics import median

from spark_latency import PHASES, Latency, Overhead
from spark_scan import Sample
from spark_site import CONNECTOR, OURS, PARTITIONS
from spark_work import WORK_S, Worked

GOAL_ROWS_PER_S = 500_000
GOAL_CPU_SHARE = 0.5
GOAL_SPEED_UP = 0.9


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]], *, left: int) -> str:
    """A table; the first `left` columns are text, the others numbers."""
    lines = [head, ["---" if n < left else "---:" for n in range(len(head))], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


# Scans and sums -----------------------------------------------------------------------------------


def scan_table(samples: Sequence[Sample]) -> str:
    """Best and median rounds; CPU figures are medians."""
    head = (
        *("query", "source", "broker", "k rows/s, best", "median", "k rows per CPU-s, best"),
        *("median", "of it JVM (%)", "broker's CPU-s per M rows", "start (s)"),
    )
    rows = []
    for (case, source, broker), taken in _grouped(samples).items():
        speeds = [one.rows / one.cost.seconds / 1e3 for one in taken]
        by_cpu = [one.rows / one.cost.spark_s / 1e3 for one in taken]
        share = median(one.cost.jvm_s / one.cost.spark_s for one in taken)
        broker_s = median(one.cost.broker_s * 1e6 / one.rows for one in taken)
        starts = [one.start_s for one in taken if one.start_s is not None]
        rows.append(
            (
                *(case, f"`{source}`", broker, f"{max(speeds):,.0f}", f"{median(speeds):,.0f}"),
                *(f"{max(by_cpu):,.0f}", f"{median(by_cpu):,.0f}", f"{share * 100:.0f}"),
                *(f"{broker_s:.2f}", f"{median(starts):.1f}" if starts else ""),
            )
        )
    return markdown(head, rows, left=3)


def _grouped(samples: Sequence[Sample]) -> dict[tuple[str, str, str], list[Sample]]:
    found: dict[tuple[str, str, str], list[Sample]] = {}
    order = {case: n for n, case in enumerate(dict.fromkeys(one.case for one in samples))}
    brokers = {name: n for n, name in enumerate(dict.fromkeys(one.broker for one in samples))}
    for one in sorted(samples, key=lambda one: (order[one.case], brokers[one.broker])):
        found.setdefault((one.case, one.source, one.broker), []).append(one)
    return found


def scan_goals(samples: Sequence[Sample]) -> list[str]:
    """On our own broker, a stream of a topic that is not cut; ratios within a round."""
    rounds = [
        {
            one.source: one
            for one in samples
            if (one.case, one.broker, one.round) == ("scan, stream", "Anabranch", number)
        }
        for number in sorted({one.round for one in samples})
    ]
    pairs = [(one[OURS.label], one[CONNECTOR.label]) for one in rounds if len(one) > 1]
    if not pairs:
        return []
    speed = max(ours.rows / ours.cost.seconds for ours, _ in pairs)
    shares = [
        (ours.rows / ours.cost.spark_s) / (theirs.rows / theirs.cost.spark_s)
        for ours, theirs in pairs
    ]
    share = median(shares)
    fast = f"a streaming scan of at least {GOAL_ROWS_PER_S / 1e6} M rows/s on two cores"
    lean = f"at least {GOAL_CPU_SHARE} of the connector's rows per CPU-second"
    return [
        f"{_met(speed >= GOAL_ROWS_PER_S)}: {fast}: {speed / 1e6:.2f} M in the best round",
        f"{_met(share >= GOAL_CPU_SHARE)}: {lean}: {share:.2f} (median of {len(shares)} rounds)",
    ]


def _met(is_met: bool) -> str:
    return "met" if is_met else "MISSED"


# Work ---------------------------------------------------------------------------------------------


def work_table(runs: Sequence[Worked]) -> str:
    head = (
        *("source", "broker", "tasks", "seconds", "rows/s", "x connector", "of added tasks"),
        *("busiest task (%)", "Spark's CPU-s", "broker's CPU-s"),
    )
    rows = []
    for one in runs:
        gain, added = speed_up(one, runs), one.tasks / PARTITIONS
        rows.append(
            (
                *(f"`{one.source}`", one.broker, str(one.tasks), f"{one.batch_s:.2f}"),
                *(f"{one.rows / one.batch_s:,.0f}", f"{gain:.2f}", f"{gain / added:.2f}"),
                *(f"{one.busiest * 100:.0f}", f"{one.cost.spark_s:.1f}"),
                f"{one.cost.broker_s:.2f}",
            )
        )
    return markdown(head, rows, left=2)


def speed_up(run: Worked, runs: Sequence[Worked]) -> float:
    """Against Spark's connector on the same broker."""
    base = next(one for one in runs if (one.broker, one.source) == (run.broker, CONNECTOR.label))
    return base.batch_s / run.batch_s


def work_goals(runs: Sequence[Worked]) -> list[str]:
    return [
        f"{_met(speed_up(one, runs) >= GOAL_SPEED_UP * one.branches)}: {WORK_S * 1000:.0f} ms for"
        f" each record, {one.branches} branches on {one.broker}: {speed_up(one, runs):.2f}x as fast"
        f" as the connector, aimed at {GOAL_SPEED_UP * one.branches:.1f}x"
        for one in runs
        if one.branches > 1
    ]


# Small batches ------------------------------------------------------------------------------------


def overhead_table(taken: Sequence[Overhead]) -> str:
    head = ("source", "broker", "batches", *(f"{name} (ms)" for name in PHASES), "CPU (ms)")
    rows = [
        (
            *(f"`{one.source}`", one.broker, str(one.batches)),
            *(f"{one.phases_ms[name]:.0f}" for name in PHASES),
            f"{one.cpu_ms:.0f}",
        )
        for one in taken
    ]
    return markdown(head, rows, left=2)


def latency_table(taken: Sequence[Latency]) -> str:
    head = ("source", "broker", "trigger (ms)", "records", "batches", "p50 (ms)", "p99 (ms)")
    rows = [
        (
            *(f"`{one.source}`", one.broker, str(one.trigger_ms), str(one.records)),
            *(str(one.batches), f"{one.p50_ms:.0f}", f"{one.p99_ms:.0f}"),
        )
        for one in taken
    ]
    return markdown(head, rows, left=2)


# Plans --------------------------------------------------------------------------------------------


def short_plan(plan: str) -> str:
    """The operators of a plan without numbers of columns, folders and other details."""
    body = plan.split("== Physical Plan ==")[-1].strip().split("\n\n")[0]
    lines = []
    for line in body.splitlines():
        line = re.sub(r"#\d+L?", "", line)
        line = re.sub(r", state info \[.*?\]( stateStoreCkptIds = \w+)?(, .*)?$", "", line)
        line = re.sub(r", REQUIRED_BY_STATEFUL_OPERATOR|, \[plan_id=\d+\]", "", line)
        line = re.sub(r"class \S*\$(\w+)$", r"\1", line)
        line = re.sub(r"MicroBatchWrite\[epoch: \d+, writer: (\w+)\]", r"\1", line)
        line = re.sub(r"\*\(\d+\) ", "", line)
        lines.append(line.rstrip())
    return "\n".join(lines)


def plans_of(samples: Sequence[Sample], runs: Sequence[Worked]) -> dict[str, str]:
    """One plan of each query and source, on our own broker where it was."""
    found: dict[str, str] = {}
    for one in samples:
        found.setdefault(f"{one.case}, {one.source}", one.plan)
    for run in runs:
        found.setdefault(f"1 ms for each record, {run.source}", run.plan)
    return found


def exchange_table(plans: dict[str, str]) -> str:
    rows = [(name, "yes" if "Exchange" in plan else "no") for name, plan in plans.items()]
    return markdown(("query", "Exchange in its plan"), rows, left=2)
