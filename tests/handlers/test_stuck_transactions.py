"""Which record is stuck where some are of aborted transactions."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from group_calls import GROUP
from handler_calls import NOW_MS
from individual_commit_calls import BIG, RECORDS, TOPIC, Sharer, key_range, settle
from test_stuck_records import LOOK_MS, STUCK_MS, OneNode

from anabranch.branch.slots import slot_of_key
from anabranch.log.markers import append_marker
from anabranch.wire.control_records import ABORT
from anabranch.wire.messages.cooperation import RangeFetch
from anabranch.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from anabranch.wire.record_batch import TRANSACTIONAL_FLAG, Record, build_batch
from support.fake_loop import FakeLoop

PRODUCER = {"producer_id": 7, "producer_epoch": 0}
END = 2 * RECORDS + 1 + RECORDS


@pytest.fixture
def node(tmp_path: Path, loop: FakeLoop) -> Iterator[OneNode]:
    """A log of 60 records, 60 that were aborted, the marker, and 60 more."""
    made = OneNode(tmp_path / "data", loop)
    append_transaction(made, RECORDS)
    append_marker(made.orders.partitions[0].log, ABORT, coordinator_epoch=0, now_ms=0, **PRODUCER)
    made.append_keys(RECORDS)
    yield made
    made.close()


def append_transaction(node: OneNode, count: int, sequence: int = 0) -> None:
    records = [Record(i, NOW_MS, b"key-%d" % i, b"v", ()) for i in range(count)]
    batch = build_batch(
        records,
        base_offset=0,
        attributes=TRANSACTIONAL_FLAG,
        base_sequence=sequence,
        **PRODUCER,
    )
    log = node.orders.partitions[0].log
    log.append(memoryview(bytearray(batch)), now_ms=NOW_MS, has_transactional_id=True)


def fetch(member: Sharer, isolation_level: int) -> int:
    """Read all of the member's range; how far that went."""
    asked = FetchPartition(
        partition=0,
        fetch_offset=0,
        partition_max_bytes=BIG,
        range_fetch=RangeFetch(
            group_id=GROUP,
            member_id=member.member_id,
            member_epoch=member.epoch,
            ranges=[key_range(member.slots())],
        ),
    )
    request = FetchRequest(
        max_bytes=BIG,
        isolation_level=isolation_level,
        topics=[FetchTopic(topic=TOPIC, partitions=[asked])],
    )
    ((data,),) = [topic.partitions for topic in member.node.call(request, 12).responses]
    offset: int = data.range_fetch.covered_offset
    return offset


@pytest.mark.parametrize("isolation_level", [0, 1])
def test_aborted_records_are_stuck_only_where_they_are_shown(
    node: OneNode, isolation_level: int
) -> None:
    """Members that are shown committed records alone cannot be stuck at others."""
    one, other = Sharer(node, "a"), Sharer(node, "b")
    settle(one, other)
    slots = range(*one.slots())
    numbers = [i for i in range(RECORDS) if slot_of_key(b"key-%d" % i) in slots]
    aborted = RECORDS + numbers[0]
    stuck = 2 * RECORDS + 1 + numbers[3]
    assert [fetch(member, isolation_level) for member in (one, other)] == [END, END]
    other.ack(END)
    # It says nothing of what was aborted.
    one.ack(RECORDS, (2 * RECORDS, stuck - 1), (stuck + 1, END - 1))
    node.wait(STUCK_MS + 2 * LOOK_MS)
    assert node.attempts == {stuck if isolation_level else aborted: 1}


@pytest.mark.parametrize("isolation_level", [0, 1])
def test_open_records_are_stuck_only_where_they_are_shown(
    node: OneNode, isolation_level: int
) -> None:
    """What nobody was shown, because it is not decided, is nobody's fault."""
    append_transaction(node, RECORDS, sequence=RECORDS)
    member = Sharer(node, "a")
    shown = fetch(member, isolation_level)
    assert shown == (END if isolation_level else END + RECORDS)
    member.ack(END)
    node.wait(STUCK_MS + 2 * LOOK_MS)
    assert node.attempts == ({} if isolation_level else {END: 1})
