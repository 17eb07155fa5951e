"""Topic, Messages: records by offset, by time and by key, and the newest ones as they come.

?from=newest                 the default: live, the newest record first
?from=oldest | offset&at=120 | time&at=2026-01-31T09:00 | time&at=15m
?key=order-17                only records with this key, as far as one look goes
?partition=3&limit=100
?cursor=0:120,1:98&way=older where the links to the next records lead
?record=3:120                one record as a whole
"""

import asyncio
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from starlette.datastructures import QueryParams
from starlette.requests import Request

from anabranch.broker.partition import Partition
from anabranch.broker.topics import Topic
from anabranch.console import words
from anabranch.console.frame import Console, Page, not_found
from anabranch.console.record_reading import (
    Cursors,
    Direction,
    Found,
    ShownRecord,
    TransactionMark,
    Wanted,
    browse,
)
from anabranch.console.record_text import ShownBytes, export_bytes, show_bytes
from anabranch.console.tables import Column, make_table

LIMITS = (25, 50, 100, 250, 500)
_LIMIT_DEFAULT = 50
# Of a topic with more partitions than that, those are shown that were written to last.
_PARTITIONS_MAX = 64
_STARTS = ("newest", "oldest", "offset", "time")
_AGO = re.compile(r"(\d{1,9})\s*([smhd])")
_AGO_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}

MARK_HINTS = {
    TransactionMark.COMMITTED: "Part of a transaction that was committed.",
    TransactionMark.ABORTED: "Part of a transaction that was aborted: readers of committed records "
    "do not get it.",
    TransactionMark.OPEN: "Part of a transaction that is open: readers of committed records wait.",
}


@dataclass(frozen=True, slots=True)
class MessageRow:
    """A record and how it is shown."""

    record: ShownRecord
    key: ShownBytes
    value: ShownBytes
    headers: Sequence[tuple[str, ShownBytes]]


@dataclass(frozen=True, slots=True)
class Question:
    """What the address asks for; `problem` is a sentence about what it says wrong."""

    start: str
    at: str
    key: str
    partition: int | None
    limit: int
    cursors: Cursors | None = None
    direction: Direction = Direction.OLDER
    problem: str = ""


def parse_question(query: QueryParams, partitions: int) -> Question:
    start = query.get("from", "newest")
    at, problem = query.get("at", "").strip(), ""
    if start not in _STARTS:
        start, problem = "newest", f"“{start}” is no place to begin; here are the newest records."
    number = query.get("partition", "").strip()
    partition = int(number) if number.isascii() and number.isdigit() else None
    if number and (partition is None or partition >= partitions):
        problem = f"There is no partition {number}; partitions are 0 to {partitions - 1}."
        partition = None
    limit = query.get("limit", "")
    direction = Direction.OLDER if start == "newest" else Direction.NEWER
    cursors = _parse_cursors(query.get("cursor", ""), partitions)
    if cursors is not None:
        direction = Direction.OLDER if query.get("way") == "older" else Direction.NEWER
    return Question(
        start=start,
        at=at,
        key=query.get("key", ""),
        partition=partition,
        limit=int(limit) if limit in map(str, LIMITS) else _LIMIT_DEFAULT,
        cursors=cursors,
        direction=direction,
        problem=problem,
    )


def _parse_cursors(text: str, partitions: int) -> Cursors | None:
    found: dict[int, int] = {}
    for part in text.split(",")[:_PARTITIONS_MAX]:
        number, _, offset = part.partition(":")
        if not (number.isascii() and number.isdigit() and offset.isascii() and offset.isdigit()):
            return None
        if int(number) < partitions and len(offset) <= 19:
            found[int(number)] = int(offset)
    return found or None


def parse_time(text: str, now_ms: int) -> int:
    """`15m` ago, milliseconds since 1970, or an ISO time, UTC without a zone; else ValueError."""
    ago = _AGO.fullmatch(text)
    if ago is not None:
        return now_ms - int(ago[1]) * _AGO_MS[ago[2]]
    if text.isascii() and text.isdigit() and 5 <= len(text) <= 15:
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            f"“{text}” is no time. Write it as 2026-01-31T09:00, or as 15m for 15 minutes ago."
        ) from None
    moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return int(moment.timestamp() * 1000)


async def _cursors(
    question: Question, partitions: Sequence[Partition], now_ms: int
) -> dict[int, int]:
    """Where a look begins in each partition; ValueError says what is wrong with the address."""
    if question.start == "newest":
        return {one.index: one.log.high_watermark for one in partitions}
    if question.start == "oldest":
        return {one.index: one.log.log_start_offset for one in partitions}
    if question.start == "offset":
        at = question.at
        if not (at.isascii() and at.isdigit() and len(at) <= 19):
            raise ValueError(f"“{at}” is no offset. Offsets are numbers from 0 on.")
        return {one.index: min(int(at), one.log.high_watermark) for one in partitions}
    since_ms = parse_time(question.at, now_ms)
    found = {}
    for one in partitions:
        first = one.log.offset_for_timestamp(since_ms)
        found[one.index] = one.log.high_watermark if first is None else first.offset
        await asyncio.sleep(0)  # each may read a page of an index
    return found


