"""The Sharing tab: what it shows is what the members and the broker know."""

import asyncio
import itertools
import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from confluent_kafka import Consumer
from sharing_kit import GROUP, LIMIT_S, Site, at_site, cells, table

from anabranch.branch.slots import slot_of_key
from anabranch.client import CooperativeConsumer
from anabranch.console import sharing
from anabranch.console.frame import respond
from anabranch.console.pages.group_sharing import make_tab
from anabranch.console.sharing import SharingReader, shared_places
from anabranch.console.strips import OwnerNumbers, letter, make_piece
from anabranch.coordinator.cooperative.progress import Interval, PartitionProgress
from anabranch.coordinator.group.consumer_state import ConsumerGroup, ConsumerMember
from anabranch.model.units import SLOT_COUNT, SlotRange, Unit

KEYS = [f"customer-{number}" for number in range(40)]
SHARED = {"range.fetch.enable": "true"}


def owned_slots(consumer: CooperativeConsumer) -> set[tuple[int, int]]:
    """The first and the last slots of what a member knows to be its own."""
    return {
        (one.key_range.slots.first, one.key_range.slots.end - 1)
        for one in consumer.progress().ranges
    }


def shown_slots(html: str, member_id: str) -> set[tuple[int, int]]:
    """The same of the page's strips."""
    found = re.findall(rf'data-owner="{member_id}" data-first="(\d+)" data-last="(\d+)"', html)
    return {(int(first), int(last)) for first, last in found}


def covered(ranges: set[tuple[int, int]]) -> set[int]:
    return {slot for first, last in ranges for slot in range(first, last + 1)}


def test_strip_is_what_members_own(tmp_path: Path) -> None:
    """Each member's pieces of the strip are the slots that it knows to be its own, as they move."""

    async def scenario(site: Site) -> None:
        site.broker.create_topic("orders", 1, SHARED)
        one = await site.join("one", "orders")
        await site.until(lambda: covered(owned_slots(one)) == set(range(SLOT_COUNT)))
        html = await site.html()
        assert shown_slots(html, str(one.progress().member_id)) == {(0, SLOT_COUNT - 1)}
        two = await site.join("two", "orders")
        await site.until(lambda: (bool(owned_slots(two)) and owned_slots(two) < {(0, 1)}) or True)
        await site.until(
            lambda: (
                len(covered(owned_slots(one)) | covered(owned_slots(two))) == SLOT_COUNT
                and bool(owned_slots(two))
            )
        )
        page = await site.tab()
        html = await site.html()
        for member in (one, two):
            member_id = str(member.progress().member_id)
            assert covered(shown_slots(html, member_id)) == covered(owned_slots(member))
        assert cells(page, "owners", "client_id") == ["one", "two"]
        assert sum(cells(page, "owners", "share")) == pytest.approx(1)
        assert set(cells(page, "ranges", "client_id")) == {"one", "two"}
        assert set(cells(page, "ranges", "in_flight")) == {0}, "nobody was shown anything"

    at_site(tmp_path, scenario)


def test_progress_is_shown(tmp_path: Path) -> None:
    """Stable offset, gaps, what is in flight, failures and the oldest record are the members'."""

    async def scenario(site: Site) -> None:
        site.broker.create_topic("orders", 1, SHARED)
        await site.produce("orders", KEYS)
        member = await site.join("one", "orders")
        records = await site.polled(member, len(KEYS))
        for record in records:
            if record.offset not in (5, 9, 20):
                assert member.ack(record)
        (failed,) = [record for record in records if record.offset == 9]
        member.nack(failed, retry_after_s=60, reason="no such account")
        await member.commit()
        page = await site.tab()
        assert cells(page, "partitions", "stable_offset") == [5]
        assert cells(page, "partitions", "in_flight") == [3]
        assert cells(page, "partitions", "gaps") == [3]
        assert cells(page, "partitions", "oldest_offset") == [5]
        (age_ms,) = cells(page, "partitions", "oldest_age_ms")
        assert 0 <= age_ms < 10 * 60_000
        assert cells(page, "failed", "offset") == [9]
        assert cells(page, "failed", "attempts") == [1]
        assert cells(page, "failed", "slot") == [slot_of_key(KEYS[9].encode())]
        html = await site.html()
        assert f"works on record 5 (key {KEYS[5]}" in html
        assert "no such account" in html

    at_site(tmp_path, scenario)


def test_blocked_records_are_marked(tmp_path: Path) -> None:
    """A record after its last attempt is counted, marked in the strip, and named as the cause."""

    async def scenario(site: Site) -> None:
        site.broker.create_topic("orders", 1, SHARED)
        await site.produce("orders", KEYS)
        member = await site.join("one", "orders")
        records = await site.polled(member, len(KEYS))
        for record in records[1:]:
            member.ack(record)
        member.nack(records[0], retry_after_s=0, reason="bad")
        await member.commit()
        page = await site.tab()
        assert cells(page, "partitions", "blocked") == [1]
        html = await site.html()
        assert 'class="mark blocked"' in html
        assert "is not tried again" in html and "anabranch groups release" in html

    at_site(tmp_path, scenario, "coop.delivery.limit=1")


