"""Records of partitions for people: some at a time, forwards or backwards, never too much at once.

A look has a budget of bytes, and says how far it came. The log is asked on the loop, which costs
microseconds; what it answers is opened in a thread, a piece at a time. Readers of committed records
would leave out what was aborted; here it is shown and said.

Several partitions are read one after the other and then shown as one list, by time where
neighbours can be told apart by it: the order of each partition is kept whatever its timestamps say.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import NamedTuple

from anabranch.branch.record_columns import Headers, RecordColumns, read_records
from anabranch.branch.slots import SlotRule, slots_of_branch
from anabranch.broker.partition import Partition
from anabranch.log.partition_log import PartitionLog
from anabranch.model.errors import KafkaError
from anabranch.model.units import SlotRange

# What is opened at once, and how much all partitions of a look may have opened together.
_PIECE_BYTES = 256 * 1024
LOOK_BYTES = 16 * 1024 * 1024
# Keys and values are kept up to here; their sizes are told.
CUT_BYTES = 64 * 1024
# Going backwards there are guesses how far back the records are that are wanted.
_DISTANCE_MAX = 1 << 20


class Direction(Enum):
    NEWER = "newer"
    OLDER = "older"


class TransactionMark(Enum):
    """What became of the transaction that a record belongs to."""

    NONE = ""
    COMMITTED = "committed"
    ABORTED = "aborted"
    OPEN = "open"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownRecord:
    """One record; `key` and `value` may be cut, their sizes are whole and -1 is null."""

    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    key_size: int
    value: bytes | None
    value_size: int
    headers: Headers
    is_transactional: bool
    producer_id: int
    leader_epoch: int
    mark: TransactionMark = TransactionMark.NONE

    @property
    def size_bytes(self) -> int:
        headers = sum(len(name) + len(value or b"") for name, value in self.headers)
        return max(self.key_size, 0) + max(self.value_size, 0) + headers


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a look is for."""

    direction: Direction
    limit: int
    key: bytes | None = None
    budget_bytes: int = LOOK_BYTES


@dataclass(slots=True)
class Look:
    """What a look at one partition found, in its direction, and how far it came."""

    partition: int
    # Where it began and where it stopped: between them everything was looked at.
    began_offset: int
    offset: int
    records: list[ShownRecord] = field(default_factory=list)
    looked_records: int = 0
    looked_bytes: int = 0
    # Whether there is more in this direction.
    has_more: bool = False
    problems: list[str] = field(default_factory=list)


class _Piece(NamedTuple):
    records: list[ShownRecord]
    looked_records: int
    next_offset: int
    source_bytes: int
    problems: list[str]


