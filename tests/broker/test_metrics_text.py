"""All metrics of a broker as text: what is in it, how fine, how many at most."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from survey_kit import Watched, watched

from anabranch.broker import loop_delay, survey_reading
from anabranch.broker.metrics_text import render_metrics
from anabranch.coordinator.group.consumer_commands import ConsumerHeartbeat
from anabranch.model.errors import ErrorCode
from anabranch.observe.table import ALL_METRICS

Samples = dict[tuple[str, ...], float]


async def scraped(stage: Watched, prefix: str = "") -> Samples:
    body, _ = await render_metrics(stage.broker)
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(body.decode())
        for sample in family.samples
        if sample.name.startswith(prefix)
    }


async def a_scene(stage: Watched) -> None:
    """Two topics, three partitions, two groups."""
    stage.topic("t", 2)
    stage.topic("u", 1)
    stage.produce("t", 9000, 8000, 7000)
    stage.produce("t", 5000, partition=1)
    stage.produce("u", 4000)
    stage.commit("g", "t", 1, 0)
    stage.commit("g", "t", 1, 1)
    stage.commit("g", "u", 0)
    stage.commit("h", "u", 1)


def test_the_series_of_kafka_exporter(tmp_path: Path) -> None:
    """Offsets, lag and members, of partitions and as sums."""

    async def scene(stage: Watched) -> None:
        await a_scene(stage)
        stage.broker.set_endpoint("PLAINTEXT", "host", 9092)
        found = await scraped(stage, "kafka_")
        wanted = {
            ("kafka_brokers",): 1,
            ("kafka_broker_info", "1", "host:9092"): 1,
            ("kafka_topic_partitions", "t"): 2,
            ("kafka_topic_partition_current_offset", "t", "0"): 3,
            ("kafka_topic_partition_oldest_offset", "t", "0"): 0,
            ("kafka_topic_partition_leader", "t", "1"): 1,
            ("kafka_topic_partition_replicas", "t", "1"): 1,
            ("kafka_topic_partition_in_sync_replica", "t", "1"): 1,
            ("kafka_topic_partition_leader_is_preferred", "t", "1"): 1,
            ("kafka_topic_partition_under_replicated_partition", "t", "1"): 0,
            ("kafka_consumergroup_current_offset", "g", "t", "0"): 1,
            ("kafka_consumergroup_current_offset_sum", "g", "t"): 2,
            ("kafka_consumergroup_lag", "g", "t", "0"): 2,
            ("kafka_consumergroup_lag", "g", "t", "1"): 0,
            ("kafka_consumergroup_lag_sum", "g", "t"): 2,
            ("kafka_consumergroup_lag_sum", "g", "u"): 1,
            ("kafka_consumergroup_lag_sum", "h", "u"): 0,
            ("kafka_consumergroup_members", "g"): 0,
        }
        assert wanted.items() <= found.items()
        log = stage.broker.topics.partition("t", 0).log
        log.failed = "the disk is gone"
        found = await scraped(stage)
        assert found["kafka_topic_partition_under_replicated_partition", "t", "0"] == 1
        assert found["kafka_topic_partition_in_sync_replica", "t", "0"] == 0
        assert found["anabranch_logs_failed",] == 1
        log.failed = None

    watched(tmp_path, scene, "node.id=1")


def test_our_own_of_groups_and_topics(tmp_path: Path) -> None:
    """Lag as time, traffic, sizes, the process."""

    async def scene(stage: Watched) -> None:
        await a_scene(stage)
        stage.broker.purgatory.mark(stage.broker.topics.partition("t", 1), 77)
        found = await scraped(stage)
        assert found["anabranch_group_lag_records", "g"] == 3
        assert found["anabranch_group_lag_seconds", "g"] == 8.0
        assert found["anabranch_group_topic_lag_seconds", "g", "u"] == 4.0
        assert found["anabranch_group_lag_seconds", "h"] == 0.0
        assert found["anabranch_messages_in_total", "t"] == 4
        assert found["anabranch_bytes_in_total", "t"] == 77
        assert found["anabranch_log_size_bytes", "t"] > 0
        assert found["anabranch_disk_free_bytes", str(tmp_path)] > 0
        assert found["process_resident_memory_bytes",] > 1_000_000
        assert found["process_max_fds",] >= found["process_open_fds",] > 3
        assert found["process_cpu_seconds_total",] > 0
        assert 0 < found["process_start_time_seconds",] < 4e9

    watched(tmp_path, scene)


@pytest.mark.parametrize(
    ("granularity", "labels"),
    [("partition", set()), ("topic", {"partition"}), ("group", {"partition", "topic"})],
)
def test_granularity(tmp_path: Path, granularity: str, labels: set[str]) -> None:
    """What is too fine is left out, by its labels; groups keep their lag in any case."""

    async def scene(stage: Watched) -> None:
        await a_scene(stage)
        body, _ = await render_metrics(stage.broker)
        families = {family.name for family in text_string_to_metric_families(body.decode())}
        # The server adds its own.
        there = {"anabranch_requests", "anabranch_request_duration_seconds"} | {
            "anabranch_request_local_duration_seconds",
            "anabranch_connections",
            "anabranch_bytes_out",
        }
        assert families | there == there | {
            metric.name.removesuffix("_total")
            for metric in ALL_METRICS
            if not labels & set(metric.labels)
        }
        assert "anabranch_group_lag_seconds" in families

    watched(tmp_path, scene, f"metrics.granularity={granularity}")


def test_too_many_series(tmp_path: Path) -> None:
    """The limit holds, what is left out is counted, and what is never many is there."""

    async def scene(stage: Watched) -> None:
        await a_scene(stage)
        everything = await scraped(stage)
        assert everything["anabranch_metrics_series_left_out",] == 0
        stage.broker.set_broker_configs("", {"metrics.series.max": "120"})
        found = await scraped(stage)
        left_out = found["anabranch_metrics_series_left_out",]
        assert left_out > 0 and len(everything) - len(found) == left_out
        assert len([key for key in found if len(key) > 1]) <= 120
        assert any("build_info" in key[0] for key in found)
        assert found["process_cpu_seconds_total",] > 0

    watched(tmp_path, scene)


def test_a_scrape_lets_others_have_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it is written others run, many times."""
    monkeypatch.setattr(survey_reading, "SLICE_S", 0.0)

    async def scene(stage: Watched) -> None:
        stage.topic("t", 100)
        await stage.surveyor.survey()
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0)
                turns += 1

        counting = asyncio.create_task(count())
        await render_metrics(stage.broker)
        counting.cancel()
        assert turns > 7 * 100 // 32

    watched(tmp_path, scene)


