"""Which partition a record goes to, held against kafka-python's own partitioner."""

import random
import warnings

from hypothesis import given
from hypothesis import strategies as st

from anabranch.branch._kernels import murmur2
from anabranch.client.partitioner import StickyPartitions, partition_of_key

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # it reads its schemas the old way
    from kafka.partitioner.default import murmur2 as kafka_python_murmur2


@given(st.binary(max_size=64))
def test_hashes(key: bytes) -> None:
    """The hash of a key is the one that every Kafka client has."""
    assert murmur2(key) == kafka_python_murmur2(key)


def test_a_published_hash() -> None:
    """Kafka's own tests have these, as numbers with a sign."""
    assert murmur2(b"21") == -973932308 & 0xFFFFFFFF
    assert murmur2(b"foobar") == -790332482 & 0xFFFFFFFF
    assert murmur2(b"a-little-bit-long-string") == -985981536 & 0xFFFFFFFF


@given(st.binary(max_size=20), st.integers(1, 50))
def test_partitions_of_keys(key: bytes, partitions: int) -> None:
    """A key has one partition, also where its hash has the sign set."""
    assert partition_of_key(key, partitions) == (kafka_python_murmur2(key) & 0x7FFFFFFF) % (
        partitions
    )


def test_records_without_a_key() -> None:
    """They stay in one partition until its batch is full, and then go to another one."""
    sticky = StickyPartitions(random.Random(1).randrange)
    first = sticky.partition("t", 3)
    assert [sticky.partition("t", 3) for _ in range(5)] == [first] * 5
    seen = {first}
    for _ in range(50):
        before = sticky.partition("t", 3)
        sticky.batch_is_full("t", 3)
        after = sticky.partition("t", 3)
        assert after != before
        seen.add(after)
    assert seen == {0, 1, 2}


def test_one_partition() -> None:
    """Where there is no other one, they stay."""
    sticky = StickyPartitions(random.Random(1).randrange)
    assert sticky.partition("t", 1) == 0
    sticky.batch_is_full("t", 1)
    assert sticky.partition("t", 1) == 0
