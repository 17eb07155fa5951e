"""Topics and their pages: what they show is what clients wrote, committed and set."""

import asyncio
import json
import re
from pathlib import Path
from urllib.parse import quote

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from page_kit import LIMIT_S, PageSite, append, at_page_site
from starlette.datastructures import QueryParams

from anabranch.console.pages.messages import parse_question, parse_time
from anabranch.console.record_text import BLOCK_CHARS, LINE_CHARS, export_bytes, show_bytes
from anabranch.console.setting_text import documentation_cell
from anabranch.wire.record_batch import Record

NOW_MS = 1_760_000_000_000


async def commit(site: PageSite, group: str, offsets: dict[tuple[str, int], int]) -> None:
    """Have a group commit, without becoming a member of it."""
    consumer = Consumer({"bootstrap.servers": site.bootstrap, "group.id": group})
    wanted = [TopicPartition(topic, number, at) for (topic, number), at in offsets.items()]
    await asyncio.to_thread(consumer.commit, offsets=wanted, asynchronous=False)
    await asyncio.to_thread(consumer.close)


def of(rows: list[dict[str, object]], key: str, value: object) -> dict[str, object]:
    (found,) = [row for row in rows if row[key] == value]
    return found


def test_topics_with_their_groups_and_lag(tmp_path: Path) -> None:
    """The list has the records, the size and the groups of each topic, with their lag."""

    async def scenario(site: PageSite) -> None:
        site.broker.create_topic("orders", 2)
        site.broker.create_topic("orders.by-key", 4, {"branch.source.topic": "orders"})
        site.broker.create_topic("quiet", 3)
        await site.produce("orders", [(f"k{i}", "v") for i in range(10)])
        await commit(site, "pay/ments", {("orders", 0): 4})
        await commit(site, "audit", {("orders", 0): 10, ("quiet", 1): 0})
        rows = await site.rows("/topics")
        assert [row["topic"] for row in rows] == ["orders", "orders.by-key", "quiet"]
        orders = of(rows, "topic", "orders")
        assert (orders["partitions"], orders["records"], orders["lag"]) == (2, 10, 6)
        assert orders["groups"] == "audit 0, pay/ments 6"
        assert orders["size_bytes"] == sum(
            one.log.size_bytes for one in site.broker.topics.must_get("orders").partitions
        )
        branches = of(rows, "topic", "orders.by-key")
        assert (branches["source"], branches["size_bytes"], branches["partitions"]) == (
            "orders",
            0,
            4,
        )
        html = await site.page("/topics")
        assert 'href="/groups/pay%2Fments"' in html
        assert "1 internal topic is not shown" in html
        with_internal = await site.rows("/topics?internal=1")
        assert of(with_internal, "topic", "__consumer_offsets")["partitions"] == 3
        assert [row["topic"] for row in await site.rows("/topics?q=pay")] == ["orders"]

    at_page_site(tmp_path, scenario)


def test_messages_are_what_was_written(tmp_path: Path) -> None:
    """The newest come first; offset, time, key and partition choose; exports have the bytes."""

    async def scenario(site: PageSite) -> None:
        topic = site.broker.create_topic("orders", 2)
        log = topic.partitions[0].log
        for i in range(120):
            at_ms = NOW_MS + 1000 * i
            append(log, [Record(0, at_ms, f"k{i % 10}".encode(), f"v{i}".encode())], NOW_MS)
        await site.produce("orders", [(None, b"\xff\x00", [("trace", b"\x01")])])

        async def values(query: str) -> list[object]:
            return [row["value"] for row in await site.rows(f"/topics/orders?{query}")]

        newest = await site.rows("/topics/orders")
        assert len(newest) == 50
        assert newest[0]["value"] == "base64:/wA="
        assert newest[0]["key"] is None
        assert newest[0]["headers"] == '{"trace": "base64:AQ=="}'
        assert newest[1]["value"] == "v119"
        assert await values("from=oldest&limit=25") == [f"v{i}" for i in range(25)]
        assert (await values("from=offset&at=100"))[:2] == ["v100", "v101"]
        assert (await values(f"from=time&at={NOW_MS + 110_000}"))[:2] == ["v110", "v111"]
        assert await values("key=k3&from=oldest") == [f"v{i}" for i in range(3, 120, 10)]
        assert await values("partition=1") == []
        assert (await values("cursor=0:10&way=older"))[:2] == ["v9", "v8"]
        assert (await values("cursor=0:10,1:0&way=newer"))[:2] == ["v10", "v11"]

    at_page_site(tmp_path, scenario)


