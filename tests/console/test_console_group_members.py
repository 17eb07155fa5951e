"""Members, charts and assignments of a group: the words and marks that people go by."""

import asyncio
from pathlib import Path

from group_pages_kit import OVERRIDES, commit, stock_member
from hypothesis import given
from hypothesis import strategies as st
from page_kit import LIMIT_S, PageSite, at_page_site

from anabranch.broker.survey import LagSample
from anabranch.console.group_members import numbers_text, partitions_text
from anabranch.console.lag_chart import make_chart
from anabranch.console.pages.group_assignment import units_text
from anabranch.coordinator.group.consumer_commands import ConsumerHeartbeat
from anabranch.model.units import SLOT_COUNT, SlotRange, Unit


def test_who_is_slow(tmp_path: Path) -> None:
    """The member whose partitions fall behind is marked, with its own lag; the other is not."""

    async def scenario(site: PageSite) -> None:
        site.broker.create_topic("orders", 2)
        async with (
            stock_member(site, "g", "one", "consumer", "orders") as one,
            stock_member(site, "g", "two", "consumer", "orders") as two,
        ):
            await site.until(lambda: len(one.owned()) == 1 and len(two.owned()) == 1)
            await site.produce("orders", [(b"k", b"v")] * 10)  # to partition 0; nobody commits
            slow, other = ("one", "two") if ("orders", 0) in one.owned() else ("two", "one")
            async with asyncio.timeout(LIMIT_S):
                while True:
                    rows = await site.rows("/groups/g?tab=members")
                    found = {row["client_id"]: row for row in rows}
                    if found[slow]["slow"]:
                        break
                    await asyncio.sleep(0.1)
            assert found[slow]["slow"] == "It is the only member that has lag."
            assert found[slow]["lag"] == 10 and found[slow]["lag_ms"] >= 1_000
            assert (found[other]["slow"], found[other]["lag"]) == (None, 0)
            page = await site.page("/groups/g?tab=members")
            assert "1 member is slow" in page

    at_page_site(tmp_path, scenario, *OVERRIDES)


def test_who_waits_for_whom(tmp_path: Path) -> None:
    """While a member does not give up what it has, the page says who waits for it and for what."""

    async def scenario(site: PageSite) -> None:
        site.broker.create_topic("orders", 2)

        def beat(member_id: str, epoch: int, **more: object) -> object:
            return site.broker.groups.submit(
                "g",
                ConsumerHeartbeat(
                    group_id="g",
                    member_id=member_id,
                    member_epoch=epoch,
                    client_id=f"client-{member_id}",
                    rebalance_timeout_ms=300_000 if epoch == 0 else -1,
                    subscribed_topic_names=("orders",) if epoch == 0 else None,
                    owned=() if epoch == 0 else None,
                ),
            )

        epoch = beat("aaaa", 0).member_epoch  # type: ignore[attr-defined]
        beat("bbbb", 0)
        beat("aaaa", epoch)
        (wait,) = await site.rows("/groups/g?tab=assignment&table=waits")
        assert wait["waiting"] == "client-bbbb\N{HORIZONTAL ELLIPSIS}bbbb"
        assert wait["awaited"] == "client-aaaa\N{HORIZONTAL ELLIPSIS}aaaa"
        rows = {row["member_id"]: row for row in await site.rows("/groups/g?tab=assignment")}
        assert wait["what"] == f"to give up {rows['aaaa']['revoking']}"
        assert rows["bbbb"]["awaiting"] == rows["aaaa"]["revoking"] == rows["bbbb"]["target"]
        assert rows["bbbb"]["current"] == ""
        members = {row["member_id"]: row for row in await site.rows("/groups/g?tab=members")}
        assert members["aaaa"]["state"] == "Revoking"
        assert members["bbbb"]["state"] == "Waiting"
        page = await site.page("/groups/g")
        assert "under way, began" in page
        (listed,) = await site.rows("/groups")
        assert listed["state"] == "Reconciling"

    at_page_site(tmp_path, scenario, *OVERRIDES)


def test_units_read_as_people_name_them(tmp_path: Path) -> None:
    """Whole partitions by number, key ranges by their share, topics that are gone as such."""

    async def scenario(site: PageSite) -> None:
        topic = site.broker.create_topic("orders", 5)
        await commit(site, "g", orders_0=0)
        half = SlotRange(0, SLOT_COUNT // 2)
        units = [Unit(topic.topic_id, number) for number in (0, 1, 2, 4)]
        assert units_text(site.broker, units) == "orders 0-2, 4"
        units.append(Unit(topic.topic_id, 3, half))
        assert units_text(site.broker, units) == "orders 0-2, 4; orders-3 0-50%"
        assert units_text(site.broker, [Unit(b"x" * 16, 0)]) == "(deleted) 0"

    at_page_site(tmp_path, scenario, *OVERRIDES)


@given(st.sets(st.integers(0, 60)))
def test_numbers_read_as_runs(numbers: set[int]) -> None:
    """Runs of numbers are written as ranges, and nothing is lost."""
    read: set[int] = set()
    for part in filter(None, numbers_text(numbers).split(", ")):
        first, _, last = part.partition("-")
        read |= set(range(int(first), int(last or first) + 1))
    assert read == numbers


def test_partitions_of_several_topics() -> None:
    """By topic, in order."""
    assert partitions_text([("b", 1), ("a", 3), ("a", 2), ("a", 0)]) == "a 0, 2-3; b 1"


# Charts -----------------------------------------------------------------------------------------


def sample(second: int, lag: int | None) -> LagSample:
    return LagSample(1_700_000_000_000 + 1_000 * second, lag, None, None)


def test_a_chart_has_gaps_where_nothing_is_known() -> None:
    """A line ends where a value is missing and begins again after it; the words say it too."""
    values = [0, 10, None, 20, 30]
    samples = [sample(number, value) for number, value in enumerate(values)]
    chart = make_chart("Lag", samples, [("lag", lambda one: one.lag_records)])
    assert chart is not None
    (line,) = chart.lines
    assert len(line.pieces) == 2
    points = [tuple(map(float, point.split(","))) for point in " ".join(line.pieces).split()]
    assert points == sorted(points)  # to the right with time
    heights = [y for _, y in points]
    assert heights == sorted(heights, reverse=True)  # upwards with the value
    assert heights[-1] == chart.top and heights[0] == chart.bottom
    assert chart.spots[2].text.endswith("lag not known")
    assert "lag now 30, between 0 and 30" in chart.summary


def test_there_is_no_chart_of_nothing() -> None:
    """Before two samples are known there is no line to draw."""
    lag = [("lag", lambda one: one.lag_records)]
    assert make_chart("Lag", [], lag) is None
    assert make_chart("Lag", [sample(0, 1)], lag) is None
    assert make_chart("Lag", [sample(0, 1), sample(1, None)], lag) is None
    assert make_chart("Lag", [sample(0, None), sample(1, None)], lag) is None
    flat = make_chart("Lag", [sample(0, 0), sample(0, 0)], lag)
    assert flat is not None and flat.rows[0][1] == "0"
