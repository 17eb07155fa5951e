"""Overview: what is well, how much goes on, and which groups somebody should look at."""

import asyncio
import re
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from page_kit import LIMIT_S, PageSite, append, append_in_transaction, at_page_site

from anabranch.broker.survey import GroupSummary, Survey
from anabranch.console import throughput as throughput_module
from anabranch.console.attention import needs_attention
from anabranch.console.throughput import HEIGHT, WIDTH, Sample, draw
from anabranch.console.topic_lags import lags_of_group
from anabranch.console.vitals import Disk
from anabranch.wire.record_batch import Record

NOW_MS = 1_760_000_000_000
GROUP = GroupSummary(
    group_id="g",
    type="Classic",
    protocol_type="consumer",
    state="Stable",
    epoch=1,
    members=2,
    is_sharing=False,
    topics=("orders",),
    partitions=(),
    lag_records=500,
    lag_ms=1000,
    consume_per_s=90.0,
    produce_per_s=100.0,
    trend_per_s=10.0,
    drain_s=None,
)


def facts(html: str) -> dict[str, str]:
    """The cards: what stands under each name."""
    found = re.findall(r"<dt[^>]*>(?:<a[^>]*>)?([^<]+)(?:</a>)?</dt><dd>([^<]+)</dd>", html)
    return dict(found)


def test_counts_are_what_the_broker_has(tmp_path: Path) -> None:
    """Topics, partitions, groups by state, members, connections and lag, as clients made them."""

    async def scenario(site: PageSite) -> None:
        site.broker.create_topic("orders", 3)
        site.broker.create_topic("branches", 6, {"branch.source.topic": "orders"})
        await site.produce("orders", [("k", "v")] * 7)
        consumer = Consumer(
            {
                "bootstrap.servers": site.bootstrap,
                "group.id": "readers",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )
        consumer.subscribe(["orders"])

        def read() -> None:
            for _ in range(LIMIT_S):
                if (message := consumer.poll(1)) is not None and message.error() is None:
                    return

        await asyncio.to_thread(read)
        # Clients open and close connections as they like: once both looks must agree.
        async with asyncio.timeout(LIMIT_S):
            while True:
                html = await site.page("/")
                shown = facts(html)
                open_now = sum(one.connection_count for one in site.server.listeners)
                if shown["Connections"] == str(open_now):
                    break
        assert open_now > 0
        assert (shown["Topics"], shown["Groups"], shown["Members"]) == ("2", "1", "1")
        assert shown["Lag"] == "7"
        assert "3 partitions, 1 branch topic" in html
        assert ">Stable</span> 1" in html
        assert "all logs take records" in html
        (rebalance,) = await site.rows("/?table=rebalances")
        assert rebalance["group"] == "readers"
        assert rebalance["members"] == 1
        ended = site.broker.timeline.last_rebalance("readers")
        assert ended is not None
        assert rebalance["duration_ms"] == ended.duration_ms
        # Once nobody reads any more, somebody should look.
        assert await site.rows("/") == []
        place = TopicPartition("orders", 0, 3)
        await asyncio.to_thread(consumer.commit, offsets=[place], asynchronous=False)
        await asyncio.to_thread(consumer.close)
        async with asyncio.timeout(LIMIT_S):
            while not (found := await site.rows("/")) or found[0]["what"] == "rebalancing":
                await asyncio.sleep(0.1)  # what is shown may be a second old
        (attention,) = found
        assert attention == {
            "group": "readers",
            "what": "empty with lag",
            "why": "Nobody reads, and 4 records wait.",
            "lag_records": 4,
        }

    at_page_site(tmp_path, scenario)


def test_what_is_wrong_is_at_the_top(tmp_path: Path) -> None:
    """A log that takes no records, and a transaction that hangs, are told before anything else."""

    async def scenario(site: PageSite) -> None:
        log = site.broker.create_topic("orders", 1).partitions[0].log
        append(log, [Record(0, NOW_MS, None, b"v")], NOW_MS)
        append_in_transaction(log, 77, Record(0, NOW_MS, None, b"v"), NOW_MS)
        log.failed = "syncing to disk failed (on purpose)"
        html = await site.page("/")
        assert "all logs take records" not in html
        assert "syncing to disk failed (on purpose)" in html
        assert "1 transaction is open in a partition and no coordinator will end it" in html
        assert (await site.ask("/ready")).status == 503
        assert (await site.ask("/health")).status == 200
        log.failed = None

    at_page_site(tmp_path, scenario)


def survey_of(*groups: GroupSummary) -> Survey:
    return Survey(taken_ms=NOW_MS, groups={one.group_id: one for one in groups}, topics={})


class Nothing:
    """A broker of which only the groups of a survey are known."""

    def __init__(self) -> None:
        self.groups = self
        self.timeline = self

    def groups_with_progress(self) -> list[str]:
        return []

    def under_way(self, group_id: str) -> None:
        return None

    def now_ms(self) -> int:
        return NOW_MS


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({}, "lag grows"),
        # Less than a twentieth of what arrives is noise, and so is less than one a second.
        ({"trend_per_s": 4.0}, None),
        ({"trend_per_s": 0.9, "produce_per_s": 1.0}, None),
        ({"trend_per_s": -50.0}, None),
        ({"trend_per_s": None}, None),
        ({"lag_records": 0}, None),
        ({"lag_records": None}, None),
        ({"members": 0, "state": "Empty"}, "empty with lag"),
        ({"members": 0, "state": "Empty", "lag_records": 0}, None),
        ({"state": "PreparingRebalance", "lag_records": 0}, "rebalancing"),
        ({"state": "Reconciling"}, "rebalancing"),
    ],
)
def test_which_groups_need_attention(changes: dict[str, object], what: str | None) -> None:
    """Lag that grows, lag that nobody reads, and groups that are not settled."""
    survey = survey_of(replace(GROUP, **changes))  # type: ignore[arg-type]
    found = needs_attention(Nothing(), survey)  # type: ignore[arg-type]
    assert [one.what for one in found] == ([what] if what else [])


