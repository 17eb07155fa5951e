"""`anabranch produce`: send records, and say how many were delivered."""

import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from anabranch.cli.completion.live_names import complete_topics
from anabranch.cli.connection import Troubles, client_config, create_client, fetch_metadata
from anabranch.cli.errors import CliError, CommandFailedError, kafka_error_of, refusal
from anabranch.cli.options import (
    Connection,
    connection_options,
    debug_option,
    examples,
    format_option,
    key_value_pairs,
)
from anabranch.cli.output import counted, note, report_error, write_json, write_table
from anabranch.cli.progress import Advance, progress_bar
from anabranch.cli.records.reading import OutgoingRecord, records_from_json, records_from_lines
from anabranch.cli.records.writing import unescape

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Producer

_SERVE_EVERY: Final = 500  # records between looks at delivery reports
_PROGRESS_INTERVAL_S: Final = 0.2
_WAIT_S: Final = 0.1
_MESSAGE_BYTES_MAX: Final = 100 * 1024 * 1024  # the broker judges sizes, not the client


@click.command(
    epilog=examples(
        r"""
echo hello | anabranch produce orders
anabranch produce orders --file orders.txt --key-separator '\t' --compression zstd
printf 'alice:1\nbob:NULL\n' | anabranch produce users --key-separator : --null-marker NULL
anabranch produce orders --header source=import --partition 2 --file orders.txt
anabranch consume orders --exit-at-end --format json | anabranch produce copy --input json
"""
    ),
    short_help="Send records to a topic.",
)
@click.argument("topic", shell_complete=complete_topics)
@click.option(
    "--file",
    "path",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path),
    help="Read records from here instead of stdin.",
)
@click.option(
    "--input",
    "input_format",
    type=click.Choice(("lines", "json")),
    default="lines",
    show_default=True,
    help="One value per line, or one JSON object per line as `consume --format json` writes.",
)
@click.option(
    "--key-separator",
    metavar="TEXT",
    help=r"What stands between key and value in a line; \t is a tab.",
)
@click.option("--null-marker", metavar="TEXT", help="A key or value of this text is null.")
@click.option(
    "--header",
    "header_pairs",
    metavar="NAME=VALUE",
    multiple=True,
    help="A header for every record; may be given again.",
)
@click.option("--partition", type=click.IntRange(min=0), metavar="N", help="Send all records here.")
@click.option(
    "--keep-partitions", is_flag=True, help='With --input json: honour each record\'s "partition".'
)
@click.option(
    "--compression",
    type=click.Choice(("none", "gzip", "snappy", "lz4", "zstd")),
    default="none",
    show_default=True,
    help="How batches are compressed.",
)
@click.option(
    "--acks",
    type=click.Choice(("all", "1", "0")),
    default="all",
    show_default=True,
    help="Who must have a record before it counts as delivered.",
)
@connection_options
@format_option
@debug_option
def produce(
    connection: Connection,
    output_format: str,
    topic: str,
    path: Path | None,
    input_format: str,
    key_separator: str | None,
    null_marker: str | None,
    header_pairs: tuple[str, ...],
    partition: int | None,
    keep_partitions: bool,
    compression: str,
    acks: str,
) -> None:
    """Send records to TOPIC, from stdin or a file, and report how many were delivered.

    A record is a line, or with --input json an object with "value" and optionally "key",
    "headers", "timestamp" (ms) and "key_encoding"/"value_encoding" ("utf-8" or "base64"); a value
    that is no string is sent as JSON. Keys choose the partition as Java's client does. With
    --acks all the producer is idempotent. The exit code is 1 when any record was not delivered.
    """
    if input_format == "json" and (key_separator is not None or null_marker is not None):
        raise click.UsageError("--key-separator and --null-marker belong to --input lines")
    if keep_partitions and (input_format != "json" or partition is not None):
        raise click.UsageError("--keep-partitions needs --input json, without --partition")
    separator = None if key_separator is None else unescape(key_separator, "--key-separator")
    if separator == b"":
        raise click.UsageError("--key-separator must not be empty")
    headers = key_value_pairs("--header", header_pairs)
    delivery = Delivery(topic)
    producer = _open_producer(connection, delivery, compression, acks)
    with _input_lines(path) as (lines, is_measured):
        records = (
            records_from_json(lines, keep_partitions=keep_partitions)
            if input_format == "json"
            else records_from_lines(
                lines,
                key_separator=separator,
                null_marker=None if null_marker is None else null_marker.encode(),
            )
        )
        delivery.shows_progress = sys.stderr.isatty() and not sys.stdin.isatty() and not is_measured
        _send_all(
            producer,
            delivery,
            records,
            connection,
            partition=partition,
            headers=[(name, value.encode()) for name, value in headers.items()],
        )
    _report(delivery, output_format)


