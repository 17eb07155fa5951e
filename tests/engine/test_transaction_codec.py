"""Records of `__transaction_state`: bytes made by hand, bytes that Kafka wrote, and damage."""

import dataclasses
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.coordinator.transaction.records import SinkWritten, TransactionWritten
from anabranch.coordinator.transaction.sink_state import Listed, Sink
from anabranch.coordinator.transaction.state import (
    Preparation,
    Transaction,
    TransactionState,
    TransactionVersion,
    ended_epoch,
)
from anabranch.engine.journal.errors import JournalError
from anabranch.engine.journal.transaction_codec import decode_transaction, encode_transactions
from anabranch.wire.journal.transaction_state import TRANSACTION_LOG
from anabranch.wire.primitives import EncodeError

P = 0x0102030405060708
START_MS = 0x0102030405
UPDATE_MS = 0x0102030406


def unhex(*parts: str) -> bytes:
    return bytes.fromhex("".join(parts))


def written(transaction: Transaction | None, name: str = "tä") -> TransactionWritten:
    return TransactionWritten(transactional_id=name, transaction=transaction)


def encoded(transaction: Transaction | None) -> tuple[bytes, bytes | None]:
    (entry,) = encode_transactions([written(transaction)])
    return entry


def read(value: bytes) -> Transaction:
    record = decode_transaction(KEY, value)
    assert isinstance(record, TransactionWritten)
    assert record.transactional_id == "tä"
    assert record.transaction is not None
    return record.transaction


# By hand ------------------------------------------------------------------------------------------

KEY = unhex("0000", "0003 74 c3a4")
HEAD = "0102030405060708 0009 0000ea60"  # producer id, epoch, timeout
EMPTY = Transaction(
    transactional_id="tä",
    producer_id=P,
    previous_producer_id=P,
    producer_epoch=9,
    timeout_ms=60_000,
    last_update_timestamp_ms=UPDATE_MS,
)
ONGOING = dataclasses.replace(
    EMPTY,
    state=TransactionState.ONGOING,
    partitions=frozenset({("x", 2), ("x", 0), ("ä", 7)}),
    start_timestamp_ms=START_MS,
    client_transaction_version=TransactionVersion.TV_2,
)
TIMES = "0000000102030406 0000000102030405"
PREVIOUS = "00 08 0102030405060708"  # tag 0
VERSION_2 = "02 02 0002"


def test_an_id_without_a_transaction_has_no_partitions() -> None:
    """Null in version 1, and a tag for the producer id before."""
    value = unhex("0001", HEAD, "00", "00", "0000000102030406 ffffffffffffffff", "01", PREVIOUS)
    assert encoded(EMPTY) == (KEY, value)
    assert read(value) == EMPTY


def test_a_transaction_has_its_partitions_by_topic() -> None:
    """In order, so that the same transaction is the same bytes."""
    topics = ["03", "02 78", "03 00000000 00000002", "00", "03 c3a4", "02 00000007", "00"]
    value = unhex("0001", HEAD, "01", *topics, TIMES, "02", PREVIOUS, VERSION_2)
    assert encoded(ONGOING) == (KEY, value)
    assert read(value) == ONGOING


def test_the_epoch_before_is_a_tag_of_our_own() -> None:
    """Number 10000; only where it does not follow from the rest."""
    went_on = dataclasses.replace(EMPTY, last_producer_epoch=8)
    value = unhex("0001", HEAD, "00", "00", "0000000102030406 ffffffffffffffff")
    value += unhex("02", PREVIOUS, "904e 02 0008")
    assert encoded(went_on) == (KEY, value)
    assert read(value) == went_on


@pytest.mark.parametrize(
    ("state", "before", "epoch", "last"),
    [
        (TransactionState.PREPARE_COMMIT, P, 9, 8),
        (TransactionState.COMPLETE_ABORT, P, 9, 8),
        (TransactionState.COMPLETE_COMMIT, P - 1, 0, 32766),
        (TransactionState.ONGOING, P, 9, -1),
    ],
)
def test_the_epoch_that_ended_a_transaction_follows_from_the_rest(
    state: TransactionState, before: int, epoch: int, last: int
) -> None:
    """In version 2, as Kafka has written it too."""
    ended = dataclasses.replace(
        ONGOING,
        state=state,
        partitions=frozenset(),
        previous_producer_id=before,
        producer_epoch=epoch,
        last_producer_epoch=last,
    )
    _, value = encoded(ended)
    assert value is not None
    assert unhex("904e") not in value
    assert read(value) == ended
    of_version_0 = dataclasses.replace(
        ended, client_transaction_version=TransactionVersion.TV_0, last_producer_epoch=-1
    )
    assert ended_epoch(of_version_0) == -1


