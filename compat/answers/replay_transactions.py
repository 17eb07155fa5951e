"""The talks that were recorded with Apache Kafka's transaction coordinator, with our broker.

    .venv/bin/python compat/answers/replay_transactions.py [--only TEXT]

Every answer must be the one that Kafka gave, and every record of `__transaction_state` the one that
it wrote, apart from what `allow.txt` names. `make compat-answers` does this, too; Kafka itself is
not needed. Where a talk differs, the rest of it is not played: it is about another state by then.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path[:0] = [str(ROOT / "bench"), str(HERE.parent)]

from transaction_talk import (  # noqa: E402 - the path is set just above
    SETTINGS,
    Broker,
    Talk,
    prepare,
    records,
)

from report import allowed_failures  # noqa: E402
from server_process import ServerError, anabranch, terminated_as_exit  # noqa: E402

# Every record is to be read in the end.
OUR_SETTINGS = [*SETTINGS, "log.cleaner.enable=false"]
GOLDEN = ROOT / "tests" / "coordinator" / "transaction" / "golden" / "kafka_talks.txt"


def recorded() -> dict[str, list[str]]:
    """The lines of each talk, by its name."""
    parts = GOLDEN.read_text().split("\n# ")[1:]
    found = (part.strip().splitlines() for part in parts)
    return {lines[0]: lines[1:] for lines in found if lines[0].startswith("talk-")}


def timeout_ms(lines: list[str]) -> int:
    return next(int(line.split()[1]) for line in lines if line.startswith("init "))


def play(talk: Talk, lines: list[str]) -> str | None:
    """The first answer that is another one."""
    for line in lines:
        if line.startswith("="):
            return None
        _ask(talk, line.split(" -> ")[0])
        talk.look()
        talk.name(talk.present)  # not every new one is told to the one that was before
        told = talk.lines[-1] if talk.lines else "nothing"
        if told != line:
            return f"Kafka {line}, Anabranch {told}"
    return None


def _ask(talk: Talk, request: str) -> None:
    what, *words = request.split()
    match what:
        case "init":
            talk.ask_init(talk.producer(words[1]))
        case "add":
            talk.ask_add(int(words[0][1:]), talk.producer(words[1]), _partitions(words[2:]))
        case "verify":
            talk.ask_add(5, talk.producer(words[0]), _partitions(words[1:]), verify=True)
        case "offsets":
            talk.ask_offsets(talk.producer(words[0]))
        case "end":
            is_commit = words[2] == "commit"
            talk.ask_end(int(words[0][1:]), talk.producer(words[1]), is_commit=is_commit)
        case "wind":
            talk.wind(int(words[0].split("/")[1]))
        case "timeout":
            talk.timeout()
        case _:
            raise LookupError(request)


def _partitions(words: list[str]) -> list[int]:
    return [int(word.split("-")[1]) for word in words]


def compare(port: int, data_dir: Path, only: str) -> dict[str, str | None]:
    """What differs first in each talk, if anything does."""
    wanted = {name: lines for name, lines in recorded().items() if only in name}
    broker = Broker(port)
    prepare(broker)
    talks = {name: Talk(broker, name, timeout_ms(lines)) for name, lines in wanted.items()}
    found: dict[str, str | None] = {}
    for name, talk in talks.items():
        found[name] = play(talk, wanted[name])
    for name, lines in records([*talks.values()], data_dir).items():
        theirs = [line for line in wanted[name] if line.startswith("=")]
        for left, right in itertools.zip_longest(theirs, lines, fillvalue="nothing"):
            if found[name] is None and left != right:
                found[name] = f"Kafka {left}, Anabranch {right}"
    return found


def replay(only: str = "") -> int:
    """Play all of them, and say how it went; 1 when something differs that may not."""
    allowed = allowed_failures(HERE / "allow.txt")
    failed = passed = allowed_count = 0
    with contextlib.ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="compat-talks-")))
        us = stack.enter_context(anabranch(data_dir=work / "data", overrides=OUR_SETTINGS))
        for name, difference in compare(us.port, work / "data", only).items():
            if difference is not None and any(
                f"{name}: {difference}".startswith(a) for a in allowed
            ):
                allowed_count, difference = allowed_count + 1, None
            passed, failed = passed + (difference is None), failed + (difference is not None)
            if difference is not None:
                print(f"FAIL    {name}: {difference}")
    print(f"recorded talks: {passed} passed, {failed} failed, {allowed_count} differences allowed")
    return 1 if failed or not passed else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--only", default="", metavar="TEXT", help="only talks whose name has it")
    arguments = parser.parse_args()
    with terminated_as_exit():
        return replay(arguments.only)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ServerError as problem:
        sys.exit(f"compat/answers: {problem}")
