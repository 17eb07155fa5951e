"""Members of a group: how ranges come, go and are lost."""

import asyncio

import pytest
from fake_broker import FakeBroker
from loop_kit import Calls, give_all, in_loop, is_held, new_consumer, only_member, polled
from workload_kit import HALVES, key_in

from anabranch.client import CommitFailedError, CooperativeConsumer
from anabranch.model.errors import ErrorCode

LOW, HIGH = (key_in(half) for half in HALVES)


def ranges_of(consumer: CooperativeConsumer) -> list[str]:
    return [str(one.key_range) for one in consumer.progress().ranges]


@in_loop
async def test_two_members() -> None:
    """Two members have the records of their own keys, each once."""
    async with FakeBroker() as broker:
        broker.create("orders")
        broker.append("orders", [LOW, HIGH] * 5)
        broker.on_join = lambda member: broker.give(
            member, {broker.unit("orders", HALVES[member.number]): 1}
        )
        async with new_consumer(broker) as one:
            low = await polled(one, 5)
            async with new_consumer(broker) as other:
                high = await polled(other, 5)
                assert {record.key for record in low} == {LOW}
                assert {record.key for record in high} == {HIGH}
                for consumer, records in ((one, low), (other, high)):
                    for record in records:
                        consumer.ack(record)
                    await consumer.commit()
                assert broker.stable_offset("orders") == 10


@in_loop
async def test_revoked_range_drains_first() -> None:
    """A range is given back after its last record ended and its progress was stored."""
    async with FakeBroker() as broker:
        give_all(broker)
        broker.append("orders", [LOW, HIGH, LOW, HIGH])
        calls = Calls()
        async with new_consumer(broker, **calls.options) as consumer:
            records = {one.offset: one for one in await polled(consumer, 2)}
            member = only_member(broker)
            broker.give(member, {broker.unit("orders", HALVES[0]): 1})
            await broker.until(lambda: not member.is_news)
            leaving = broker.unit("orders", HALVES[1])
            beats = len(broker.sent("ConsumerGroupHeartbeat"))
            await broker.until(lambda: len(broker.sent("ConsumerGroupHeartbeat")) > beats + 3)
            assert is_held(member, leaving), "a record of it is out"
            assert not consumer.may_start(records[1]) and consumer.may_start(records[0])
            assert consumer.ack(records[1])
            gate = broker.gates["OffsetCommit"] = asyncio.Event()
            beats = len(broker.sent("ConsumerGroupHeartbeat"))
            await broker.until(lambda: len(broker.sent("ConsumerGroupHeartbeat")) > beats + 3)
            assert is_held(member, leaving), "its progress is not stored yet"
            gate.set()
            await broker.until(lambda: not is_held(member, leaving))
            assert broker.progress[leaving[:2]].is_done(65_535, 1)
            assert not broker.progress[leaving[:2]].is_done(65_535, 3)
            assert calls.of("revoked") == [["orders-0 slots 32768-65535"]]
            (rest,) = await polled(consumer, 1)
            assert rest.offset == 2, "what stays goes on"


@in_loop
async def test_cut_while_loading() -> None:
    """A range that is cut while its progress is asked for is loaded in all its parts."""
    async with FakeBroker() as broker:
        give_all(broker)
        broker.append("orders", [LOW, HIGH])
        gate = broker.gates["OffsetFetch"] = asyncio.Event()
        async with new_consumer(broker) as consumer:
            await consumer.poll()
            await broker.until(lambda: broker.sent("DescribeConfigs"))
            member = only_member(broker)
            broker.give(member, {broker.unit("orders", half): 1 for half in HALVES})
            await broker.until(lambda: not member.is_news)
            gate.set()
            assert len(await polled(consumer, 2)) == 2


@in_loop
async def test_unstarted_records_go_back() -> None:
    """Records of a revoked range that were not handed out yet are the next owner's."""
    async with FakeBroker() as broker:
        give_all(broker)
        broker.append("orders", [LOW, HIGH] * 50)
        async with new_consumer(broker) as consumer:
            (first,) = await polled(consumer, 1)
            member = only_member(broker)
            broker.give(member, {broker.unit("orders", HALVES[0]): 1})
            await broker.until(lambda: not is_held(member, broker.unit("orders", HALVES[1])))
            rest = await polled(consumer, 49)
            assert {record.key for record in [first, *rest]} == {LOW}


@in_loop
async def test_callbacks() -> None:
    """The application is told of ranges that come, go and are lost, each time in pairs."""
    async with FakeBroker() as broker:
        give_all(broker)
        calls = Calls()
        async with new_consumer(broker, **calls.options) as consumer:
            await consumer.poll()
            await broker.until(lambda: calls.of("assigned"))
            member = only_member(broker)
            broker.give(member, {broker.unit("orders", HALVES[0]): 1})
            await broker.until(lambda: calls.of("revoked"))
            broker.fence(member)
            await broker.until(lambda: len(calls.of("assigned")) == 2)
        assert calls.calls == [
            ("assigned", ["orders-0 slots 0-65535"]),
            ("revoked", ["orders-0 slots 32768-65535"]),
            ("lost", ["orders-0 slots 0-32767"]),
            ("assigned", ["orders-0 slots 0-65535"]),
            ("revoked", ["orders-0 slots 0-65535"]),
        ]