def test_hand_over_that_waits(tmp_path: Path) -> None:
    """A range on its way is shown with giver, taker and since when; and as done when it is."""

    async def scenario(site: Site) -> None:
        site.broker.create_topic("orders", 1, SHARED)
        await site.produce("orders", KEYS)
        one = await site.join("one", "orders")
        records = await site.polled(one, len(KEYS))
        two = await site.join("two", "orders")
        group = site.broker.groups.group(GROUP)
        # It gives nothing up before what it has in hand is done.
        await site.until(lambda: bool(group is not None and group.moving_since_ms))  # type: ignore[union-attr]
        page = await site.tab()
        assert set(cells(page, "moves", "state")) == {"under way"}
        assert all(giver.startswith("one ") for giver in cells(page, "moves", "giver"))
        assert all(taker.startswith("two ") for taker in cells(page, "moves", "taker"))
        (card,) = page.values["cards"]
        moves = card.partition.movements
        heir = str(two.progress().member_id)
        assert f'data-heir="{heir}"' in await site.html()
        leaving = {slot for move in moves for slot in range(*move.unit.slots)}
        for record in records:
            if slot_of_key(record.key or b"") not in leaving:
                one.ack(record)
        await one.commit()
        assert "is to hand slots" in await site.html()
        for record in records:
            one.ack(record)
        await site.until(lambda: bool(owned_slots(two)) and not group.moving_since_ms)  # type: ignore[union-attr]
        page = await site.tab()
        assert "done" in cells(page, "moves", "state")
        assert "under way" not in cells(page, "moves", "state")
        (took_ms, *_) = cells(page, "moves", "duration_ms")
        assert took_ms >= 0
        assert "data-heir" not in await site.html()

    at_site(tmp_path, scenario)


