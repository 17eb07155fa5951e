"""The pages about groups: what they show is what stock clients and the broker know."""

from pathlib import Path

import pytest
from group_pages_kit import (
    KILLED_SESSION_MS,
    METADATA,
    OVERRIDES,
    SESSION_MS,
    StockMember,
    commit,
    member_process,
    stock_member,
)
from page_kit import PageSite, at_page_site

from anabranch.branch.slots import slot_of_key
from anabranch.broker.survey import LagSample
from anabranch.model.units import SLOT_COUNT

PROTOCOLS = ("classic", "consumer")
ALL = {("orders", number) for number in range(4)}


def shares_all(*members: StockMember) -> bool:
    owned = [member.owned() for member in members]
    return set().union(*owned) == ALL and sum(map(len, owned)) == len(ALL) and all(owned)


def is_at_rest(site: PageSite, group: str, members: int) -> bool:
    found = site.broker.groups.group(group)
    return found is not None and len(found.members) == members and found.state.value == "Stable"


def test_groups_are_listed_with_their_lag(tmp_path: Path) -> None:
    """Also those without members; filters by state and type are in the address and count."""

    async def scenario(site: PageSite) -> None:
        site.broker.create_topic("orders", 4)
        await site.produce("orders", [(b"k", b"v")] * 10)
        await commit(site, "idle", orders_0=4)
        await commit(site, "team/a b", orders_0=10)
        async with stock_member(site, "busy", "one", "consumer", "orders") as one:
            await site.until(lambda: shares_all(one) and is_at_rest(site, "busy", 1))
            rows = {row["group"]: row for row in await site.rows("/groups")}
            assert {name: row["lag"] for name, row in rows.items()} == {
                "busy": 10,
                "idle": 6,
                "team/a b": 0,
            }
            assert rows["idle"]["state"] == "Empty" and rows["idle"]["type"] == "Classic"
            assert (rows["busy"]["type"], rows["busy"]["members"]) == ("Consumer", 1)
            assert rows["busy"]["topics"] == "orders"
            assert rows["busy"]["rebalance_cause"] == "a member joined"
            assert rows["idle"]["rebalance_took_ms"] is None
            assert rows["idle"]["lag_ms"] >= 0
            only = await site.rows("/groups?state=Empty")
            assert [row["group"] for row in only] == ["idle", "team/a b"]
            assert [row["group"] for row in await site.rows("/groups?type=Consumer")] == ["busy"]
            page = await site.page("/groups?state=Empty")
            assert 'href="/groups/team%2Fa%20b"' in page
            assert "Nobody is a member now" in page  # the sentence of the state
            assert (await site.ask("/groups/team%2Fa%20b")).status == 200
            missing = await site.ask("/groups/nobody")
            assert missing.status == 404 and "There is no group nobody" in missing.text

    at_page_site(tmp_path, scenario, *OVERRIDES)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_members_come_and_go(tmp_path: Path, protocol: str) -> None:
    """Members, their partitions and the timeline are those that stock clients know."""

    async def scenario(site: PageSite) -> None:
        site.broker.create_topic("orders", 4)
        async with stock_member(site, "g", "one", protocol, "orders") as one:
            await site.until(lambda: shares_all(one) and is_at_rest(site, "g", 1))
            async with stock_member(site, "g", "two", protocol, "orders") as two:
                await site.until(lambda: shares_all(one, two) and is_at_rest(site, "g", 2))
                rows = {row["client_id"]: row for row in await site.rows("/groups/g?tab=members")}
                assert rows.keys() == {"one", "two"}
                for name, member in (("one", one), ("two", two)):
                    numbers = sorted(number for _, number in member.owned())
                    assert rows[name]["count"] == len(numbers)
                    shown = rows[name]["partitions"].removeprefix("orders ")
                    assert shown in (f"{numbers[0]}-{numbers[1]}", f"{numbers[0]}, {numbers[1]}")
                    assert rows[name]["state"] == "Stable"
                    assert rows[name]["heard_ago_ms"] < SESSION_MS
                    assert rows[name]["subscription"] == "orders"
                assert {row["member_id"] for row in rows.values()} == set(
                    site.broker.groups.group("g").members  # type: ignore[union-attr]
                )
                assigned = await site.rows("/groups/g?tab=assignment")
                assert {row["current"] for row in assigned} == {row["target"] for row in assigned}
                assert all(row["revoking"] == row["awaiting"] == "" for row in assigned)
                owners = {
                    (row["topic"], row["partition"]): row["owner"]
                    for row in await site.rows("/groups/g")
                }
                for name, member in (("one", one), ("two", two)):
                    mine = {key for key, who in owners.items() if who == rows[name]["member_id"]}
                    assert mine == member.owned()
            await site.until(lambda: shares_all(one) and is_at_rest(site, "g", 1))
            told = [row["kind"] for row in await site.rows("/groups/g?tab=timeline")][::-1]
            assert told.count("join") == 2
            assert told.count("leave") == 1
            assert told.count("rebalance") == told.count("rebalance-begin") >= 3
            (left,) = await site.rows("/groups/g?tab=timeline&kind=leave")
            assert "two" in left["what"] and " left." in left["what"]
        await site.until(lambda: not site.broker.groups.group("g").members)  # type: ignore[union-attr]
        page = await site.page("/groups/g?tab=members")
        assert "Nobody is a member now." in page

    at_page_site(tmp_path, scenario, *OVERRIDES)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_member_that_is_killed(tmp_path: Path, protocol: str) -> None:
    """Its session runs out: the timeline says so, and the other has its partitions."""

    async def scenario(site: PageSite) -> None:
        site.broker.create_topic("orders", 4)
        async with stock_member(site, "g", "stays", protocol, "orders") as stays:
            with member_process(site, "g", "dies", protocol, "orders") as process:
                await site.until(
                    lambda: is_at_rest(site, "g", 2) and 0 < len(stays.owned()) < len(ALL)
                )
                process.kill()
                await site.until(lambda: shares_all(stays) and is_at_rest(site, "g", 1))
            (left,) = await site.rows("/groups/g?tab=timeline&kind=leave")
            assert "dies" in left["what"] and "was not heard from" in left["what"]
            causes = [
                row["what"] for row in await site.rows("/groups/g?tab=timeline&kind=rebalance")
            ]
            assert "a member was not heard from" in causes[0]
            (row,) = await site.rows("/groups")
            assert row["rebalance_cause"] == "a member was not heard from"
            assert row["rebalance_took_ms"] == site.broker.timeline.last_rebalance("g").duration_ms  # type: ignore[union-attr]

    killed_soon = f"group.consumer.session.timeout.ms={KILLED_SESSION_MS}"
    at_page_site(tmp_path, scenario, *OVERRIDES, killed_soon)


