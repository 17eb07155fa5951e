"""The history checker as a command; see the package.

Exit code: 0 nothing is wrong, 1 something is, 2 the history cannot be read.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from anabranch.client.history.reading import UnreadableHistory, load
from anabranch.client.history.rules import Verdict, check

PROBLEMS_SHOWN = 20
_ENDING = """\
Reads .jsonl files, one event a line; folders are searched for them.
Exit code: 0 nothing is wrong, 1 something is, 2 the history cannot be read.
The events and the rules: docs/reference/history.md
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Judge the files that are named."""
    parser = argparse.ArgumentParser(
        prog="python -m anabranch.client.history",
        description="Check the history of a cooperative group: was every key processed in order,"
        " and was nothing lost or done twice without a reason?",
        epilog=_ENDING,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("paths", nargs="+", type=Path, help=".jsonl files, or folders of them")
    parser.add_argument("--json", action="store_true", help="the verdict as JSON")
    options = parser.parse_args(arguments)
    try:
        verdict = check(load(options.paths))
    except (OSError, UnreadableHistory) as error:
        print(f"the history cannot be read: {error}", file=sys.stderr)
        return 2
    _tell(verdict, as_json=options.json)
    return 1 if verdict.problems else 0


def _tell(verdict: Verdict, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"problems": verdict.problems, "numbers": verdict.numbers}))
        return
    for name, number in verdict.numbers.items():
        print(f"{name + ':':<20}{number}")
    for problem in verdict.problems[:PROBLEMS_SHOWN]:
        print(f"  {problem}")
    if len(verdict.problems) > PROBLEMS_SHOWN:
        print(f"  and {len(verdict.problems) - PROBLEMS_SHOWN} more")
    print("WRONG" if verdict.problems else "nothing is wrong")


if __name__ == "__main__":
    sys.exit(main())
