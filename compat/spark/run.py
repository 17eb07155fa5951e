"""Spark's own connector, `format("kafka")`, against a broker; one row per check.

    .venv/bin/python compat/spark/run.py                  # against Anabranch of this checkout
    .venv/bin/python compat/spark/run.py --apache-kafka   # the baseline: everything must pass
    .venv/bin/python compat/spark/run.py --only branch    # some of the checks

Needs pyspark, Java 17 and Maven, which fetches the connector on the first run; without them it
says so and ends with code 0. Ends with 1 when a check failed that `allow.txt` does not name.
Takes a few minutes, most of which Spark takes to start and to start its queries.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import shutil
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent.parent / "bench"), str(HERE.parent)]

from apache_kafka import apache_kafka  # noqa: E402 - the path is set just above
from report import report, rows_of  # noqa: E402
from server_process import ServerError, anabranch, terminated_as_exit  # noqa: E402


def missing_needs() -> list[str]:
    """What has to be installed first."""
    missing = [tool for tool in ("java", "mvn") if shutil.which(tool) is None]
    if importlib.util.find_spec("pyspark") is None:
        missing.append("pyspark")
    return missing


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--apache-kafka", action="store_true", help="start Apache Kafka instead")
    parser.add_argument("--only", default="", metavar="TEXT", help="only checks whose name has it")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="data and logs go there and stay")
    arguments = parser.parse_args(argv)
    if missing := missing_needs():
        print(f"compat/spark: skipped, {' and '.join(missing)} missing")
        return 0

    # Only now: they import pyspark.
    import pyspark
    from branch_checks import BRANCH_CHECKS
    from confluent_kafka.admin import AdminClient
    from connector import Target, connector_jars, failing, session
    from exchange_checks import EXCHANGE_CHECKS
    from read_checks import READ_CHECKS
    from stream_checks import STREAM_CHECKS
    from write_checks import WRITE_CHECKS

    parts = {
        "read": READ_CHECKS,
        "write": WRITE_CHECKS,
        "stream": STREAM_CHECKS,
        "branch": BRANCH_CHECKS,
        "exchange": EXCHANGE_CHECKS,
    }
    with contextlib.ExitStack() as stack:
        stack.enter_context(terminated_as_exit())
        work = arguments.keep or Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="compat-spark-"))
        )
        work.mkdir(parents=True, exist_ok=True)
        start = apache_kafka if arguments.apache_kafka else anabranch
        server = stack.enter_context(start(data_dir=work / "data"))
        spark = session(work)
        stack.callback(spark.stop)
        names = ", ".join(jar.stem for jar in connector_jars() if "-kafka-0-10" in jar.stem)
        print(f"{server.name} {server.version} on {server.bootstrap_servers}")
        print(f"Spark {pyspark.__version__} with {names}", flush=True)
        admin = AdminClient({"bootstrap.servers": server.bootstrap_servers, "log_level": 0})
        target = Target(server=server, admin=admin, spark=spark, work_dir=work)
        rows = (
            row
            for part, checks in parts.items()
            for row in rows_of(part, failing(checks), target, arguments.only)
        )
        code = report(rows, HERE / "allow.txt")
        if code:
            print(f"--- the end of {server.name}'s log\n{server.log_tail()}", file=sys.stderr)
    return code


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ServerError as problem:
        sys.exit(f"compat/spark: {problem}")