def test_branches_are_shown(tmp_path: Path) -> None:
    """Of a branch topic there is a piece for each branch, its owner, and the rejoined offset."""

    async def scenario(site: Site) -> None:
        site.broker.create_topic("orders", 1)
        site.broker.create_topic("orders.by-key", 4, {"branch.source.topic": "orders"})
        await site.produce("orders", KEYS)
        stock = Consumer(
            {
                "bootstrap.servers": site.bootstrap,
                "group.id": "stock",
                "client.id": "java-like",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )
        stock.subscribe(["orders.by-key"])

        def read() -> str:
            for _ in KEYS:
                message = stock.poll(LIMIT_S)
                assert message is not None and message.error() is None, message
            stock.commit(asynchronous=False)
            return str(stock.memberid())

        member_id = await asyncio.to_thread(read)
        topic = site.broker.topics.must_get("orders.by-key")
        looked = site.broker.groups.branch_progress

        def is_rejoined() -> bool:
            found = looked.last_of("stock", topic.topic_id).get(0)
            return found is not None and found.progress.stable_offset == len(KEYS)

        await site.until(is_rejoined)
        page = await site.tab(group_id="stock")
        html = await site.html(group_id="stock")
        assert len(shown_slots(html, member_id)) == 4
        assert cells(page, "branches", "client_id") == ["java-like"] * 4
        assert cells(page, "branches", "unprocessed") == [0] * 4
        assert max(cells(page, "branches", "committed")) == len(KEYS)
        assert re.search(rf"rejoined</dt><dd[^>]*>{len(KEYS)}</dd>", html)
        assert not table(page, "partitions").total
        await asyncio.to_thread(stock.close)

    at_site(tmp_path, scenario)


def test_many_partitions_are_paged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many partitions those of the page are read; all of them when it is sorted by content."""
    read: list[int] = []
    whole = SharingReader.read

    def counted(self: SharingReader, place: tuple[bytes, int]) -> object:
        read.append(place[1])
        return whole(self, place)

    monkeypatch.setattr(SharingReader, "read", counted)

    async def scenario(site: Site) -> None:
        site.broker.create_topic("orders", 60, SHARED)
        member = await site.join("one", "orders")
        await site.until(lambda: len(member.progress().ranges) == 60)
        page = await site.tab()
        assert table(page, "partitions").total == 60
        assert read == list(range(6))
        assert len(page.values["cards"]) == 6
        read.clear()
        page = await site.tab("partitions.page=10")
        assert read == list(range(54, 60))
        assert set(cells(page, "ranges", "partition")) == set(range(54, 60))
        read.clear()
        seen: list[int] = []

        async def look() -> None:
            while True:
                seen.append(len(read))
                await asyncio.sleep(0)

        other = asyncio.create_task(look())
        await site.tab("partitions.sort=-in_flight")
        other.cancel()
        assert read == list(range(60))
        assert {20, 40} <= set(seen), "others have the loop meanwhile"

    at_site(tmp_path, scenario)


def test_hundreds_of_ranges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A crowd of members has a piece for each of them, in a page of fewer strips."""
    crowd = 300
    edges = [number * SLOT_COUNT // crowd for number in range(crowd + 1)]
    cuts = [SlotRange(first, end) for first, end in itertools.pairwise(edges)]

    async def scenario(site: Site) -> None:
        topic = site.broker.create_topic("orders", 4, SHARED)
        await site.produce("orders", KEYS * 10)
        group = ConsumerGroup(GROUP, site.broker.topics.image)
        for number, slots in enumerate(cuts):
            member = ConsumerMember(
                member_id=f"member-{number}",
                shares=True,
                member_epoch=1,
                assigned={Unit(topic.topic_id, partition, slots): 1 for partition in range(4)},
            )
            group.replay_member(member.member_id, member)
            group.replay_current(member.member_id, member)
        progress = PartitionProgress(
            tuple(Interval(slots, number) for number, slots in enumerate(cuts))
        )
        monkeypatch.setattr(site.broker.groups, "group", lambda group_id: group)
        monkeypatch.setattr(
            site.broker.groups,
            "progress",
            lambda group_id: {(topic.topic_id, 0): SimpleNamespace(progress=progress)},
        )
        page = await site.tab()
        first, second = page.values["cards"]
        assert [piece.owner for piece in first.strip.pieces] == [
            f"member-{number}" for number in range(crowd)
        ]
        assert len({(piece.look, piece.pattern) for piece in first.strip.pieces}) == 40
        assert 100 <= len(first.strip.bars) <= 128 and not second.strip.bars
        assert table(page, "ranges").total == 2 * crowd
        assert table(page, "owners").total == crowd
        assert cells(page, "partitions", "stable_offset")[0] == 0
        assert len(await site.html()) < 500_000

    at_site(tmp_path, scenario)


def test_one_bad_partition_hides_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A partition that cannot be read has a notice, and the others their strips."""
    whole = sharing.ranges_with_owners
    calls = 0

    def failing(*arguments: object) -> object:
        nonlocal calls
        calls += 1
        if calls % 3 == 2:
            raise RuntimeError("broken on purpose")
        return whole(*arguments)  # type: ignore[arg-type]

    async def scenario(site: Site) -> None:
        site.broker.create_topic("orders", 3, SHARED)
        member = await site.join("one", "orders")
        await site.until(lambda: len(member.progress().ranges) == 3)
        monkeypatch.setattr(sharing, "ranges_with_owners", failing)
        html = await site.html()
        assert "orders-1 could not be read" in html
        assert 'id="strip-orders-0"' in html and 'id="strip-orders-2"' in html

    at_site(tmp_path, scenario)


def test_groups_that_do_not_share(tmp_path: Path) -> None:
    """A group with whole partitions has no strip but a sentence that says how to share."""

    async def scenario(site: Site) -> None:
        site.broker.create_topic("orders", 1)
        assert "range.fetch.enable=true" in await site.html(group_id="nobody")
        assert shared_places(site.broker, "nobody") == []

    at_site(tmp_path, scenario)


def test_tables_are_exported(tmp_path: Path) -> None:
    """Ranges come as JSON and CSV with the names that scripts can rely on."""

    async def scenario(site: Site) -> None:
        site.broker.create_topic("orders", 1, SHARED)
        await site.produce("orders", KEYS)
        member = await site.join("one", "orders")
        for record in await site.polled(member, len(KEYS)):
            member.ack(record)
        await member.commit()
        request = site.request("format=json&table=ranges")
        page = await make_tab(request, site.console, GROUP)
        (row,) = json.loads(bytes(respond(request, site.console, page).body))
        assert row["member_id"] == member.progress().member_id
        assert (row["first_slot"], row["slots"]) == (0, SLOT_COUNT)
        assert (row["watermark"], row["in_flight"]) == (len(KEYS), 0)
        request = site.request("format=csv&table=partitions")
        page = await make_tab(request, site.console, GROUP)
        text = bytes(respond(request, site.console, page).body).decode()
        assert text.splitlines()[0].startswith("topic,partition,stable_offset")
        assert text.splitlines()[1].startswith(f"orders,0,{len(KEYS)},")

    at_site(tmp_path, scenario)


def test_signs_stay_with_members() -> None:
    """A member keeps its letter when others come and go, and a new one gets the first free one."""
    numbers = OwnerNumbers()
    assert numbers.of("g", ["x", "a", "m"]) == {"x": 0, "a": 1, "m": 2}
    assert numbers.of("g", ["a", "m", "b"]) == {"a": 1, "m": 2, "b": 0}
    assert numbers.of("other", ["q"]) == {"q": 0}
    assert [letter(number) for number in (0, 25, 26, 53)] == ["A", "Z", "A1", "B2"]


def test_narrow_pieces_can_be_seen() -> None:
    """A piece of a single slot has a width, stays within the strip, and has no label."""
    piece = make_piece(SlotRange(SLOT_COUNT - 1, SLOT_COUNT), "m", 3, "D", "title")
    x, width = float(piece.x.rstrip("%")), float(piece.width.rstrip("%"))
    assert width > 0.1 and x + width <= 100 and piece.label is None
    wide = make_piece(SlotRange(0, SLOT_COUNT // 2), "m", 3, "D", "title")
    assert (wide.x, wide.width, wide.middle, wide.label) == ("0%", "50%", "25%", "D")
