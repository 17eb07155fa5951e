"""Transactions: every transactional id, what it has under way, and what hangs."""

import asyncio
from dataclasses import dataclass

from markupsafe import Markup
from starlette.requests import Request

from anabranch.broker.broker import Broker
from anabranch.console import words
from anabranch.console.frame import Console, Page, page_route
from anabranch.console.hanging import HangingTransaction, find_hanging
from anabranch.console.tables import Column, make_table
from anabranch.coordinator.transaction.state import (
    NO_TIMEOUT_MS,
    Transaction,
    TransactionState,
)
from anabranch.model.errors import KafkaError

_PLACES_SHOWN = 4
# Decided transactions end at once; one that takes longer waits for a partition.
_DECIDED_MS = 10_000

STATE_HINTS = {
    "Empty": "A producer has the id, and no transaction has begun.",
    "Ongoing": "The transaction has begun and is not decided.",
    "PrepareCommit": "Decided: commit markers are being written to the partitions.",
    "PrepareAbort": "Decided: abort markers are being written to the partitions.",
    "CompleteCommit": "The last transaction was committed.",
    "CompleteAbort": "The last transaction was aborted.",
}


@dataclass(frozen=True, slots=True)
class TransactionRow:
    transaction: Transaction
    now_ms: int

    @property
    def state(self) -> str:
        return self.transaction.state.value

    @property
    def is_under_way(self) -> bool:
        return not self.transaction.state.is_idle

    @property
    def age_ms(self) -> int | None:
        """Of the transaction that is under way."""
        if not self.is_under_way or self.transaction.start_timestamp_ms < 0:
            return None
        return max(self.now_ms - self.transaction.start_timestamp_ms, 0)

    @property
    def ends_in_ms(self) -> int | None:
        """Until its time is up."""
        if self.transaction.state is not TransactionState.ONGOING:
            return None
        deadline_ms = self.transaction.deadline_ms
        return None if deadline_ms is None else max(deadline_ms - self.now_ms, 0)

    @property
    def note(self) -> str:
        one = self.transaction
        if one.preparation is not None:
            return f"prepared for batch {one.preparation.batch_id} of {one.preparation.sink_id}"
        if one.state.is_decided and self.now_ms - one.last_update_timestamp_ms > _DECIDED_MS:
            return "waits for a partition that cannot be written to"
        if self.is_under_way and one.timeout_ms == NO_TIMEOUT_MS:
            return "two-phase commit: no time ends it"
        return ""


def _state_cell(row: TransactionRow) -> Markup:
    return Markup('<span class="state {0}" title="{1}">{2}</span>').format(
        row.state.lower(), STATE_HINTS.get(row.state, ""), row.state
    )


def _places_text(row: TransactionRow) -> str:
    return ", ".join(f"{topic}-{number}" for topic, number in sorted(row.transaction.partitions))


def _places_cell(row: TransactionRow) -> Markup | str:
    places = sorted(row.transaction.partitions)
    if not places:
        return words.MISSING
    links = [
        words.tab_link(f"{topic}-{number}", "partitions", "topics", topic)
        for topic, number in places[:_PLACES_SHOWN]
    ]
    more = len(places) - _PLACES_SHOWN
    rest = Markup(' <span class="soft" title="{}">and {:,} more</span>').format(
        _places_text(row), more
    )
    return Markup(", ").join(links) + (rest if more > 0 else Markup(""))


COLUMNS: list[Column[TransactionRow]] = [
    Column(
        "transactional_id",
        "Transactional id",
        lambda row: row.transaction.transactional_id,
        is_searched=True,
    ),
    Column(
        "state",
        "State",
        lambda row: row.state,
        _state_cell,
        hint="What its transaction is at; each word has its meaning on hover.",
        is_searched=True,
    ),
    Column(
        "age_ms",
        "Open for",
        lambda row: row.age_ms,
        lambda row: words.duration(row.age_ms),
        is_number=True,
        hint="How long ago the transaction began that is under way.",
    ),
    Column(
        "ends_in_ms",
        "Ends in",
        lambda row: row.ends_in_ms,
        lambda row: words.duration(row.ends_in_ms),
        is_number=True,
        hint="It is aborted then, unless its producer ends it before.",
    ),
    Column(
        "producer_id",
        "Producer id",
        lambda row: row.transaction.producer_id,
        lambda row: str(row.transaction.producer_id),
        is_number=True,
        is_searched=True,
    ),
    Column(
        "producer_epoch",
        "Epoch",
        lambda row: row.transaction.producer_epoch,
        is_number=True,
        hint="Rises with every instance of the producer; older ones are fenced.",
    ),
    Column(
        "timeout_ms",
        "Timeout",
        lambda row: row.transaction.timeout_ms,
        lambda row: words.duration(
            None if row.transaction.timeout_ms == NO_TIMEOUT_MS else row.transaction.timeout_ms
        ),
        is_number=True,
    ),
    Column(
        "partitions",
        "Partitions",
        _places_text,
        _places_cell,
        hint="What belongs to the transaction that is under way.",
        is_searched=True,
    ),
    Column("note", "Note", lambda row: row.note, is_searched=True),
]


def _hanging_columns(now_ms: int) -> list[Column[HangingTransaction]]:
    return [
        Column(
            "topic",
            "Topic",
            lambda one: one.topic,
            lambda one: words.tab_link(one.topic, "partitions", "topics", one.topic),
        ),
        Column("partition", "Partition", lambda one: one.partition, is_number=True),
        Column("producer_id", "Producer id", lambda one: one.producer_id, is_number=True),
        Column(
            "start_offset",
            "From offset",
            lambda one: one.start_offset,
            is_number=True,
            hint="Readers of committed records do not get past it.",
        ),
        Column(
            "last_timestamp_ms",
            "Last written",
            lambda one: one.last_timestamp_ms,
            lambda one: words.time(one.last_timestamp_ms, now_ms),
            is_number=True,
        ),
        Column(
            "remedy",
            "Ended with",
            lambda one: one.remedy,
            lambda one: Markup("<code>{}</code>").format(one.remedy),
        ),
    ]


def _rows(broker: Broker) -> tuple[list[Transaction], str]:
    """All transactional ids that can be read, and a sentence about those that cannot."""
    found: list[Transaction] = []
    problem = ""
    for driver in broker.transactions.drivers:
        try:
            driver.check_serving()
        except KafkaError as error:
            problem = f"Some transactional ids cannot be read now: {error.message}"
            continue
        found.extend(driver.shard.transactions.values())
    return found, problem


async def make(request: Request, console: Console) -> Page:
    broker = console.broker
    now_ms = broker.now_ms()
    transactions, problem = _rows(broker)
    await asyncio.sleep(0)
    only_open = request.query_params.get("open") == "1"
    rows = [
        row
        for row in (TransactionRow(one, now_ms) for one in transactions)
        if row.is_under_way or not only_open
    ]
    table = make_table(
        "transactions",
        COLUMNS,
        rows,
        request.query_params,
        sort="-age_ms",
        is_only=False,
        empty=(
            "No transaction is under way."
            if only_open
            else "No producer has used a transactional id."
        ),
    )
    hanging = make_table(
        "hanging",
        _hanging_columns(now_ms),
        await find_hanging(broker),
        request.query_params,
        is_only=False,
    )
    return Page(
        template="transactions.html",
        title="Transactions",
        tables=[table, hanging],
        values={
            "problem": problem,
            "only_open": only_open,
            "open_address": words.with_query(
                request.query_params, open="" if only_open else "1", format=""
            ),
        },
    )


ROUTES = [page_route("/transactions", make)]