@in_loop
async def test_async_callback_comes_before_the_records() -> None:
    """An assignment's callback has ended before the first record of its ranges is handed out."""
    async with FakeBroker() as broker:
        give_all(broker)
        broker.append("orders", [LOW])
        ready = asyncio.Event()

        async def prepare(ranges: object) -> None:
            await ready.wait()

        async with new_consumer(broker, on_ranges_assigned=prepare) as consumer:
            assert await consumer.poll(0.1) == []
            ready.set()
            assert len(await polled(consumer, 1)) == 1


@in_loop
async def test_fenced() -> None:
    """A fenced member drops everything and joins again; what it did before does not count."""
    async with FakeBroker() as broker:
        epochs = iter([1, 5])
        broker.create("orders")
        broker.on_join = lambda member: broker.give(member, {broker.unit("orders"): next(epochs)})
        broker.append("orders", [LOW, HIGH])
        async with new_consumer(broker) as consumer:
            before = await polled(consumer, 2)
            member_id = consumer.progress().member_id
            broker.fence(only_member(broker))
            after = await polled(consumer, 2)
            assert [consumer.ack(record) for record in before] == [False, False]
            assert [consumer.ack(record) for record in after] == [True, True]
            assert [record.token.epoch for record in before + after] == [1, 1, 5, 5]
            assert after[0].token > before[0].token
            assert consumer.progress().member_id == member_id
            joins = [one for one in broker.sent("ConsumerGroupHeartbeat") if one.member_epoch == 0]
            assert [one.cooperation.held for one in joins] == [[], []]


@in_loop
async def test_lease() -> None:
    """Without an answered heartbeat nothing is handed out after nine tenths of the lease."""
    async with FakeBroker() as broker:
        give_all(broker)
        broker.append("orders", [b"%d" % i for i in range(10)])
        now = 1000.0
        broker.lease_ms = 10_000
        async with new_consumer(broker, clock=lambda: now) as consumer:
            (first,) = await polled(consumer, 1)
            gate = broker.gates["ConsumerGroupHeartbeat"] = asyncio.Event()
            now += 8.9
            assert len(await consumer.poll(max_records=1)) == 1
            now += 0.2
            assert await consumer.poll(0.05) == []
            assert not consumer.may_start(first)
            assert consumer.progress().lease_left_s == 0
            gate.set()
            assert len(await polled(consumer, 8)) == 8
            assert consumer.ack(first), "what was running counts as long as nobody took the range"


@in_loop
async def test_epoch_of_a_range_changes() -> None:
    """A range that comes with another epoch was somebody else's: its records come again."""
    async with FakeBroker() as broker:
        give_all(broker)
        broker.append("orders", [LOW])
        async with new_consumer(broker) as consumer:
            (before,) = await polled(consumer, 1)
            broker.give(only_member(broker), {broker.unit("orders"): 4})
            (after,) = await polled(consumer, 1)
            assert (before.offset, after.offset, after.token.epoch) == (0, 0, 4)
            assert (consumer.ack(before), consumer.ack(after)) == (False, True)


@in_loop
async def test_loads() -> None:
    """Heartbeats tell how busy each range kept the member, each record once."""
    async with FakeBroker() as broker:
        give_all(broker)
        broker.append("orders", [LOW, HIGH, LOW])

        async def handle(record: object) -> None:
            await asyncio.sleep(0.001)

        async with new_consumer(broker) as consumer:
            running = asyncio.ensure_future(consumer.run(handle, handle_signals=False))
            await broker.until(lambda: broker.members)
            member = only_member(broker)
            await broker.until(lambda: sum(one.records for one in member.loads) == 3)
            assert sum(one.busy_us for one in member.loads) >= 3000
            consumer.stop()
            await running


@in_loop
async def test_subscribe_again() -> None:
    """Other topics are told with the next heartbeat."""
    async with FakeBroker() as broker:
        give_all(broker)
        broker.create("payments")
        async with new_consumer(broker) as consumer:
            await consumer.poll()
            await broker.until(lambda: broker.members)
            consumer.subscribe(["payments"])
            await broker.until(lambda: only_member(broker).topics == ["payments"])


@in_loop
async def test_static_member() -> None:
    """A member with an instance id leaves only for a while."""
    async with FakeBroker() as broker:
        give_all(broker)
        async with new_consumer(broker, group_instance_id="one") as consumer:
            await consumer.poll()
            await broker.until(lambda: broker.members)
            await broker.until(lambda: consumer.progress().member_epoch > 0)
        last = broker.sent("ConsumerGroupHeartbeat")[-1]
        assert (last.member_epoch, last.instance_id) == (-2, "one")


