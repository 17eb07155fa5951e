"""A member's workload against a log and a coordinator that are only numbers."""

from dataclasses import dataclass

from anabranch.branch.slots import slot_of_key
from anabranch.client.acks import Progress, confirm
from anabranch.client.range_work import DoneBefore, RangeWork
from anabranch.client.records import ConsumerRecord, TopicPartition
from anabranch.client.timing import Lease
from anabranch.client.work_queues import KeyQueue, WorkQueue
from anabranch.client.workload import Row, Workload
from anabranch.coordinator.cooperative.progress import PartitionProgress, new_progress, with_done
from anabranch.model.units import ALL_SLOTS, SlotRange, Unit

TOPIC_ID = bytes(range(16))
PLACE = TopicPartition("orders", 0)
HALVES = (SlotRange(0, 32_768), SlotRange(32_768, 65_536))


def key_in(slots: SlotRange, number: int = 0) -> bytes:
    """The `number`-th key of some slots."""
    candidates = (b"key-%d" % i for i in range(1_000_000))
    found = (key for key in candidates if slots.first <= slot_of_key(key) < slots.end)
    return next(key for index, key in enumerate(found) if index == number)


def unit_of(slots: SlotRange = ALL_SLOTS, partition: int = 0) -> Unit:
    return Unit(TOPIC_ID, partition, slots)


@dataclass
class Log:
    """Keys by offset."""

    keys: list[bytes | None]

    @property
    def end(self) -> int:
        return len(self.keys)

    def slot(self, offset: int) -> int:
        key = self.keys[offset]
        assert key is not None
        return slot_of_key(key)

    def fetch(self, asked: list[SlotRange], first: int, upto: int) -> list[Row]:
        return [
            (offset, 0, self.keys[offset], b"", (), self.keys[offset], self.slot(offset))
            for offset in range(first, min(upto, self.end))
            if any(one.first <= self.slot(offset) < one.end for one in asked)
        ]


def new_workload(queue: WorkQueue | None = None) -> Workload:
    """A workload without a lease to watch."""
    lease = Lease()
    lease.renew_for_ever()
    return Workload(KeyQueue() if queue is None else queue, lease)


def active(
    workload: Workload, slots: SlotRange = ALL_SLOTS, epoch: int = 1, position: int = 0
) -> RangeWork:
    """A range that was begun and loaded."""
    work = workload.begin(PLACE, unit_of(slots), epoch)
    work.load(position)
    return work


def deliver(workload: Workload, log: Log, asked: SlotRange = ALL_SLOTS, first: int = 0) -> int:
    """Everything from `first` to the end of the log."""
    records = log.fetch([asked], first, log.end)
    return workload.deliver((TOPIC_ID, 0), [asked], records, first, log.end)


def take_all(workload: Workload, now: float = 0.0) -> list[ConsumerRecord]:
    found = []
    while (record := workload.take(now)) is not None:
        found.append(record)
    return found


class Coordinator:
    """What the broker knows to be done."""

    def __init__(self) -> None:
        self.progress: PartitionProgress = new_progress(0)

    def take(self, told: Progress) -> None:
        """Take it for what is still held of the range."""
        for work in told.works:
            self.progress = with_done(self.progress, work.slots, told.watermark, told.done)
        confirm(told, self.progress.stable_offset)

    def load(self, work: RangeWork) -> None:
        parts = self.progress.within(work.slots)
        work.load(
            min(part.watermark for part in parts),
            [DoneBefore(part.slots, part.watermark, part.done) for part in parts],
        )
