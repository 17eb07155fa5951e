"""`anabranch log`: look into a partition's files without a broker."""

import sys
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from anabranch.cli.errors import CliError, CommandFailedError
from anabranch.cli.options import debug_option, examples, format_option
from anabranch.cli.output import (
    counted,
    is_tsv,
    note,
    printable,
    report_error,
    write_blank_line,
    write_json_line,
    write_table,
)
from anabranch.cli.progress import Advance, progress_bar

_CONTROL_TYPES = {0: "ABORT", 1: "COMMIT"}

_BATCH_COLUMNS = (
    "POSITION", "BASE-OFFSET", "LAST-OFFSET", "RECORDS", "SIZE-BYTES", "CODEC", "TIMESTAMP-TYPE",
    "MAX-TIMESTAMP", "LEADER-EPOCH", "PRODUCER-ID", "PRODUCER-EPOCH", "BASE-SEQUENCE", "FLAGS",
)  # fmt: skip
_RECORD_COLUMNS = ("OFFSET", "TIMESTAMP", "KEY", "VALUE", "HEADERS", "BATCH-POSITION")
_REMEDIES = {
    ".log": "a broker cuts a torn tail when it starts",
    ".index": "remove the file and a broker rebuilds it when it starts",
    ".timeindex": "remove the file and a broker rebuilds it when it starts",
    ".snapshot": "remove the file and a broker rebuilds it from the segments",
}
_COLUMNS = {
    ".index": ("OFFSET", "POSITION"),
    ".timeindex": ("TIMESTAMP", "OFFSET"),
    ".snapshot": (
        "PRODUCER-ID", "PRODUCER-EPOCH", "LAST-SEQUENCE", "LAST-TIMESTAMP", "COORDINATOR-EPOCH",
        "CURRENT-TXN-FIRST-OFFSET",
    ),
}  # fmt: skip


@click.group(
    short_help="Look into log files without a broker.",
    epilog=examples("anabranch log dump anabranch-data/orders-0"),
)
@debug_option
def log() -> None:
    """Look into a partition's files, whether or not a broker runs on them."""


@log.command(
    "dump",
    epilog=examples(
        """
anabranch log dump anabranch-data/orders-0
anabranch log dump anabranch-data/orders-0/00000000000000000000.log --records
anabranch log dump anabranch-data/orders-0 --format json | jq 'select(.type == "damage")'
"""
    ),
)
@click.argument(
    "paths",
    metavar="PATH...",
    nargs=-1,
    required=True,
    type=click.Path(exists=True, path_type=Path),
)
@click.option("--records", "with_records", is_flag=True, help="Show records instead of batches.")
@format_option
@debug_option
def dump(paths: tuple[Path, ...], with_records: bool, output_format: str) -> None:
    """Show and verify segment, index and producer snapshot files.

    PATH is a .log, .index, .timeindex or .snapshot file, or a partition's folder with them. Every
    CRC is checked, and entries of an index against its segment. At damage it says where the first
    bad byte is and why, leaves that file, goes on with the next, and exits 1 in the end. With
    --format json each line is an object whose "type" is batch, record, offset_entry, time_entry,
    producer, damage or summary.
    """
    files = list(_files(paths))
    size_bytes = sum(path.stat().st_size for path in files)
    # On a terminal that shows what is found, a bar would be in its way.
    with progress_bar("Reading", size_bytes, is_shown=not sys.stdout.isatty()) as advance:
        tallies = [_Tally(path, advance) for path in files]
        for tally in tallies:
            if tally is not tallies[0] and output_format == "text":
                write_blank_line()
            _dump_file(tally, with_records, output_format)
    for tally in tallies:
        if output_format != "json" or tally.damage is not None:
            tally.report()
    if any(tally.damage is not None for tally in tallies):
        raise CommandFailedError


def _dump_file(tally: "_Tally", with_records: bool, output_format: str) -> None:
    try:
        if output_format == "json":
            _dump_json(tally, with_records)
        else:
            _dump_text(tally, with_records)
    except BrokenPipeError:
        raise
    except OSError as error:
        why = error.strerror or str(error)
        raise CliError(f"Cannot read {tally.path}", why, "check the file's permissions") from error


def _files(paths: Iterable[Path]) -> Iterator[Path]:
    from anabranch.cli.log.files import SUFFIXES, partition_files

    for path in paths:
        if path.is_dir():
            found = partition_files(path)
            if not found:
                raise CliError(
                    f"There is nothing to show in {path}",
                    "it has no segment files",
                    "name a partition's folder, such as orders-0",
                )
            yield from found
        elif path.suffix in SUFFIXES:
            yield path
        else:
            raise click.UsageError(f"{path} is none of {', '.join(SUFFIXES)}")