PREPARATION = Preparation(sink_id="s", batch_id=7, prepared_ms=UPDATE_MS, retention_ms=1000)


def test_what_a_transaction_is_prepared_for_is_a_tag_of_our_own() -> None:
    """Number 10001, with the sink, the batch, since when and for how long."""
    waiting = dataclasses.replace(ONGOING, partitions=frozenset(), preparation=PREPARATION)
    value = unhex("0001", HEAD, "01", "01", TIMES, "03", PREVIOUS, VERSION_2)
    value += unhex("914e 1b", "02 73 0000000000000007 0000000102030406 00000000000003e8 00")
    assert encoded(waiting) == (KEY, value)
    assert read(value) == waiting


SINK_KEY = unhex("2710", "0002 c3a4")
SINK_ROW = Sink(
    sink_id="ä",
    last_batch_id=7,
    last_update_timestamp_ms=UPDATE_MS,
    pending=(Listed(transactional_id="t", producer_id=P, producer_epoch=9),),
)


def test_a_sink_is_a_type_of_our_own() -> None:
    """Number 10000: its last batch, when that was, and what is still to be committed."""
    value = unhex("0000", "0000000000000007 0000000102030406")
    value += unhex("02", "02 74 0102030405060708 0009 00", "00")
    record = SinkWritten(sink_id="ä", sink=SINK_ROW)
    assert encode_transactions([record]) == [(SINK_KEY, value)]
    assert decode_transaction(SINK_KEY, value) == record


def test_a_forgotten_sink_is_a_key_without_a_value() -> None:
    """Both ways."""
    record = SinkWritten(sink_id="ä", sink=None)
    assert encode_transactions([record]) == [(SINK_KEY, None)]
    assert decode_transaction(SINK_KEY, None) == record


@given(st.binary(max_size=60))
def test_a_damaged_sink_is_told(value: bytes) -> None:
    """Any bytes are a record or a JournalError, and nothing else."""
    try:
        decode_transaction(SINK_KEY, b"\x00\x00" + value)
    except JournalError as error:
        assert "__transaction_state" in str(error)
    with pytest.raises(JournalError):
        decode_transaction(SINK_KEY, b"\x00\x01" + value)


def test_a_forgotten_id_is_a_key_without_a_value() -> None:
    """Both ways."""
    assert encoded(None) == (KEY, None)
    assert decode_transaction(KEY, None) == written(None)


# By Apache Kafka ----------------------------------------------------------------------------------


def recorded() -> list[tuple[str, int, bytes, bytes]]:
    lines = (Path(__file__).parent / "golden" / "transaction_state.txt").read_text().splitlines()
    fields = [line.split() for line in lines if not line.startswith("#")]
    return [
        (state, int(version), bytes.fromhex(key), bytes.fromhex(value))
        for state, version, key, value in fields
    ]


def expected(state: str, version: int, value_version: int) -> Transaction:
    """What the program that wrote them put in."""
    kept = TransactionState[state]
    is_overflow = kept is TransactionState.PREPARE_COMMIT and version == 2
    transaction = dataclasses.replace(
        ONGOING,
        state=kept,
        producer_epoch=32767 if is_overflow else 9,
        previous_producer_id=-1 if value_version == 0 else P - 1 if version == 1 else P,
        next_producer_id=P + 1 if is_overflow else -1,
        partitions=frozenset() if kept.is_idle else ONGOING.partitions,
        start_timestamp_ms=-1 if kept is TransactionState.EMPTY else START_MS,
        client_transaction_version=TransactionVersion(version),
    )
    return dataclasses.replace(transaction, last_producer_epoch=ended_epoch(transaction))


@pytest.mark.parametrize(("state", "version", "key", "value"), recorded())
def test_records_of_kafka_are_read(state: str, version: int, key: bytes, value: bytes) -> None:
    """In each state and version, with all that is in them."""
    assert decode_transaction(key, value) == written(expected(state, version, value[1]))


