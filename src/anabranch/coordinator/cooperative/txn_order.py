"""Individual commits of transactions in the order of the stable offset, as KIP-X has it.

It is an option (`coop.txn.order=stable`); by default transactions are committed in any order.

Rules
- An acknowledgement begins with the lowest offset that it adds. One by watermark adds everything
  from the watermark that its slots have. It is taken when the stable offset has come to where it
  begins; what the same transaction has said before, and in the same request, counts for that.
- Members do their records in the order of offsets, whatever range they are of: who acknowledges
  later ones while it has earlier ones left waits for itself.
- Slots that nobody has spoken of hold nobody back. In KIP-X the stable offset is the last one that
  is done; here it is the next one, so that "has come to" is "is not below".
- A request of which one acknowledgement has to wait waits whole, and is judged again when it need
  not any more. Whatever is done has those looked at again that wait for it.
- Nobody waits in vain: who waits for a member that goes is told at once (REBALANCE_IN_PROGRESS),
  since somebody else has yet to do what that one had; and before the transaction's time is up
  everybody is told that it has to be aborted (TRANSACTION_ABORTABLE). Whose own transaction ends
  meanwhile, or who goes itself, is told so.
- Who waits is known to the living process only.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from anabranch.coordinator.cooperative.acks import news_of
from anabranch.coordinator.cooperative.book import GroupProgress, with_acked
from anabranch.coordinator.cooperative.commands import NO_OFFSET, AcksAnswer, TakeAcks
from anabranch.coordinator.cooperative.progress import PartitionProgress, intersect
from anabranch.coordinator.cooperative.records import AckedRange, Place
from anabranch.coordinator.cooperative.window import begun_offset
from anabranch.coordinator.group.consumer_state import ConsumerMember
from anabranch.coordinator.runtime.result import Result, TimerChange, TimerKey, WaiterId, Wake
from anabranch.model.errors import ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class AcksParked:
    """Acknowledgements have to wait, for the stable offset of some partitions to come to some."""

    is_durable: ClassVar[bool] = False
    waiter: WaiterId
    command: TakeAcks
    waits: Mapping[Place, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class AcksUnparked:
    """Nobody waits for that answer any more."""

    is_durable: ClassVar[bool] = False
    waiter: WaiterId


def patience_timer(group_id: str, waiter: WaiterId) -> TimerKey:
    """The end of the time that acknowledgements may wait."""
    return ("txn-order", group_id, waiter)


# Who has to wait --------------------------------------------------------------------------------


def lowest_that_waits(
    progress: PartitionProgress, own: Iterable[AckedRange], news: Iterable[AckedRange]
) -> int | None:
    """The lowest offset that the stable offset has to come to first; None when nothing has to.

    `own` is what the transaction has said before, `news` what it says now.
    """
    reached = with_acked(progress, own)
    for lowest, one in sorted(_by_lowest(progress, news), key=lambda found: found[0]):
        if lowest > begun_offset(reached) and _is_begun(progress):
            return lowest
        reached = with_acked(reached, [one])
    return None


def _by_lowest(
    progress: PartitionProgress, news: Iterable[AckedRange]
) -> Iterator[tuple[int, AckedRange]]:
    for one in news:
        firsts = [next(iter(offsets)).first for _, offsets in news_of(progress, one)]
        if firsts:
            yield min(firsts), one


def _is_begun(progress: PartitionProgress) -> bool:
    """Whether anybody has spoken of anything."""
    return any(interval.watermark != NO_OFFSET for interval in progress.intervals)


def park(command: TakeAcks, waits: Mapping[Place, int], now_ms: int) -> Result:
    """Let a request wait, if there is time for it."""
    if command.waiter is None or now_ms >= command.wait_until_ms:
        return Result(response=AcksAnswer(error=ErrorCode.TRANSACTION_ABORTABLE))
    return Result(
        records=(AcksParked(waiter=command.waiter, command=command, waits=waits),),
        timers=(
            TimerChange(patience_timer(command.group_id, command.waiter), command.wait_until_ms),
        ),
    )


def answered(parked: AcksParked, answer: AcksAnswer) -> Result:
    """A request need not wait any more."""
    waiter, group_id = parked.waiter, parked.command.group_id
    return Result(
        records=(AcksUnparked(waiter=waiter),),
        timers=(TimerChange(patience_timer(group_id, waiter), None),),
        wakes=(Wake(waiter, answer),),
    )


# Whom they wait for -----------------------------------------------------------------------------


def is_waiting_for(parked: AcksParked, member: ConsumerMember, known: GroupProgress) -> bool:
    """Whether a member has slots that are behind what a request waits for."""
    for place, offset in parked.waits.items():
        tracked = known.get(place)
        behind = [
            interval.slots
            for interval in (tracked.progress.intervals if tracked is not None else ())
            if NO_OFFSET < interval.watermark < offset
        ]
        for unit in member.held:
            is_there = (unit.topic_id, unit.partition) == place
            if is_there and any(intersect(unit.slots, slots) is not None for slots in behind):
                return True
    return False


class ParkedAcks:
    """The acknowledgements of one shard that wait."""

    def __init__(self) -> None:
        self._parked: dict[WaiterId, AcksParked] = {}

    def __bool__(self) -> bool:
        return bool(self._parked)

    def get(self, waiter: WaiterId) -> AcksParked | None:
        return self._parked.get(waiter)

    def of_group(self, group_id: str) -> list[AcksParked]:
        return [one for one in self._parked.values() if one.command.group_id == group_id]

    def of_producer(self, producer_id: int) -> list[AcksParked]:
        return [
            one
            for one in self._parked.values()
            if one.command.producer is not None and one.command.producer[0] == producer_id
        ]

    def replay(self, record: AcksParked | AcksUnparked) -> None:
        if isinstance(record, AcksParked):
            self._parked[record.waiter] = record
        else:
            self._parked.pop(record.waiter, None)
