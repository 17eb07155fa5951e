"""The reset wizard: the plan, what comes of it, what stands in its way, and the way back."""

import asyncio
import html
import re
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from confluent_kafka import Consumer, TopicPartition
from group_pages_kit import METADATA, OVERRIDES, commit, member_config, post, stock_member
from page_kit import PageSite, append, at_page_site

from anabranch.broker import timeline_events as e
from anabranch.console.offset_plans import Wish, target_of
from anabranch.observe import logs
from anabranch.wire.record_batch import Record

TAB = "/groups/g?tab=offsets"
NOW_MS = 1_700_000_000_000


def make_topic(site: PageSite, name: str = "orders", partitions: int = 2) -> None:
    """Ten records in each partition, a second apart."""
    topic = site.broker.create_topic(name, partitions)
    for partition in topic.partitions:
        for number in range(10):
            record = Record(0, NOW_MS + 1_000 * number, b"k", b"v", ())
            append(partition.log, [record], NOW_MS)


async def committed(site: PageSite, group: str, *places: tuple[str, int]) -> list[int]:
    """What a stock client is told; -1001 stands for nothing."""
    consumer = Consumer(member_config(site, group, "asks", "classic"))
    try:
        wanted = [TopicPartition(*place) for place in places]
        found = await asyncio.to_thread(consumer.committed, wanted, 30)
        return [one.offset for one in found]
    finally:
        await asyncio.to_thread(consumer.close)


def hidden(page: str, name: str) -> str:
    """The value of a hidden field."""
    found = re.search(rf'<input type="hidden" name="{name}" value="([^"]*)"', page)
    assert found is not None, name
    return html.unescape(found[1])


async def plan(site: PageSite, query: str) -> list[tuple[Any, ...]]:
    """Partition, before, after and change in lag, of a plan."""
    rows = await site.rows(f"{TAB}&{query}&table=plan")
    return [
        (row["partition"], row["offset_before"], row["offset_after"], row["lag_change"])
        for row in rows
    ]


async def do(site: PageSite, query: str) -> Any:
    """Fill in the wizard, look at the plan, and press the button."""
    page = await site.page(f"{TAB}&{query}")
    fields = {"token": hidden(page, "token"), "plan": hidden(page, "plan")}
    return await post(site, f"{TAB}&{query}", **fields)


def test_every_target_has_its_plan(tmp_path: Path) -> None:
    """Each strategy and scope says what the offsets were, would be, and what that does to lag."""

    async def scenario(site: PageSite) -> None:
        make_topic(site)
        await commit(site, "g", orders_0=4)
        await commit(site, "other", orders_0=9, orders_1=2)
        assert await plan(site, "strategy=earliest") == [(0, 4, 0, 4), (1, None, 0, 0)]
        assert await plan(site, "strategy=latest") == [(0, 4, 10, -6), (1, None, 10, -10)]
        assert await plan(site, "strategy=current") == [(0, 4, 4, 0), (1, None, 10, -10)]
        at_two = "topic=orders&partitions=0&strategy"
        assert await plan(site, f"{at_two}=offset&offset=7") == [(0, 4, 7, -3)]
        assert await plan(site, f"{at_two}=shift&shift=-3") == [(0, 4, 1, 3)]
        assert await plan(site, f"{at_two}=shift&shift=-30") == [(0, 4, 0, 4)]
        assert await plan(site, "strategy=shift&shift=1") == [(0, 4, 5, -1), (1, None, None, None)]
        when = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(NOW_MS / 1000 + 6))
        found = await plan(site, f"strategy=time&time={quote(when)}")
        assert found == [(0, 4, 6, -2), (1, None, 6, -6)]
        seconds = site.broker.now_ms() // 1000 - NOW_MS // 1000 + 600
        assert await plan(site, f"{at_two}=ago&ago={seconds}&unit=s") == [(0, 4, 0, 4)]
        assert await plan(site, f"{at_two}=ago&ago=1&unit=h") == [(0, 4, 10, -6)]
        assert await plan(site, "strategy=group&other=other") == [(0, 4, 9, -5), (1, None, 2, -2)]
        csv = await site.ask(f"{TAB}&strategy=latest&table=plan&format=csv")
        assert csv.text.splitlines()[1].startswith("orders,0,4,10,6,0,-6")

    at_page_site(tmp_path, scenario, *OVERRIDES)


