"""What a member has to do for one key range of one partition. Pure: no clock, no lock, no socket.

States
    LOADING    given by the coordinator; how far the group is with it is not known yet
    ACTIVE     records are fetched and may be started
    DRAINING   to be given back: nothing more is started, what is running may end
    DRAINED    nothing is running and progress is stored; given back with its neighbours
    GONE       given back, or lost

`open` has every record that was fetched and is not done, by offset. What is below `position` and
not open is done: by this member, or by somebody before it. So the first open record, or `position`
where there is none, is the watermark of the range, and whatever lies between two open records is
done as a whole, however many records of other ranges lie between them.
"""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum

from anabranch.client.records import (
    DIVERTED,
    PARKED,
    PENDING,
    RECALLED,
    STARTED,
    ConsumerRecord,
    FencingToken,
    KeyRange,
    OrderKey,
    TopicPartition,
)
from anabranch.model.offset_ranges import EMPTY, OffsetRanges
from anabranch.model.units import SlotRange, Unit

Place = tuple[bytes, int]
"""A partition: the topic's id and the partition's number."""

WaitingByKey = dict[OrderKey, "deque[ConsumerRecord] | None"]
"""The keys that are taken, each with the records that wait for it."""


class RangeState(Enum):
    LOADING = "loading"
    ACTIVE = "active"
    DRAINING = "draining"
    DRAINED = "drained"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class DoneBefore:
    """What somebody did of some slots before this member had them."""

    slots: SlotRange
    watermark: int
    done: OffsetRanges = EMPTY

    def has(self, slot: int, offset: int) -> bool:
        return self.slots.first <= slot < self.slots.end and (
            offset < self.watermark or offset in self.done
        )

    @property
    def end_offset(self) -> int:
        """Nothing at or above it is done."""
        return max(self.watermark, self.done.last + 1 if self.done else 0)


@dataclass(frozen=True, slots=True)
class Rest:
    """A record that failed before: how often, and when it may be tried again.

    One that is exhausted waits for somebody to decide about it.
    """

    attempts: int
    until: float
    is_exhausted: bool = False


@dataclass(frozen=True, slots=True)
class Failure:
    """A record that could not be processed; `retry_after_ms` of -1 asks for no more attempts.

    -2 says that it was not tried, because its key is diverted.
    """

    offset: int
    key_hash: int
    retry_after_ms: int
    reason: str

    @property
    def slot(self) -> int:
        return self.key_hash >> 47


