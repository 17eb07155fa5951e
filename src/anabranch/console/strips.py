"""Strips: the key space of a partition from left to right, coloured by who owns which part.

Colour never says it alone: an owner has a letter, a colour and a pattern, which stay with it for as
long as it is there. Positions are percent of the width, as SVG takes them, so that a strip fits any
screen while its letters keep their form.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from anabranch.console.sharing import SharedPartition, SharedRange, slots_text
from anabranch.console.words import duration, number
from anabranch.coordinator.group.consumer_describe import Movement
from anabranch.model.units import SLOT_COUNT, SlotRange

COLOURS = 8
PATTERNS = 5
# Narrower pieces are drawn so wide all the same, or nobody would see a single slot.
_WIDTH_MIN = 0.2
# A letter has room in a piece of so many percent, at the width of a telephone.
_LABEL_MIN = 4.0
# Bars of the lane that shows how far ranges are; finer is not seen.
_BARS_MAX = 128
_BAR_HEIGHT = 22
_GROUPS_MAX = 1_000


class OwnerNumbers:
    """Which number each member of a group has: the smallest free one, kept while it stays."""

    def __init__(self) -> None:
        self._numbers: dict[str, dict[str, int]] = {}

    def of(self, group_id: str, members: Iterable[str]) -> Mapping[str, int]:
        """The numbers of all members, in the order of their joining where they are new."""
        known = self._numbers.pop(group_id, {})
        present = dict.fromkeys(members)
        numbers = {member: known[member] for member in known if member in present}
        taken = set(numbers.values())
        free = 0
        for member in present:
            if member not in numbers:
                while free in taken:
                    free += 1
                numbers[member] = free
                taken.add(free)
        while len(self._numbers) >= _GROUPS_MAX:
            del self._numbers[next(iter(self._numbers))]
        self._numbers[group_id] = numbers
        return numbers


def letter(owner_number: int) -> str:
    """`A` to `Z`, then `A1` to `Z1` and so on."""
    round_number, place = divmod(owner_number, 26)
    return chr(ord("A") + place) + (str(round_number) if round_number else "")


def look(owner_number: int | None) -> str:
    """The classes of a piece."""
    if owner_number is None:
        return "owner nobody"
    return f"owner colour-{owner_number % COLOURS}"


def pattern(owner_number: int | None) -> int | None:
    """Which pattern lies over the colour; None for plain."""
    if owner_number is None:
        return PATTERNS
    return owner_number % PATTERNS or None


class Piece(NamedTuple):
    """A part of a strip that has one owner."""

    x: str
    width: str
    middle: str
    look: str
    pattern: int | None
    # None where it has no room.
    label: str | None
    title: str
    owner: str
    first: int
    last: int


class Bar(NamedTuple):
    """How far some slots are, between nothing and whoever is the furthest."""

    x: str
    width: str
    # All is done up to here, and some up to there, from below.
    all_height: int
    some_height: int
    title: str


class Mark(NamedTuple):
    """A place in the key space that needs attention."""

    x: str
    kind: str
    sign: str
    title: str


class Strip(NamedTuple):
    pieces: Sequence[Piece]
    moving: Sequence[Piece]
    bars: Sequence[Bar]
    marks: Sequence[Mark]
    # What it shows, for those who do not see it.
    text: str


def make_piece(
    slots: SlotRange, owner: str | None, owner_number: int | None, label: str, title: str
) -> Piece:
    width = 100 * (slots.end - slots.first) / SLOT_COUNT
    x = 100 * slots.first / SLOT_COUNT
    return Piece(
        x=_percent(min(x, 100 - _WIDTH_MIN)),
        width=_percent(max(width, _WIDTH_MIN)),
        middle=_percent(x + width / 2),
        look=look(owner_number),
        pattern=pattern(owner_number),
        label=label if width >= _LABEL_MIN else None,
        title=title,
        owner=owner or "",
        first=slots.first,
        last=slots.end - 1,
    )


def _percent(value: float) -> str:
    return f"{value:.3f}".rstrip("0").rstrip(".") + "%"


def make_strip(partition: SharedPartition, numbers: Mapping[str, int], now_ms: int) -> Strip:
    """The strip of a shared partition."""
    owned = _joined(partition.ranges)
    return Strip(
        pieces=[
            make_piece(
                slots,
                one.owner,
                numbers.get(one.owner) if one.owner is not None else None,
                owner_letter(one.owner, numbers),
                f"{owner_text(one.owner, one.client_id, numbers)}: slots {slots_text(slots)}, "
                f"{share_text(slots)} of the keys",
            )
            for slots, one in owned
        ],
        moving=[_moving_piece(one, numbers, now_ms) for one in partition.movements],
        bars=list(_bars(partition)),
        marks=list(_marks(partition)),
        text=_text(partition.name, owned, numbers),
    )


def _joined(ranges: Iterable[SharedRange]) -> list[tuple[SlotRange, SharedRange]]:
    """Neighbours with one owner together."""
    found: list[tuple[SlotRange, SharedRange]] = []
    for one in ranges:
        if found and found[-1][1].owner == one.owner:
            found[-1] = (SlotRange(found[-1][0].first, one.slots.end), found[-1][1])
        else:
            found.append((one.slots, one))
    return found


def owner_letter(owner: str | None, numbers: Mapping[str, int]) -> str:
    if owner is None:
        return "nobody"
    return letter(numbers[owner]) if owner in numbers else "?"


def owner_text(owner: str | None, client_id: str, numbers: Mapping[str, int]) -> str:
    """An owner with its letter."""
    if owner is None:
        return "Nobody"
    name = f"{client_id}, {owner}" if client_id else owner
    return f"{owner_letter(owner, numbers)} ({name})"


def share_text(slots: SlotRange) -> str:
    """How much of the key space some slots are."""
    percent = 100 * (slots.end - slots.first) / SLOT_COUNT
    return f"{percent:.1f} %" if percent >= 0.1 else f"{percent:.4f} %"


def _moving_piece(one: Movement, numbers: Mapping[str, int], now_ms: int) -> Piece:
    heir = one.to_member_id
    giver = owner_letter(one.from_member_id, numbers)
    taker = owner_letter(heir, numbers)
    since = duration(max(now_ms - one.since_ms, 0))
    return make_piece(
        one.unit.slots,
        heir,
        numbers.get(heir) if heir is not None else None,
        f"\N{RIGHTWARDS ARROW} {taker}",
        f"On its way from {giver} to {taker} for {since}: slots {slots_text(one.unit.slots)}",
    )


def _bars(partition: SharedPartition) -> Iterable[Bar]:
    """How far each range is ahead of the stable offset; many ranges are taken together."""
    ranges = partition.ranges
    floor = partition.stable_offset or 0
    height = max((one.end_offset for one in ranges), default=floor) - floor
    if height <= 0:
        return
    step = -(-len(ranges) // _BARS_MAX)
    for start in range(0, len(ranges), step):
        some = ranges[start : start + step]
        slots = SlotRange(some[0].slots.first, some[-1].slots.end)
        lowest = min(one.watermark if one.watermark is not None else floor for one in some)
        furthest = max(one.end_offset for one in some)
        x = 100 * slots.first / SLOT_COUNT
        width = max(100 * (slots.end - slots.first) / SLOT_COUNT, _WIDTH_MIN)
        yield Bar(
            x=_percent(min(x, 100 - _WIDTH_MIN)),
            width=_percent(width),
            all_height=_scaled(lowest - floor, height),
            some_height=_scaled(furthest - floor, height),
            title=f"Slots {slots_text(slots)}: all done below {number(lowest)}, some up to "
            f"{number(furthest)}",
        )


def _scaled(ahead: int, furthest: int) -> int:
    """A height, which is not nothing for whoever is ahead at all."""
    return max(1, round(_BAR_HEIGHT * ahead / furthest)) if ahead > 0 else 0


def _marks(partition: SharedPartition) -> Iterable[Mark]:
    for hot in partition.hot:
        key = f", most of it key {key_text(hot.key)}" if hot.key is not None else ""
        yield Mark(
            _slot_x(hot.slot.slot),
            "hot",
            "\N{BLACK UP-POINTING TRIANGLE}",
            f"Hot: slot {hot.slot.slot} is {100 * hot.slot.share:.0f} % of the load{key}",
        )
    for failed in partition.failed:
        if failed.rest_ms is None:
            yield Mark(
                _slot_x(failed.slot),
                "blocked",
                "\N{MULTIPLICATION SIGN}",
                f"Blocked: record {failed.offset} failed {failed.attempts} times; its key waits",
            )
    for diverted in partition.diverted:
        yield Mark(
            _slot_x(diverted.slot),
            "diverted",
            "\N{DOWNWARDS ARROW}",
            f"Diverted: key {diverted.key_hash} goes to the dead-letter topic from offset "
            f"{diverted.from_offset} on",
        )


def _slot_x(slot: int) -> str:
    return _percent(100 * (slot + 0.5) / SLOT_COUNT)


def key_text(key: bytes) -> str:
    """A key on one line, with escapes for what would not show."""
    text = key[:64].decode("utf-8", "backslashreplace")
    return "".join(
        one if one.isprintable() else one.encode("unicode_escape").decode("ascii") for one in text
    )


def _text(
    name: str, owned: Sequence[tuple[SlotRange, SharedRange]], numbers: Mapping[str, int]
) -> str:
    shares: dict[str | None, int] = {}
    for slots, one in owned:
        shares[one.owner] = shares.get(one.owner, 0) + slots.end - slots.first
    largest = sorted(shares.items(), key=lambda item: -item[1])[:8]
    parts = [
        f"{owner_letter(owner, numbers)} {100 * slots / SLOT_COUNT:.1f} %"
        for owner, slots in largest
    ]
    more = f" and {len(shares) - 8} more" if len(shares) > 8 else ""
    return f"The key space of {name}: {', '.join(parts)}{more}"