class _Tally:
    """What one file turned out to hold."""

    def __init__(self, path: Path, advance: Advance) -> None:
        from anabranch.cli.log.files import Damage

        self.path = path
        self._advance = advance
        self.size_bytes = path.stat().st_size
        self.valid_bytes = self.size_bytes
        self.entries = 0
        self.records = 0
        self.damage: Damage | None = None

    def watch(self, with_records: bool) -> Iterator[Any]:
        """The file's contents, counted; damage and reserved space end up here, not there."""
        from anabranch.cli.log.files import Batch, Damage, ReservedSpace, read_file

        for found in read_file(self.path, with_records=with_records):
            if isinstance(found, Damage):
                self.damage = found
                self.valid_bytes = found.position
            elif isinstance(found, ReservedSpace):
                self.valid_bytes = found.position
            else:
                self.entries += 1
                if isinstance(found, Batch):
                    self.records += found.header.records_count
                    self._advance(found.header.size_bytes)
                yield found
        if self.path.suffix != ".log":
            self._advance(self.size_bytes)

    def report(self) -> None:
        """Tell the outcome, on stderr."""
        if self.path.suffix == ".log":
            contents = f"{counted(self.entries, 'batch', 'batches')}, "
            contents += counted(self.records, "record")
        else:
            contents = counted(self.entries, "entry", "entries")
        if self.damage is not None:
            report_error(
                f"{self.path} is damaged, the first bad byte is at position"
                f" {self.damage.position} - {self.damage.reason} - what is before it is sound"
                f" ({contents}); {_REMEDIES[self.path.suffix]}"
            )
            return
        reserved_bytes = self.size_bytes - self.valid_bytes
        tail = f", then {reserved_bytes} reserved bytes" if reserved_bytes else ""
        note(f"{self.path}: {contents}, {self.valid_bytes} bytes, all sound{tail}.")


def _dump_text(tally: _Tally, with_records: bool) -> None:
    path = tally.path
    found = tally.watch(with_records)
    rows: Iterator[Sequence[object]]
    if path.suffix != ".log":
        columns, rows = _COLUMNS[path.suffix], (_entry_row(path, entry) for entry in found)
    elif with_records:
        columns, rows = _RECORD_COLUMNS, (row for batch in found for row in _record_rows(batch))
    else:
        columns, rows = _BATCH_COLUMNS, (_batch_row(batch) for batch in found)
    if is_tsv():  # which has no title lines
        write_table(("FILE", *columns), ((path, *row) for row in rows))
    else:
        click.echo(f"{path}:")
        write_table(columns, rows)
    sys.stdout.flush()


def _entry_row(path: Path, entry: Any) -> tuple[object, ...]:
    if path.suffix == ".index":
        return (entry.offset, entry.position)
    if path.suffix == ".timeindex":
        return (_moment(entry.timestamp), entry.offset)
    return (
        entry.producer_id,
        entry.producer_epoch,
        entry.last_sequence,
        _moment(entry.last_timestamp),
        entry.coordinator_epoch,
        None if entry.current_txn_first_offset < 0 else entry.current_txn_first_offset,
    )


def _batch_row(batch: Any) -> tuple[object, ...]:
    from anabranch.wire.compression import codec_name

    header = batch.header
    has_producer = header.producer_id >= 0
    return (
        batch.position,
        header.base_offset,
        header.last_offset,
        header.records_count,
        header.size_bytes,
        codec_name(header.codec),
        _timestamp_type(header),
        _moment(header.max_timestamp),
        header.partition_leader_epoch,
        header.producer_id if has_producer else None,
        header.producer_epoch if has_producer else None,
        header.base_sequence if has_producer else None,
        ",".join(
            word
            for word, is_set in (
                ("transactional", header.is_transactional),
                ("control", header.is_control),
                ("delete-horizon", header.has_delete_horizon),
            )
            if is_set
        ),
    )


def _record_rows(batch: Any) -> Iterator[tuple[object, ...]]:
    for record in batch.records:
        if batch.header.is_control:
            key, value = "(control)", f"({_control_type(record.key)})"
        else:
            key, value = _shown(record.key), _shown(record.value)
        headers = ",".join(f"{name}={_shown(content)}" for name, content in record.headers)
        yield (record.offset, _moment(record.timestamp), key, value, headers, batch.position)


def _dump_json(tally: _Tally, with_records: bool) -> None:
    from anabranch.cli.log.documents import document_of, record_documents

    path = tally.path
    for found in tally.watch(with_records):
        write_json_line({"file": str(path), **document_of(found)})
        for record in record_documents(found):
            write_json_line({"file": str(path), **record})
    if tally.damage is not None:
        write_json_line(
            {
                "file": str(path),
                "type": "damage",
                "position": tally.damage.position,
                "reason": tally.damage.reason,
            }
        )
    write_json_line(
        {
            "file": str(path),
            "type": "summary",
            "size_bytes": tally.size_bytes,
            "valid_bytes": tally.valid_bytes,
            "entries": tally.entries,
            "records": tally.records,
            "is_sound": tally.damage is None,
        }
    )


def _timestamp_type(header: Any) -> str:
    return "LogAppendTime" if header.is_log_append_time else "CreateTime"


def _control_type(key: bytes | None) -> str:
    number = int.from_bytes(key[2:4], "big") if key is not None and len(key) >= 4 else -1
    return _CONTROL_TYPES.get(number, f"type {number}")


def _shown(data: bytes | None) -> str:
    return "(null)" if data is None else printable(data) or '""'


def _moment(timestamp_ms: int) -> str | None:
    """ISO time in UTC; None for no timestamp, the number itself where no calendar has it."""
    if timestamp_ms < 0:
        return None
    try:
        return (
            datetime.fromtimestamp(timestamp_ms / 1000, UTC)
            .isoformat(timespec="milliseconds")
            .replace("+00:00", "Z")
        )
    except (OverflowError, OSError, ValueError):
        return str(timestamp_ms)
