"""`anabranch consume`: read records of a topic's partitions, without a group."""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import click

from anabranch.cli.cluster import require_partitions
from anabranch.cli.completion.live_names import complete_topics
from anabranch.cli.connection import (
    Troubles,
    client_config,
    create_client,
    open_admin,
    unreachable,
)
from anabranch.cli.errors import refusal
from anabranch.cli.options import (
    Connection,
    connection_options,
    debug_option,
    examples,
    format_option,
)
from anabranch.cli.output import note, write_json_line, write_tsv_line
from anabranch.cli.progress import Advance, no_progress, progress_bar
from anabranch.cli.records.start_position import Start, parse_last, parse_start, resolve_start
from anabranch.cli.records.writing import (
    PLAIN_TEMPLATE,
    RECORD_COLUMNS,
    record_cells,
    record_document,
    template_writer,
    unescape,
)

if TYPE_CHECKING:
    from confluent_kafka import Consumer

_BATCH_RECORDS: Final = 500
_WAIT_S: Final = 0.1
_PASSING: Final = frozenset({"_TRANSPORT", "_ALL_BROKERS_DOWN", "_TIMED_OUT", "_RESOLVE"})


def _start(_: click.Context, __: click.Parameter, value: str) -> Start:
    try:
        return parse_start(value, now_ms=int(time.time() * 1000))
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def _last(_: click.Context, __: click.Parameter, value: str | None) -> Start | None:
    if value is None:
        return None
    try:
        return parse_last(value, now_ms=int(time.time() * 1000))
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


@click.command(
    epilog=examples(
        r"""
anabranch consume orders
anabranch consume orders --from -10 --exit-at-end
anabranch consume orders --partition 0 --from 1500 --max-messages 1
anabranch consume orders --last 5m --template '%p:%o %T %k=%s\n'
anabranch consume orders --from 2025-01-15T09:00:00Z --format json | jq .value
"""
    ),
    short_help="Read records from a topic.",
)
@click.argument("topic", shell_complete=complete_topics)
@click.option(
    "--partition",
    "partitions",
    type=click.IntRange(min=0),
    metavar="N",
    multiple=True,
    help="Read this partition only; may be given again.  [default: all]",
)
@click.option(
    "--from",
    "start",
    metavar="POSITION",
    default="earliest",
    show_default=True,
    callback=_start,
    help="Where to start: earliest, latest, an offset, -N for the last N of each partition, an"
    " ISO time (UTC unless it has a zone), or a duration such as 5m or 1h30m for that long ago.",
)
@click.option(
    "--last",
    metavar="DURATION|N",
    callback=_last,
    help="Start so long ago (5m), or so many records before the end of each partition (10); instead"
    " of --from.",
)
@click.option(
    "--max-messages", type=click.IntRange(min=1), metavar="N", help="Stop after N records."
)
@click.option(
    "--exit-at-end", is_flag=True, help="Stop at what is the end now instead of waiting for more."
)
@click.option(
    "--template",
    metavar="TEXT",
    help="How to write a record; placeholders as in kcat, see above.  [default: %s\\n]",
)
@click.option("--null-marker", metavar="TEXT", default="", help="Written for null keys and values.")
@connection_options
@format_option
@debug_option
def consume(
    connection: Connection,
    output_format: str,
    topic: str,
    partitions: tuple[int, ...],
    start: Start,
    last: Start | None,
    max_messages: int | None,
    exit_at_end: bool,
    template: str | None,
    null_marker: str,
) -> None:
    r"""Read records of TOPIC and write them to stdout.

    Partitions are read by hand: no group is joined and nothing is committed. Text output is the
    value and a newline, or the --template: %t topic, %p partition, %o offset, %T timestamp in ms,
    %k key, %s value, %K and %S their lengths (-1 for null), %h headers, %% a percent sign, and
    \n \t \\ \xHH. JSON output is one object per line, TSV a header and a line
    for each. Without --exit-at-end or --max-messages it
    waits for new records until Ctrl-C.
    """
    if template is not None and output_format != "text":
        raise click.UsageError(f"--template and --format {output_format} exclude each other")
    if last is not None:
        source = click.get_current_context().get_parameter_source("start")
        if source is not None and source.name == "COMMANDLINE":
            raise click.UsageError("--from and --last exclude each other; give one of them")
        start = last
    write = _writer(output_format, template, null_marker)
    admin, metadata = open_admin(connection)
    chosen = require_partitions(metadata, topic, partitions)
    reading = Reading(
        topic=topic,
        offsets=resolve_start(admin, connection, topic, chosen, start),
        max_messages=max_messages,
        exit_at_end=exit_at_end,
    )
    if output_format == "tsv":
        write_tsv_line(RECORD_COLUMNS)
    reading.read_all(connection, write)


