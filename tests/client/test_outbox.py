"""Batches out of records that were sent, read by the parsers of other clients."""

import random
import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.client.errors import ConfigurationError
from anabranch.client.outbox import Outbox, Outgoing, encode_batch
from anabranch.client.partitioner import partition_of_key
from anabranch.client.records import TopicPartition
from anabranch.wire.compression import CODEC_NAMES

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # it reads its schemas the old way
    from kafka.record.default_records import DefaultRecordBatch


def outgoing(
    value: bytes | None = b"v",
    key: bytes | None = None,
    partition: int | None = None,
    topic: str = "t",
) -> Outgoing:
    return Outgoing(topic, value, key, partition, (), 1000)


def new_outbox(batch_size: int = 1000) -> Outbox:
    return Outbox(batch_size, random.Random(7).randrange)


RECORDS = st.lists(
    st.builds(
        Outgoing,
        st.just("t"),
        st.none() | st.binary(max_size=50),
        st.none() | st.binary(max_size=10),
        st.none(),
        st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=3).map(
            tuple
        ),
        st.integers(0, 2**41),
    ),
    min_size=1,
    max_size=20,
)


@pytest.mark.parametrize("codec", range(len(CODEC_NAMES)), ids=CODEC_NAMES.__getitem__)
@given(RECORDS)
def test_batches(codec: int, records: list[Outgoing]) -> None:
    """A batch is what kafka-python makes of it, with the producer and its sequence."""
    content = encode_batch(records, producer_id=77, producer_epoch=3, sequence=12, codec=codec)
    batch = DefaultRecordBatch(content)
    assert batch.validate_crc()
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (77, 3, 12)
    assert batch.is_transactional
    assert not batch.is_control_batch
    assert batch.compression_type == codec
    found = [(one.key, one.value, tuple(one.headers), one.timestamp) for one in batch]
    assert found == [(one.key, one.value, one.headers, one.timestamp_ms) for one in records]


def test_the_order_of_a_partition() -> None:
    """Records of a partition leave in the order they came, in batches of the size at most."""
    outbox = new_outbox(batch_size=4 * outgoing(b"00").size_bytes)
    for number in range(10):
        outbox.add(outgoing(b"%02d" % number, partition=0))
    assert outbox.size_bytes == 10 * outgoing(b"00").size_bytes
    assert outbox.topics == {"t"}
    outbox.place({"t": 1})
    assert outbox.topics == set()
    batches = []
    while outbox:
        (batch,) = outbox.take_batches().values()
        batches.append([one.value for one in batch])
    assert batches == [
        [b"00", b"01", b"02", b"03"],
        [b"04", b"05", b"06", b"07"],
        [b"08", b"09"],
    ]
    assert outbox.size_bytes == 0


def test_a_large_record() -> None:
    """A record that is larger than a batch goes alone."""
    outbox = new_outbox(batch_size=100)
    for value in (b"a", b"b" * 1000, b"c"):
        outbox.add(outgoing(value, partition=0))
    outbox.place({"t": 1})
    sizes = []
    while outbox:
        (batch,) = outbox.take_batches().values()
        sizes.append([len(one.value or b"") for one in batch])
    assert sizes == [[1], [1000], [1]]


def test_partitions() -> None:
    """Keys choose their partition, a partition that is named is taken, and none stick to one."""
    outbox = new_outbox()
    for key in (b"a", b"b", b"c", b"d"):
        outbox.add(outgoing(key=key))
    outbox.add(outgoing(b"named", key=b"a", partition=5, topic="u"))
    for _ in range(3):
        outbox.add(outgoing(b"without", topic="w"))
    outbox.place({"t": 4, "u": 6, "w": 8})
    batches = outbox.take_batches()
    for place, records in batches.items():
        if place.topic == "t":
            assert all(partition_of_key(one.key or b"", 4) == place.partition for one in records)
    assert [one.value for one in batches[TopicPartition("u", 5)]] == [b"named"]
    assert [len(records) for place, records in batches.items() if place.topic == "w"] == [3]


def test_a_partition_that_does_not_exist() -> None:
    """It is an error that names the topic."""
    outbox = new_outbox()
    outbox.add(outgoing(partition=3))
    with pytest.raises(ConfigurationError, match="t has no partition 3: it has 3"):
        outbox.place({"t": 3})


def test_another_partition_for_each_batch() -> None:
    """Records without a key go on with another partition when a batch of them is full."""
    outbox = new_outbox(batch_size=3 * outgoing().size_bytes)
    for _ in range(9):
        outbox.add(outgoing())
    outbox.place({"t": 50})
    assert sorted(len(one) for one in outbox.take_batches().values()) == [3, 3, 3]


def test_clearing() -> None:
    """What is cleared does not come."""
    outbox = new_outbox()
    outbox.add(outgoing(partition=0))
    outbox.place({"t": 1})
    outbox.add(outgoing())
    outbox.clear()
    assert not outbox
    assert (outbox.size_bytes, outbox.topics, outbox.take_batches()) == (0, set(), {})
