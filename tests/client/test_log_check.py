"""A broker that died and lost the end of a log: nobody reads on behind what came in its place."""

from fake_broker import FakeBroker
from loop_kit import give_all, in_loop, new_consumer, only_member, polled
from workload_kit import HALVES, active, key_in, new_workload

from anabranch.client.log_check import knows_beyond
from anabranch.client.range_work import DoneBefore, Rest
from anabranch.coordinator.cooperative.progress import new_progress, with_done
from anabranch.model.offset_ranges import OffsetRanges
from anabranch.model.units import ALL_SLOTS

LOW, HIGH = (key_in(half) for half in HALVES)


@in_loop
async def test_records_in_the_place_of_lost_ones_are_read() -> None:
    """Offsets that the log has lost and that were written again are other records."""
    async with FakeBroker() as broker:
        give_all(broker)
        broker.append("orders", [LOW] * 5)
        async with new_consumer(broker) as consumer:
            read = await polled(consumer, 5)
            for record in read[:1]:
                consumer.ack(record)
            await consumer.commit()
            broker.die("orders", end=2)
            broker.append("orders", [HIGH] * 6)
            again = await polled(consumer, 7)
            assert [(one.offset, one.key) for one in again] == [
                (1, LOW),
                *((offset, HIGH) for offset in range(2, 8)),
            ]
            assert not consumer.ack(read[3]), "what it was is gone"
            for record in again:
                assert consumer.ack(record)
            await consumer.commit()
            assert broker.stable_offset("orders") == 8


@in_loop
async def test_what_was_done_of_lost_records_is_not_told_of_those_in_their_place() -> None:
    """An acknowledgement is of the leader epoch by which the record was read."""
    async with FakeBroker() as broker:
        give_all(broker)
        broker.append("orders", [LOW, HIGH] * 2)
        async with new_consumer(broker) as consumer:
            for record in await polled(consumer, 4):
                consumer.ack(record)
            broker.die("orders", end=2)
            broker.append("orders", [LOW, HIGH] * 3)
            await consumer.commit()
            assert broker.stable_offset("orders") <= 2
            again = {one.offset for one in await polled(consumer, 8)}
            assert again == set(range(8)), "the two that are left were in the same commit"


@in_loop
async def test_a_new_leader_epoch_alone_changes_nothing() -> None:
    """Where nothing was lost nothing is read again."""
    async with FakeBroker() as broker:
        give_all(broker)
        broker.append("orders", [LOW] * 4)
        async with new_consumer(broker) as consumer:
            first = await polled(consumer, 4)
            broker.die("orders", end=4)
            broker.append("orders", [LOW] * 3)
            second = await polled(consumer, 3)
            assert [one.offset for one in second] == [4, 5, 6]
            for record in (*first, *second):
                assert consumer.ack(record)
            await consumer.commit()
            assert broker.stable_offset("orders") == 7
            assert only_member(broker)
            assert broker.sent("OffsetForLeaderEpoch")
            assert len(broker.sent("OffsetFetch")) == 1


@in_loop
async def test_what_was_done_before_of_lost_records_is_forgotten() -> None:
    """Also where nothing was read yet that is lost: the group knew it to be done."""
    async with FakeBroker() as broker:
        give_all(broker)
        broker.append("orders", [LOW] * 6)
        place = (broker.topics["orders"].topic_id, 0)
        done = OffsetRanges([(2, 5)])
        broker.progress[place] = with_done(new_progress(0), ALL_SLOTS, 0, done)
        broker.fetch_max_records = 1
        async with new_consumer(broker, buffer_max_records=1) as consumer:
            (first,) = await polled(consumer, 1)
            assert first.offset == 0
            broker.die("orders", end=2)
            broker.append("orders", [HIGH] * 3)
            again = await polled(consumer, 5)
            assert {(one.offset, one.key) for one in again} >= {(2, HIGH), (3, HIGH), (4, HIGH)}


def test_what_a_range_knows() -> None:
    """Its position, what was done and what failed before, and which keys are diverted."""
    work = active(new_workload(), position=5)
    assert knows_beyond(work, 4)
    assert not knows_beyond(work, 5)
    work.done_before = [DoneBefore(ALL_SLOTS, 0, OffsetRanges([(7, 8)]))]
    assert knows_beyond(work, 8)
    assert not knows_beyond(work, 9)
    work.done_before = []
    for name, known in (
        ("rests", {9: Rest(1, 0.0)}),
        ("exhausted", {9}),
        ("diverted", {77: 9}),
    ):
        setattr(work, name, known)
        assert knows_beyond(work, 9)
        assert not knows_beyond(work, 10)
        setattr(work, name, type(known)())