def _writer(output_format: str, template: str | None, null_marker: str) -> Callable[[Any], object]:
    if output_format == "json":
        return lambda message: write_json_line(record_document(message))
    if output_format == "tsv":
        return lambda message: write_tsv_line(record_cells(message, null_marker))
    render = template_writer(
        PLAIN_TEMPLATE if template is None else template, unescape(null_marker, "--null-marker")
    )
    write = sys.stdout.buffer.write
    return lambda message: write(render(message))


@dataclass(slots=True, kw_only=True)
class Reading:
    """One run over some partitions: where each starts, and where each is done."""

    topic: str
    offsets: dict[int, tuple[int, int]]  # partition: first offset to read, end when we started
    max_messages: int | None
    exit_at_end: bool
    count: int = 0
    open_partitions: set[int] = field(default_factory=set)
    advance: Advance = no_progress

    def read_all(self, connection: Connection, write: Callable[[Any], object]) -> None:
        """Read until done, which without a limit is never."""
        self.open_partitions = {
            partition
            for partition, (start, end) in self.offsets.items()
            if not self.exit_at_end or start < end
        }
        if not self.open_partitions:
            return
        troubles = Troubles()
        config = self._config(connection, troubles)
        from confluent_kafka import Consumer, TopicPartition

        consumer: Consumer = create_client(Consumer, config)
        try:
            consumer.assign(
                [
                    TopicPartition(self.topic, partition, self.offsets[partition][0])
                    for partition in sorted(self.open_partitions)
                ]
            )
            # On a terminal that shows the records themselves, a bar would be in their way.
            is_shown = not sys.stdout.isatty()
            with progress_bar("Reading", self._length(), is_shown=is_shown) as self.advance:
                self._loop(consumer, connection, config["bootstrap.servers"], troubles, write)
        finally:
            consumer.close()

    def _length(self) -> int:
        """How many records there are to read, at most; 0 when nobody knows."""
        lengths = [self.max_messages] if self.max_messages is not None else []
        if self.exit_at_end:
            lengths.append(sum(end - start for start, end in self.offsets.values()))
        return min(lengths, default=0)

    def _config(self, connection: Connection, troubles: Troubles) -> dict[str, Any]:
        return {
            "fetch.wait.max.ms": 100 if self.exit_at_end else 500,
            **client_config(connection, troubles),
            "group.id": "anabranch-cli",  # librdkafka insists; with assign() none is joined
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
        }

    def _loop(
        self,
        consumer: "Consumer",
        connection: Connection,
        bootstrap_servers: str,
        troubles: Troubles,
        write: Callable[[Any], object],
    ) -> None:
        has_told = False
        while self.open_partitions:
            room = _BATCH_RECORDS
            if self.max_messages is not None:
                room = min(room, self.max_messages - self.count)
            messages = consumer.consume(num_messages=room, timeout=_WAIT_S)
            for message in messages:
                self._take(message, troubles, write)
            if messages:
                sys.stdout.flush()
            if self.count == self.max_messages:
                return
            if troubles.last_error is None:
                has_told = False
            elif self.exit_at_end and troubles.lasts_longer_than(connection.timeout_s):
                raise unreachable(bootstrap_servers, connection, troubles)
            elif troubles.is_lasting() and not has_told:
                note(f"Lost the broker at {bootstrap_servers}; trying to reach it again.")
                has_told = True

    def _take(self, message: Any, troubles: Troubles, write: Callable[[Any], object]) -> None:
        error = message.error()
        partition: int = message.partition()
        if error is None:
            troubles.forget()
            end = self.offsets[partition][1]
            if not self.exit_at_end or message.offset() < end:
                write(message)
                self.count += 1
                self.advance(1)
            if self.exit_at_end and message.offset() + 1 >= end:
                self.open_partitions.discard(partition)
        elif error.name() == "_PARTITION_EOF":
            troubles.forget()
            if self.exit_at_end:
                self.open_partitions.discard(partition)
        elif error.name() in _PASSING:
            troubles.note(error)
        else:
            raise refusal(f"Cannot read partition {partition} of {self.topic!r}", error)
