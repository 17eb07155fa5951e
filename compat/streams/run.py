"""Kafka Streams, counting words with exactly_once_v2, against a broker; one row per check.

    .venv/bin/python compat/streams/run.py                  # against Anabranch of this checkout
    .venv/bin/python compat/streams/run.py --apache-kafka   # the baseline; see FINDINGS.md
    .venv/bin/python compat/streams/run.py --only zombie    # one of the stories

Needs Java 17 and Maven, which fetches Kafka Streams on the first run; without them it says so and
ends with code 0. Ends with 1 when a check failed that `allow.txt` does not name. Takes about two
minutes. The moments of the kills are random; `--seed` repeats the choices of a run.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent.parent / "bench"), str(HERE.parent)]

from stories import STORIES, checks_of  # noqa: E402 - the path is set just above
from word_count import SESSION_MS, Target  # noqa: E402

from apache_kafka import apache_kafka  # noqa: E402
from report import report, rows_of  # noqa: E402
from server_process import ServerError, anabranch, terminated_as_exit  # noqa: E402

# Sessions shorter than Kafka's bounds allow: the end of each killed process is waited for.
OVERRIDES = (
    f"group.min.session.timeout.ms={SESSION_MS}",
    "group.initial.rebalance.delay.ms=500",
    # What a transaction leaves behind must be gone soon after its time is up.
    "transaction.abort.timed.out.transaction.cleanup.interval.ms=1000",
)


def build() -> str:
    """Compile and fetch what is not there yet; returns the class path."""
    stamp = HERE / "target" / ".built"
    sources = [HERE / "pom.xml", *HERE.glob("src/**/*.java")]
    if not stamp.exists() or stamp.stat().st_mtime < max(path.stat().st_mtime for path in sources):
        print("compat/streams: building with Maven ...", file=sys.stderr)
        goals = ["compile", "dependency:copy-dependencies"]
        options = ["-DincludeScope=runtime", f"-DoutputDirectory={HERE / 'lib'}"]
        subprocess.run(["mvn", "-q", "-B", *goals, *options], cwd=HERE, check=True)
        stamp.touch()
    return f"{HERE / 'target/classes'}{os.pathsep}{HERE / 'lib'}/*"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--apache-kafka", action="store_true", help="start Apache Kafka instead")
    parser.add_argument("--only", default="", metavar="TEXT", help="only checks whose name has it")
    parser.add_argument("--seed", type=int, help="the choices of an earlier run")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="data and logs go there and stay")
    parser.add_argument(
        "--processing-guarantee",
        default="exactly_once_v2",
        metavar="NAME",
        help="at_least_once shows that the checks can fail",
    )
    arguments = parser.parse_args(argv)
    for tool in ("java", "mvn"):
        if shutil.which(tool) is None:
            print(f"compat/streams: skipped, {tool} is not on PATH (Java 17 and Maven are needed)")
            return 0
    classpath = build()
    seed = random.randrange(1_000_000) if arguments.seed is None else arguments.seed
    with contextlib.ExitStack() as stack:
        stack.enter_context(terminated_as_exit())
        work = arguments.keep or Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="compat-streams-"))
        )
        work.mkdir(parents=True, exist_ok=True)
        start = apache_kafka if arguments.apache_kafka else anabranch
        server = stack.enter_context(start(data_dir=work / "data", overrides=OVERRIDES))
        print(f"{server.name} {server.version} on {server.bootstrap_servers}, seed {seed}")
        target = Target(
            server=server,
            classpath=classpath,
            work_dir=work,
            seed=seed,
            processing_guarantee=arguments.processing_guarantee,
        )
        checks = {name: check for story in STORIES for name, check in checks_of(story).items()}
        code = report(rows_of("streams", checks, target, arguments.only), HERE / "allow.txt")
        if code:
            print(f"--- the end of {server.name}'s log\n{server.log_tail()}", file=sys.stderr)
    return code


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ServerError as problem:
        sys.exit(f"compat/streams: {problem}")