def test_the_delay_of_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measured while somebody wants to know, and no longer."""
    monkeypatch.setattr(loop_delay, "_EVERY_S", 0.001)
    monkeypatch.setattr(loop_delay, "_WATCHED_S", 0.02)

    async def scene() -> None:
        delay = loop_delay.LoopDelay()
        assert delay._timer is None
        delay.watch()
        delay.watch()
        while delay._timer is not None:
            await asyncio.sleep(0.001)
        count = delay.delays.count
        assert count >= 1
        delay.watch()
        delay.stop()
        await asyncio.sleep(0.005)
        assert delay.delays.count == count

    asyncio.run(scene())


def test_openmetrics(tmp_path: Path) -> None:
    """The whole of it is valid there too."""
    from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse

    async def scene(stage: Watched) -> None:
        await a_scene(stage)
        body, content_type = await render_metrics(stage.broker, "application/openmetrics-text")
        assert content_type.startswith("application/openmetrics-text; version=1.0.0")
        families: list[Any] = list(parse(body.decode()))
        assert len(families) > 50

    watched(tmp_path, scene)


def test_hand_overs_are_timed(tmp_path: Path) -> None:
    """From the target that gives a partition to another member until that member has it."""

    async def scene(stage: Watched) -> None:
        stage.topic("t", 2)
        epochs: dict[str, int] = {}
        owned: dict[str, tuple[Any, ...]] = {}

        def beat(member_id: str) -> None:
            command = ConsumerHeartbeat(
                group_id="g",
                member_id=member_id,
                member_epoch=epochs.get(member_id, 0),
                rebalance_timeout_ms=60_000,
                subscribed_topic_names=("t",),
                owned=owned.get(member_id, ()),
            )
            answer = stage.broker.groups.submit("g", command)
            assert answer.error is ErrorCode.NONE
            epochs[member_id] = answer.member_epoch
            if answer.assignment is not None:
                owned[member_id] = tuple(answer.assignment)

        beat("a")
        beat("a")
        stage.now_ms += 5_000
        beat("b")  # the target changes
        stage.now_ms += 100
        beat("a")  # is told to give one up
        stage.now_ms += 150
        beat("a")  # has done so
        beat("b")
        assert [len(units) for units in owned.values()] == [1, 1]
        found = await scraped(stage, "anabranch_group_handover_duration_seconds")
        name = "anabranch_group_handover_duration_seconds"
        assert found[f"{name}_count", "partition"] == 1
        assert found[f"{name}_sum", "partition"] == pytest.approx(0.25)
        assert found[f"{name}_count", "range"] == 0

    watched(tmp_path, scene)
