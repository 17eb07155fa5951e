"""What can happen to a group, as values; `sentence` says each in words.

Times are by the wall clock, durations by the clock that nobody can set.
"""

from dataclasses import dataclass
from enum import Enum
from typing import ClassVar

from anabranch.coordinator.group.cause import Cause
from anabranch.model.units import ALL_SLOTS, SLOT_COUNT, SlotRange

# How many single things an event names; it counts all of them.
NAMED_MAX = 20


class LeaveReason(Enum):
    LEFT = "left"
    AWAY = "away"
    SESSION_EXPIRED = "session-expired"
    REBALANCE_TIMEOUT = "rebalance-timeout"
    REPLACED = "replaced"
    REMOVED = "removed"


_LEAVING = {
    LeaveReason.LEFT: "left",
    LeaveReason.AWAY: "has gone for a while and keeps its place until its session ends",
    LeaveReason.SESSION_EXPIRED: "was not heard from for a whole session and was removed",
    LeaveReason.REBALANCE_TIMEOUT: "took too long to rejoin, or to give up what it had, and was "
    "removed",
    LeaveReason.REPLACED: "was replaced by a newer member with the same instance id",
    LeaveReason.REMOVED: "was removed",
}
CAUSES = {
    Cause.JOIN: "a member joined",
    Cause.LEAVE: "a member left",
    Cause.SESSION_EXPIRED: "a member was not heard from",
    Cause.REBALANCE_TIMEOUT: "a member was too slow to rejoin or to give up partitions",
    Cause.SUBSCRIPTION: "a member wants other topics",
    Cause.TOPICS: "topics were created, grew or went",
    Cause.REGEX: "a regular expression matches other topics",
    Cause.ASSIGNOR: "members want another assignor",
    Cause.LOAD: "the load of key ranges was uneven",
    Cause.STUCK: "a record was stuck at its member",
    Cause.OTHER: "something changed",
}


def counted_members(count: int) -> str:
    return "1 member" if count == 1 else f"{count:,} members"


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineEvent:
    """Something that happened to a group."""

    kind: ClassVar[str] = ""
    at_ms: int
    group_id: str

    @property
    def sentence(self) -> str:
        raise NotImplementedError


@dataclass(frozen=True, slots=True, kw_only=True)
class Who:
    """A member, as it described itself."""

    member_id: str
    client_id: str = ""
    host: str = ""
    instance_id: str | None = None

    def __str__(self) -> str:
        """A short name; members often have the same client id, so the end of theirs is in it."""
        if self.instance_id or not self.client_id:
            return self.instance_id or self.member_id
        return f"{self.client_id}\N{HORIZONTAL ELLIPSIS}{self.member_id[-4:]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberJoined(TimelineEvent):
    kind: ClassVar[str] = "join"
    who: Who
    protocol: str
    # Of a static member that took the place of an earlier self.
    replaces: str | None = None

    @property
    def sentence(self) -> str:
        again = " in the place of its former self" if self.replaces else ""
        return f"{self.who} joined from {self.who.host or 'somewhere'}{again}."


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberLeft(TimelineEvent):
    kind: ClassVar[str] = "leave"
    who: Who
    reason: LeaveReason
    # How many partitions or key ranges it had; None where the members alone know.
    held: int | None = None

    @property
    def sentence(self) -> str:
        return f"{self.who} {_LEAVING[self.reason]}."


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberRefused(TimelineEvent):
    """Requests of a member that were answered with an error, the same within a minute."""

    kind: ClassVar[str] = "refusal"
    member_id: str
    # What it asked for, by the name of the request.
    request: str
    error: str
    count: int = 1
    last_ms: int

    @property
    def sentence(self) -> str:
        often = f", {self.count:,} times" if self.count > 1 else ""
        who = self.member_id or "Somebody without a member id"
        return f"{who} was refused with {self.error} ({self.request}){often}."


@dataclass(frozen=True, slots=True, kw_only=True)
class RebalanceBegan(TimelineEvent):
    kind: ClassVar[str] = "rebalance-begin"
    # The group epoch, or the generation that is left behind.
    epoch: int
    cause: Cause
    # Whose doing it is, where it is somebody's.
    member: str = ""

    @property
    def sentence(self) -> str:
        by = f" ({self.member})" if self.member else ""
        return f"A rebalance began: {CAUSES[self.cause]}{by}."


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """A member that could not go on before another had done its part."""

    waiting: str
    awaited: str
    what: str
    duration_ms: int

    def __str__(self) -> str:
        return f"{self.waiting} waited for {self.awaited} {self.what}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RebalanceEnded(TimelineEvent):
    kind: ClassVar[str] = "rebalance"
    began_ms: int
    duration_ms: int
    # The epoch of the group, or the generation of a classic one.
    epoch: int
    is_classic: bool = False
    members: int
    # What it began for, and what came to it before it ended.
    causes: tuple[Cause, ...]
    # Partitions or key ranges that somebody has now and had not before; None when not known.
    moved: int | None
    # The longest, at most NAMED_MAX.
    waits: tuple[Wait, ...] = ()

    @property
    def cause(self) -> str:
        return "; ".join(dict.fromkeys(CAUSES[cause] for cause in self.causes)) or "not known"

    @property
    def sentence(self) -> str:
        who = "The only member is" if self.members == 1 else f"All {self.members:,} members are"
        moved = "" if self.moved is None else f", {self.moved:,} moved"
        epoch = "generation" if self.is_classic else "epoch"
        return f"{who} settled at {epoch} {self.epoch}{moved}; it had begun because {self.cause}."