def test_times_are_utc_wherever_the_broker_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """A time without a zone is not that of the machine; with one, it is that zone's."""
    broker: Any = None
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        plain = target_of(broker, Wish(strategy="time", time="2023-11-14T22:13:20"))
        zoned = target_of(broker, Wish(strategy="time", time="2023-11-14T23:13:20+01:00"))
    finally:
        monkeypatch.undo()
        time.tzset()
    assert plain.value == zoned.value == NOW_MS


NONSENSE = [
    ("strategy=offset", "Give an offset"),
    ("strategy=offset&offset=-4", "Offsets begin at 0"),
    ("strategy=shift&shift=far", "Give a number"),
    ("strategy=time&time=noon", "Give a time such as"),
    ("strategy=group", "Name the group"),
    ("strategy=group&other=nobody", "has committed nothing"),
    ("strategy=anything", "choose one of the targets"),
    ("topic=nothing&strategy=latest", "There is no topic nothing"),
    ("topic=orders&partitions=7&strategy=latest", "orders has no partition 7"),
    ("topic=orders&partitions=x&strategy=latest", "“x” is no partition"),
    ("partitions=1&strategy=latest", "Name the topic too"),
]


def test_wishes_that_make_no_sense(tmp_path: Path) -> None:
    """The page says what is wrong and what would be right, and plans nothing."""

    async def scenario(site: PageSite) -> None:
        make_topic(site)
        await commit(site, "g", orders_0=4)
        for query, sentence in NONSENSE:
            page = html.unescape(await site.page(f"{TAB}&{query}"))
            assert sentence in page, query
            assert "danger" not in page, query  # there is no button

    at_page_site(tmp_path, scenario, *OVERRIDES)