class RecordReader:
    """Reads records of one broker for one console."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    async def look(self, partition: Partition, offset: int, wanted: Wanted) -> Look:
        """At a partition from `offset` on, or below it; what cannot be read is told, not raised."""
        look = Look(partition.index, offset, offset)
        try:
            if wanted.direction is Direction.NEWER:
                await self._newer(partition, wanted, look)
            else:
                await self._older(partition, wanted, look)
        except KafkaError as error:
            look.problems.append(error.message)
        log = partition.log
        look.records = [_marked(log, record) for record in look.records]
        return look

    async def _newer(self, partition: Partition, wanted: Wanted, look: Look) -> None:
        log, end = partition.log, partition.log.high_watermark
        look.offset = look.began_offset = max(look.offset, log.log_start_offset)
        while look.offset < end and look.looked_bytes < wanted.budget_bytes:
            piece = await self._open(partition, look.offset, end, wanted.key)
            if piece is None:
                break
            _count(look, piece)
            room = wanted.limit - len(look.records)
            look.records += piece.records[:room]
            if len(piece.records) >= room:
                look.offset = look.records[-1].offset + 1
                break
            if piece.next_offset <= look.offset:
                break  # what follows cannot be read, and was told of
            look.offset = piece.next_offset
        look.has_more = look.offset < log.high_watermark

    async def _older(self, partition: Partition, wanted: Wanted, look: Look) -> None:
        log = partition.log
        look.offset = look.began_offset = min(look.offset, log.high_watermark)
        distance = wanted.limit if wanted.key is None else 16 * wanted.limit
        while look.offset > log.log_start_offset and look.looked_bytes < wanted.budget_bytes:
            low = max(look.offset - distance, log.log_start_offset)
            room_bytes = max(wanted.budget_bytes - look.looked_bytes, _PIECE_BYTES)
            if distance > 1 and _span_bytes(log, low, look.offset) > room_bytes:
                distance = max(distance // 4, 1)
                continue
            found = await self._between(partition, low, wanted, look)
            room = wanted.limit - len(look.records)
            look.records += found[::-1][:room]
            if len(found) >= room:
                look.offset = look.records[-1].offset
                break
            look.offset = low
            distance = min(4 * distance, _DISTANCE_MAX)
        look.has_more = look.offset > log.log_start_offset

    async def _between(
        self, partition: Partition, low: int, wanted: Wanted, look: Look
    ) -> list[ShownRecord]:
        """What there is from `low` up to where the look is."""
        found: list[ShownRecord] = []
        position = low
        while position < look.offset:
            position = max(position, partition.log.log_start_offset)
            piece = await self._open(partition, position, look.offset, wanted.key)
            if piece is None or piece.next_offset <= position:
                break
            _count(look, piece)
            found += piece.records
            position = piece.next_offset
        return found

    async def _open(
        self, partition: Partition, offset: int, upto: int, key: bytes | None
    ) -> _Piece | None:
        batches = partition.log.read(offset, _PIECE_BYTES, min_one_batch=True)
        if not batches:
            return None
        rule, slots = partition.slot_rule, None
        if partition.branch is not None:
            tail = partition.branch.tail
            rule = tail.source.slot_rule
            assert isinstance(tail.cuts, int)
            slots = slots_of_branch(partition.branch.range_index, tail.cuts)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(
            self._executor, _read_piece, batches, partition.index, rule, slots, offset, upto, key
        )


def _count(look: Look, piece: _Piece) -> None:
    look.looked_records += piece.looked_records
    look.looked_bytes += piece.source_bytes
    look.problems += piece.problems


def _span_bytes(log: PartitionLog, low: int, high: int) -> int:
    """How many bytes of the log the offsets from `low` up to `high` are."""
    total = 0
    for segment in reversed(log.segments):
        if segment.base_offset >= high:
            continue
        if segment.next_offset <= low:
            break
        first = segment.position_of(low) if low > segment.base_offset else 0
        total += segment.position_of(high) - first
    return total


def _read_piece(
    batches: memoryview,
    partition: int,
    rule: SlotRule,
    slots: SlotRange | None,
    offset: int,
    upto: int,
    key: bytes | None,
) -> _Piece:
    """Runs in a thread."""
    columns = read_records(batches, rule, from_offset=offset)
    numbers: Sequence[int] = range(len(columns))
    if len(columns) and columns.offsets[-1] >= upto:
        numbers = [i for i, at in enumerate(columns.offsets) if at < upto]
    looked = len(numbers)
    if slots is not None:
        of = columns.slots
        numbers = [i for i in numbers if slots.first <= of[i] < slots.end]
    if key is not None:
        sizes = columns.key_sizes
        numbers = [i for i in numbers if sizes[i] == len(key) and columns.key(i) == key]
    problems = [
        f"Partition {partition}: the batch at offset {one.base_offset} cannot be read: "
        f"{one.damage.value}."
        for one in columns.damaged
        if one.base_offset < upto
    ]
    records = [_shown(columns, i, partition) for i in numbers]
    return _Piece(records, looked, columns.next_offset, columns.source_bytes, problems)


def _shown(columns: RecordColumns, i: int, partition: int) -> ShownRecord:
    batch = columns.batch_of(i)
    key_size, value_size = columns.key_sizes[i], columns.value_sizes[i]
    return ShownRecord(
        partition=partition,
        offset=columns.offsets[i],
        timestamp_ms=columns.timestamps[i],
        key=_cut(columns, columns.key_starts[i], key_size),
        key_size=key_size,
        value=_cut(columns, columns.value_starts[i], value_size),
        value_size=value_size,
        headers=tuple(
            (_printable(name), value if value is None else value[:CUT_BYTES])
            for name, value in columns.headers(i)
        ),
        is_transactional=batch.is_transactional,
        producer_id=batch.producer_id,
        leader_epoch=batch.leader_epoch,
    )


def _printable(name: str) -> str:
    """The name of a header that may not be UTF-8."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _cut(columns: RecordColumns, start: int, size: int) -> bytes | None:
    return None if size < 0 else bytes(columns.buffer[start : start + min(size, CUT_BYTES)])


