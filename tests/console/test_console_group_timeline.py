"""Hand-overs of key ranges: the timeline has what members that share know to be theirs."""

from pathlib import Path

from sharing_kit import GROUP, Site, at_site

from anabranch.broker import timeline_events as e
from anabranch.client import CooperativeConsumer
from anabranch.console.pages.group_timeline import columns, details
from anabranch.model.units import SLOT_COUNT

SHARED = {"range.fetch.enable": "true"}


def slots(consumer: CooperativeConsumer) -> set[int]:
    """What a member knows to be its own."""
    return {slot for one in consumer.progress().ranges for slot in range(*one.key_range.slots)}


def test_key_ranges_are_handed_over(tmp_path: Path) -> None:
    """A second member gets its half from the first, and the timeline says which and how long."""

    async def scenario(site: Site) -> None:
        site.broker.create_topic("orders", 1, SHARED)
        one = await site.join("one", "orders")
        await site.until(lambda: len(slots(one)) == SLOT_COUNT)
        two = await site.join("two", "orders")
        group = site.broker.groups.group(GROUP)
        await site.until(
            lambda: (
                slots(one) | slots(two) == set(range(SLOT_COUNT))
                and bool(slots(two))
                and site.broker.timeline.under_way(GROUP) is None
            )
        )
        assert group is not None
        handed = [one for one in site.broker.timeline.of(GROUP) if isinstance(one, e.HandOver)]
        moved = {slot for over in handed for piece in over.ranges for slot in range(*piece.slots)}
        assert moved == slots(two)
        assert {over.giver.client_id for over in handed} == {"one"}
        assert {over.taker.client_id for over in handed} == {"two"}
        assert all(over.ranges[0].topic == "orders" for over in handed)
        ended = site.broker.timeline.last_rebalance(GROUP)
        assert ended is not None and ended.moved
        assert max(over.duration_ms for over in handed) <= ended.duration_ms
        (wait,) = ended.waits
        assert (wait.waiting, wait.awaited) == (str(handed[0].taker), str(handed[0].giver))
        # Whatever is told can be shown.
        for event in site.broker.timeline.of(GROUP):
            assert all(column.cell(event) is not None for column in columns(0))
            assert all(details(event))

    at_site(tmp_path, scenario)