def test_lag_of_partitions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Committed, end, lag and metadata are what the clients say; the chart has its words."""

    async def scenario(site: PageSite) -> None:
        site.broker.create_topic("orders", 2)
        await site.produce("orders", [(b"k", b"v")] * 9)
        await commit(site, "g", orders_0=7, orders_1=0)
        rows = {row["partition"]: row for row in await site.rows("/groups/g?table=partitions")}
        assert (rows[0]["committed_offset"], rows[0]["end_offset"], rows[0]["lag"]) == (7, 9, 2)
        assert (rows[1]["lag"], rows[1]["lag_ms"], rows[1]["owner"]) == (0, 0, None)
        assert rows[0]["metadata"].rstrip("\0") == METADATA  # the client sends its end too
        now_ms = site.broker.now_ms()
        samples = [LagSample(now_ms - 5_000, 9, None, None), LagSample(now_ms, 2, 1.4, 0.0)]
        monkeypatch.setattr(site.broker.surveyor, "history", lambda group_id: samples)
        page = await site.page("/groups/g")
        assert 'aria-label="Lag in records. Over the last' in page
        assert "lag now 2, between 2 and 9" in page
        assert "style=" not in page

    at_page_site(tmp_path, scenario, *OVERRIDES)


def test_branch_topics_show_their_source(tmp_path: Path) -> None:
    """A group on a branch topic has the stable offset of the source and what is unprocessed."""

    async def scenario(site: PageSite) -> None:
        site.broker.create_topic("orders", 1)
        site.broker.create_topic("orders.shared", 2, {"branch.source.topic": "orders"})
        await site.produce("orders", [(b"k%d" % n, b"v") for n in range(20)])
        await commit(site, "g", **{"orders.shared_0": 20})
        site_id = site.broker.topics.get("orders.shared").topic_id  # type: ignore[union-attr]
        looked = site.broker.groups.branch_progress.last_of
        await site.until(lambda: bool(looked("g", site_id)))
        progress = looked("g", site_id)[0].progress
        (row,) = await site.rows("/groups/g?table=sources")
        assert (row["source"], row["partition"]) == ("orders", 0)
        assert row["stable_offset"] == progress.stable_offset
        # One branch is done, the other is not begun: its keys are what is left.
        later = [n for n in range(20) if slot_of_key(b"k%d" % n) >= SLOT_COUNT // 2]
        assert row["unprocessed"] == progress.unprocessed_records == len(later) > 0
        assert row["stable_offset"] == later[0]

    at_page_site(tmp_path, scenario, *OVERRIDES)


def test_tabs(tmp_path: Path) -> None:
    """Each tab has the head of its group and no tab for sharing; another name is not found."""

    async def scenario(site: PageSite) -> None:
        site.broker.create_topic("orders", 1)
        await commit(site, "a/b", orders_0=0)
        for tab in ("lag", "members", "assignment", "timeline", "offsets"):
            page = await site.page(f"/groups/a%2Fb?tab={tab}")
            assert "<h1>a/b</h1>" in page
            assert 'href="/groups/a%2Fb?tab=members"' in page
            assert "tab=sharing" not in page
            assert " style=" not in page
        assert (await site.ask("/groups/a%2Fb?tab=nothing")).status == 404
        await commit(site, '"><script>x</script>', orders_0=0)
        await site.broker.surveyor.survey(max_age_ms=0)
        for path in ("/groups", "/groups/%22%3E%3Cscript%3Ex%3C%2Fscript%3E?tab=offsets"):
            page = await site.page(path)
            assert "&lt;script&gt;x" in page and "<script>x" not in page

    at_page_site(tmp_path, scenario, *OVERRIDES)


def test_pages_are_live(tmp_path: Path) -> None:
    """A stream of the groups shows a new group soon after it is there."""

    async def scenario(site: PageSite) -> None:
        site.broker.create_topic("orders", 1)
        async with site.stream("/groups?every=0.5") as stream:
            assert "There are no groups yet" in await stream.page()
            await commit(site, "new", orders_0=0)
            page = ""
            while 'href="/groups/new"' not in page:
                page = await stream.page()

    at_page_site(tmp_path, scenario, *OVERRIDES)
