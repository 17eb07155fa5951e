"""What every compatibility suite prints: one row per check and a closing line."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

Context = TypeVar("Context")


class CommandFailure(Exception):
    """A program ended with another exit code than expected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The outcome of one check: PASS, FAIL or SKIP."""

    verdict: str
    part: str
    name: str
    seconds: float
    detail: str = ""


def rows_of(
    part: str, checks: Mapping[str, Callable[[Context], None]], context: Context, only: str
) -> Iterator[Row]:
    """Run the checks whose name has `only` in it.

    A check fails with AssertionError or CommandFailure, and says with LookupError why it
    cannot run here.
    """
    for name, check in checks.items():
        if only not in name:
            continue
        began = time.monotonic()
        verdict, detail = "PASS", ""
        try:
            check(context)
        except (AssertionError, CommandFailure, subprocess.TimeoutExpired) as problem:
            verdict, detail = "FAIL", " ".join(str(problem).split()) or repr(problem)
        except LookupError as reason:
            verdict, detail = "SKIP", str(reason.args[0])
        seconds = time.monotonic() - began
        yield Row(verdict=verdict, part=part, name=name, seconds=seconds, detail=detail)


def report(rows: Iterable[Row], allow_list: Path) -> int:
    """Print every row as it comes and the closing line; returns the exit code."""
    allowed = allowed_failures(allow_list)
    counts = {"PASS": 0, "FAIL": 0, "SKIP": 0, "ALLOWED": 0}
    for row in rows:
        verdict, detail = row.verdict, row.detail
        if verdict == "FAIL" and row.name in allowed:
            verdict, detail = "ALLOWED", allowed[row.name]
        counts[verdict] += 1
        print(f"{verdict:<8}{row.part:<8}{row.seconds:6.1f} s  {row.name}", flush=True)
        if detail:
            print(f"{'':<26}{detail[:600]}", flush=True)
    closing = f"{counts['PASS']} passed, {counts['FAIL']} failed"
    if counts["ALLOWED"]:
        closing += f", {counts['ALLOWED']} allowed to fail"
    if counts["SKIP"]:
        closing += f", {counts['SKIP']} skipped"
    print(closing)
    return 1 if counts["FAIL"] or not counts["PASS"] else 0


def allowed_failures(path: Path) -> dict[str, str]:
    """Check name to reason; a line is `name # reason`, and a list without need is not there."""
    lines = path.read_text().splitlines() if path.exists() else []
    entries = (line.partition(" # ") for line in lines if line and not line.startswith("#"))
    return {name.strip(): reason.strip() for name, _, reason in entries}
