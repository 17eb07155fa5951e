"""franz-go, the Go client, against a broker: groups of member processes; one row per check.

    .venv/bin/python compat/franz_go/run.py                  # against Anabranch of this checkout
    .venv/bin/python compat/franz_go/run.py --apache-kafka   # the baseline: everything must pass
    .venv/bin/python compat/franz_go/run.py --bootstrap-server HOST:PORT

Needs Go, which fetches the client on the first run; without it it says so and ends with code 0.
Ends with 1 when a check failed that `allow.txt` does not name.
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

from go_branch_checks import BRANCH_CHECKS  # noqa: E402 - the path is set just above
from go_checks import CHECKS  # noqa: E402
from go_group import SESSION_MS, Target  # noqa: E402

from apache_kafka import apache_kafka  # noqa: E402
from report import report, rows_of  # noqa: E402
from server_process import BUILD, ServerError, anabranch, terminated_as_exit  # noqa: E402

# Sessions shorter than Kafka's bounds allow, so that expiry can be waited for; the settings say
# the same as --consumer-session-timeout-ms and --consumer-heartbeat-interval-ms, and Apache Kafka
# knows them too.
HEARTBEAT_MS = 1_000
OVERRIDES = (
    f"group.consumer.min.session.timeout.ms={SESSION_MS}",
    f"group.consumer.session.timeout.ms={SESSION_MS}",
    f"group.consumer.min.heartbeat.interval.ms={HEARTBEAT_MS}",
    f"group.consumer.heartbeat.interval.ms={HEARTBEAT_MS}",
    f"group.min.session.timeout.ms={SESSION_MS}",
    "group.initial.rebalance.delay.ms=500",
)


def build() -> Path:
    """The member program; Go itself knows what there is to do."""
    program = BUILD / "franz-go-member"
    subprocess.run(["go", "build", "-o", str(program), "."], cwd=HERE, check=True)
    return program


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--bootstrap-server", help="a broker that runs already")
    parser.add_argument("--apache-kafka", action="store_true", help="start Apache Kafka instead")
    parser.add_argument("--only", default="", metavar="TEXT", help="only checks whose name has it")
    arguments = parser.parse_args()
    if shutil.which("go") is None:
        print("compat/franz_go: skipped, go is not on PATH (Go 1.26 is needed)")
        return 0
    program = build()
    with contextlib.ExitStack() as stack:
        stack.enter_context(terminated_as_exit())
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="compat-franz-go-")))
        server = None
        servers = arguments.bootstrap_server
        if not servers:
            start = apache_kafka if arguments.apache_kafka else anabranch
            server = stack.enter_context(start(data_dir=work / "data", overrides=OVERRIDES))
            print(f"{server.name} {server.version} on {server.bootstrap_servers}", flush=True)
            servers = server.bootstrap_servers
        target = Target(bootstrap_servers=servers, program=program, work_dir=work)
        rows = rows_of("go", CHECKS | BRANCH_CHECKS, target, arguments.only)
        code = report(rows, HERE / "allow.txt")
        if code and server:
            print(f"--- the end of {server.name}'s log\n{server.log_tail()}", file=sys.stderr)
    return code


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ServerError as problem:
        sys.exit(f"compat/franz_go: {problem}")
