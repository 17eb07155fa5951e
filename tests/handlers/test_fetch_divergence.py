"""Fetch by clients that say which epoch their last record had (KIP-595)."""

from collections.abc import Callable

import pytest
from handler_calls import Node

from anabranch.model.errors import ErrorCode
from anabranch.wire.messages.fetch import (
    FetchEpochEndOffset,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)

BIG = 1 << 30
OUT_OF_RANGE = ErrorCode.OFFSET_OUT_OF_RANGE


@pytest.fixture
def node_of_epoch_3(make_node: Callable[..., Node]) -> Node:
    """Epoch 0 wrote offsets 0-2, of which 0 is deleted, epoch 2 offset 3, epoch 3 nothing."""
    for records in (3, 0, 1):
        node = make_node()
        if node.broker.topics.get("t") is None:
            node.create_topic("t")
        for _ in range(records):
            node.append("t", b"v")
        node.close()
    node = make_node()
    node.broker.topics.partition("t", 0).log.delete_records_before(1)
    return node


def asking(offset: int, epoch: int, **more: int) -> FetchRequest:
    partition = FetchPartition(
        fetch_offset=offset, last_fetched_epoch=epoch, partition_max_bytes=BIG
    )
    topics = [FetchTopic(topic="t", partitions=[partition])]
    return FetchRequest(**{"max_bytes": BIG, "topics": topics} | more)


def answer(response: FetchResponse) -> PartitionData:
    assert response.error_code == 0
    ((data,),) = (topic.partitions for topic in response.responses)
    return data


@pytest.mark.parametrize(("offset", "epoch"), [(1, 0), (3, 0), (3, 2), (4, 2), (4, 3), (2, -1)])
def test_a_client_that_read_this_log_goes_on(
    node_of_epoch_3: Node, offset: int, epoch: int
) -> None:
    """Where the epoch reached to the position, records follow as without it."""
    data = answer(node_of_epoch_3.call(asking(offset, epoch), 12))
    assert (data.error_code, data.diverging_epoch) == (0, None)
    assert bool(data.records) is (offset < 4)


@pytest.mark.parametrize(
    ("offset", "epoch", "diverging"),
    [
        (4, 0, (0, 3)),  # the client read more of epoch 0 than there is
        (3, 1, (0, 3)),  # an epoch that wrote nothing here
        (1, 1, (0, 3)),
        (9, 3, (3, 4)),  # beyond the end
    ],
)
@pytest.mark.parametrize("isolation_level", [0, 1])
def test_a_client_that_read_another_log(
    node_of_epoch_3: Node, offset: int, epoch: int, diverging: tuple[int, int], isolation_level: int
) -> None:
    """It is told at once where the logs part, and gets no records."""
    request = asking(
        offset, epoch, max_wait_ms=60_000, min_bytes=1, isolation_level=isolation_level
    )
    assert answer(node_of_epoch_3.call(request, 12)) == PartitionData(
        high_watermark=4,
        last_stable_offset=4,
        log_start_offset=1,
        diverging_epoch=FetchEpochEndOffset(epoch=diverging[0], end_offset=diverging[1]),
        records=b"",
    )


@pytest.mark.parametrize(("offset", "epoch"), [(1, 4), (0, 0), (0, 1)])
def test_what_cannot_be_compared(node_of_epoch_3: Node, offset: int, epoch: int) -> None:
    """An epoch still to come, and a position before the log's start, are out of range."""
    data = answer(node_of_epoch_3.call(asking(offset, epoch), 12))
    assert data == PartitionData(error_code=OUT_OF_RANGE, high_watermark=-1, records=b"")


def test_a_session_remembers_the_epoch(node_of_epoch_3: Node) -> None:
    """Divergence is news each time, and the epoch can be changed like the position."""
    node = node_of_epoch_3
    first = node.call(asking(4, 2, session_epoch=0), 12)
    assert answer(first).diverging_epoch is None
    session_id = first.session_id

    def fetch(session_epoch: int, *asked: tuple[int, int], version: int = 12) -> FetchResponse:
        request = asking(*asked[0]) if asked else FetchRequest(max_bytes=BIG)
        request.session_id, request.session_epoch = session_id, session_epoch
        response: FetchResponse = node.call(request, version)
        return response

    assert fetch(1).responses == []
    assert answer(fetch(2, (4, 0))).diverging_epoch == FetchEpochEndOffset(epoch=0, end_offset=3)
    assert answer(fetch(3)).diverging_epoch == FetchEpochEndOffset(epoch=0, end_offset=3)
    # An older version has no field for it, and gets what it always got.
    assert fetch(4, version=11).responses == []
    assert fetch(5, (4, 2)).responses == []


@pytest.mark.parametrize("version", [4, 6, 7, 12, 13, 18])
def test_isolation_levels_that_are_none(node: Node, version: int) -> None:
    """The request is refused, at each partition too for those who name topics."""
    topic = node.create_topic("t")
    request = asking(0, -1, isolation_level=7)
    request.topics[0].topic_id = topic.topic_id
    response = node.call(request, version)
    assert response.error_code == (ErrorCode.INVALID_REQUEST if version >= 7 else 0)
    codes = [data.error_code for each in response.responses for data in each.partitions]
    assert codes == ([ErrorCode.INVALID_REQUEST] if version < 13 else [])
