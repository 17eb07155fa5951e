"""The bytes that classic consumers exchange: against kio's codecs, by hand, and damaged."""

import importlib
import io
import tracemalloc
from typing import Any

import kio.serial
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.coordinator.group.consumer_protocol import (
    Assignment,
    ConsumerProtocolError,
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=6) | st.just("ä" * 80)
INT32 = st.integers(-(1 << 31), (1 << 31) - 1)
USER_DATA = st.none() | st.binary(max_size=9)
TOPICS = st.lists(st.tuples(TEXT, st.lists(INT32, max_size=4).map(tuple)), max_size=3).map(tuple)
EVERY_VERSION = pytest.mark.parametrize("version", range(4))


@st.composite
def subscriptions(draw: st.DrawFn) -> Subscription:
    """Subscriptions that say only what their version can carry."""
    version = draw(st.integers(0, 3))
    return Subscription(
        version=version,
        topics=tuple(draw(st.lists(TEXT, max_size=3))),
        user_data=draw(USER_DATA),
        owned_partitions=draw(TOPICS) if version >= 1 else (),
        generation_id=draw(INT32) if version >= 2 else -1,
        rack_id=draw(st.none() | TEXT) if version >= 3 else None,
    )


ASSIGNMENTS = st.builds(
    Assignment, version=st.integers(0, 3), partitions=TOPICS, user_data=USER_DATA
)


# kio ----------------------------------------------------------------------------------------------


def kio_module(kind: str, version: int) -> Any:
    return importlib.import_module(f"kio.schema.consumer_protocol_{kind}.v{version}.data")


def kio_topics(module: Any, topics: tuple[tuple[str, tuple[int, ...]], ...]) -> tuple[Any, ...]:
    return tuple(module.TopicPartition(topic=name, partitions=ids) for name, ids in topics)


def written_by_kio(version: int, entity: Any) -> bytes:
    buffer = io.BytesIO()
    kio.serial.entity_writer(type(entity))(buffer, entity)
    return version.to_bytes(2, "big") + buffer.getvalue()


def subscription_by_kio(subscription: Subscription) -> bytes:
    version = subscription.version
    module = kio_module("subscription", version)
    fields: dict[str, Any] = {"topics": subscription.topics, "user_data": subscription.user_data}
    if version >= 1:
        fields["owned_partitions"] = kio_topics(module, subscription.owned_partitions)
    if version >= 2:
        fields["generation_id"] = subscription.generation_id
    if version >= 3:
        fields["rack_id"] = subscription.rack_id
    return written_by_kio(version, module.ConsumerProtocolSubscription(**fields))


def assignment_by_kio(assignment: Assignment) -> bytes:
    module = kio_module("assignment", assignment.version)
    entity = module.ConsumerProtocolAssignment(
        assigned_partitions=kio_topics(module, assignment.partitions),
        user_data=assignment.user_data,
    )
    return written_by_kio(assignment.version, entity)


@settings(max_examples=200, derandomize=True, deadline=None, database=None)
@given(subscriptions())
def test_subscriptions_are_those_of_kio(subscription: Subscription) -> None:
    """A subscription of any version has kio's bytes, and kio's bytes are read as it."""
    data = subscription_by_kio(subscription)
    assert encode_subscription(subscription) == data
    assert decode_subscription(data) == subscription


@settings(max_examples=200, derandomize=True, deadline=None, database=None)
@given(ASSIGNMENTS)
def test_assignments_are_those_of_kio(assignment: Assignment) -> None:
    """An assignment of any version has kio's bytes, and kio's bytes are read as it."""
    data = assignment_by_kio(assignment)
    written = encode_assignment(assignment.version, assignment.partitions, assignment.user_data)
    assert written == data
    assert decode_assignment(data) == assignment


# By hand ------------------------------------------------------------------------------------------

FULL = Subscription(
    topics=("orders",),
    user_data=b"\xaa",
    owned_partitions=(("orders", (0, 258)),),
    generation_id=7,
    rack_id="r1",
)
TOPICS_AND_DATA = "00000001 0006 6f7264657273 00000001 aa"
OWNED = "00000001 0006 6f7264657273 00000002 00000000 00000102"
FULL_BYTES = {
    0: bytes.fromhex(f"0000 {TOPICS_AND_DATA}"),
    1: bytes.fromhex(f"0001 {TOPICS_AND_DATA} {OWNED}"),
    2: bytes.fromhex(f"0002 {TOPICS_AND_DATA} {OWNED} 00000007"),
    3: bytes.fromhex(f"0003 {TOPICS_AND_DATA} {OWNED} 00000007 0002 7231"),
}
ASSIGNED_BYTES = bytes.fromhex(f"0003 {OWNED} ffffffff")