def test_reset_and_undo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was shown is done, read again and shown; undo puts back offsets, metadata, nothing."""
    lines: list[tuple[str, dict[str, Any]]] = []
    monkeypatch.setattr(logs, "info", lambda name, /, **fields: lines.append((name, fields)))

    async def scenario(site: PageSite) -> None:
        make_topic(site)
        await commit(site, "g", orders_0=4)
        answer = await do(site, "strategy=latest")
        assert answer.status == 303
        assert answer.headers["location"] == "/groups/g?tab=offsets&done=1"
        assert await committed(site, "g", ("orders", 0), ("orders", 1)) == [10, 10]
        rows = await site.rows("/groups/g?tab=offsets&done=1&table=result")
        assert [(row["offset_before"], row["offset_now"], row["outcome"]) for row in rows] == [
            (4, 10, "as planned"),
            (None, 10, "as planned"),
        ]
        event = site.broker.timeline.of("g")[-1]
        assert isinstance(event, e.OffsetsChanged) and event.change is e.OffsetChange.SET
        page = await site.page("/groups/g?tab=offsets&done=1")
        assert "2 offsets were reset" in page
        undo = await post(site, TAB, token=hidden(page, "token"), undo="1")
        assert undo.headers["location"].endswith("done=2")
        assert await committed(site, "g", ("orders", 0), ("orders", 1)) == [4, -1001]
        assert site.broker.groups.offsets("g")["orders", 0].metadata.startswith(METADATA)
        assert "2 offsets were put back" in await site.page("/groups/g?tab=offsets&done=2")
        found = {name: fields for name, fields in lines if name.startswith("console.offsets")}
        assert found["console.offsets.reset"]["offsets"] == "orders-0:4>10 orders-1:none>10"
        assert found["console.offsets.undone"]["offsets"] == "orders-0:10>4 orders-1:10>none"

    at_page_site(tmp_path, scenario, *OVERRIDES)


def test_a_group_without_commits(tmp_path: Path) -> None:
    """It can be given its first offsets, of a topic that it never read."""

    async def scenario(site: PageSite) -> None:
        make_topic(site)
        make_topic(site, "other", 1)
        await commit(site, "g", other_0=1)
        assert (await do(site, "topic=orders&strategy=offset&offset=3")).status == 303
        assert await committed(site, "g", ("orders", 0), ("orders", 1)) == [3, 3]

    at_page_site(tmp_path, scenario, *OVERRIDES)


def test_members_stand_in_the_way(tmp_path: Path) -> None:
    """The plan is shown, the button is not to be pressed, and who presses it is refused."""

    async def scenario(site: PageSite) -> None:
        make_topic(site)
        async with stock_member(site, "g", "one", "consumer", "orders") as one:
            await site.until(lambda: len(one.owned()) == 2)
            query = "strategy=earliest"
            # A member that committed nothing has the offset of none of them yet.
            page = await site.page(f"{TAB}&{query}")
            assert re.search("Group g is (Stable|Reconciling) with 1 member;", page)
            assert "Stop the members first" in page
            assert re.search(r'class="danger" disabled', page)
            text = '[["orders",0,null,5]]'
            answer = await post(site, f"{TAB}&{query}", token=hidden(page, "token"), plan=text)
            assert answer.status == 409
            assert "offsets can only be reset when it is Empty" in answer.text
            assert dict(site.broker.groups.offsets("g")) == {}

    at_page_site(tmp_path, scenario, *OVERRIDES)


def test_a_plan_that_is_out_of_date(tmp_path: Path) -> None:
    """Who agreed to other offsets than there are now has changed nothing."""

    async def scenario(site: PageSite) -> None:
        make_topic(site)
        await commit(site, "g", orders_0=4, orders_1=4)
        page = await site.page(f"{TAB}&strategy=earliest")
        await commit(site, "g", orders_1=5)
        fields = {"token": hidden(page, "token"), "plan": hidden(page, "plan")}
        answer = await post(site, TAB, **fields)
        assert answer.status == 409
        assert "The offset of orders-1 has changed since the plan was made" in answer.text
        assert await committed(site, "g", ("orders", 0), ("orders", 1)) == [4, 5]
        for text in ("", "x", "[[1]]", '[["orders",0,4,-1]]', '[["orders",9,null,1]]', "[]"):
            answer = await post(site, TAB, token=fields["token"], plan=text)
            assert answer.status == 409, text
        answer = await post(site, TAB, token=fields["token"], undo="77")
        assert answer.status == 409 and "Nothing was undone" in answer.text

    at_page_site(tmp_path, scenario, *OVERRIDES)


def test_only_who_may_act_acts(tmp_path: Path) -> None:
    """Without the token, or while the console only shows, nothing is done."""

    async def scenario(site: PageSite) -> None:
        make_topic(site)
        await commit(site, "g", orders_0=4)
        text = '[["orders",0,4,0]]'
        assert (await post(site, TAB, token="forged", plan=text)).status == 403
        assert (await post(site, TAB, plan=text)).status == 403
        assert await committed(site, "g", ("orders", 0)) == [4]

    async def read_only(site: PageSite) -> None:
        make_topic(site)
        await commit(site, "g", orders_0=4)
        page = await site.page(f"{TAB}&strategy=earliest")
        assert "console.read.only=false" in page
        fields = {"token": hidden(page, "token"), "plan": hidden(page, "plan")}
        assert (await post(site, TAB, **fields)).status == 403
        assert await committed(site, "g", ("orders", 0)) == [4]

    at_page_site(tmp_path / "one", scenario, *OVERRIDES)
    at_page_site(tmp_path / "two", read_only, *OVERRIDES, "console.read.only=true")
