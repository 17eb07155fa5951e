"""`anabranch bench`: figures of one client, and nothing left behind."""

import json
from collections.abc import Callable

from command_result import Result
from confluent_kafka.admin import AdminClient

from anabranch.cli.bench import _quantile, _value
from support.broker_process import BrokerProcess
from support.confluent_client import QUICK


def test_figures_are_of_all_records_and_the_topic_is_gone(
    run: Callable[..., Result], group_broker: BrokerProcess
) -> None:
    """Produce, consume and latency have a line each; rates are records by seconds."""
    result = run(
        *("bench", "--records", 2_500, "--size", 50, "--round-trips", 20, "--compression", "lz4"),
        *("--format", "json", "--bootstrap-server", group_broker.bootstrap),
    )
    assert result.code == 0, result.err
    produce, consume, latency = json.loads(result.out)
    assert [line["what"] for line in (produce, consume, latency)] == [
        "produce",
        "consume",
        "latency",
    ]
    assert (produce["records"], consume["records"], latency["records"]) == (2_500, 2_500, 20)
    for line in (produce, consume):
        assert abs(line["records_per_s"] * line["seconds"] - 2_500) < 1e-3
        assert abs(line["megabytes_per_s"] * line["seconds"] - 2_500 * 50 / 1e6) < 1e-6
    assert 0 < latency["p50_ms"] <= latency["p99_ms"]
    admin = AdminClient({**QUICK, "bootstrap.servers": group_broker.bootstrap})
    assert not [name for name in admin.list_topics(timeout=60).topics if "bench" in name]


def test_a_topic_can_be_kept_and_the_table_has_kafkas_look(
    run: Callable[..., Result], group_broker: BrokerProcess
) -> None:
    """--keep names the topic; without round trips there is no latency."""
    result = run(
        *("bench", "--records", 10, "--round-trips", 0, "--keep"),
        *("--bootstrap-server", group_broker.bootstrap),
    )
    assert result.code == 0, result.err
    header, *lines = result.out.splitlines()
    assert header.split() == ["WHAT", "RECORDS", "SECONDS", "RECORDS/S", "MB/S", "P50-MS", "P99-MS"]
    assert [line.split()[0] for line in lines] == ["produce", "consume"]
    name = result.err.strip().removeprefix("The records are in ").removesuffix(".")
    admin = AdminClient({**QUICK, "bootstrap.servers": group_broker.bootstrap})
    assert name in admin.list_topics(timeout=60).topics


def test_values_have_the_size_that_was_asked_for() -> None:
    """Whatever the size, and they differ."""
    assert [len(_value(1, size)) for size in (1, 2, 3, 50, 1001)] == [1, 2, 3, 50, 1001]
    assert _value(1, 100) != _value(1, 100)


def test_a_quantile_is_one_of_the_values() -> None:
    """The 99th of a hundred, and the last of few."""
    assert _quantile([float(n) for n in range(100)], 0.99) == 99
    assert _quantile([1.0, 2.0], 0.5) == 2.0