class RangeWork:
    """One key range that this member has, or is giving back."""

    __slots__ = (
        "acked",
        "busy_s",
        "committed",
        "counted",
        "diverted",
        "done_before",
        "exhausted",
        "failures",
        "family",
        "fetch",
        "high_watermark",
        "in_flight",
        "is_announced",
        "keys",
        "leader_epoch",
        "open",
        "parked",
        "place",
        "position",
        "readable_end",
        "record_bytes",
        "records_done",
        "rests",
        "slots",
        "state",
        "token",
    )

    def __init__(
        self,
        place: TopicPartition,
        slots: SlotRange,
        token: FencingToken,
        keys: WaitingByKey,
    ) -> None:
        self.place = place
        self.slots = slots
        self.token = token
        # Shared by all ranges of the partition, also by those that come after a loss: what still
        # runs for a key keeps it taken, whose range it ever was.
        self.keys = keys
        self.state = RangeState.LOADING
        self.position = -1
        self.high_watermark = -1
        # Up to where there is something to read: the last stable offset with read_committed.
        self.readable_end = -1
        self.leader_epoch = -1
        self.open: dict[int, ConsumerRecord] = {}
        self.in_flight = 0
        # How many of the open records are without their content.
        self.parked = 0
        # The request that will bring more, if there is one.
        self.fetch: object | None = None
        # It, and what was cut out of it or what it was cut out of, as far as they are held.
        self.family: list[RangeWork] = [self]
        # Whether the application was told of it.
        self.is_announced = False
        self.acked: list[int] = []
        self.failures: list[Failure] = []
        self.committed = -1
        """The watermark that the broker knows."""
        self.done_before: list[DoneBefore] = []
        self.rests: dict[int, Rest] = {}
        # From which offset on the records of some keys, by their hashes, go to the dead-letter
        # topic; and the records that rest until somebody decides about them.
        self.diverted: dict[int, int] = {}
        self.exhausted: set[int] = set()
        # The records of which the broker has counted attempts.
        self.counted: set[int] = set()
        # Since the last heartbeat.
        self.records_done = 0
        self.busy_s = 0.0
        # An average, so that a buffer can be kept within bytes without weighing every record.
        self.record_bytes = 0.0

    def __repr__(self) -> str:
        return f"RangeWork({self.place} {self.key_range}, {self.state.value}, {self.token.epoch})"

    @property
    def unit(self) -> Unit:
        return Unit(self.token.topic_id, self.token.partition, self.slots)

    @property
    def key_range(self) -> KeyRange:
        return KeyRange.of_slots(self.slots)

    @property
    def is_held(self) -> bool:
        """Whether the coordinator must still think that this member has it."""
        return self.state is not RangeState.GONE

    @property
    def is_drained(self) -> bool:
        """Whether it is to be given back and nothing of it runs."""
        return self.state is RangeState.DRAINING and self.in_flight == 0

    @property
    def buffered(self) -> int:
        """Records that were fetched, with their content, and are not running."""
        return len(self.open) - self.in_flight - self.parked

    @property
    def watermark(self) -> int:
        """Every record of the range below it is done; -1 while that is not known."""
        return min(self.open, default=self.position)

    # Its life -------------------------------------------------------------------------------------

    def load(
        self, position: int, done_before: Iterable[DoneBefore] = (), committed: int = -1
    ) -> None:
        """Begin at `position`; what is done at or above it will not be handed out."""
        self.position = position
        self.committed = committed
        self.done_before = [done for done in done_before if done.end_offset > position]
        self.state = RangeState.ACTIVE

    def is_done_before(self, slot: int, offset: int) -> bool:
        return any(done.has(slot, offset) for done in self.done_before)

    def forget_done_below(self, offset: int) -> None:
        """What was done below this offset can be forgotten: nobody asks for it any more."""
        if self.done_before:
            self.done_before = [done for done in self.done_before if done.end_offset > offset]
        if self.rests:
            self.rests = {at: rest for at, rest in self.rests.items() if at >= offset}

    def end(self) -> None:
        """Forget everything: the range was given back, or is lost."""
        self.state = RangeState.GONE
        self.family.remove(self)
        self.open = {}
        self.parked = 0
        self.acked = []
        self.failures = []

    # Cutting --------------------------------------------------------------------------------------

    def cut(self, slots: SlotRange, slot_of: Callable[[ConsumerRecord], int]) -> "RangeWork":
        """Take some slots out into a range of their own; what is left must be one range too."""
        if slots.first == self.slots.first:
            self.slots = SlotRange(slots.end, self.slots.end)
        elif slots.end == self.slots.end:
            self.slots = SlotRange(self.slots.first, slots.first)
        else:
            raise ValueError(f"cutting {slots} out of {self.slots} would leave two ranges")
        part = RangeWork(self.place, slots, self.token, self.keys)
        part.family = self.family
        part.family.append(part)
        part.state = self.state
        part.fetch = self.fetch
        part.is_announced = self.is_announced
        part.position = self.position
        part.high_watermark = self.high_watermark
        part.readable_end = self.readable_end
        part.leader_epoch = self.leader_epoch
        part.committed = self.committed
        part.done_before = self.done_before
        part.rests = self.rests
        part.diverted = self.diverted
        part.exhausted = set(self.exhausted)
        part.counted = set(self.counted)
        part.record_bytes = self.record_bytes
        # What was acknowledged and not stored yet counts for both: records of the other part that
        # lie in the same gap are done as well.
        part.acked = list(self.acked)
        part.failures = failures_in(slots, self.failures)
        self.failures = failures_in(self.slots, self.failures)
        for offset, record in list(self.open.items()):
            if slots.first <= slot_of(record) < slots.end:
                del self.open[offset]
                part.open[offset] = record
                record._work = part
                if record._state in (STARTED, PENDING, RECALLED):
                    self.in_flight -= 1
                    part.in_flight += 1
                elif record._state in (PARKED, DIVERTED):
                    self.parked -= 1
                    part.parked += 1
        return part


def failures_in(slots: SlotRange, failures: Iterable[Failure]) -> list[Failure]:
    """The failures of records of some slots."""
    return [one for one in failures if slots.first <= one.slot < slots.end]
