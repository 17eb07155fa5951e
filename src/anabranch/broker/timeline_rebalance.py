"""A rebalance that is under way: what it began for, what changed hands, who waited for whom.

Consumer groups move units one by one: a member is told to give one up, releases it, and another
takes it. A member that took something waited for whoever had it. Key ranges may be cut anew on the
way, so givers and takers are brought together by slots and not by units.

Classic groups stop as a whole: all wait for the last member to rejoin, and then for the leader.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from anabranch.broker.timeline_events import NAMED_MAX, Wait, Who
from anabranch.coordinator.cooperative.progress import intersect
from anabranch.coordinator.cooperative.records import Place
from anabranch.coordinator.group.cause import Cause
from anabranch.coordinator.group.classic_state import CONSUMER_PROTOCOL_TYPE, ClassicGroup
from anabranch.coordinator.group.consumer_protocol import ConsumerProtocolError, decode_assignment
from anabranch.coordinator.group.consumer_state import ConsumerMember
from anabranch.model.units import ALL_SLOTS, SlotRange, Unit

# Assignments of classic groups are read to count what moved only up to that much of them.
_ASSIGNMENTS_MAX_BYTES = 64 * 1024


@dataclass(slots=True)
class _Given:
    """Slots that somebody was told to give up, or has given up, and nobody has taken yet."""

    slots: SlotRange
    giver: Who
    asked_ms: int


@dataclass(frozen=True, slots=True)
class Taken:
    """Slots that went from one member to another, and how long that took."""

    unit: Unit
    giver: Who
    taker: Who
    duration_ms: int


@dataclass(slots=True, kw_only=True)
class UnderWay:
    """A rebalance that has begun and not ended; times are by the steady clock but for `at_ms`."""

    at_ms: int
    began_ms: int
    phase_ms: int
    causes: list[Cause] = field(default_factory=list)
    # Of a classic group: what it was before.
    classic_before: ClassicGroup | None = None
    moved: int = 0
    waits: dict[tuple[str, str], tuple[int, int]] = field(default_factory=dict)
    classic_waits: list[Wait] = field(default_factory=list)
    given: dict[Place, list[_Given]] = field(default_factory=dict)

    def gave(
        self, giver: Who, before: ConsumerMember, after: ConsumerMember | None, ms: int
    ) -> None:
        """Note what a member gives up by this change."""
        kept: Iterable[Unit] = ()
        if after is not None:
            kept = after.assigned
        for unit in uncovered(before.assigned, kept):
            self.given.setdefault(unit[:2], []).append(_Given(unit.slots, giver, ms))

    def took(
        self, taker: Who, before: ConsumerMember | None, after: ConsumerMember, ms: int
    ) -> list[Taken]:
        """What came to a member by this change, from whom where that is known."""
        gained = uncovered(after.assigned, before.held if before is not None else ())
        self.moved += len(gained)
        taken: list[Taken] = []
        for unit in gained:
            waiting = self.given.get(unit[:2])
            if waiting:
                taken += self._take(unit, waiting, taker, ms)
        for one in taken:
            key = (str(one.taker), str(one.giver))
            count, longest_ms = self.waits.get(key, (0, 0))
            self.waits[key] = count + 1, max(longest_ms, one.duration_ms)
        return taken

    def _take(self, unit: Unit, waiting: list[_Given], taker: Who, ms: int) -> list[Taken]:
        taken, left = [], []
        for given in waiting:
            part = intersect(given.slots, unit.slots)
            if part is None:
                left.append(given)
                continue
            left += [
                _Given(piece, given.giver, given.asked_ms) for piece in _without(given.slots, part)
            ]
            if given.giver.member_id != taker.member_id:
                whole = unit._replace(slots=part)
                taken.append(Taken(whole, given.giver, taker, max(0, ms - given.asked_ms)))
        self.given[unit[:2]] = left
        return taken

    def all_waits(self) -> tuple[Wait, ...]:
        """Who waited for whom, the longest first."""
        waits = list(self.classic_waits)
        for (waiting, awaited), (count, longest_ms) in self.waits.items():
            units = "1 partition or range" if count == 1 else f"{count:,} partitions or ranges"
            waits.append(
                Wait(
                    waiting=waiting,
                    awaited=awaited,
                    what=f"to give up {units}",
                    duration_ms=longest_ms,
                )
            )
        waits.sort(key=lambda wait: -wait.duration_ms)
        return tuple(waits[:NAMED_MAX])


def uncovered(units: Iterable[Unit], by: Iterable[Unit]) -> list[Unit]:
    """The parts of units that others do not cover, whatever these are cut into."""
    known = set(by)
    fresh = [unit for unit in units if unit not in known]
    if not fresh or not known:
        return fresh
    places = {unit[:2] for unit in fresh}
    covers: dict[Place, list[SlotRange]] = {}
    for unit in known:
        if unit[:2] in places:
            covers.setdefault(unit[:2], []).append(unit.slots)
    found = []
    for unit in fresh:
        pieces = [unit.slots]
        for cover in covers.get(unit[:2], ()):
            pieces = [left for piece in pieces for left in _without(piece, cover)]
        found += [unit._replace(slots=piece) for piece in pieces]
    return found


def _without(whole: SlotRange, part: SlotRange) -> list[SlotRange]:
    """What is left of some slots without others; all of them where these are elsewhere."""
    if intersect(whole, part) is None:
        return [whole]
    pieces = [SlotRange(whole.first, part.first), SlotRange(part.end, whole.end)]
    return [piece for piece in pieces if piece.first < piece.end]


def has_ranges(taken: Iterable[Taken]) -> bool:
    """Whether less than a partition changed hands."""
    return any(one.unit.slots != ALL_SLOTS for one in taken)


def classic_moved(before: ClassicGroup | None, after: ClassicGroup) -> int | None:
    """How many partitions somebody has now and had not; None where that cannot be read."""
    if after.protocol_type != CONSUMER_PROTOCOL_TYPE:
        return None
    members = [*after.members.values(), *(before.members.values() if before else ())]
    if sum(len(member.assignment) for member in members) > _ASSIGNMENTS_MAX_BYTES:
        return None
    try:
        had = _partitions(before) if before is not None else {}
        has = _partitions(after)
    except ConsumerProtocolError:
        return None
    return sum(len(mine - had.get(member_id, set())) for member_id, mine in has.items())


def _partitions(group: ClassicGroup) -> dict[str, set[tuple[str, int]]]:
    return {
        member.member_id: {
            (topic, number)
            for topic, numbers in decode_assignment(member.assignment).partitions
            for number in numbers
        }
        for member in group.members.values()
        if member.assignment
    }