def _chosen(topic: Topic, question: Question) -> list[Partition]:
    if question.partition is not None:
        return [topic.partitions[question.partition]]
    if len(topic.partitions) <= _PARTITIONS_MAX:
        return list(topic.partitions)
    by_time = sorted(topic.partitions, key=lambda one: -one.log.segments[-1].max_timestamp)
    return sorted(by_time[:_PARTITIONS_MAX], key=lambda one: one.index)


async def make_messages(request: Request, console: Console, topic: Topic, page: Page) -> Page:
    """The tab; `page` is the topic's page without it."""
    query = request.query_params
    if "record" in query:
        return await _one_record(query["record"], console, topic, page)
    question = parse_question(query, len(topic.partitions))
    problem = question.problem
    partitions = _chosen(topic, question)
    cursors = question.cursors
    if cursors is None:
        try:
            cursors = await _cursors(question, partitions, console.broker.now_ms())
        except ValueError as error:
            cursors, problem = {}, str(error)
    wanted = Wanted(
        question.direction, question.limit, question.key.encode() if question.key else None
    )
    found = await browse(console.records, topic.partitions.__getitem__, cursors, wanted)
    rows = [_row(record) for record in found.records]
    # The records were chosen above, in their order: the table neither sorts nor pages them.
    table = make_table("messages", COLUMNS, rows, QueryParams(), size=max(LIMITS))
    values: dict[str, Any] = {
        **page.values,
        "question": question,
        "found": found,
        "rows": rows,
        "problem": problem,
        "starts": _STARTS,
        "limits": LIMITS,
        "mark_hints": MARK_HINTS,
        "is_tail": question.start == "newest" and question.cursors is None,
        "shown_partitions": len(cursors),
        "links": _links(query, found, question),
    }
    return Page(
        template="messages.html",
        title=page.title,
        crumbs=page.crumbs,
        tables=[table],
        values=values,
        # What lies between two offsets does not change; the newest records do.
        is_live=values["is_tail"],
    )


def _row(record: ShownRecord) -> MessageRow:
    return MessageRow(
        record,
        show_bytes(record.key, record.key_size),
        show_bytes(record.value, record.value_size),
        [(name, show_bytes(value)) for name, value in record.headers],
    )


def _links(query: QueryParams, found: Found, question: Question) -> dict[str, str]:
    """To what comes before and after, and to the same records as files."""
    onward, backward = (
        ("newer", "older") if question.direction is Direction.NEWER else ("older", "newer")
    )
    links = {"older": "", "newer": ""}
    if found.has_onward:
        links[onward] = _address(query, found.onward, onward)
    if found.has_backward:
        links[backward] = _address(query, found.backward, backward)
    for kind in ("csv", "json"):
        links[kind] = words.with_query(query, format=kind)
    return links


def _address(query: QueryParams, cursors: Cursors, way: str) -> str:
    cursor = ",".join(f"{number}:{offset}" for number, offset in cursors.items())
    return words.with_query(query, cursor=cursor, way=way, format="")


async def _one_record(name: str, console: Console, topic: Topic, page: Page) -> Page:
    cursors = _parse_cursors(name, len(topic.partitions))
    if cursors is None:
        raise not_found(f"“{name}” is no partition and offset, such as 0:120.")
    (number, offset), *_ = cursors.items()
    look = await console.records.look(topic.partitions[number], offset, Wanted(Direction.NEWER, 1))
    row = next((_row(one) for one in look.records if one.offset == offset), None)
    values = {**page.values, "row": row, "number": number, "offset": offset}
    values["mark_hints"] = MARK_HINTS
    return Page(
        template="message.html",
        title=page.title,
        crumbs=page.crumbs,
        values=values,
        is_live=False,
    )


def _headers_text(row: MessageRow) -> str:
    pairs = {name: export_bytes(value, len(value or b"")) for name, value in row.record.headers}
    return json.dumps(pairs, ensure_ascii=False) if pairs else ""


COLUMNS: list[Column[MessageRow]] = [
    Column("partition", "Partition", lambda row: row.record.partition, is_number=True),
    Column("offset", "Offset", lambda row: row.record.offset, is_number=True),
    Column("timestamp_ms", "Time", lambda row: row.record.timestamp_ms, is_number=True),
    Column("key", "Key", lambda row: export_bytes(row.record.key, row.record.key_size)),
    Column("value", "Value", lambda row: export_bytes(row.record.value, row.record.value_size)),
    Column("headers", "Headers", _headers_text),
    Column("size_bytes", "Size", lambda row: row.record.size_bytes, is_number=True),
    Column("transaction", "Transaction", lambda row: row.record.mark.value),
]
