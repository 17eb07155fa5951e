"""What a consumer hands out: records, with the key range and the fencing token they came by."""

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

from anabranch.model.units import ALL_SLOTS, SLOT_COUNT, SlotRange, hashes_of, slots_between

if TYPE_CHECKING:
    from anabranch.client.outbox import Outgoing
    from anabranch.client.range_work import RangeWork

Headers = tuple[tuple[str, bytes | None], ...]


class TopicPartition(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class KeyRange(NamedTuple):
    """Key hashes from `first_hash` to `last_hash`, both included, out of [0, 2^63 - 1].

    Ranges begin and end at slots: at multiples of 2^47.
    """

    first_hash: int
    last_hash: int

    @staticmethod
    def whole() -> "KeyRange":
        """All keys."""
        return KeyRange(*hashes_of(ALL_SLOTS))

    @staticmethod
    def equal(count: int) -> list["KeyRange"]:
        """All keys, in `count` ranges of the same width."""
        if not 1 <= count <= SLOT_COUNT:
            raise ValueError(f"a partition can be cut into 1 to {SLOT_COUNT} ranges, not {count}")
        bounds = [index * SLOT_COUNT // count for index in range(count + 1)]
        return [KeyRange(*hashes_of(SlotRange(first, end))) for first, end in pairwise(bounds)]

    @staticmethod
    def of_slots(slots: SlotRange) -> "KeyRange":
        return KeyRange(*hashes_of(slots))

    @property
    def slots(self) -> SlotRange:
        """The slots of the range; ValueError when it does not begin and end at slots."""
        found = slots_between(self.first_hash, self.last_hash)
        if found is None:
            raise ValueError(
                f"the key range [{self.first_hash}, {self.last_hash}] does not begin and end at"
                " slots, which are multiples of 2^47; KeyRange.equal(n) makes ranges that do"
            )
        return found

    def __str__(self) -> str:
        found = slots_between(self.first_hash, self.last_hash)
        return f"slots {found.first}-{found.end - 1}" if found else f"hashes {tuple(self)}"


class FencingToken(NamedTuple):
    """Since when this member has the key range of a record.

    Whoever gets the range later has a higher token for the same keys, so that a store that keeps
    the highest token per key can refuse a writer that was paused and does not know yet that its
    range has moved. Tokens of one partition compare by `epoch`; those of different partitions
    need not be compared.
    """

    topic_id: bytes
    partition: int
    epoch: int


class _NoOrder:
    """Stands for the key of a record that has none to keep an order by."""

    def __repr__(self) -> str:
        return "UNORDERED"


UNORDERED = _NoOrder()
OrderKey = bytes | None | _NoOrder
"""By what records are kept in order; None is all records without a key, where those are ordered."""


# Where a record is on its way through the consumer: plain numbers, as every record is compared.
BUFFERED: Final = 0
STARTED: Final = 1
RESTING: Final = 2
FINISHED: Final = 3
# Without its content, because too many records of its key wait; it is fetched again in its turn.
PARKED: Final = 4
# Processed; it counts when its transaction is committed, and comes again if that is aborted.
PENDING: Final = 6
# It runs, but an earlier record of its key has to be processed again: it comes again after that.
RECALLED: Final = 7
# Not to be processed: its key is diverted, and it follows it to the dead-letter topic. It is open
# until the broker has it there, without its content.
DIVERTED: Final = 5


class ConsumerRecord:
    """One record.

    `attempt` is 1 the first time the group processes the record, and one more after each failure.
    """

    __slots__ = (
        "_headers",
        "_order",
        "_outputs",
        "_state",
        "_work",
        "attempt",
        "key",
        "offset",
        "timestamp",
        "value",
    )

    # What its handler sends, once that has ended, where that counts with the record.
    _outputs: "list[Outgoing]"

    def __init__(
        self,
        work: "RangeWork",
        offset: int,
        timestamp: int,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        order: OrderKey,
        attempt: int = 1,
    ) -> None:
        self._work = work
        self._order = order
        self._headers = headers
        self._state: int = BUFFERED
        self.offset = offset
        self.timestamp = timestamp
        self.key = key
        self.value = value
        self.attempt = attempt

    @property
    def topic(self) -> str:
        return self._work.place.topic

    @property
    def partition(self) -> int:
        return self._work.place.partition

    @property
    def token(self) -> FencingToken:
        return self._work.token

    @property
    def headers(self) -> Headers:
        return self._headers

    def header(self, name: str) -> bytes | None:
        """The last header of that name; None when there is none, or its value is null."""
        return next((value for key, value in reversed(self._headers) if key == name), None)

    def _park(self, state: int = PARKED) -> None:
        """Let go of the content."""
        self._state = state
        self.key = self.value = None
        self._headers = ()

    def _refill(
        self, timestamp: int, key: bytes | None, value: bytes | None, headers: Headers
    ) -> None:
        """Take the content back."""
        self._state = BUFFERED
        self.timestamp = timestamp
        self.key = key
        self.value = value
        self._headers = headers

    def __repr__(self) -> str:
        return f"ConsumerRecord({self.topic}-{self.partition}@{self.offset}, key={self.key!r})"


def record_for_tests(
    *,
    topic: str = "topic",
    partition: int = 0,
    offset: int = 0,
    timestamp: int = 0,
    key: bytes | None = None,
    value: bytes | None = None,
    headers: Sequence[tuple[str, bytes | None]] = (),
    epoch: int = 0,
    attempt: int = 1,
) -> ConsumerRecord:
    """A record that no broker sent, to call a handler with in the tests of an application."""
    from anabranch.client.range_work import RangeWork

    place = TopicPartition(topic, partition)
    work = RangeWork(place, ALL_SLOTS, FencingToken(bytes(16), partition, epoch), keys={})
    return ConsumerRecord(work, offset, timestamp, key, value, tuple(headers), key, attempt)
