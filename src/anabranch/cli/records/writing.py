"""Records as `consume` writes them: by a template of placeholders, as JSON objects or as TSV."""

import json
import re
from collections.abc import Callable
from typing import Any, Final

import click

from anabranch.cli.output import text_field

Writer = Callable[[Any], bytes]  # takes confluent_kafka's Message

PLAIN_TEMPLATE: Final = "%s\\n"
RECORD_COLUMNS: Final = (*("TOPIC", "PARTITION", "OFFSET", "TIMESTAMP", "KEY", "VALUE", "HEADERS"),)

_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "\\": "\\"}
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|.)", re.DOTALL)
_TIMESTAMP_TYPES: Final = {0: "NoTimestampType", 1: "CreateTime", 2: "LogAppendTime"}


def unescape(text: str, flag: str) -> bytes:
    r"""The bytes of an argument in which \n, \t, \r, \0, \\ and \xHH are escapes."""
    parts: list[bytes] = []
    position = 0
    for match in _ESCAPE.finditer(text):
        parts.append(text[position : match.start()].encode("utf-8", "surrogateescape"))
        code = match[1]
        if code[0] == "x":
            parts.append(bytes.fromhex(code[1:]))
        elif code in _ESCAPES:
            parts.append(_ESCAPES[code].encode())
        else:
            raise click.UsageError(
                f"{flag} knows no escape \\{code}; use \\n \\t \\r \\0 \\\\ \\xHH"
            )
        position = match.end()
    parts.append(text[position:].encode("utf-8", "surrogateescape"))
    return b"".join(parts)


def template_writer(template: str, null_marker: bytes) -> Writer:
    """A writer for a template with kcat's placeholders; an unknown one is a usage error."""
    fields: dict[str, Writer] = {
        "t": lambda message: message.topic().encode(),
        "p": lambda message: b"%d" % message.partition(),
        "o": lambda message: b"%d" % message.offset(),
        "k": lambda message: _or(message.key(), null_marker),
        "K": lambda message: b"%d" % _length(message.key()),
        "s": lambda message: _or(message.value(), null_marker),
        "S": lambda message: b"%d" % _length(message.value()),
        "T": lambda message: b"%d" % message.timestamp()[1],
        "h": lambda message: b",".join(
            key.encode("utf-8", "surrogateescape") + b"=" + _or(value, null_marker)
            for key, value in message.headers() or []
        ),
        "%": lambda _: b"%",
    }
    parts: list[Writer] = []
    literal, *placeholders = re.split(r"%(.?)", template, flags=re.DOTALL)
    parts.append(_constant(unescape(literal, "--template")))
    for name, text in zip(placeholders[::2], placeholders[1::2], strict=True):
        if name not in fields:
            raise click.UsageError(
                f"--template knows no placeholder %{name}; use %t topic, %p partition, %o offset,"
                " %k key, %K key length, %s value, %S value length, %T timestamp, %h headers, %%"
            )
        parts.append(fields[name])
        parts.append(_constant(unescape(text, "--template")))
    return lambda message: b"".join([part(message) for part in parts])


def record_document(message: Any) -> dict[str, Any]:
    """A record as a JSON object; bytes that are not UTF-8 are base64 and marked as such."""
    timestamp_type, timestamp_ms = message.timestamp()
    return {
        "topic": message.topic(),
        "partition": message.partition(),
        "offset": message.offset(),
        "timestamp": timestamp_ms,
        "timestamp_type": _TIMESTAMP_TYPES.get(timestamp_type, "NoTimestampType"),
        **text_field("key", message.key()),
        **text_field("value", message.value()),
        "headers": [
            {"key": key, **text_field("value", value)} for key, value in message.headers() or []
        ],
    }


def record_cells(message: Any, null_marker: str) -> tuple[object, ...]:
    """A record as a row of TSV; headers are JSON, because they have names and values."""
    headers = [{"key": key, **text_field("value", value)} for key, value in message.headers() or []]
    return (
        *(message.topic(), message.partition(), message.offset(), message.timestamp()[1]),
        *(_cell(message.key(), null_marker), _cell(message.value(), null_marker)),
        json.dumps(headers, separators=(",", ":"), ensure_ascii=False) if headers else None,
    )


def _cell(data: bytes | None, null_marker: str) -> str:
    return null_marker if data is None else data.decode("utf-8", "backslashreplace")


def _constant(text: bytes) -> Writer:
    return lambda _: text


def _or(data: bytes | None, null_marker: bytes) -> bytes:
    return null_marker if data is None else data


def _length(data: bytes | None) -> int:
    return -1 if data is None else len(data)
