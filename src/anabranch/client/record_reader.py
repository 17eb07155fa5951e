"""Records out of what a fetch brought, made in compiled code."""

from collections.abc import Iterator, Sequence
from itertools import repeat

from anabranch.branch.aborted_records import Aborted, committed_numbers
from anabranch.branch.record_columns import RecordColumns, read_records
from anabranch.branch.slots import SlotRule
from anabranch.client.errors import MissingCodecError
from anabranch.client.ordering import order_of
from anabranch.client.records import UNORDERED, Headers, OrderKey
from anabranch.client.workload import Row
from anabranch.model.units import ALL_SLOTS, SlotRange
from anabranch.wire import compression


class FetchedRecords:
    """The records of one partition from `first` on, without those of `aborted` transactions."""

    __slots__ = (
        "_columns",
        "_has_headers",
        "_keys",
        "_numbers",
        "_offsets",
        "_orders",
        "_slots",
        "_timestamps",
        "_values",
        "damaged",
        "is_whole",
        "next_offset",
    )

    def __init__(
        self, content: memoryview, rule: SlotRule, first: int, aborted: Aborted = ()
    ) -> None:
        try:
            columns = read_records(content, rule, from_offset=first)
        except compression.MissingCodecError as error:
            # Not damage: who skips damaged records must not skip these.
            raise MissingCodecError(f"records cannot be read: {error}") from error
        self._columns: RecordColumns = columns
        self._keys = columns.keys()
        self._values = columns.values()
        self._has_headers = any(columns.header_sizes)
        self._orders = _orders_of(columns, self._keys, rule)
        self._offsets: Sequence[int] = columns.offsets
        self._timestamps: Sequence[int] = columns.timestamps
        self._slots: Sequence[int] = columns.slots
        # Where in the columns each record is.
        self._numbers: Sequence[int] = range(len(columns))
        committed = committed_numbers(columns, aborted) if aborted else None
        if committed is not None:
            self._keep(committed)
        # What cannot be read, in words.
        self.damaged = [
            f"the batch at offset {one.base_offset} cannot be read: {one.damage.value}"
            for one in columns.damaged
        ]
        # Whether everything that came was read: a few bytes can decompress to more than fits.
        self.is_whole = columns.source_bytes == len(content) or bool(columns.damaged)
        self.next_offset = columns.next_offset

    def _keep(self, numbers: list[int]) -> None:
        """Leave out all other records."""
        self._numbers = numbers
        self._keys = [self._keys[i] for i in numbers]
        self._values = [self._values[i] for i in numbers]
        self._orders = [self._orders[i] for i in numbers]
        self._offsets = [self._offsets[i] for i in numbers]
        self._timestamps = [self._timestamps[i] for i in numbers]
        self._slots = [self._slots[i] for i in numbers]

    def __len__(self) -> int:
        return len(self._keys)

    def offset(self, index: int) -> int:
        return self._offsets[index]

    def slots_outside(self, asked: Sequence[SlotRange]) -> list[int]:
        """The slots of records that are in none of these ranges."""
        if ALL_SLOTS in asked:
            return []
        found = set(self._slots)
        for first, end in asked:
            found = {slot for slot in found if not first <= slot < end}
        return sorted(found)

    def rows(self, start: int, end: int) -> Iterator[Row]:
        """Some of the records."""
        stretch = slice(start, end)
        headers: Iterator[Headers] = repeat(())
        if self._has_headers:
            headers = map(self._columns.headers, self._numbers[stretch])
        return zip(
            self._offsets[stretch],
            self._timestamps[stretch],
            self._keys[stretch],
            self._values[stretch],
            headers,
            self._orders[stretch],
            self._slots[stretch],
            strict=False,
        )


def _orders_of(columns: RecordColumns, keys: list[bytes | None], rule: SlotRule) -> list[OrderKey]:
    """By what each record keeps its order."""
    if rule.ordering_header is not None:
        return [order_of(key, columns.headers(i), rule) for i, key in enumerate(keys)]
    if rule.is_null_key_ordered or None not in keys:
        return list(keys)
    return [UNORDERED if key is None else key for key in keys]