def test_most_urgent_comes_first() -> None:
    """What rebalances comes before what grows, and that before what nobody reads; then by lag."""
    survey = survey_of(
        replace(GROUP, group_id="idle", members=0, state="Empty", lag_records=10**9),
        replace(GROUP, group_id="slow", lag_records=10),
        replace(GROUP, group_id="slower", lag_records=20),
        replace(GROUP, group_id="moving", state="Assigning"),
    )
    found = needs_attention(Nothing(), survey)  # type: ignore[arg-type]
    assert [one.group_id for one in found] == ["moving", "slower", "slow", "idle"]


def test_topics_of_a_group_without_offsets() -> None:
    """A topic that a group is subscribed to and has nothing of is there, without a lag."""
    (lag,) = lags_of_group(GROUP).values()
    assert (lag.lag_records, lag.lag_ms, lag.partitions) == (None, None, 0)


# Throughput ---------------------------------------------------------------------------------------


def test_throughput_is_what_clients_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes of producers and records of topics become rates while somebody looks."""
    monkeypatch.setattr(throughput_module, "SAMPLE_EVERY_S", 0.2)

    async def scenario(site: PageSite) -> None:
        site.broker.create_topic("orders", 1)
        await site.page("/")
        console = site.server._console_listeners[0]._console
        assert console is not None
        await site.produce("orders", [("k", "v" * 1000)] * 20)
        samples = list(await console.throughput.samples())
        async with asyncio.timeout(LIMIT_S):
            while not any(sample.bytes_in for sample in samples):
                await asyncio.sleep(0.05)
                samples = list(await console.throughput.samples())
        assert samples[0].bytes_in is None  # a rate needs two looks
        html = await site.page("/")
        assert html.count("<polyline") >= 2
        assert "Bytes per second" in html

    at_page_site(tmp_path, scenario)


def test_chart_has_gaps_and_one_scale() -> None:
    """Lines share a scale, the newest sample is at the right edge, and unknown is a gap."""
    samples = [
        Sample(NOW_MS + 2000 * i, value, None if i == 2 else 50.0, None, None)
        for i, value in enumerate([0.0, 100.0, None, 25.0])
    ]
    first, second = draw(
        samples, [("a", "x", lambda s: s.records_in), ("b", "y", lambda s: s.records_out)]
    )
    assert (first.largest, first.last) == (100.0, 25.0)
    assert [piece.count(",") for piece in first.pieces] == [2, 1]
    assert first.pieces[1].startswith(f"{WIDTH}.0,")
    top = min(float(point.split(",")[1]) for piece in first.pieces for point in piece.split())
    assert 0 < top < HEIGHT / 4
    assert [piece.count(",") for piece in second.pieces] == [2, 1]
    assert draw([], [("a", "x", lambda s: s.records_in)])[0].last is None


@pytest.mark.parametrize(
    ("total", "free", "is_low"), [(100, 50, False), (100, 9, True), (0, 0, False), (None, 5, False)]
)
def test_disk_that_fills(total: int | None, free: int, is_low: bool) -> None:
    """Less than a tenth of free room is worth a warning; a disk that tells nothing is not."""
    assert Disk("/x", total, free).is_low is is_low
