"""The hot tail: what consumers that keep up with a producer cost the broker.

One partition, one producer at a steady rate. The server's CPU time is taken over a window in which
everybody runs; what the same window costs with the producer alone is taken off, and what is left is
the consumers' share. The cases take turns, round by round, and the table shows medians.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from branches_clients import Readers, SteadyLoad, reading, steady_load
from branches_site import cpu_seconds, create_branch_topic, create_topic, delete_topics
from server_process import ServerProcess

BRANCHES = 8
GOAL_RATIO = 2.0
_SETTLE_S = 0.5
_PATIENT = {"fetch.min.bytes": 65_536, "fetch.wait.max.ms": 50}


@dataclass(frozen=True, slots=True)
class Load:
    """A producer's records."""

    size: int
    records_per_second: int

    @property
    def title(self) -> str:
        return f"{self.size} B x {self.records_per_second:,}/s"


@dataclass(frozen=True, slots=True)
class Case:
    """Who reads."""

    title: str
    consumers: int
    is_branched: bool
    settings: dict[str, Any] = field(default_factory=dict)


LOADS = (Load(100, 50_000), Load(1024, 20_000))
ALONE = Case("producer alone", 0, False)
PLAIN = Case("1 plain consumer", 1, False)
BRANCHED = Case(f"{BRANCHES} branches, {BRANCHES} consumers", BRANCHES, True)
GOAL_CASES = (ALONE, PLAIN, BRANCHED)
CASES = (
    *GOAL_CASES,
    Case(f"{BRANCHES} branches, 1 consumer", 1, True),
    Case(f"{BRANCHES} plain consumers", BRANCHES, False),
    Case("1 plain consumer, patient", 1, False, _PATIENT),
    Case(f"{BRANCHES} branches, {BRANCHES} consumers, patient", BRANCHES, True, _PATIENT),
)

# For each load and case, the figures of each round.
Figures = dict[str, dict[str, list[dict[str, float]]]]


def measure_tail(
    server: ServerProcess,
    *,
    rounds: int,
    seconds: float,
    cases: Sequence[Case],
    progress: Callable[[str], None],
) -> Figures:
    figures: Figures = {load.title: {case.title: [] for case in cases} for load in LOADS}
    for number in range(rounds):
        for load in LOADS:
            for case in cases:
                progress(f"hot tail, round {number + 1} of {rounds}: {load.title}, {case.title}")
                figures[load.title][case.title].append(_measure(server, load, case, seconds))
    return figures


def _measure(server: ServerProcess, load: Load, case: Case, seconds: float) -> dict[str, float]:
    servers = server.bootstrap_servers
    topic = create_topic(server, "tail")
    branch_topic = create_branch_topic(server, topic, BRANCHES)
    try:
        with contextlib.ExitStack() as stack:
            stack.enter_context(
                steady_load(
                    SteadyLoad(
                        bootstrap_servers=servers,
                        topic=topic,
                        size=load.size,
                        records_per_second=load.records_per_second,
                    )
                )
            )
            readers = None
            if case.consumers:
                readers = stack.enter_context(reading(_readers(servers, topic, branch_topic, case)))
                readers.wait_until_ready()
            time.sleep(_SETTLE_S)
            if readers:
                readers.ask("begin")
            began_s, cpu_before_s = time.monotonic(), cpu_seconds(server)
            time.sleep(seconds)
            cpu_s = cpu_seconds(server) - cpu_before_s
            figures = {"cpu_ms_per_s": cpu_s * 1000 / (time.monotonic() - began_s)}
            if readers:
                figures |= readers.ask("end")
            return figures
    finally:
        delete_topics(server, [branch_topic, topic])


def _readers(servers: str, topic: str, branch_topic: str, case: Case) -> Readers:
    if not case.is_branched:
        assignments = [[0]] * case.consumers
    else:
        share = BRANCHES // case.consumers
        assignments = [
            list(range(first * share, (first + 1) * share)) for first in range(case.consumers)
        ]
    return Readers(
        bootstrap_servers=servers,
        topic=branch_topic if case.is_branched else topic,
        assignments=assignments,
        is_tail=True,
        settings=case.settings,
    )


def consumers_cpu(cases: Mapping[str, Sequence[Mapping[str, float]]], case: Case) -> float:
    """What the consumers of a case cost, in ms of server CPU a second: medians of the rounds."""
    with_readers, alone = (
        median(one["cpu_ms_per_s"] for one in cases[title]) for title in (case.title, ALONE.title)
    )
    return with_readers - alone


def tail_rows(figures: Figures) -> list[list[str]]:
    rows = [["load", "readers", "server CPU", "of it readers", "x plain", "fetches", "us/fetch"]]
    rows[0] += ["received", "records", "p50", "p99"]
    rows.append(["", "", "ms/s", "ms/s", "", "1/s", "", "MB/s", "k/s", "ms", "ms"])
    for load, cases in figures.items():
        plain_ms = consumers_cpu(cases, PLAIN)
        for case in (case for case in CASES if case.title in cases):
            total_ms = median(one["cpu_ms_per_s"] for one in cases[case.title])
            row = [load, case.title, f"{total_ms:,.1f}"]
            if case.consumers:
                own_ms = consumers_cpu(cases, case)
                middle = {
                    name: median(one[name] for one in cases[case.title])
                    for name in cases[case.title][0]
                }
                row += [
                    f"{own_ms:,.1f}",
                    f"{own_ms / plain_ms:.2f}",
                    f"{middle['fetches_per_s']:,.0f}",
                    f"{own_ms * 1000 / middle['fetches_per_s']:,.0f}",
                    f"{middle['received_bytes_per_s'] / 1e6:,.2f}",
                    f"{middle['records_per_s'] / 1e3:,.1f}",
                    f"{middle['p50_us'] / 1e3:.2f}",
                    f"{middle['p99_us'] / 1e3:.2f}",
                ]
            rows.append(row + [""] * (len(rows[0]) - len(row)))
    return rows


def tail_goal(figures: Figures) -> str:
    ratios = {
        load: consumers_cpu(cases, BRANCHED) / consumers_cpu(cases, PLAIN)
        for load, cases in figures.items()
    }
    verdict = "reached" if max(ratios.values()) <= GOAL_RATIO else "NOT REACHED"
    return (
        f"Goal: {BRANCHES} consumers of a branch each cost at most {GOAL_RATIO:.0f}x of one plain "
        f"consumer: {', '.join(f'{ratio:.2f}x ({load})' for load, ratio in ratios.items())}: "
        f"{verdict}"
    )
