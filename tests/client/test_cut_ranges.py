"""Ranges that are cut, given back or lost while something else is under way with them."""

import asyncio

import pytest
from fake_broker import FakeBroker
from loop_kit import Calls, give_all, in_loop, is_held, new_consumer, only_member, polled
from workload_kit import HALVES, key_in

from anabranch.branch.slots import slot_of_key
from anabranch.model.errors import ErrorCode
from anabranch.model.units import ALL_SLOTS, slots_between

LOW, HIGH = (key_in(half) for half in HALVES)
LOW_TOO, HIGH_TOO = (key_in(half, 1) for half in HALVES)


@pytest.mark.parametrize("kept", [0, 1])
@in_loop
async def test_half_is_taken_away_while_loading(kept: int) -> None:
    """What is left of a range whose progress is being asked for is loaded and handed out, and the
    rest is given back."""
    async with FakeBroker() as broker:
        give_all(broker)
        broker.append("orders", [LOW, HIGH])
        gate = broker.gates["OffsetFetch"] = asyncio.Event()
        async with new_consumer(broker) as consumer:
            await consumer.poll()
            await broker.until(lambda: broker.sent("DescribeConfigs"))
            member = only_member(broker)
            broker.give(member, {broker.unit("orders", HALVES[kept]): 1})
            await broker.until(lambda: not member.is_news)
            gate.set()
            (record,) = await polled(consumer, 1)
            assert record.key == (LOW, HIGH)[kept]
            await broker.until(lambda: not is_held(member, broker.unit("orders", HALVES[1 - kept])))


@in_loop
async def test_given_back_while_a_commit_fails() -> None:
    """What was done of a part of a range is stored before the part is given back, also if it was
    being told, in vain, when the range was cut."""
    async with FakeBroker() as broker:
        give_all(broker)
        broker.append("orders", [LOW, HIGH, HIGH_TOO])
        async with new_consumer(broker) as consumer:
            _, first, second = await polled(consumer, 3)
            broker.errors["OffsetCommit"].append(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
            gate = broker.gates["OffsetCommit"] = asyncio.Event()
            consumer.ack(second)
            committing = asyncio.ensure_future(consumer.commit())
            await broker.until(lambda: broker.at_gates["OffsetCommit"] > 0)
            member = only_member(broker)
            broker.give(member, {broker.unit("orders", HALVES[0]): 1})
            await broker.until(lambda: not member.is_news)
            consumer.nack(first, retry_after_s=60)
            gate.set()
            await committing
            upper = broker.unit("orders", HALVES[1])
            await broker.until(lambda: not is_held(member, upper))
            progress = broker.progress[upper[:2]]
            assert progress.is_done(slot_of_key(HIGH_TOO), second.offset)
            assert not progress.is_done(slot_of_key(HIGH), first.offset)


@in_loop
async def test_cut_while_a_commit_is_refused() -> None:
    """When the log has other records by then, so that what is told is void, each part of the range
    starts over: none tells a rest of it, as if that were all."""
    async with FakeBroker() as broker:
        give_all(broker)
        broker.append("orders", [LOW, HIGH, HIGH_TOO, LOW_TOO])
        calls = Calls()
        async with new_consumer(broker, **calls.options) as consumer:
            _, waiting, *done = await polled(consumer, 4)
            consumer.nack(waiting, retry_after_s=60)
            for record in done:
                consumer.ack(record)
            gate = broker.gates["OffsetCommit"] = asyncio.Event()
            committing = asyncio.ensure_future(consumer.commit())
            await broker.until(lambda: broker.at_gates["OffsetCommit"] > 0)
            member = only_member(broker)
            broker.give(member, {broker.unit("orders", HALVES[0]): 1})
            await broker.until(lambda: calls.of("revoked"))
            del broker.topics["orders"].logs[0][3:]
            broker.append("orders", [LOW_TOO])
            broker.epoch_ends[broker.leader_epoch] = 3
            broker.leader_epoch += 1
            gate.set()
            await committing
            upper = broker.unit("orders", HALVES[1])
            await broker.until(lambda: not is_held(member, upper))
            told = [
                slots_between(ack.first_hash, ack.last_hash)
                for commit in broker.sent("OffsetCommit")
                for ack in commit.topics[0].partitions[0].individual.acks
            ]
            assert told[0] == ALL_SLOTS and HALVES[1] not in told


@in_loop
async def test_lost_while_it_is_given_back() -> None:
    """The application is told once that a range goes, also if the group goes on without the member
    before the range is given back."""
    async with FakeBroker() as broker:
        give_all(broker)
        broker.append("orders", [LOW, HIGH])
        calls = Calls()
        async with new_consumer(broker, **calls.options) as consumer:
            (low, high) = await polled(consumer, 2)
            consumer.ack(high)
            gate = broker.gates["OffsetCommit"] = asyncio.Event()
            member = only_member(broker)
            broker.give(member, {broker.unit("orders", HALVES[0]): 1})
            await broker.until(lambda: calls.of("revoked"))
            broker.fence(member)
            await broker.until(lambda: len(calls.of("assigned")) == 2)
            gate.set()
            assert not consumer.ack(low)
        assert calls.calls == [
            ("assigned", ["orders-0 slots 0-65535"]),
            ("revoked", ["orders-0 slots 32768-65535"]),
            ("lost", ["orders-0 slots 0-32767"]),
            ("assigned", ["orders-0 slots 0-65535"]),
            ("revoked", ["orders-0 slots 0-65535"]),
        ]


@in_loop
async def test_lost_while_it_drains() -> None:
    """The same when the range is lost while a record of it runs."""
    async with FakeBroker() as broker:
        give_all(broker)
        broker.append("orders", [LOW, HIGH])
        calls = Calls()
        async with new_consumer(broker, **calls.options) as consumer:
            await polled(consumer, 2)
            member = only_member(broker)
            broker.give(member, {broker.unit("orders", HALVES[0]): 1})
            await broker.until(lambda: not member.is_news)
            broker.fence(member)
            await broker.until(lambda: len(calls.of("assigned")) == 2)
            beats = len(broker.sent("ConsumerGroupHeartbeat"))
            await broker.until(lambda: len(broker.sent("ConsumerGroupHeartbeat")) > beats + 3)
            assert [name for name, _ in calls.calls] == ["assigned", "lost", "assigned"]
