"""Settings, waiting times, key ranges and slots."""

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.branch.record_columns import read_records
from anabranch.branch.slots import SlotRule
from anabranch.client import ConfigurationError, FencingToken, KeyRange, record_for_tests
from anabranch.client.ordering import hash_of, order_of, rule_of, slot_of
from anabranch.client.records import UNORDERED
from anabranch.client.settings import ConsumerOptions, ConsumerSettings, settings_of
from anabranch.client.timing import Attempts, Backoff
from anabranch.model.units import ALL_SLOTS, SLOT_COUNT, SlotRange
from anabranch.wire.record_batch import Record, build_batch


@pytest.mark.parametrize(
    ("servers", "expected"),
    [
        ("a:1,b:2", [("a", 1), ("b", 2)]),
        (" a:1 , b ", [("a", 1), ("b", 9092)]),
        (["a:1", "b"], [("a", 1), ("b", 9092)]),
        ("[::1]:9093", [("::1", 9093)]),
    ],
)
def test_servers(servers: object, expected: list[tuple[str, int]]) -> None:
    """Brokers are named as everywhere in Kafka."""
    assert settings_of({"bootstrap_servers": servers}).servers == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_poll_records": 0}, "max_poll_records must be greater than 0"),
        ({"auto_commit_interval_ms": -1}, "auto_commit_interval_ms"),
        ({"fetch_max_wait_ms": -1}, "fetch_max_wait_ms"),
        ({"auto_offset_reset": "smallest"}, "auto_offset_reset"),
        ({"corrupt_batches": "ignore"}, "corrupt_batches"),
        ({"isolation_level": "serializable"}, "isolation_level"),
        ({"security_protocol": "SASL_SSL"}, "not SASL"),
        ({"sasl_mechanism": "PLAIN"}, "unknown settings: sasl_mechanism; SASL is not supported"),
        ({"max_pol_records": 5}, "unknown settings: max_pol_records"),
        ({"group_id": ""}, "group_id must not be empty"),
        ({"group_instance_id": "x"}, "needs a group_id"),
        ({"bootstrap_servers": " , "}, "names no broker"),
        ({"bootstrap_servers": "host:port"}, "not host:port"),
    ],
)
def test_wrong_settings(options: dict[str, object], message: str) -> None:
    """A setting that makes no sense is refused by name, before anything happens."""
    with pytest.raises(ConfigurationError, match=message):
        settings_of(options)


def test_options_are_the_settings() -> None:
    """What the constructor's type names is what there is."""
    assert set(ConsumerOptions.__annotations__) == set(ConsumerSettings.__dataclass_fields__)


def test_backoff() -> None:
    """Waits double up to a limit, move by a share, and begin again after a success."""
    backoff = Backoff(first_s=0.1, max_s=1.0)
    delays = [backoff.delay_s(failures) for failures in (0, 1, 2, 3, 4, 5, 10_000)]
    assert delays == pytest.approx([0.0, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0])
    spread = Backoff(first_s=1.0, max_s=1.0, spread=0.2)
    assert spread.delay_s(1, 0.0) == pytest.approx(0.8)
    assert spread.delay_s(1, 1.0) == pytest.approx(1.2)
    attempts = Attempts(backoff, lambda: 0.5)
    assert [attempts.failed(), attempts.failed()] == pytest.approx([0.1, 0.2])
    attempts.succeeded()
    assert attempts.failed() == pytest.approx(0.1)


# Key ranges ---------------------------------------------------------------------------------------


@given(count=st.integers(1, 2000))
def test_equal_ranges(count: int) -> None:
    """Equal ranges cover all hashes, do not overlap, and differ by at most a slot."""
    ranges = KeyRange.equal(count)
    assert ranges[0].first_hash == 0 and ranges[-1].last_hash == 2**63 - 1
    assert all(one.last_hash + 1 == after.first_hash for one, after in pairwise(ranges))
    widths = {one.slots.end - one.slots.first for one in ranges}
    assert max(widths) - min(widths) <= 1


def test_range_of_the_proposal() -> None:
    """The ranges of KIP-X's example are ours: [0, Long.MAX/2 - 1] and [Long.MAX/2, Long.MAX],
    to within the rounding of Long.MAX / 2."""
    low, high = KeyRange.equal(2)
    assert tuple(low) == (0, 2**62 - 1)
    assert tuple(high) == (2**62, 2**63 - 1)
    assert KeyRange.whole().slots == ALL_SLOTS
    assert str(KeyRange.of_slots(SlotRange(5, 9))) == "slots 5-8"
    for count in (0, SLOT_COUNT + 1):
        with pytest.raises(ValueError, match="1 to 65536"):
            KeyRange.equal(count)


def test_tokens() -> None:
    """Of two tokens for the same partition the later one is greater."""
    assert FencingToken(b"t", 3, 8) > FencingToken(b"t", 3, 7)


def test_record_for_tests() -> None:
    """A handler can be called without a broker."""
    record = record_for_tests(topic="orders", key=b"k", value=b"v", headers=[("h", b"1")], epoch=4)
    assert (record.topic, record.key, record.value, record.token.epoch) == ("orders", b"k", b"v", 4)
    assert record.header("h") == b"1" and record.attempt == 1
    assert repr(record) == "ConsumerRecord(orders-0@0, key=b'k')"


# Slots --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("null_key", ["unordered", "ordered"])
@pytest.mark.parametrize("header", [None, "customer"])
def test_slots_are_those_of_the_broker(null_key: str, header: str | None) -> None:
    """Keys, nulls, empty keys and headers have the slots that the broker's own code finds."""
    rule = rule_of({"branch.null.key": null_key, "branch.ordering.key.header": header or ""})
    assert rule == SlotRule(null_key == "ordered", header.encode() if header else None)
    chance = random.Random(1)
    headers = [
        (),
        (("customer", b"c"),),
        (("customer", None),),
        (("customer", b"1"), ("customer", b"2"), ("customer", None)),
        (("other", b"x"),),
    ]
    records = [
        Record(
            offset,
            0,
            chance.choice([None, b"", b"k", b"%d" % chance.randrange(1000)]),
            b"",
            chance.choice(headers),
        )
        for offset in range(500)
    ]
    columns = read_records(build_batch(records, base_offset=0), rule)
    for record, slot in zip(records, columns.slots, strict=True):
        order = order_of(record.key, record.headers, rule)
        assert slot_of(order, record.offset) == slot
        assert hash_of(order, record.offset) >> 47 == slot


def test_what_keeps_order() -> None:
    """Records without a key have no order, unless the topic says so."""
    assert order_of(None, ()) is UNORDERED
    assert repr(UNORDERED) == "UNORDERED"
    assert order_of(None, (), SlotRule(is_null_key_ordered=True)) is None
    assert order_of(b"k", (("h", b"v"),), SlotRule(ordering_header=b"h")) == b"v"
