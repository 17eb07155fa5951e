"""KIP-X's gap amending: a member that finds gaps in what is done fills them, and nothing else."""

from loop_kit import in_loop, polled

from anabranch.client import CooperativeConsumer, TopicPartition, group_progress
from anabranch.client.group_view import PartitionProgress
from anabranch.model.offset_ranges import OffsetRanges
from anabranch.wire.record_batch import Record, build_batch
from support.broker_process import BrokerProcess
from support.raw_client import RawClient
from support.topics import create_topic

PLACE = TopicPartition("kip-x", 0)
# The proposal's stable offset of 40 is the last one that is done; ours is the next one to do.
STABLE = 41
DONE_BEFORE = [*range(STABLE), 43, 44, 45, 48, 49]
GAPS = [41, 42, 46, 47, 50]


def member(broker: BrokerProcess) -> CooperativeConsumer:
    consumer = CooperativeConsumer(
        bootstrap_servers=broker.bootstrap, group_id="amending", auto_commit_interval_ms=None
    )
    consumer.subscribe(PLACE.topic)
    return consumer


async def partition_of(broker: BrokerProcess) -> PartitionProgress:
    (found,) = (await group_progress(broker.bootstrap, "amending")).partitions
    return found


@in_loop
async def test_gap_amending(shared_broker: BrokerProcess) -> None:
    """Of 41 to 50 with [43-45] and [48-49] done the next member gets the gaps alone, and what it
    commits of them joins its neighbours, until one offset says it all."""
    broker = shared_broker
    create_topic(broker.bootstrap, PLACE.topic, 1, {"range.fetch.enable": "true"})
    batch = build_batch(
        [Record(i, 0, b"%d" % i, b"") for i in range(51)],
        base_offset=0,
        partition_leader_epoch=-1,
    )
    with RawClient(broker.bootstrap) as client:
        assert client.produce(PLACE.topic, 0, batch).error_code == 0
    async with member(broker) as first:
        for record in await polled(first, 51):
            if record.offset in DONE_BEFORE:
                assert first.ack(record)
        await first.commit()
    before = await partition_of(broker)
    assert before.stable_offset == STABLE
    assert before.ranges[0].done == OffsetRanges([(43, 45), (48, 49)])
    async with member(broker) as second:
        records = {record.offset: record for record in await polled(second, len(GAPS))}
        assert sorted(records) == GAPS, "what is done is not handed out again"
        assert await second.poll(0.2) == []
        for offset in (42, 46, 47, 50):
            assert second.ack(records[offset])
        await second.commit()
        amended = await partition_of(broker)
        assert amended.stable_offset == STABLE
        assert amended.ranges[0].done == OffsetRanges([(42, 50)])
        assert second.ack(records[41])
        await second.commit()
        assert second.progress().stable_offsets == {PLACE: 51}
        after = await partition_of(broker)
        assert (after.stable_offset, after.ranges[0].done) == (51, OffsetRanges())