# What goes wrong and passes -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("api_name", "code"),
    [
        ("FindCoordinator", ErrorCode.COORDINATOR_NOT_AVAILABLE),
        ("ConsumerGroupHeartbeat", ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        ("ConsumerGroupHeartbeat", ErrorCode.NOT_COORDINATOR),
        ("OffsetFetch", ErrorCode.NOT_COORDINATOR),
        ("OffsetFetch", ErrorCode.STALE_MEMBER_EPOCH),
        ("OffsetCommit", ErrorCode.COORDINATOR_NOT_AVAILABLE),
        ("OffsetCommit", ErrorCode.STALE_MEMBER_EPOCH),
        ("Fetch partition", ErrorCode.NOT_LEADER_OR_FOLLOWER),
        ("Fetch partition", ErrorCode.FENCED_MEMBER_EPOCH),
        ("Fetch partition", ErrorCode.UNKNOWN_TOPIC_ID),
        ("Fetch", ErrorCode.KAFKA_STORAGE_ERROR),
        ("ListOffsets", ErrorCode.NOT_LEADER_OR_FOLLOWER),
    ],
)
@in_loop
async def test_error_that_passes(api_name: str, code: ErrorCode) -> None:
    """What a broker refuses for a moment is asked again."""
    async with FakeBroker() as broker:
        give_all(broker)
        broker.append("orders", [LOW])
        broker.errors[api_name].extend([code] * 3)
        async with new_consumer(broker) as consumer:
            (record,) = await polled(consumer, 1)
            assert consumer.ack(record)
            await consumer.commit()
            assert broker.stable_offset("orders") == 1
            assert not broker.errors[api_name]


@in_loop
async def test_connections_break() -> None:
    """A member whose connections break connects again and goes on."""
    async with FakeBroker() as broker:
        give_all(broker)
        async with new_consumer(broker) as consumer:
            for number in range(3):
                broker.append("orders", [b"%d" % number])
                (record,) = await polled(consumer, 1)
                assert record.offset == number and consumer.ack(record)
                broker.drop_connections()
            await consumer.commit()
            assert broker.stable_offset("orders") == 3


@in_loop
async def test_failed_commit_is_told_again() -> None:
    """What a commit that failed should have told is told by the next one."""
    async with FakeBroker() as broker:
        give_all(broker)
        broker.append("orders", [LOW, HIGH])
        async with new_consumer(broker, request_timeout_ms=500) as consumer:
            first, second = await polled(consumer, 2)
            consumer.ack(second)
            broker.errors["OffsetCommit"].extend([ErrorCode.REQUEST_TIMED_OUT] * 500)
            with pytest.raises(CommitFailedError, match="within the time"):
                await consumer.commit()
            broker.errors["OffsetCommit"].clear()
            await consumer.commit()
            progress = broker.progress[broker.unit("orders")[:2]]
            assert progress.is_done(0, 1) and not progress.is_done(0, 0)
            consumer.ack(first)
            await consumer.commit()
            assert broker.stable_offset("orders") == 2


@in_loop
async def test_expired_records() -> None:
    """Records that retention deleted before they were processed are passed over."""
    async with FakeBroker() as broker:
        give_all(broker)
        broker.append("orders", [b"%d" % i for i in range(10)])
        async with new_consumer(broker) as consumer:
            records = await polled(consumer, 3)
            consumer.ack(records[0])
        del broker.topics["orders"].logs[0][:6]
        async with new_consumer(broker) as consumer:
            assert [one.offset for one in await polled(consumer, 4)] == [6, 7, 8, 9]


@in_loop
async def test_log_that_was_cut() -> None:
    """A log that ends before what was read of it is read again from the group's progress."""
    async with FakeBroker() as broker:
        give_all(broker)
        broker.append("orders", [b"%d" % i for i in range(10)])
        calls = Calls()
        async with new_consumer(broker, **calls.options) as consumer:
            records = await polled(consumer, 10)
            for record in records[:4]:
                consumer.ack(record)
            await consumer.commit()
            del broker.topics["orders"].logs[0][6:]
            await broker.until(lambda: calls.of("lost"))
            broker.append("orders", [b"new"])
            again = await polled(consumer, 3)
            assert [one.offset for one in again] == [4, 5, 6]
            assert again[-1].key == b"new"


@in_loop
async def test_rule_changes() -> None:
    """When a topic's rule for slots changes the member asks for it again, and goes on."""
    async with FakeBroker() as broker:
        give_all(broker)
        broker.on_join = lambda member: broker.give(member, {broker.unit("orders", HALVES[0]): 1})
        async with new_consumer(broker) as consumer:
            await consumer.poll()
            await broker.until(lambda: broker.sent("Fetch"))
            broker.topics["orders"].configs["branch.ordering.key.header"] = "customer"
            broker.append("orders", [HIGH], headers=(("customer", LOW),))
            (record,) = await polled(consumer, 1)
            assert record.offset == 0
            assert len(broker.sent("DescribeConfigs")) == 2
