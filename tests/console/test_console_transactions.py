"""Transactions, search, configuration, and what machines ask for."""

import asyncio
from pathlib import Path
from urllib.parse import quote

from confluent_kafka import Consumer, Producer, TopicPartition
from page_kit import LIMIT_S, PageSite, append_in_transaction, at_page_site
from prometheus_client.parser import text_string_to_metric_families

from anabranch.config.definitions import BROKER_SETTINGS
from anabranch.console.hanging import find_hanging
from anabranch.wire.record_batch import Record

NOW_MS = 1_760_000_000_000


def test_transactions_are_what_producers_do(tmp_path: Path) -> None:
    """Ids with their state, their producer and the partitions of what is under way."""

    async def scenario(site: PageSite) -> None:
        site.broker.create_topic("orders", 2)
        common = {"bootstrap.servers": site.bootstrap, "transaction.timeout.ms": 60_000}
        done = Producer({**common, "transactional.id": "done"})
        busy = Producer({**common, "transactional.id": "busy"})

        def write() -> None:
            for producer in (done, busy):
                producer.init_transactions(LIMIT_S)
                producer.begin_transaction()
                # Long ago, and still not hanging: its coordinator knows of it.
                producer.produce("orders", "v", partition=1, timestamp=NOW_MS)
                producer.flush(LIMIT_S)
            done.commit_transaction(LIMIT_S)

        await asyncio.to_thread(write)
        rows = await site.rows("/transactions")
        # What is open longest comes first.
        assert [(row["transactional_id"], row["state"]) for row in rows] == [
            ("busy", "Ongoing"),
            ("done", "CompleteCommit"),
        ]
        known = {one.transactional_id: one for one in site.broker.transactions.all_transactions()}
        for row in rows:
            one = known[str(row["transactional_id"])]
            assert row["producer_id"] == one.producer_id
            assert row["producer_epoch"] == one.producer_epoch
        assert (rows[0]["partitions"], rows[1]["partitions"]) == ("orders-1", "")
        assert 0 <= rows[0]["age_ms"] <= LIMIT_S * 1000
        assert rows[0]["ends_in_ms"] <= 60_000
        assert rows[1]["age_ms"] is None
        only_open = await site.rows("/transactions?open=1")
        assert [row["transactional_id"] for row in only_open] == ["busy"]
        assert "No transaction hangs" in await site.page("/transactions")
        await asyncio.to_thread(busy.abort_transaction, LIMIT_S)

    at_page_site(tmp_path, scenario)


def test_hanging_is_what_no_coordinator_has(tmp_path: Path) -> None:
    """Old and unknown to the coordinator; a young one, or one that is under way, is not."""

    async def scenario(site: PageSite) -> None:
        site.broker.create_topic("orders", 2)
        first, second = site.broker.topics.must_get("orders").partitions
        append_in_transaction(first.log, 777, Record(0, NOW_MS, None, b"v"), NOW_MS)
        young_ms = site.broker.now_ms()
        append_in_transaction(second.log, 778, Record(0, young_ms, None, b"v"), young_ms)
        (found,) = await find_hanging(site.broker)
        assert (found.topic, found.partition, found.producer_id) == ("orders", 0, 777)
        (row,) = await site.rows("/transactions?table=hanging")
        assert (row["start_offset"], row["producer_id"]) == (0, 777)
        assert row["remedy"] == (
            "anabranch transactions abort --topic orders --partition 0 --start-offset 0"
        )
        # Of a branch topic they are the source's.
        site.broker.create_topic("fine", 4, {"branch.source.topic": "orders"})
        assert len(await find_hanging(site.broker)) == 1

    at_page_site(tmp_path, scenario)


def test_search_goes_straight_to_the_only_hit(tmp_path: Path) -> None:
    """One hit, or a whole name, leads to its page; several are a list; none is a sentence."""

    async def scenario(site: PageSite) -> None:
        for name in ("orders", "orders.eu", "clicks"):
            site.broker.create_topic(name, 1)
        group = "pay/ments & co"
        consumer = Consumer({"bootstrap.servers": site.bootstrap, "group.id": group})
        place = TopicPartition("orders", 0, 0)
        await asyncio.to_thread(consumer.commit, offsets=[place], asynchronous=False)
        await asyncio.to_thread(consumer.close)

        async def target(q: str) -> str:
            answer = await site.ask("/search?q=" + quote(q))
            return answer.headers["location"] if answer.status == 303 else ""

        assert await target("click") == "/topics/clicks"
        assert await target("orders") == "/topics/orders"
        assert await target("EU ORD") == "/topics/orders.eu"
        assert await target("pay") == "/groups/pay%2Fments%20%26%20co"
        hits = await site.rows("/search?q=order")
        assert [(hit["kind"], hit["name"]) for hit in hits] == [
            ("topic", "orders"),
            ("topic", "orders.eu"),
        ]
        assert "No topic and no group has" in await site.page("/search?q=zzz")
        assert "Say what to look for" in await site.page("/search?q=")

    at_page_site(tmp_path, scenario)


def test_configuration_is_every_setting(tmp_path: Path) -> None:
    """All settings with value, source and default; only those that were changed, if wanted."""

    async def scenario(site: PageSite) -> None:
        rows = await site.rows("/configuration")
        names = {row["name"] for row in rows}
        assert names == {name for name, one in BROKER_SETTINGS.items() if not one.internal}
        site.broker.set_broker_configs("", {"log.retention.ms": "5000"})
        site.broker.set_broker_configs("1", {"message.max.bytes": "2000000"})
        changed = {row["name"]: row for row in await site.rows("/configuration?changed=1")}
        assert set(changed) == {
            "console.listeners",
            "group.initial.rebalance.delay.ms",
            "listeners",
            "log.dirs",
            "log.retention.ms",
            "message.max.bytes",
            "offsets.topic.num.partitions",
            "transaction.state.log.num.partitions",
        }
        assert changed["log.retention.ms"]["value"] == "5000"
        assert changed["log.retention.ms"]["source"] == "altered for the cluster"
        assert changed["message.max.bytes"]["source"] == "altered for this broker"
        assert changed["offsets.topic.num.partitions"]["default"] == "50"
        html = await site.page("/configuration?q=console.listeners")
        assert "[the console]" not in html and "console.md" not in html

    at_page_site(tmp_path, scenario)


def test_metrics_are_those_of_the_broker(tmp_path: Path) -> None:
    """What a scraper gets here is a text that Prometheus reads, as it asks for it."""

    async def scenario(site: PageSite) -> None:
        site.broker.create_topic("orders", 3)
        answer = await site.ask("/metrics")
        assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
        families = {one.name: one for one in text_string_to_metric_families(answer.text)}
        assert "anabranch_build" in families or "anabranch_build_info" in families
        partitions = {
            sample.labels["topic"]: sample.value
            for sample in families["kafka_topic_partitions"].samples
        }
        assert partitions["orders"] == 3
        openmetrics = await site.ask("/metrics", accept="application/openmetrics-text")
        assert openmetrics.headers["content-type"].startswith("application/openmetrics-text")
        assert openmetrics.text.endswith("# EOF\n")
        for path in ("/health", "/ready"):
            answer = await site.ask(path)
            assert (answer.status, answer.text) == (200, "ok\n")

    at_page_site(tmp_path, scenario)