def test_pages_of_messages_lead_through_all_of_them(tmp_path: Path) -> None:
    """The links of a page lead to the next records until there are none."""

    async def scenario(site: PageSite) -> None:
        log = site.broker.create_topic("orders", 1).partitions[0].log
        append(log, [Record(0, NOW_MS + i, None, f"v{i}".encode()) for i in range(130)], NOW_MS)
        path, seen = "/topics/orders?limit=50&partition=0", []
        while path:
            seen += re.findall(r'<tr id="r0-(\d+)"', html := await site.page(path))
            onward = re.search(r'<a href="(\?[^"]+)">Older', html)
            path = "/topics/orders" + onward[1].replace("&amp;", "&") if onward else ""
        assert [int(offset) for offset in seen] == list(range(129, -1, -1))

    at_page_site(tmp_path, scenario)


def test_newest_messages_are_live_and_others_are_not(tmp_path: Path) -> None:
    """The tail follows the topic; what lies between two offsets does not change under the eye."""

    async def scenario(site: PageSite) -> None:
        site.broker.create_topic("orders", 1)
        async with site.stream("/topics/orders?every=0.5") as stream:
            assert "There are no records yet" in await stream.page()
            await site.produce("orders", [("k", "fresh <b>&</b>")])
            while "fresh &lt;b&gt;&amp;&lt;/b&gt;" not in (page := await stream.page()):
                pass
            assert "<b>" not in page
        assert 'id="live"' in await site.page("/topics/orders")
        assert 'id="live"' not in await site.page("/topics/orders?from=oldest")

    at_page_site(tmp_path, scenario)


def test_one_record_as_a_whole(tmp_path: Path) -> None:
    """A record has a page of its own, and so has one that is not there."""

    async def scenario(site: PageSite) -> None:
        site.broker.create_topic("orders", 1)
        value = json.dumps({"note": "x" * (BLOCK_CHARS + 1), "end": "finis"})
        await site.produce("orders", [("k", value, [("source", "web")])])
        assert "finis" not in await site.page("/topics/orders")
        html = await site.page("/topics/orders?record=0:0")
        assert "&#34;end&#34;: &#34;finis&#34;" in html
        assert "source" in html
        assert "There is no record at offset 7" in await site.page("/topics/orders?record=0:7")
        assert (await site.ask("/topics/orders?record=nonsense")).status == 404

    at_page_site(tmp_path, scenario)


def test_aborted_records_are_marked(tmp_path: Path) -> None:
    """Readers of committed records do not get what was aborted; here it is shown and said."""

    async def scenario(site: PageSite) -> None:
        site.broker.create_topic("orders", 1)
        producer = Producer({"bootstrap.servers": site.bootstrap, "transactional.id": "t"})

        def write() -> None:
            producer.init_transactions(LIMIT_S)
            for value, is_commit in (("good", True), ("bad", False), ("pending", None)):
                producer.begin_transaction()
                producer.produce("orders", value, partition=0)
                producer.flush(LIMIT_S)
                if is_commit is True:
                    producer.commit_transaction(LIMIT_S)
                elif is_commit is False:
                    producer.abort_transaction(LIMIT_S)

        await asyncio.to_thread(write)
        rows = await site.rows("/topics/orders?from=oldest")
        assert [(row["value"], row["transaction"]) for row in rows] == [
            ("good", "committed"),
            ("bad", "aborted"),
            ("pending", "open"),
        ]
        (partition,) = await site.rows("/topics/orders?tab=partitions")
        assert partition["open_transactions"] == 1
        assert partition["stable_offset"] == rows[2]["offset"]
        assert partition["end_offset"] == rows[2]["offset"] + 1
        await asyncio.to_thread(producer.abort_transaction, LIMIT_S)

    at_page_site(tmp_path, scenario)


