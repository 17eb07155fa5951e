"""Records as `produce` reads them: lines of text, or JSON objects as `consume` writes them."""

import base64
import binascii
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from anabranch.cli.errors import CliError

Headers = tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OutgoingRecord:
    """One record to send; None for partition and timestamp leaves them to the client."""

    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    partition: int | None = None
    timestamp_ms: int | None = None


def records_from_lines(
    lines: Iterable[bytes], *, key_separator: bytes | None, null_marker: bytes | None
) -> Iterator[OutgoingRecord]:
    """A record per line; with a separator, what stands before it is the key."""
    for number, line in enumerate(lines, start=1):
        value: bytes = line.removesuffix(b"\n")
        key: bytes | None = None
        if key_separator is not None:
            key, separator, value = value.partition(key_separator)
            if not separator:
                raise _bad_line(
                    number,
                    f"it has no key separator {key_separator.decode('utf-8', 'replace')!r}",
                    "correct it, or leave --key-separator out to send values only",
                )
        yield OutgoingRecord(
            key=None if key == null_marker else key,
            value=None if value == null_marker else value,
        )


def records_from_json(lines: Iterable[bytes], *, keep_partitions: bool) -> Iterator[OutgoingRecord]:
    """A record per JSON object; empty lines are skipped."""
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            document = json.loads(line)
        except ValueError as error:
            raise _bad_line(
                number, f"it is no JSON ({error})", "use --input lines to send lines as they are"
            ) from None
        if not isinstance(document, dict) or "value" not in document:
            raise _bad_line(
                number,
                'it is no JSON object with a "value"',
                "use --input lines to send lines as they are",
            )
        try:
            yield _record_from_document(document, keep_partitions)
        except (ValueError, TypeError, AttributeError) as error:
            raise _bad_line(number, str(error), "see `anabranch produce --help`") from None


def _record_from_document(document: dict[str, Any], keep_partitions: bool) -> OutgoingRecord:
    return OutgoingRecord(
        key=_field_bytes(document, "key"),
        value=_field_bytes(document, "value"),
        headers=_headers(document.get("headers") or []),
        partition=_whole_number(document, "partition") if keep_partitions else None,
        timestamp_ms=_whole_number(document, "timestamp"),
    )


def _field_bytes(document: dict[str, Any], name: str) -> bytes | None:
    content = document.get(name)
    if content is None:
        return None
    encoding = document.get(f"{name}_encoding", "utf-8")
    if encoding == "base64" and isinstance(content, str):
        try:
            return base64.b64decode(content, validate=True)
        except binascii.Error as error:
            raise ValueError(f'"{name}" is no base64 ({error})') from None
    if encoding != "utf-8":
        raise ValueError(f'"{name}_encoding" must be "utf-8" or "base64", got {encoding!r}')
    if isinstance(content, str):
        return content.encode("utf-8", "surrogateescape")
    return json.dumps(content, separators=(",", ":"), ensure_ascii=False).encode()


def _headers(given: Any) -> Headers:
    if isinstance(given, dict):
        given = [{"key": key, "value": value} for key, value in given.items()]
    if not isinstance(given, list):
        raise ValueError('"headers" must be a list of {"key": ..., "value": ...} or an object')
    result: list[tuple[str, bytes | None]] = []
    for header in given:
        if not isinstance(header, dict) or not isinstance(header.get("key"), str):
            raise ValueError('each header needs a "key" that is a string')
        result.append((header["key"], _field_bytes(header, "value")))
    return tuple(result)


def _whole_number(document: dict[str, Any], name: str) -> int | None:
    number = document.get(name)
    if number is None:
        return None
    if isinstance(number, bool) or not isinstance(number, int) or number < 0:
        raise ValueError(f'"{name}" must be a whole number from 0 up, got {number!r}')
    return number


def _bad_line(number: int, why: str, next_step: str) -> CliError:
    return CliError(f"Cannot send line {number}", why, next_step)
