"""Ranges that are cut again before anything was done about them."""

from collections.abc import Mapping

import pytest
from fake_broker import FakeBroker
from loop_kit import Calls, in_loop, new_consumer, only_member, polled
from workload_kit import HALVES, key_in

from anabranch.client.records import KeyRange
from anabranch.model.units import Unit

LOW, HIGH = (key_in(half) for half in HALVES)


@pytest.mark.parametrize("kept", [0, 1])
@in_loop
async def test_cut_before_it_is_taken_over(kept: int) -> None:
    """Of a range that was given and cut at once, before the application was told, the part that
    stays is told of and consumed, and the other one is not told of at all."""
    async with FakeBroker() as broker:
        broker.create("orders", partitions=2)
        broker.append("orders", [LOW, HIGH] * 3)
        known = {broker.unit("orders", partition=1): 1}
        broker.on_join = lambda member: broker.give(member, known)
        calls = Calls()
        async with new_consumer(broker, **calls.options) as consumer:
            await consumer.poll()
            await broker.until(lambda: len(calls.of("assigned")) == 1)
            membership, hand_over = consumer._membership, consumer._hand_over
            assert membership is not None and hand_over is not None

            def assign_more_first(target: Mapping[Unit, int]) -> None:
                hand_over.assign(known | {broker.unit("orders"): 1})
                hand_over.assign(target)

            membership.on_assigned = assign_more_first
            part = {broker.unit("orders", HALVES[kept]): 1}
            broker.give(only_member(broker), known | part)
            records = await polled(consumer, 3)
            assert {record.key for record in records} == {(LOW, HIGH)[kept]}
            told = f"orders-0 {KeyRange.of_slots(HALVES[kept])}"
            assert calls.of("assigned")[1:] == [[told]]
            assert calls.of("revoked") == []
