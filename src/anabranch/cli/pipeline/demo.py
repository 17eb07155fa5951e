"""`anabranch demo`: a broker, orders that keep coming, and a pipeline over them.

One customer places a third of all orders, and the topic has three partitions: the shape that keeps
one consumer busy and the others idle. The pipeline cuts each partition into eight branches.
"""

import random
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from anabranch.cli.options import debug_option, examples, format_option
from anabranch.cli.output import note
from anabranch.cli.own_broker import create_topics, free_port, own_broker
from anabranch.cli.pipeline.needs import check_needs
from anabranch.cli.pipeline.run import reporter

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

TOPIC = "orders"
OUTPUT = "revenue"
PARTITIONS = 3
BRANCHES_PER_PARTITION = 8
CUSTOMERS = 2_000
HOT_CUSTOMER = "customer-0"
HOT_SHARE = 1 / 3
_BATCH_S = 0.1


@click.command(
    short_help="Watch a pipeline work: broker, orders and Spark.",
    epilog=examples(
        """
anabranch demo
anabranch demo --seconds 60 --rate 5000
"""
    ),
)
@click.option(
    "--rate",
    type=click.IntRange(1, 200_000),
    default=1_000,
    show_default=True,
    metavar="ORDERS",
    help="How many orders are placed in a second.",
)
@click.option(
    "--seconds",
    "limit_s",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="Stop after so long.  [default: at Ctrl-C]",
)
@click.option("--master", metavar="URL", help="Spark's master.  [default: local[*]]")
@format_option
@debug_option
def demo(rate: int, limit_s: float | None, master: str | None, output_format: str) -> None:
    """Watch a pipeline work: a broker, orders that keep coming, and Spark.

    Starts a broker of its own on a free port with its data in a temporary folder, which is gone
    afterwards. Orders go to three partitions, a third of them of one customer; the pipeline adds
    them up for each customer, in order, with eight tasks for each partition, and writes what it
    finds to the topic `revenue`. One line for each batch: rows, rate and lag.
    """
    check_needs()
    from anabranch.cli.pipeline.runner import Stop, open_session, quiet_logs, run_query

    quiet_logs()
    with tempfile.TemporaryDirectory(prefix="anabranch-demo-") as work:
        folder = Path(work)
        console = f"localhost:{free_port()}"
        with own_broker(folder, {"console.listeners": console}) as bootstrap_server:
            note(f"A broker is ready on {bootstrap_server}, and orders are coming; Spark starts.")
            note(f"Watch it in a browser: http://{console}")
            create_topics(bootstrap_server, [(TOPIC, PARTITIONS), (OUTPUT, PARTITIONS)])
            source = {
                "kafka.bootstrap.servers": bootstrap_server,
                "subscribe": TOPIC,
                "startingOffsets": "earliest",
                "branches": str(BRANCHES_PER_PARTITION),
                # So that even a small batch shows what branches are, and the first, which has all
                # that came while Spark started, is not a large one.
                "minRecordsPerBranch": "100",
                "maxOffsetsPerTrigger": "20000",
                "kafka.group.id": "demo",
            }
            with Orders(bootstrap_server, rate):
                session = open_session("demo", _session_settings(folder), master=master)
                try:
                    end_s = None if limit_s is None else time.monotonic() + limit_s
                    run_query(
                        lambda spark: _start(spark, source, folder / "checkpoint"),
                        session,
                        source,
                        reporter(output_format),
                        stop=Stop(),
                        grace_s=10.0,
                        until=lambda: end_s is not None and time.monotonic() >= end_s,
                    )
                finally:
                    session.stop()
    note("Next: `anabranch serve`, and `anabranch pipeline new NAME --topic TOPIC`.")


def _session_settings(folder: Path) -> dict[str, str]:
    """Quick to start, and silent: what matters is said here."""
    log4j = folder / "log4j2.properties"
    log4j.write_text("rootLogger.level = off\n")
    options = f"-XX:TieredStopAtLevel=1 -Dlog4j2.configurationFile={log4j.as_uri()}"
    return {
        "spark.driver.extraJavaOptions": options,
        "spark.local.dir": str(folder / "spark"),
        "spark.ui.enabled": "false",
    }


def _start(spark: "SparkSession", source: dict[str, str], checkpoint: Path) -> "StreamingQuery":
    from anabranch.spark import keyed_map

    orders = spark.readStream.format("anabranch").options(**source).load()
    sums = keyed_map(orders, revenue, "key binary, value string")
    writer = sums.writeStream.queryName("demo").format("anabranch")
    writer = writer.option("kafka.bootstrap.servers", source["kafka.bootstrap.servers"])
    writer = writer.option("topic", OUTPUT).option("checkpointLocation", str(checkpoint))
    query: StreamingQuery = writer.start()
    return query


def revenue(key: bytes | None, orders: "pa.Table") -> Iterator[dict[str, object]]:
    """What a customer spent in this batch."""
    cents = [int(value) for value in orders.column("value").to_pylist()]
    yield {"key": key, "value": f"{len(cents)} orders, {sum(cents) / 100:.2f}"}


class Orders:
    """Orders that keep coming, until the block ends."""

    def __init__(self, bootstrap_server: str, rate: int) -> None:
        from confluent_kafka import Producer

        settings: dict[str, Any] = {"bootstrap.servers": bootstrap_server, "log_level": 0}
        self._producer = Producer({**settings, "linger.ms": 20})
        self._rate = rate
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="orders", daemon=True)

    def __enter__(self) -> "Orders":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        chosen = random.Random(8)
        began_s, sent = time.monotonic(), 0
        while not self._stopping.wait(_BATCH_S):
            due = round((time.monotonic() - began_s) * self._rate)
            # A machine that was asleep has no hours of orders to catch up with.
            for _ in range(min(due - sent, self._rate)):
                self._send(*order(chosen))
            sent = due
            self._producer.poll(0)

    def _send(self, key: bytes, value: bytes) -> None:
        try:
            self._producer.produce(TOPIC, value, key)
        except BufferError:
            self._producer.poll(0.1)


def order(chosen: random.Random) -> tuple[bytes, bytes]:
    """Who ordered, and for how many cents."""
    customer = HOT_CUSTOMER
    if chosen.random() >= HOT_SHARE:
        customer = f"customer-{chosen.randrange(1, CUSTOMERS)}"
    return customer.encode(), str(chosen.randrange(100, 20_000)).encode()
