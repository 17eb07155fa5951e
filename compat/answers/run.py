"""The same raw requests to Apache Kafka and to Anabranch; their answers must be the same.

    .venv/bin/python compat/answers/run.py [--only TEXT]

The requests go through the codecs of kafka-python, so our own have no part in it. Answers are
compared field by field, apart from texts, names, addresses and clocks. Needs Java and Maven for
Apache Kafka; without them it says so and ends with code 0. Ends with 1 when an answer differs
that `allow.txt` does not name.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent.parent / "bench"), str(HERE.parent)]

from admin_cases import ADMIN_CASES  # noqa: E402 - the path is set just above
from data_cases import DATA_CASES  # noqa: E402
from side import Side  # noqa: E402

from apache_kafka import apache_kafka, missing_tools  # noqa: E402
from report import allowed_failures  # noqa: E402
from server_process import ServerError, anabranch, terminated_as_exit  # noqa: E402

_NAMES = ("name", "topic", "topic_name", "partition_index", "index", "resource_name")


def leaves(answer: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Every value of an answer with its place; rows of an array are known by their name."""
    if isinstance(answer, dict) and answer:
        for name, value in answer.items():
            yield from leaves(value, f"{path} {name}".strip())
    elif isinstance(answer, list) and answer:
        seen = set()
        for number, value in enumerate(answer):
            names = [value[n] for n in _NAMES if n in value] if isinstance(value, dict) else []
            place = str(names[0]) if names and str(names[0]) not in seen else str(number)
            seen.add(place)
            yield from leaves(value, f"{path}[{place}]")
    else:
        yield path, repr(answer)


def compare(case: Callable[[Side], Any], theirs: Side, ours: Side) -> list[str]:
    """The differences, one line each; a whole row that one side lacks is one difference."""
    left, right = dict(leaves(case(theirs))), dict(leaves(case(ours)))
    differences = {}
    for place in {**left, **right}:
        if left.get(place) == right.get(place):
            continue
        row = place.rpartition("]")[0]
        for name, side, other in (("Kafka", left, right), ("Anabranch", right, left)):
            if row and place in side and not any(each.startswith(f"{row}]") for each in other):
                differences[row] = f"{row}]: only {name} has it"
                break
        else:
            shown = (left.get(place, "nothing"), right.get(place, "nothing"))
            differences[place] = f"{place}: Kafka {shown[0]}, Anabranch {shown[1]}"
    return list(differences.values())


def compare_all(theirs: Side, ours: Side, only: str) -> int:
    allowed = allowed_failures(HERE / "allow.txt")
    failed = passed = allowed_count = 0
    unused = set(allowed)
    for name, case in {**DATA_CASES, **ADMIN_CASES}.items():
        if only not in name:
            continue
        differences = []
        for line in compare(case, theirs, ours):
            starts = [start for start in allowed if f"{name}: {line}".startswith(start)]
            if starts:
                allowed_count += 1
                unused.difference_update(starts)
            else:
                differences.append(line)
        passed, failed = passed + (not differences), failed + bool(differences)
        print(f"{'FAIL' if differences else 'PASS'}    {name}", flush=True)
        for line in differences:
            print(f"          {line[:400]}", flush=True)
    if not only:
        for start in sorted(unused):
            print(f"not needed in allow.txt: {start}")
    print(f"{passed} passed, {failed} failed, {allowed_count} differences allowed")
    return 1 if failed or not passed else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--only", default="", metavar="TEXT", help="only cases whose name has it")
    arguments = parser.parse_args()
    if missing := missing_tools():
        print(f"compat/answers: skipped, {' and '.join(missing)} not on PATH")
        return 0
    with contextlib.ExitStack() as stack:
        stack.enter_context(terminated_as_exit())
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="compat-answers-")))
        settings = ["node.id=0"]
        kafka = stack.enter_context(apache_kafka(data_dir=work / "kafka"))
        us = stack.enter_context(anabranch(data_dir=work / "anabranch", overrides=settings))
        theirs, ours = Side(kafka.name, kafka.port), Side(us.name, us.port)
        stack.callback(theirs.close)
        stack.callback(ours.close)
        return compare_all(theirs, ours, arguments.only)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ServerError as problem:
        sys.exit(f"compat/answers: {problem}")
