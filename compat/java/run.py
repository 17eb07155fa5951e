"""The Java client and Kafka's own tools against a broker; one row per check.

    .venv/bin/python compat/java/run.py                  # against Anabranch of this checkout
    .venv/bin/python compat/java/run.py --apache-kafka   # the baseline: everything must pass
    .venv/bin/python compat/java/run.py --client-version 3.9.1
    .venv/bin/python compat/java/run.py --bootstrap-server HOST:PORT

Needs Java 17 and Maven, which fetches the client and the tools on the first run; without them
it says so and ends with code 0. Ends with 1 when a check failed that `allow.txt` does not name.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent.parent / "bench"), str(HERE.parent)]

from branch_tool_checks import BRANCH_TOOL_CHECKS  # noqa: E402 - path set above
from consumer_group_tool_checks import CONSUMER_GROUP_TOOL_CHECKS  # noqa: E402
from group_tool_checks import GROUP_TOOL_CHECKS  # noqa: E402
from member_checks import member_rows  # noqa: E402
from member_group import SESSION_MS  # noqa: E402
from tool_checks import TOOL_CHECKS, Target  # noqa: E402
from tools import JAVA_OPTIONS  # noqa: E402
from transaction_tool_checks import TRANSACTION_TOOL_CHECKS  # noqa: E402

from apache_kafka import apache_kafka  # noqa: E402
from report import Row, report, rows_of  # noqa: E402
from server_process import ServerError, ServerProcess, anabranch, terminated_as_exit  # noqa: E402

# One program, member processes, and Kafka's tools.
PARTS = ["client", "members", "tools"]
SUITE_TIMEOUT_SECONDS = 600
# Dozens of groups are formed; the pause before each is shorter than the default of three seconds,
# and still long enough for members that start together to find each other.
# In consumer groups a session may be so short that its end can be waited for; a check that does so
# sets it for its group.
OVERRIDES = (
    "group.initial.rebalance.delay.ms=500",
    f"group.consumer.min.session.timeout.ms={SESSION_MS}",
    "group.consumer.min.heartbeat.interval.ms=1000",
    "group.consumer.heartbeat.interval.ms=1000",
)


def build() -> str:
    """Compile and fetch what is not there yet; returns the class path."""
    stamp = HERE / "target" / ".built"
    sources = [HERE / "pom.xml", *HERE.glob("src/**/*.java")]
    if not stamp.exists() or stamp.stat().st_mtime < max(path.stat().st_mtime for path in sources):
        print("compat/java: building with Maven ...", file=sys.stderr)
        # No "clean": another run of this suite may be using the classes.
        goals = ["compile", "dependency:copy-dependencies"]
        options = ["-DincludeScope=runtime", f"-DoutputDirectory={HERE / 'lib'}"]
        subprocess.run(["mvn", "-q", "-B", *goals, *options], cwd=HERE, check=True)
        stamp.touch()
    return f"{HERE / 'target/classes'}{os.pathsep}{HERE / 'lib'}/*"


def older_client(version: str) -> str:
    """The class path with another version of the client alone, fetched when it is not there."""
    lib = HERE / "target" / f"kafka-clients-{version}"
    if not lib.exists():
        pom = lib.with_suffix(".xml")
        text = (HERE / "pom.xml").read_text()
        first = text.index("    <dependency>", text.index("kafka-clients"))
        last = text.index("    <!-- Kafka's poms")
        pom.write_text((text[:first] + text[last:]).replace("${kafka.version}", version))
        copy = ["dependency:copy-dependencies", "-DincludeScope=runtime"]
        options = [f"-DoutputDirectory={lib}", "-f", str(pom)]
        subprocess.run(["mvn", "-q", "-B", *copy, *options], cwd=HERE, check=True)
    return f"{HERE / 'target/classes'}{os.pathsep}{lib}/*"


def java_rows(classpath: str, bootstrap_servers: str, only: str) -> Iterator[Row]:
    """Run the Java program and turn its lines into rows as they come."""
    command = ["java", *JAVA_OPTIONS, "-cp", classpath, "anabranch.compat.Suite"]
    process = subprocess.Popen(
        ["timeout", str(SUITE_TIMEOUT_SECONDS), *command, bootstrap_servers, only],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    try:
        for line in process.stdout:
            verdict, name, milliseconds, detail = line.rstrip("\n").split("\t")
            yield Row(
                verdict=verdict,
                part="client",
                name=name,
                seconds=int(milliseconds) / 1000,
                detail=detail,
            )
        if process.wait() > 1:
            reason = f"the Java program ended with code {process.returncode}"
            yield Row(verdict="FAIL", part="client", name="all", seconds=0, detail=reason)
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait()


def all_rows(target: Target, only: str, parts: list[str]) -> Iterator[Row]:
    if "client" in parts:
        yield from java_rows(target.classpath, target.bootstrap_servers, only)
    if "members" in parts:
        yield from member_rows(target, only)
    if "tools" in parts:
        # The last of the others stops the broker.
        groups = GROUP_TOOL_CHECKS | CONSUMER_GROUP_TOOL_CHECKS
        checks = groups | BRANCH_TOOL_CHECKS | TRANSACTION_TOOL_CHECKS | TOOL_CHECKS
        yield from rows_of("tools", checks, target, only)


def arguments_of(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--bootstrap-server", help="a broker that runs already")
    parser.add_argument("--apache-kafka", action="store_true", help="start Apache Kafka instead")
    parser.add_argument("--only", default="", metavar="TEXT", help="only checks whose name has it")
    parser.add_argument("--part", choices=PARTS, help="only this part")
    parser.add_argument(
        "--client-version", metavar="V", help="an older Java client, e.g. 3.9.1; no tools"
    )
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    arguments = arguments_of(argv)
    for tool in ("java", "mvn"):
        if shutil.which(tool) is None:
            print(f"compat/java: skipped, {tool} is not on PATH (Java 17 and Maven are needed)")
            return 0
    classpath = build()
    parts = [arguments.part] if arguments.part else PARTS
    if arguments.client_version:
        classpath, parts = older_client(arguments.client_version), ["client"]
    with contextlib.ExitStack() as stack:
        stack.enter_context(terminated_as_exit())
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="compat-java-")))
        server: ServerProcess | None = None
        log_dir: Path | None = None
        bootstrap_servers = arguments.bootstrap_server
        if not bootstrap_servers:
            log_dir = work / "data"
            start = apache_kafka if arguments.apache_kafka else anabranch
            server = start(data_dir=log_dir, overrides=OVERRIDES)
            stack.enter_context(server)
            bootstrap_servers = server.bootstrap_servers
            print(f"{server.name} {server.version} on {bootstrap_servers}", flush=True)
        target = Target(
            bootstrap_servers=bootstrap_servers,
            classpath=classpath,
            work_dir=work,
            log_dir=log_dir,
            server=server,
        )
        code = report(all_rows(target, arguments.only, parts), HERE / "allow.txt")
        if code and server:
            print(f"--- the end of {server.name}'s log\n{server.log_tail()}", file=sys.stderr)
    return code


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ServerError as problem:
        sys.exit(f"compat/java: {problem}")