def test_partitions_groups_and_configuration(tmp_path: Path) -> None:
    """The tabs have what the log is, who reads it, and what was set where."""

    async def scenario(site: PageSite) -> None:
        topic = site.broker.create_topic("orders", 2, {"retention.ms": "1000"})
        await site.produce("orders", [("k", "v")] * 5)
        topic.partitions[0].log.delete_records_before(2)
        await commit(site, "audit", {("orders", 0): 3, ("orders", 1): 0})
        first, second = await site.rows("/topics/orders?tab=partitions")
        assert (first["start_offset"], first["end_offset"]) == (2, 5)
        assert (second["start_offset"], second["end_offset"]) == (0, 0)
        assert first["leader_epoch"] == topic.partitions[0].log.leader_epoch
        (group,) = await site.rows("/topics/orders?tab=groups")
        assert (group["group"], group["lag_records"], group["partitions"]) == ("audit", 2, 2)
        settings = await site.rows("/topics/orders?tab=configuration")
        retention = of(settings, "name", "retention.ms")
        assert (retention["value"], retention["source"]) == ("1000", "this topic")
        assert retention["default"] == "604800000"
        changed = await site.rows("/topics/orders?tab=configuration&changed=1")
        assert "retention.ms" in {row["name"] for row in changed}
        assert len(changed) < len(settings)
        assert (await site.ask("/topics/orders?tab=branches")).status == 404
        assert (await site.ask("/topics/orders?tab=nonsense")).status == 404

    at_page_site(tmp_path, scenario)


def test_branches_and_how_far_groups_are(tmp_path: Path) -> None:
    """A branch topic shows its layout, its source which ones there are, and both the progress."""

    async def scenario(site: PageSite) -> None:
        site.broker.create_topic("orders", 2)
        site.broker.create_topic("fine", 8, {"branch.source.topic": "orders"})
        await site.produce("orders", [(f"k{i}", "v") for i in range(20)])
        await commit(site, "audit", {("fine", number): 5 for number in range(8)})
        progress = site.broker.groups.branch_progress
        topic_id = site.broker.topics.must_get("fine").topic_id
        await site.until(lambda: len(progress.last_of("audit", topic_id)) == 2)
        layout = await site.rows("/topics/fine?tab=branches&table=branches")
        assert [(row["source_partition"], row["range"]) for row in layout] == [
            (number % 2, number // 2) for number in range(8)
        ]
        assert layout[2]["slots"] == "16384-32767"
        (branch_topic,) = await site.rows("/topics/orders?tab=branches&table=branch_topics")
        assert (branch_topic["topic"], branch_topic["ranges"], branch_topic["groups"]) == (
            "fine",
            4,
            "audit",
        )
        for name in ("orders", "fine"):
            rows = await site.rows(f"/topics/{name}?tab=branches&table=progress")
            first = of(rows, "partition", 0)
            assert (first["group"], first["stable_offset"], first["unprocessed"]) == (
                "audit",
                5,
                15,
            )
        assert (await site.ask("/topics/fine?tab=partitions")).status == 404

    at_page_site(tmp_path, scenario)


# Questions ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "problem"),
    [
        ("from=yesterday", "no place to begin"),
        ("partition=4", "There is no partition 4"),
        ("partition=-1", "There is no partition -1"),
        ("partition=x", "There is no partition x"),
        ("partition=3&limit=7&cursor=nonsense", ""),
    ],
)
def test_questions_that_make_no_sense(query: str, problem: str) -> None:
    """What an address says wrong is told, and the rest of it counts."""
    question = parse_question(QueryParams(query), 4)
    assert problem in question.problem
    assert bool(problem) == bool(question.problem)
    assert question.limit == 50
    assert question.cursors is None


