"""Kafka Connect in distributed mode, with file sources and sinks, against a broker.

    .venv/bin/python compat/connect/run.py                  # against Anabranch of this checkout
    .venv/bin/python compat/connect/run.py --apache-kafka   # the baseline; branch topics skipped
    .venv/bin/python compat/connect/run.py --only sink      # some of the checks

Needs Java 17 and Maven, which fetches Kafka Connect on the first run; without them it says so and
ends with code 0. Ends with 1 when a check failed that `allow.txt` does not name. Takes about three
minutes.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent.parent / "bench"), str(HERE.parent)]

from checks import CHECKS, Check  # noqa: E402 - the path is set just above
from workers import SESSION_MS, Cluster  # noqa: E402

from apache_kafka import apache_kafka  # noqa: E402
from report import report, rows_of  # noqa: E402
from server_process import ServerError, anabranch, terminated_as_exit  # noqa: E402

WORKERS = 2
# Sessions shorter than Kafka's bounds allow: the end of each killed process is waited for.
OVERRIDES = (
    f"group.min.session.timeout.ms={SESSION_MS}",
    "group.initial.rebalance.delay.ms=500",
)


def fetch() -> str:
    """Fetch Connect if it is not there yet; returns the class path."""
    stamp = HERE / "lib" / ".complete"
    if not stamp.exists() or stamp.stat().st_mtime < (HERE / "pom.xml").stat().st_mtime:
        print("compat/connect: fetching Kafka Connect with Maven ...", file=sys.stderr)
        options = ["-DincludeScope=runtime", f"-DoutputDirectory={HERE / 'lib'}"]
        command = ["mvn", "-q", "-B", "dependency:copy-dependencies", *options]
        subprocess.run(command, cwd=HERE, check=True)
        stamp.touch()
    return f"{HERE / 'lib'}/*"


def with_workers(check: Check) -> Check:
    """The check, which begins when all workers are there."""

    def run(cluster: Cluster) -> None:
        cluster.start(WORKERS)
        check(cluster)

    return run


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--apache-kafka", action="store_true", help="start Apache Kafka instead")
    parser.add_argument("--only", default="", metavar="TEXT", help="only checks whose name has it")
    parser.add_argument(
        "--at-least-once",
        action="store_true",
        help="sources without transactions: shows that the checks can fail",
    )
    parser.add_argument("--keep", type=Path, metavar="DIR", help="data and logs go there and stay")
    arguments = parser.parse_args(argv)
    for tool in ("java", "mvn"):
        if shutil.which(tool) is None:
            print(f"compat/connect: skipped, {tool} is not on PATH (Java 17 and Maven are needed)")
            return 0
    classpath = fetch()
    with contextlib.ExitStack() as stack:
        stack.enter_context(terminated_as_exit())
        work = arguments.keep or Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="compat-connect-"))
        )
        work.mkdir(parents=True, exist_ok=True)
        start = apache_kafka if arguments.apache_kafka else anabranch
        server = stack.enter_context(start(data_dir=work / "data", overrides=OVERRIDES))
        print(f"{server.name} {server.version} on {server.bootstrap_servers}")
        cluster = stack.enter_context(
            Cluster(server, classpath, work, is_exactly_once=not arguments.at_least_once)
        )
        checks = {name: with_workers(check) for name, check in CHECKS.items()}
        code = report(rows_of("connect", checks, cluster, arguments.only), HERE / "allow.txt")
        if cluster.restarts:
            print(f"{cluster.restarts} times a task was started again: FINDINGS.md, 1")
        if code:
            for worker in cluster.workers:
                print(f"--- the end of the log of {worker.name}\n{worker.log_tail()}")
            print(f"--- the end of {server.name}'s log\n{server.log_tail()}", file=sys.stderr)
    return code


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ServerError as problem:
        sys.exit(f"compat/connect: {problem}")
