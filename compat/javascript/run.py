"""kafkajs and @platformatic/kafka, in Node processes, against a broker; one row per check.

    .venv/bin/python compat/javascript/run.py                  # against Anabranch of this checkout
    .venv/bin/python compat/javascript/run.py --apache-kafka   # the baseline; see FINDINGS.md
    .venv/bin/python compat/javascript/run.py --only kafkajs   # one of the clients

Needs Node 20 or later and npm, which fetches the clients on the first run; without them it says so
and ends with code 0. `--node PATH` takes another Node; zstd needs one of 22.15 or later. Ends with
1 when a check failed that `allow.txt` does not name.
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

from js_branch_checks import BRANCH_CHECKS  # noqa: E402 - the path is set just above
from js_checks import CHECKS  # noqa: E402
from js_client import Target  # noqa: E402
from js_group_checks import GROUP_CHECKS  # noqa: E402
from js_members import SESSION_MS  # noqa: E402

from apache_kafka import apache_kafka  # noqa: E402
from report import report, rows_of  # noqa: E402
from server_process import BUILD, ServerError, anabranch, terminated_as_exit  # noqa: E402

# Sessions shorter than Kafka's bounds allow, so that expiry can be waited for.
OVERRIDES = (
    f"group.consumer.min.session.timeout.ms={SESSION_MS}",
    f"group.consumer.session.timeout.ms={SESSION_MS}",
    "group.consumer.min.heartbeat.interval.ms=1000",
    "group.consumer.heartbeat.interval.ms=1000",
    f"group.min.session.timeout.ms={SESSION_MS}",
    "group.initial.rebalance.delay.ms=500",
)


def build() -> Path:
    """The program beside its packages, which npm installs as the lock file names them."""
    place = BUILD / "javascript-clients"
    place.mkdir(parents=True, exist_ok=True)
    lock, stamp = HERE / "package-lock.json", place / ".installed"
    for path in (*HERE.glob("*.mjs"), HERE / "package.json", lock):
        shutil.copy(path, place)
    if not stamp.exists() or stamp.read_bytes() != lock.read_bytes():
        print("compat/javascript: npm ci ...", file=sys.stderr)
        # Neither client needs a script at installation or a compiled part.
        options = ["--ignore-scripts", "--omit=optional", "--no-audit", "--no-fund"]
        subprocess.run(["npm", "ci", "--loglevel=error", *options], cwd=place, check=True)
        shutil.copy(lock, stamp)
    return place / "client.mjs"


def has_zstd(node: str) -> bool:
    script = "process.exit(require('node:zlib').zstdCompressSync ? 0 : 1)"
    return subprocess.run([node, "-e", script], check=False).returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--bootstrap-server", help="a broker that runs already")
    parser.add_argument("--apache-kafka", action="store_true", help="start Apache Kafka instead")
    parser.add_argument("--only", default="", metavar="TEXT", help="only checks whose name has it")
    parser.add_argument("--node", default="node", metavar="PATH", help="the Node to run")
    arguments = parser.parse_args()
    for tool in (arguments.node, "npm"):
        if shutil.which(tool) is None:
            print(f"compat/javascript: skipped, {tool} is not there (Node 20 and npm are needed)")
            return 0
    program = build()
    with contextlib.ExitStack() as stack:
        stack.enter_context(terminated_as_exit())
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="compat-javascript-")))
        server = None
        servers = arguments.bootstrap_server
        if not servers:
            start = apache_kafka if arguments.apache_kafka else anabranch
            server = stack.enter_context(start(data_dir=work / "data", overrides=OVERRIDES))
            print(f"{server.name} {server.version} on {server.bootstrap_servers}", flush=True)
            servers = server.bootstrap_servers
        target = Target(
            bootstrap_servers=servers,
            node=arguments.node,
            program=program,
            work_dir=work,
            server=server,
            has_zstd=has_zstd(arguments.node),
        )
        checks = CHECKS | GROUP_CHECKS | BRANCH_CHECKS
        code = report(rows_of("js", checks, target, arguments.only), HERE / "allow.txt")
        if code and server:
            print(f"--- the end of {server.name}'s log\n{server.log_tail()}", file=sys.stderr)
    return code


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ServerError as problem:
        sys.exit(f"compat/javascript: {problem}")
