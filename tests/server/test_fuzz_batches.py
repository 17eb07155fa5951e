"""Fuzzing Produce: whatever the batches are, the log keeps only whole ones, in order."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from arena import Arena, attack, fuzzing, open_arena
from hypothesis import given
from hypothesis import strategies as st
from request_strategies import TOPICS, batches, body_of, damaged_batches, number

from anabranch.wire.messages.produce import (
    PRODUCE,
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)

produces = st.builds(
    lambda topic, index, records, acks, version: body_of(
        PRODUCE,
        version,
        ProduceRequest(
            acks=acks,
            timeout_ms=1000,
            topic_data=[
                TopicProduceData(
                    name=topic,
                    partition_data=[PartitionProduceData(index=index, records=records)],
                )
            ],
        ),
    ),
    topic=st.sampled_from(TOPICS),
    index=st.integers(0, 1),
    records=batches() | damaged_batches() | damaged_batches() | st.binary(max_size=80),
    acks=st.sampled_from([-1, 1, 1]),
    version=st.integers(3, 12),
)


@pytest.fixture
def arena(tmp_path: Path, events: Any) -> Iterator[Arena]:
    with open_arena(tmp_path / "data", events) as arena:
        yield arena


def test_damaged_batches(arena: Arena) -> None:
    """Any sequence of sound and damaged batches leaves sound batches with offsets without gaps."""

    @fuzzing(400)
    @given(sent=st.lists(produces, min_size=1, max_size=6))
    def ask(sent: list[bytes]) -> None:
        arena.fight(b"".join(number(body, i) for i, body in enumerate(sent)), 1 << 30)
        assert arena.events.reasons == []
        arena.check_logs()

    attack(ask)