def test_problems_are_shown(tmp_path: Path) -> None:
    """An offset or a time that is none is a sentence and not a failure."""

    async def scenario(site: PageSite) -> None:
        site.broker.create_topic("orders", 1)
        for query, sentence in (
            ("from=offset&at=x", "is no offset"),
            ("from=offset&at=99999999999999999999", "is no offset"),
            ("from=time&at=noon", "is no time"),
            ("from=time&at=", "is no time"),
        ):
            html = await site.page(f"/topics/orders?{query}")
            assert sentence in html, query

    at_page_site(tmp_path, scenario)


@pytest.mark.parametrize(
    ("text", "expected_ms"),
    [
        ("15m", NOW_MS - 900_000),
        ("2 h", NOW_MS - 7_200_000),
        ("1760000000000", 1_760_000_000_000),
        ("2026-01-31T09:00", 1_769_850_000_000),
        ("2026-01-31T10:00+01:00", 1_769_850_000_000),
        ("2026-01-31", 1_769_817_600_000),
    ],
)
def test_times(text: str, expected_ms: int) -> None:
    """How long ago, milliseconds, or an ISO time, which is UTC without a zone."""
    assert parse_time(text, NOW_MS) == expected_ms


@pytest.mark.parametrize(
    ("content", "kind", "text"),
    [
        (None, "null", "null"),
        (b"", "empty", "empty"),
        (b'{"a":[1,2]}', "json", '{\n  "a": [\n    1,\n    2\n  ]\n}'),
        (b"{not json", "text", "{not json"),
        ("Gr\u00fc\u00dfe".encode(), "text", "Gr\u00fc\u00dfe"),
        (b"\x00\x01\xfe", "binary", "00 01 fe"),
        # What a terminal or a page might act upon is no text.
        (b"\x1b[2J", "binary", "1b 5b 32 4a"),
        ("\u202eevil".encode(), "binary", "e2 80 ae 65 76 69 6c"),
        (b"[" * 5000, "text", "[" * 5000),
    ],
)
def test_bytes_are_shown_safely(content: bytes | None, kind: str, text: str) -> None:
    """JSON is set out, text is text, and everything else is numbers."""
    shown = show_bytes(content)
    assert (shown.kind, shown.text) == (kind, text)
    assert len(shown.line) <= LINE_CHARS
    assert len(shown.block) <= BLOCK_CHARS + 1


def test_cut_text_is_still_text() -> None:
    """A cut through a character does not make bytes of it, and the export says what is missing."""
    content = ("\u00fc" * 50).encode()
    shown = show_bytes(content[:51], len(content))
    assert (shown.kind, shown.text, shown.is_cut) == ("text", "\u00fc" * 25, True)
    assert export_bytes(content[:51], len(content)) == "\u00fc" * 25 + "\u2026 (100 bytes)"
    assert export_bytes(None, -1) is None


def test_words_of_settings_have_no_markup() -> None:
    """Links of the reference pages are text here, code is code, and nothing is taken for HTML."""
    cell = documentation_cell("See [metrics](metrics.md), `a<b` and **not** <i>.")
    assert cell == (
        '<span class="prose">See metrics, <code>a&lt;b</code> and '
        "<strong>not</strong> &lt;i&gt;.</span>"
    )


def test_names_may_hold_anything(tmp_path: Path) -> None:
    """A topic is found under its name, and a name that is none is told as it is."""

    async def scenario(site: PageSite) -> None:
        site.broker.create_topic("a.b_c-d", 1)
        assert "<h1>a.b_c-d</h1>" in await site.page("/topics/a.b_c-d")
        answer = await site.ask("/topics/" + quote('<script>"', safe=""))
        assert answer.status == 404
        assert "<script>" not in answer.text.split("<main")[1]

    at_page_site(tmp_path, scenario)
