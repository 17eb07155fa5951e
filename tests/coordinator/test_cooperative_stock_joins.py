"""Who does not share gets a whole partition, also of those who have shared them out before."""

import pytest

from anabranch.coordinator.cooperative.cuts import RangeMember, RangeTopic
from anabranch.coordinator.cooperative.line_cut import line_cut
from anabranch.model.units import ALL_SLOTS

TOPIC = RangeTopic("orders", bytes(range(16)), 2, True)


def _member(name: str, *, is_sharing: bool = True) -> RangeMember:
    return RangeMember(
        member_id=name, topics=frozenset({"orders"}), is_sharing=is_sharing, instance_id=None
    )


@pytest.mark.parametrize("sharers", range(1, 7))
def test_member_that_does_not_share_joins(sharers: int) -> None:
    """It is given one, though the loads of those who share were more even before."""
    members = [_member(str(number)) for number in range(sharers)]
    held = line_cut(members, [TOPIC], {}).targets
    members.append(_member("stock", is_sharing=False))
    targets = line_cut(members, [TOPIC], held).targets
    (mine,) = targets["stock"]
    assert mine.slots == ALL_SLOTS
    others = [unit for name in targets if name != "stock" for unit in targets[name]]
    assert {unit.partition for unit in others} == {1 - mine.partition}
    assert all(targets[str(number)] for number in range(sharers)), "and the others share the rest"
    assert line_cut(members, [TOPIC], targets).targets == targets, "and it stays so"
