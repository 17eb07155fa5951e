"""What outlives a restart, in order or by a crash."""

from collections.abc import Callable

import pytest

from anabranch.model.errors import ErrorCode
from anabranch.wire.messages.describe_configs import (
    DESCRIBE_CONFIGS,
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from support.broker_process import BrokerProcess
from support.raw_client import RawClient, batch_of
from support.topics import create_topic

TOPIC_RESOURCE = 2
is_crash = pytest.mark.parametrize("is_crash", [False, True], ids=["stop", "kill"])


def restart(broker: BrokerProcess, is_crash: bool) -> None:
    if is_crash:
        broker.kill()
    else:
        assert broker.stop() == 0
    broker.start()


def _configs(client: RawClient, topic: str) -> dict[str, str]:
    """The settings that a topic has of its own."""
    asked = DescribeConfigsResource(
        resource_type=TOPIC_RESOURCE, resource_name=topic, configuration_keys=None
    )
    response = client.send(DESCRIBE_CONFIGS, 4, DescribeConfigsRequest(resources=[asked]))
    topic_config_source = 1
    return {
        config.name: config.value
        for config in response.results[0].configs
        if config.config_source == topic_config_source
    }


@is_crash
def test_the_cluster_and_its_topics_stay_what_they_are(
    broker: BrokerProcess, is_crash: bool
) -> None:
    """Cluster id, topic ids, partitions and settings are the same after a restart."""
    configs = {"cleanup.policy": "compact", "retention.ms": "123456"}
    topic_id = create_topic(broker.bootstrap, "made", 7, configs)
    with RawClient(broker.bootstrap) as client:
        client.metadata("found", auto_create=True)
        before = client.metadata()
    restart(broker, is_crash)
    with RawClient(broker.bootstrap) as client:
        after = client.metadata()
        assert _configs(client, "made") == configs
        assert _configs(client, "found") == {}
    assert after.cluster_id == before.cluster_id
    assert after.brokers == before.brokers
    assert [(t.name, t.topic_id, len(t.partitions)) for t in after.topics] == [
        (t.name, t.topic_id, len(t.partitions)) for t in before.topics
    ]
    assert {t.name: (t.topic_id, len(t.partitions)) for t in after.topics}["made"] == (topic_id, 7)


@is_crash
def test_the_leader_epoch_grows(broker: BrokerProcess, is_crash: bool) -> None:
    """Clients can see that the leader is a new one, and ask where the old one ended."""
    with RawClient(broker.bootstrap) as client:
        (before,) = client.metadata("t", auto_create=True).topics[0].partitions
    restart(broker, is_crash)
    with RawClient(broker.bootstrap) as client:
        (after,) = client.metadata("t").topics[0].partitions
    assert after.leader_epoch > before.leader_epoch


@is_crash
@pytest.mark.parametrize("batches", [1, 3, 5, 20])
def test_a_batch_sent_again_after_a_restart_is_a_duplicate(
    broker: BrokerProcess, is_crash: bool, batches: int
) -> None:
    """The last five batches of a producer are answered with their first offsets, and not stored."""
    with RawClient(broker.bootstrap) as client:
        client.metadata("t", auto_create=True)
        producer_id = client.new_producer_id()
        sent = [
            batch_of([b"%d" % i] * 3, producer_id=producer_id, base_sequence=3 * i)
            for i in range(batches)
        ]
        for i, batch in enumerate(sent):
            assert client.produce("t", 0, batch).base_offset == 3 * i
    restart(broker, is_crash)
    with RawClient(broker.bootstrap) as client:
        for i in range(max(0, batches - 5), batches):
            answer = client.produce("t", 0, sent[i])
            assert (answer.error_code, answer.base_offset) == (ErrorCode.NONE, 3 * i)
        if batches > 5:
            answer = client.produce("t", 0, sent[0])
            assert answer.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        gap = batch_of([b"gap"], producer_id=producer_id, base_sequence=3 * batches + 1)
        assert client.produce("t", 0, gap).error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        following = batch_of([b"next"], producer_id=producer_id, base_sequence=3 * batches)
        assert client.produce("t", 0, following).base_offset == 3 * batches
        assert len(client.read_all("t", 0)) == 3 * batches + 1


@is_crash
def test_producers_of_earlier_segments_are_remembered(
    make_broker: Callable[..., BrokerProcess], is_crash: bool
) -> None:
    """The state of a producer whose batches lie segments behind the log's end survives."""
    broker = make_broker(**{"log.segment.bytes": "1048576"})
    with RawClient(broker.bootstrap) as client:
        client.metadata("t", auto_create=True)
        producer_ids = [client.new_producer_id() for _ in range(4)]
        sent = [
            batch_of([b"." * 300_000], producer_id=producer_id, base_sequence=i)
            for producer_id in producer_ids
            for i in range(4)
        ]
        for i, batch in enumerate(sent):
            assert client.produce("t", 0, batch).base_offset == i
    for _ in range(2):
        restart(broker, is_crash)
        with RawClient(broker.bootstrap) as client:
            for i, producer_id in enumerate(producer_ids):
                assert client.produce("t", 0, sent[4 * i + 3]).base_offset == 4 * i + 3
                gap = batch_of([b"gap"], producer_id=producer_id, base_sequence=9)
                code = client.produce("t", 0, gap).error_code
                assert code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


@is_crash
def test_an_older_epoch_stays_fenced(broker: BrokerProcess, is_crash: bool) -> None:
    """The highest epoch of a producer is remembered."""
    with RawClient(broker.bootstrap) as client:
        client.metadata("t", auto_create=True)
        producer_id = client.new_producer_id()
        newer = batch_of([b"new"], producer_id=producer_id, producer_epoch=3)
        assert client.produce("t", 0, newer).error_code == ErrorCode.NONE
    restart(broker, is_crash)
    older = batch_of([b"old"], producer_id=producer_id, producer_epoch=2, base_sequence=1)
    with RawClient(broker.bootstrap) as client:
        assert client.produce("t", 0, older).error_code == ErrorCode.INVALID_PRODUCER_EPOCH


@is_crash
def test_producer_ids_are_never_given_twice(broker: BrokerProcess, is_crash: bool) -> None:
    """Ids handed out before and after a restart differ."""
    seen: set[int] = set()
    for _ in range(3):
        with RawClient(broker.bootstrap) as client:
            ids = [client.new_producer_id() for _ in range(10)]
        assert not seen & set(ids)
        seen.update(ids)
        restart(broker, is_crash)


def test_deleted_records_stay_deleted(broker: BrokerProcess) -> None:
    """The log start offset that DeleteRecords set is kept by an orderly stop.

    As in Kafka a crash within the checkpoint's interval may bring the records back.
    """
    with RawClient(broker.bootstrap) as client:
        client.metadata("t", auto_create=True)
        for i in range(10):
            client.produce("t", 0, batch_of([b"%d" % i]))
        assert client.delete_records("t", 0, 6) == 6
    restart(broker, is_crash=False)
    with RawClient(broker.bootstrap) as client:
        assert client.fetch("t", 0, 0).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        assert [record.offset for record in client.read_all("t", 0, 6)] == [6, 7, 8, 9]
        assert client.offset_for_time("t", 0, -2)[0] == 6