class Delivery:
    """How many records of one run were delivered, and why the others were not."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.delivered = 0
        self.failures: Counter[str] = Counter()
        self.first_errors: dict[str, KafkaError] = {}
        self.input_error: CliError | None = None
        self.started_s = time.monotonic()
        self.shows_progress = False
        self._next_progress_s = 0.0

    def on_delivery(self, error: "KafkaError | None", _: Any) -> None:
        """librdkafka's delivery report."""
        if error is None:
            self.delivered += 1
        else:
            self.fail(error)

    def fail(self, error: "KafkaError") -> None:
        self.failures[error.name()] += 1
        self.first_errors.setdefault(error.name(), error)

    def show_progress(self) -> None:
        now_s = time.monotonic()
        if self.shows_progress and now_s >= self._next_progress_s:
            self._next_progress_s = now_s + _PROGRESS_INTERVAL_S
            rate = self.delivered / max(now_s - self.started_s, 0.001)
            sys.stderr.write(f"\r{self.delivered} records delivered, {rate:.0f}/s\x1b[K")
            sys.stderr.flush()

    def end_progress(self) -> None:
        if self.shows_progress:
            sys.stderr.write("\r\x1b[K")


def _open_producer(
    connection: Connection, delivery: Delivery, compression: str, acks: str
) -> "Producer":
    from confluent_kafka import Producer

    troubles = Troubles()
    timeout_ms = max(1000, int(connection.timeout_s * 1000))
    config = {
        "partitioner": "murmur2_random",  # Java's choice of partition, not librdkafka's
        "compression.type": compression,
        "acks": acks,
        "enable.idempotence": acks == "all",
        "linger.ms": 5,
        "message.max.bytes": _MESSAGE_BYTES_MAX,
        "message.timeout.ms": timeout_ms,
        "topic.metadata.propagation.max.ms": timeout_ms,
        **client_config(connection, troubles),
        "on_delivery": delivery.on_delivery,
    }
    producer: Producer = create_client(Producer, config)
    fetch_metadata(producer, connection, config["bootstrap.servers"], troubles)
    return producer


@contextmanager
def _input_lines(path: Path | None) -> Iterator[tuple[Iterable[bytes], bool]]:
    """The lines, and whether a bar shows how far they are: it does for a file, which has an end."""
    if path is not None and str(path) != "-":
        size_bytes = path.stat().st_size if path.is_file() else 0
        with path.open("rb") as file, progress_bar("Sending", size_bytes) as advance:
            yield _measured(file, advance), size_bytes > 0
        return
    if sys.stdin.isatty():
        note("Type records, one per line; Ctrl-D ends.")
    yield sys.stdin.buffer, False


def _measured(lines: Iterable[bytes], advance: Advance) -> Iterator[bytes]:
    for line in lines:
        yield line
        advance(len(line))


def _send_all(
    producer: "Producer",
    delivery: Delivery,
    records: Iterator[OutgoingRecord],
    connection: Connection,
    *,
    partition: int | None,
    headers: list[tuple[str, bytes]],
) -> None:
    """Send every record and wait for every report; Ctrl-C stops reading, then still reports."""
    try:
        try:
            for count, record in enumerate(records, start=1):
                _send(producer, delivery, record, partition, headers)
                if count % _SERVE_EVERY == 0:
                    producer.poll(0)
                    delivery.show_progress()
        except CliError as error:  # a line that cannot be sent ends the input, not the deliveries
            delivery.input_error = error
        _await_reports(producer, delivery, connection)
    except KeyboardInterrupt:
        _await_reports(producer, delivery, connection)
        delivery.end_progress()
        note(f"Interrupted after {counted(delivery.delivered, 'record')} had been delivered.")
        raise
    delivery.end_progress()


def _send(
    producer: "Producer",
    delivery: Delivery,
    record: OutgoingRecord,
    partition: int | None,
    headers: list[tuple[str, bytes]],
) -> None:
    from confluent_kafka import KafkaException

    options: dict[str, Any] = {}
    if partition is None:
        partition = record.partition
    if partition is not None:
        options["partition"] = partition
    if record.timestamp_ms:
        options["timestamp"] = record.timestamp_ms
    if headers or record.headers:
        options["headers"] = [*headers, *record.headers]
    while True:
        try:
            producer.produce(delivery.topic, value=record.value, key=record.key, **options)
            return
        except BufferError:  # the queue is full: wait for deliveries
            producer.poll(_WAIT_S)
            delivery.show_progress()
        except KafkaException as exception:
            delivery.fail(kafka_error_of(exception))
            return


def _await_reports(producer: "Producer", delivery: Delivery, connection: Connection) -> None:
    """Until every record has its report; librdkafka gives one to each within the timeout."""
    deadline_s = time.monotonic() + connection.timeout_s + 5
    while producer.flush(_WAIT_S) > 0 and time.monotonic() < deadline_s:
        delivery.show_progress()


def _report(delivery: Delivery, output_format: str) -> None:
    failed = sum(delivery.failures.values())
    if output_format == "json":
        write_json(
            {
                "topic": delivery.topic,
                "delivered": delivery.delivered,
                "failed": failed,
                "errors": [
                    {"error": name, "records": count}
                    for name, count in sorted(delivery.failures.items())
                ],
            }
        )
    else:
        if output_format == "tsv":
            write_table(
                ("TOPIC", "DELIVERED", "FAILED"), [(delivery.topic, delivery.delivered, failed)]
            )
        note(f"Delivered {counted(delivery.delivered, 'record')} to {delivery.topic!r}.")
    for name, count in sorted(delivery.failures.items()):
        verb = "was" if count == 1 else "were"
        report_error(
            str(
                refusal(
                    f"{counted(count, 'record')} {verb} not delivered", delivery.first_errors[name]
                )
            )
        )
    if delivery.input_error is not None:
        report_error(str(delivery.input_error))
    if failed or delivery.input_error is not None:
        raise CommandFailedError