@pytest.mark.parametrize(("state", "version", "key", "value"), recorded())
def test_ours_are_those_of_kafka(state: str, version: int, key: bytes, value: bytes) -> None:
    """The same bytes, but for the order of partitions, which is that of a hash map there."""
    if value[1] == 0:
        return  # what Kafka wrote before it knew of version 1
    ours = encoded(expected(state, version, 1))
    assert ours[0] == key
    assert ours[1] is not None
    assert sorted(ours[1]) == sorted(value)
    start = len(unhex("0001", HEAD, "00"))
    assert ours[1][:start] == value[:start]
    # From the times on there is nothing but them and the tags.
    end = value.index(unhex("0000000102030406"))
    assert ours[1][end:] == value[end:]


# Anything -----------------------------------------------------------------------------------------


def transactions() -> st.SearchStrategy[Transaction]:
    ids = st.integers(-1, 2**63 - 1)
    states = [state for state in TransactionState if state.value not in ("Dead",)]
    places = st.tuples(st.text(max_size=4), st.integers(0, 2**31 - 1))

    preparations = st.builds(
        Preparation,
        sink_id=st.text(max_size=4),
        batch_id=ids,
        prepared_ms=ids,
        retention_ms=ids,
    )

    def made(transaction: Transaction) -> Transaction:
        if transaction.state is TransactionState.EMPTY:
            transaction = dataclasses.replace(transaction, partitions=frozenset())
        if transaction.last_producer_epoch == -1:
            last = ended_epoch(transaction)
            transaction = dataclasses.replace(transaction, last_producer_epoch=last)
        return transaction

    return st.builds(
        Transaction,
        transactional_id=st.just("tä"),
        producer_id=ids,
        previous_producer_id=ids,
        next_producer_id=ids,
        producer_epoch=st.integers(0, 32767),
        last_producer_epoch=st.integers(-1, 32766),
        timeout_ms=st.integers(1, 2**31 - 1),
        state=st.sampled_from([s for s in states if s.value != "PrepareEpochFence"]),
        partitions=st.frozensets(places, max_size=5),
        start_timestamp_ms=ids,
        last_update_timestamp_ms=ids,
        client_transaction_version=st.sampled_from(TransactionVersion),
        preparation=st.none() | preparations,
    ).map(made)


@given(transactions())
def test_what_is_written_is_read(transaction: Transaction) -> None:
    """Every field comes back."""
    key, value = encoded(transaction)
    assert decode_transaction(key, value) == written(transaction)


@given(st.sampled_from([b"\x00\x00", b"\x00\x01"]), st.binary(max_size=60))
def test_damage_is_told(prefix: bytes, rest: bytes) -> None:
    """Any bytes are a record or a JournalError, and nothing else."""
    try:
        decode_transaction(KEY, prefix + rest)
    except JournalError as error:
        assert "__transaction_state" in str(error)


@pytest.mark.parametrize("end", range(2, 40))
def test_what_is_cut_off_is_told(end: int) -> None:
    """A record that is not whole is none."""
    _, value = encoded(EMPTY)
    assert value is not None
    with pytest.raises(JournalError):
        decode_transaction(KEY, value[: min(end, len(value) - 1)])


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        (b"\x00", None, "too few"),
        (KEY + b"x", None, "followed by"),
        (KEY, b"\x00\x02" + bytes(40), "no version 2"),
        (KEY, unhex("0000", HEAD, "06 ffffffff", TIMES), "state 6"),
        (KEY, unhex("0000", HEAD, "07 ffffffff", TIMES), "state 7"),
        (KEY, unhex("0000", HEAD, "63 ffffffff", TIMES), "state 99"),
        (KEY, unhex("0001", HEAD, "00 00", TIMES, "01 02 02 0009"), "9 is not a valid"),
    ],
)
def test_what_makes_no_sense_is_told(key: bytes, value: bytes | None, why: str) -> None:
    """With what is wrong about it."""
    with pytest.raises(JournalError, match=why):
        decode_transaction(key, value)


def test_a_type_that_is_not_known_is_passed_over() -> None:
    """It is of a newer Kafka."""
    assert decode_transaction(b"\x00\x01" + KEY[2:], b"whatever") is None


def test_what_a_record_cannot_carry_is_refused() -> None:
    """An id longer than a length can say, or a version nobody knows, is not written."""
    with pytest.raises(EncodeError):
        encode_transactions([written(None, "t" * 32768)])
    with pytest.raises(EncodeError, match="version 2"):
        TRANSACTION_LOG.value_encoder(2)