@EVERY_VERSION
def test_versions_say_as_much_as_they_can(version: int) -> None:
    """What a version has no place for is not written, and reads as unknown."""
    subscription = Subscription(
        version=version,
        topics=FULL.topics,
        user_data=FULL.user_data,
        owned_partitions=FULL.owned_partitions if version >= 1 else (),
        generation_id=FULL.generation_id if version >= 2 else -1,
        rack_id=FULL.rack_id if version >= 3 else None,
    )
    everything = Subscription(
        version=version,
        topics=FULL.topics,
        user_data=FULL.user_data,
        owned_partitions=FULL.owned_partitions,
        generation_id=FULL.generation_id,
        rack_id=FULL.rack_id,
    )
    assert encode_subscription(everything) == FULL_BYTES[version]
    assert decode_subscription(FULL_BYTES[version]) == subscription


def test_later_versions_are_read_as_the_latest() -> None:
    """Fields are only added at the end, so a newer client is understood; what follows is not."""
    for version in (4, 32767):
        prefix = version.to_bytes(2, "big")
        assert decode_subscription(prefix + FULL_BYTES[3][2:] + b"more") == FULL
        read = decode_assignment(prefix + ASSIGNED_BYTES[2:] + b"more")
        assert read == Assignment(partitions=FULL.owned_partitions)
    assert decode_subscription(FULL_BYTES[0] + b"more").version == 0


def test_lists_will_do_for_an_assignment() -> None:
    """Partitions may come as any sequence, topics as any iterable."""
    topics = iter([("orders", [0, 258])])
    assert encode_assignment(3, topics) == ASSIGNED_BYTES


# Damage -------------------------------------------------------------------------------------------


@EVERY_VERSION
def test_cut_subscriptions_are_refused(version: int) -> None:
    """A subscription that ends early is refused, wherever it ends."""
    for size in range(len(FULL_BYTES[version])):
        with pytest.raises(ConsumerProtocolError):
            decode_subscription(FULL_BYTES[version][:size])


def test_cut_assignments_are_refused() -> None:
    """An assignment that ends early is refused, wherever it ends."""
    for size in range(len(ASSIGNED_BYTES)):
        with pytest.raises(ConsumerProtocolError):
            decode_assignment(ASSIGNED_BYTES[:size])


@pytest.mark.parametrize(
    "data",
    [
        "ffff 00000000 ffffffff",  # a version below 0
        "0000 ffffffff ffffffff",  # null topics
        "0000 00000001 ffff ffffffff",  # a topic without a name
        "0000 00000001 0001 ff ffffffff",  # a name that is not UTF-8
        "0000 00000001 fffe ffffffff",  # a length below -1
        "0000 00000000 fffffffe",  # likewise
        "0001 00000000 ffffffff ffffffff",  # null owned partitions
        "0001 00000000 ffffffff 00000001 0001 74 ffffffff",  # null partitions of a topic
        "0003 00000000 ffffffff 00000000 00000000 fffe",  # a rack of length -2
    ],
)
def test_what_is_not_a_subscription_is_refused(data: str) -> None:
    """Nulls and lengths that Kafka refuses are refused."""
    with pytest.raises(ConsumerProtocolError):
        decode_subscription(bytes.fromhex(data))


def test_huge_counts_cost_nothing() -> None:
    """An absurd count anywhere is met without allocating for it."""
    huge = bytes.fromhex("7fffffff")
    tracemalloc.start()
    try:
        for data, decode in (
            (FULL_BYTES[3], decode_subscription),
            (ASSIGNED_BYTES, decode_assignment),
        ):
            for position in range(2, len(data) - 4):
                try:
                    decode(data[:position] + huge + data[position + 4 :])
                except ConsumerProtocolError as error:
                    assert str(error)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 200_000


@settings(max_examples=300, derandomize=True, deadline=None, database=None)
@given(st.integers(-1, 4), st.binary(max_size=40))
def test_any_bytes_are_met(version: int, rest: bytes) -> None:
    """Bytes of any kind are read or refused, never anything else."""
    data = version.to_bytes(2, "big", signed=True) + rest
    for decode in (decode_subscription, decode_assignment):
        try:
            decode(data)
        except ConsumerProtocolError as error:
            assert str(error)


@pytest.mark.parametrize("version", [-1, 4])
def test_unknown_versions_are_not_written(version: int) -> None:
    """There is no telling what a version that nobody has made would look like."""
    with pytest.raises(ConsumerProtocolError, match=f"version {version}"):
        encode_assignment(version, [])
    with pytest.raises(ConsumerProtocolError, match=f"version {version}"):
        encode_subscription(Subscription(version=version))


def test_what_does_not_fit_is_not_written() -> None:
    """A name longer than its length can say and a number that is no int32 are refused."""
    with pytest.raises(ConsumerProtocolError):
        encode_assignment(3, [("t" * 32768, [0])])
    with pytest.raises(ConsumerProtocolError):
        encode_assignment(3, [("t", [1 << 31])])
    with pytest.raises(ConsumerProtocolError):
        encode_subscription(Subscription(topics=("\ud800",)))