@dataclass(frozen=True, slots=True, kw_only=True)
class Assigned(TimelineEvent):
    """There is a new assignment to get to."""

    kind: ClassVar[str] = "assignment"
    epoch: int
    members: int
    # What has to change hands for it; None where the members alone know.
    moving: int | None = None

    @property
    def sentence(self) -> str:
        to_move = "" if self.moving is None else f", {self.moving:,} to change hands"
        return f"A new assignment for {counted_members(self.members)}, epoch {self.epoch}{to_move}."


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRange:
    """A part of a partition by the slots of its keys."""

    topic: str
    partition: int
    slots: SlotRange

    def __str__(self) -> str:
        if self.slots == ALL_SLOTS:
            return f"{self.topic}-{self.partition}"
        first, end = (100 * slot / SLOT_COUNT for slot in self.slots)
        return f"{self.topic}-{self.partition} {first:.3g}-{end:.3g}%"


@dataclass(frozen=True, slots=True, kw_only=True)
class HandOver(TimelineEvent):
    """Key ranges that went from one member to another."""

    kind: ClassVar[str] = "hand-over"
    giver: Who
    taker: Who
    # The first of them, at most NAMED_MAX.
    ranges: tuple[KeyRange, ...]
    count: int
    # The longest, from when the giver was told to stop, or was gone, until the taker had it.
    duration_ms: int

    @property
    def sentence(self) -> str:
        named = ", ".join(str(one) for one in self.ranges[:3])
        more = f" and {self.count - 3:,} more" if self.count > 3 else ""
        return f"{self.giver} handed {named}{more} over to {self.taker}."


class RecordFate(Enum):
    """What became of a record that was not simply processed."""

    STUCK = "stuck"
    BLOCKED = "blocked"
    DEAD_LETTERED = "dead-lettered"
    SKIPPED = "skipped"
    RELEASED = "released"


_FATES = {
    RecordFate.STUCK: "was not finished in time; that counts as a failed attempt",
    RecordFate.BLOCKED: "had its last attempt; its key waits for a decision",
    RecordFate.DEAD_LETTERED: "went to the dead-letter topic",
    RecordFate.SKIPPED: "was skipped",
    RecordFate.RELEASED: "was released to be tried again",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordFated(TimelineEvent):
    kind: ClassVar[str] = "record"
    fate: RecordFate
    topic: str
    partition: int
    # None: all records of a key that wait.
    offset: int | None
    reason: str = ""

    @property
    def sentence(self) -> str:
        place = f"{self.topic}-{self.partition}"
        what = f"Record {self.offset} of {place}"
        if self.offset is None:
            what = f"A key of {place}, with all that waits of it,"
        why = f" ({self.reason})" if self.reason else ""
        return f"{what} {_FATES[self.fate]}{why}."


class OffsetChange(Enum):
    """How offsets were changed by somebody who is no member."""

    SET = "set"
    DELETED = "deleted"
    EXPIRED = "expired"
    TOPIC_DELETED = "topic-deleted"


_CHANGES = {
    OffsetChange.SET: "set from outside the group: a reset, or a reader that is no member",
    OffsetChange.DELETED: "deleted by an administrator",
    OffsetChange.EXPIRED: "forgotten, as nobody had used them for their whole retention",
    OffsetChange.TOPIC_DELETED: "forgotten, as their topic is gone",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetMoved:
    topic: str
    partition: int
    before: int | None
    after: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetsChanged(TimelineEvent):
    """Offsets that changed; commits that only go on are one event within a minute."""

    kind: ClassVar[str] = "offsets"
    change: OffsetChange
    # The first of them, at most NAMED_MAX.
    moved: tuple[OffsetMoved, ...]
    partitions: int
    count: int = 1
    last_ms: int

    @property
    def goes_on(self) -> bool:
        """Whether nothing went back or away, as with a reader that just reads on."""
        return self.change is OffsetChange.SET and all(
            one.after is not None and (one.before is None or one.after >= one.before)
            for one in self.moved
        )

    @property
    def sentence(self) -> str:
        what = "The offset of 1 partition was"
        if self.partitions != 1:
            what = f"The offsets of {self.partitions:,} partitions were"
        often = f", {self.count:,} times" if self.count > 1 else ""
        first = self.moved[0] if self.moved else None
        example = ""
        if first is not None and first.after is not None:
            before = "nothing" if first.before is None else f"{first.before:,}"
            example = f" ({first.topic}-{first.partition}: {before} to {first.after:,})"
        return f"{what} {_CHANGES[self.change]}{often}{example}."


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtocolChanged(TimelineEvent):
    kind: ClassVar[str] = "protocol"
    before: str
    after: str
    # Who stayed a member over it.
    members: int

    @property
    def sentence(self) -> str:
        return (
            f"The group went from the {self.before} to the {self.after} protocol with "
            f"{counted_members(self.members)}."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDeleted(TimelineEvent):
    kind: ClassVar[str] = "deletion"

    @property
    def sentence(self) -> str:
        return "The group was deleted by an administrator."
