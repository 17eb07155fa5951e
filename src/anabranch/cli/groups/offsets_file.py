"""Offsets as CSV, in the form of kafka-consumer-groups: topic,partition,offset."""

import csv
import sys
from collections.abc import Iterable, Mapping
from typing import Final, TextIO

from anabranch.cli.errors import CliError
from anabranch.cli.groups.lookup import TopicPartitionKey

STDIN: Final = "-"
_FORM: Final = "write a line for each partition: topic,partition,offset"


def write_offsets(offsets: Mapping[TopicPartitionKey, int], stream: TextIO) -> None:
    """What `read_offsets` reads."""
    writer = csv.writer(stream, lineterminator="\n")
    for (topic, partition), offset in offsets.items():
        writer.writerow((topic, partition, offset))


def read_offsets(path: str, group: str) -> dict[TopicPartitionKey, int]:
    """The offsets in a file, or on stdin for `-`; CliError when it cannot be used."""
    try:
        if path == STDIN:
            return parse_offsets(sys.stdin, path, group)
        with open(path, encoding="utf-8", newline="") as file:
            return parse_offsets(file, path, group)
    except OSError as error:
        raise _unusable(path, error.strerror or str(error), "check the path") from None
    except UnicodeDecodeError:
        raise _unusable(path, "it is no UTF-8 text", _FORM) from None


def parse_offsets(lines: Iterable[str], path: str, group: str) -> dict[TopicPartitionKey, int]:
    """The offsets of one group.

    An export of several groups has the group before the topic; lines of other groups are left out.
    """
    offsets: dict[TopicPartitionKey, int] = {}
    reader = csv.reader(lines)
    try:
        for row in reader:
            cells = [cell.strip() for cell in row]
            if cells in ([], [""]):
                continue
            if len(cells) == 4:
                if cells[0] != group:
                    continue
                del cells[0]
            key, offset = _parsed(cells, path, reader.line_num)
            if key in offsets:
                raise _unusable(
                    path, f"line {reader.line_num} names {key[0]}-{key[1]} again", "remove one"
                )
            offsets[key] = offset
    except csv.Error as error:
        raise _unusable(path, f"line {reader.line_num}: {error}", _FORM) from None
    if not offsets:
        raise _unusable(path, f"it holds no offsets of group {group!r}", _FORM)
    return offsets


def _parsed(cells: list[str], path: str, line: int) -> tuple[TopicPartitionKey, int]:
    if len(cells) == 3 and cells[0] and cells[1].isdecimal() and cells[2].isdecimal():
        return (cells[0], int(cells[1])), int(cells[2])
    raise _unusable(path, f"line {line} is {','.join(cells)!r}", _FORM)


def _unusable(path: str, why: str, next_step: str) -> CliError:
    return CliError(f"Cannot use {'stdin' if path == STDIN else path}", why, next_step)