def _marked(log: PartitionLog, record: ShownRecord) -> ShownRecord:
    if not record.is_transactional:
        return record
    if log.transactions.is_open(record.producer_id, record.offset):
        mark = TransactionMark.OPEN
    elif log.transactions.is_aborted(record.producer_id, record.offset):
        mark = TransactionMark.ABORTED
    else:
        mark = TransactionMark.COMMITTED
    return replace(record, mark=mark)


# Several partitions -----------------------------------------------------------------------------

Cursors = Mapping[int, int]
"""Where to go on, by partition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Records of several partitions in one order, and where to go on in both directions."""

    records: Sequence[ShownRecord]
    onward: Cursors
    backward: Cursors
    has_onward: bool
    has_backward: bool
    looked_records: int
    looked_bytes: int
    problems: Sequence[str]


async def browse(
    reader: RecordReader,
    partition_of: Callable[[int], Partition],
    cursors: Cursors,
    wanted: Wanted,
) -> Found:
    """Look at partitions from their cursors on and put together what was found."""
    budget = max(wanted.budget_bytes // max(len(cursors), 1), 1)
    one = replace(wanted, budget_bytes=budget)
    looks = [await reader.look(partition_of(number), at, one) for number, at in cursors.items()]
    taken = _merge(looks, wanted)
    records = [look.records[number] for number, look in taken]
    onward: dict[int, int] = {}
    has_onward = False
    counts = {look.partition: 0 for look in looks}
    for record in records:
        counts[record.partition] += 1
    is_newer = wanted.direction is Direction.NEWER
    for look in looks:
        count = counts[look.partition]
        if count == len(look.records):
            onward[look.partition] = look.offset
            has_onward |= look.has_more
        else:
            last = look.records[count - 1].offset if count else None
            step = 1 if is_newer else 0
            onward[look.partition] = look.began_offset if last is None else last + step
            has_onward = True
    backward = {look.partition: look.began_offset for look in looks}
    return Found(
        records=records,
        onward=onward,
        backward=backward,
        has_onward=has_onward,
        has_backward=any(
            at > partition_of(number).log.log_start_offset
            if is_newer
            else at < partition_of(number).log.high_watermark
            for number, at in backward.items()
        ),
        looked_records=sum(look.looked_records for look in looks),
        looked_bytes=sum(look.looked_bytes for look in looks),
        problems=[problem for look in looks for problem in look.problems],
    )


def _merge(looks: Sequence[Look], wanted: Wanted) -> list[tuple[int, Look]]:
    """Which record of which look comes when; each look keeps its order."""
    sign = 1 if wanted.direction is Direction.NEWER else -1
    heads = [0] * len(looks)
    taken: list[tuple[int, Look]] = []
    while len(taken) < wanted.limit:
        open_looks = [i for i, look in enumerate(looks) if heads[i] < len(look.records)]
        if not open_looks:
            break
        best = min(
            open_looks,
            key=lambda i: (sign * looks[i].records[heads[i]].timestamp_ms, looks[i].partition),
        )
        taken.append((heads[best], looks[best]))
        heads[best] += 1
    return taken
