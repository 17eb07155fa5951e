"""All transitions of one member as a table: state, epochs, units, and what it says it owns.

Units are single letters; a capital one is half a partition, a range of its key-hash slots, for
which the same rules hold. Target epoch is 5. In a row: state and epoch before, assigned, pending,
target, owned ("*" for no list), units that others hold, units that are not subscribed to; then
state and epoch after, assigned, pending. Units carry the epoch they were assigned at.
"""

import pytest

from anabranch.coordinator.group.consumer_state import ConsumerMember, MemberState
from anabranch.coordinator.group.reconcile import reconcile
from anabranch.model.errors import ErrorCode, KafkaError
from anabranch.model.units import SLOT_COUNT, SlotRange, Unit

TOPIC = b"t" * 16
HALVES = (SlotRange(0, SLOT_COUNT // 2), SlotRange(SLOT_COUNT // 2, SLOT_COUNT))
UNITS = {
    **{letter: Unit(TOPIC, number) for number, letter in enumerate("abcdef")},
    # The two halves of one partition: different units, which may have different owners.
    "L": Unit(TOPIC, 9, HALVES[0]),
    "R": Unit(TOPIC, 9, HALVES[1]),
}
LETTERS = {unit: letter for letter, unit in UNITS.items()}
STATES = {
    "S": MemberState.STABLE,
    "V": MemberState.UNREVOKED_PARTITIONS,
    "L": MemberState.UNRELEASED_PARTITIONS,
    "X": MemberState.UNKNOWN,
}

# before:            after:
# st assigned pend   target owned others unsub new   st  assigned  pend
TABLE = """
S4 a4b4  -     ab    *   -   -   n   S5  a4b4      -
S4 a4b4  -     ab    ab  -   -   n   S5  a4b4      -
S4 a4b4  -     a     *   -   -   n   V4  a4        b4
S4 a4b4  -     a     ab  -   -   n   V4  a4        b4
S4 a4b4  -     a     b   -   -   n   V4  a4        b4
S4 a4b4  -     -     a   -   -   n   =
S4 a4b4  -     a     a   -   -   n   =
S4 a4b4  -     a     -   -   -   n   =
S4 a4b4  -     ac    *   -   -   n   V4  a4        b4
S4 a4b4  -     ac    a   -   -   n   =
S4 a4b4  -     ac    a   c   -   n   =
S4 a4    -     acd   *   -   -   n   S5  a4c5d5    -
S4 a4    -     acd   a   c   -   n   L5  a4d5      -
S4 a4    -     acd   *   cd  -   n   L5  a4        -
S4 -     -     -     *   -   -   n   S5  -         -
S4 a4    -     -     *   -   -   n   V4  -         a4
S4 a4    -     -     -   -   -   n   =
S4 a4    -     ab    *   -   b   n   S5  a4        -
S4 a4b4  -     ab    *   -   b   n   V4  a4        b4
S4 a4b4  -     ab    a   -   b   n   S5  a4        -
S0 -     -     ab    -   -   -   n   S5  a5b5      -
S0 -     -     ab    -   a   -   n   L5  b5        -
S0 a0b0  -     ab    -   -   -   n   S5  a0b0      -
S5 a4b5  -     ab    *   -   -   n   =
S5 a4b5  -     ab    -   -   -   n   =
S5 a4b5  -     a     *   -   -   n   =
S5 a4b5  -     ab    *   -   -   y   =
S5 a4b5  -     ab    *   -   b   y   V5  a4        b5
S5 a4b5  -     ab    ab  -   b   y   V5  a4        b5
S5 a4b5  -     ab    a   -   b   y   S5  a4        -
S5 a4b5  -     ab    *   -   b   n   =
V4 a4    b4    a     *   -   -   n   =
V4 a4    b4    a     ab  -   -   n   =
V4 a4    b4    a     b   -   -   n   =
V4 a4    b4    a     a   -   -   n   S5  a4        -
V4 a4    b4    ac    a   -   -   n   S5  a4c5      -
V4 a4    b4    ac    a   c   -   n   L5  a4        -
V4 a4    b4    c     a   -   -   n   V4  -         a4
V4 a4    b4    c     -   -   -   n   =
V4 a4    b4    ab    ab  -   -   n   =
V4 a4    b4    ab    a   -   -   n   S5  a4b5      -
V4 a4c4  b4    ac    *   -   c   y   V4  a4        b4c4
V4 a4c4  b4    ac    abc -   c   y   V4  a4        b4c4
V4 a4c4  b4    ac    ac  -   c   y   V4  a4        c4
V4 a4c4  b4    ac    a   -   c   y   S5  a4        -
V4 a4c4  b4    ac    *   -   -   y   =
V5 a4    b5    a     a   -   -   n   S5  a4        -
L5 a4    -     ac    *   c   -   n   =
L5 a4    -     ac    *   -   -   n   S5  a4c5      -
L5 a4    -     acd   *   d   -   n   L5  a4c5      -
L4 a4    -     ac    *   c   -   n   L5  a4        -
L4 a4    -     a     *   -   -   n   S5  a4        -
L4 a4    -     c     *   -   -   n   V4  -         a4
L4 a4    -     c     -   c   -   n   =
L5 a4    -     ac    *   c   c   y   S5  a4        -
L5 a4    -     ac    *   c   a   y   V5  -         a4
X4 a4    -     ab    *   -   -   n   !
X4 a4    -     ab    a   -   -   n   !
X4 a4    -     ab    -   -   -   n   S5  a4b5      -
X4 a4    b4    a     -   -   -   n   S5  a4        -
S4 L4R4  -     L     *   -   -   n   V4  L4        R4
S4 L4R4  -     L     L   -   -   n   =
V4 L4    R4    L     LR  -   -   n   =
V4 L4    R4    L     L   -   -   n   S5  L4        -
S0 -     -     LR    -   L   -   n   L5  R5        -
L5 R5    -     LR    R   -   -   n   S5  R5L5      -
"""


def units(text: str) -> dict[Unit, int]:
    """`a4b5`: units with the epoch of each."""
    text = text.replace("-", "")
    return {UNITS[text[at]]: int(text[at + 1]) for at in range(0, len(text), 2)}


def some(text: str) -> frozenset[Unit]:
    return frozenset(UNITS[letter] for letter in text.replace("-", ""))


def rows() -> list[tuple[str, list[str]]]:
    lines = TABLE.strip().splitlines()
    return [(" ".join(line.split()), line.split()) for line in lines]


def member(state: str, assigned: str, pending: str) -> ConsumerMember:
    epoch = int(state[1:])
    return ConsumerMember(
        member_id="m",
        member_epoch=epoch,
        previous_member_epoch=max(0, epoch - 1),
        state=STATES[state[0]],
        assigned=units(assigned),
        pending_revocation=units(pending),
        shares=True,
    )


@pytest.mark.parametrize("row", [row for _, row in rows()], ids=[name for name, _ in rows()])
def test_each_transition(row):
    """The member after one heartbeat, and the very same object where nothing changes."""
    state, assigned, pending, target, owned, others, unsubscribed, is_new, *after = row
    before = member(state, assigned, pending)

    def step() -> ConsumerMember:
        return reconcile(
            before,
            target_epoch=5,
            target=some(target),
            owned=None if owned == "*" else tuple(some(owned)),
            is_free=lambda unit: unit not in some(others),
            has_new_subscription=is_new == "y",
            is_subscribed=lambda unit: unit not in some(unsubscribed),
        )

    if after == ["!"]:
        with pytest.raises(KafkaError) as caught:
            step()
        assert caught.value.code is ErrorCode.FENCED_MEMBER_EPOCH
        return
    if after == ["="]:
        assert step() is before
        return
    expected = member(*after).with_(previous_member_epoch=before.member_epoch)
    assert step() == expected


@pytest.mark.parametrize(
    ("others", "state", "assigned"),
    [("L", "L5", "a5"), ("R", "L5", "a5"), ("", "S5", "a5L5R5"), ("a", "L5", "L5R5")],
)
def test_a_partition_whole_or_not_at_all(others, state, assigned):
    """Who does not share waits until every piece of a partition is free."""
    after = reconcile(
        member("S0", "-", "-").with_(shares=False),
        target_epoch=5,
        target=some("aLR"),
        owned=(),
        is_free=lambda unit: unit not in some(others),
        has_new_subscription=False,
        is_subscribed=lambda unit: True,
    )
    expected = member(state, assigned, "-").with_(shares=False)
    assert after == expected.with_(previous_member_epoch=0)


@pytest.mark.parametrize("row", ["S4 a4b4 -", "V4 a4b4 c4", "L4 a4b4 -"])
def test_who_starts_over_has_what_it_lists(row):
    """What a member does not list when it joins again is free at once, told or not."""
    after = reconcile(
        member(*row.split()),
        target_epoch=5,
        target=some("a"),
        owned=(),
        is_free=lambda unit: True,
        has_new_subscription=False,
        is_subscribed=lambda unit: True,
        starts_over=True,
    )
    assert (after.member_epoch, after.assigned, after.pending_revocation) == (5, units("a4"), {})


@pytest.mark.parametrize("row", [row for _, row in rows()], ids=[name for name, _ in rows()])
def test_no_transition_breaks_the_rules(row):
    """Nothing new while something is owed, nothing that others hold, no epoch that goes back."""
    state, assigned, pending, target, owned, others, unsubscribed, is_new, *_ = row
    before = member(state, assigned, pending)
    if row[-1] == "!":
        return
    after = reconcile(
        before,
        target_epoch=5,
        target=some(target),
        owned=None if owned == "*" else tuple(some(owned)),
        is_free=lambda unit: unit not in some(others),
        has_new_subscription=is_new == "y",
        is_subscribed=lambda unit: unit not in some(unsubscribed),
    )
    gained = after.assigned.keys() - before.assigned.keys()
    assert not (gained and after.pending_revocation)
    assert not gained & some(others)
    assert gained <= some(target)
    assert before.member_epoch <= after.member_epoch <= 5
    released = set(before.held) - set(after.held)
    if owned == "*":
        assert not released, "released without a word of the member"
    else:
        assert not released & some(owned), "released what the member says it owns"


def test_the_table_has_every_state_before_and_after():
    """Each of the three states leads to each, by some row."""
    found = {(row[0][0], row[8][0]) for _, row in rows() if len(row) > 9}
    assert found >= {(a, b) for a in "SVL" for b in "SVL"} - {("V", "V")}
    assert ("V", "V") in found
