"""Records of individual commits as bytes: golden forms, everything read back, and damage."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.coordinator.cooperative.progress import (
    Attempt,
    Interval,
    PartitionProgress,
    new_progress,
    with_attempt,
    with_done,
)
from anabranch.coordinator.cooperative.records import (
    AckedRange,
    AcksForgotten,
    AcksPending,
    DivertedKey,
    FailedAttempt,
    ProgressDelta,
    ProgressForgotten,
    ProgressWritten,
)
from anabranch.engine.journal.errors import JournalError
from anabranch.engine.journal.individual_commit_codec import decode_progress, encode_progress
from anabranch.model.offset_ranges import OffsetRanges
from anabranch.model.units import ALL_SLOTS, SLOT_COUNT, SlotRange
from anabranch.wire import offset_set
from anabranch.wire.journal.individual_commits import (
    PROGRESS_SNAPSHOT,
    DoneSlots,
    FailedRecord,
    ProgressValue,
)
from anabranch.wire.messages.cooperation import OffsetSet

TOPIC_ID = bytes(range(16))
ID_HEX = TOPIC_ID.hex()
PLACE = {"group_id": "g", "topic_id": TOPIC_ID, "partition": 2}
LOW, HIGH = SlotRange(0, 32_768), SlotRange(32_768, SLOT_COUNT)

SNAPSHOT = ProgressWritten(
    **PLACE,
    sequence=64,
    value=PartitionProgress(
        (Interval(LOW, 41, OffsetRanges([(43, 45), (48, 49)])), Interval(HIGH, -1)),
        {42: Attempt((7 << 47) + 2, 2, 1_000, "no")},
        5,
    ),
)
DELTA = ProgressWritten(
    **PLACE,
    sequence=65,
    value=ProgressDelta(
        leader_epoch=5,
        acked=(AckedRange(ALL_SLOTS, 50), AckedRange(LOW, -1, OffsetRanges([(60, 60)]))),
        failed=(FailedAttempt(61, Attempt((8 << 47) + 3, 1, 2_000, "")),),
    ),
)
PENDING = AcksPending(
    **PLACE,
    producer_id=4_711,
    member_id="m1",
    producer_epoch=3,
    leader_epoch=5,
    acked=(
        AckedRange(LOW, 41, OffsetRanges([(43, 45), (48, 49)])),
        AckedRange(SlotRange(40_000, 40_001), -1, OffsetRanges([(50, 50)])),
    ),
)


def hexed(text: str) -> bytes:
    return bytes.fromhex("".join(text.split()))


# Golden ---------------------------------------------------------------------------------------


def test_a_snapshot() -> None:
    """Type 0: sequence, leader epoch, all slots, failures."""
    ((key, value),) = encode_progress([SNAPSHOT])
    assert key == hexed("0000 0001 67" + ID_HEX + "00000002")
    assert value == hexed(
        """0000 0000000000000040 00000005
        03 00000000 00008000 0000000000000029 01 03 2b67 00 00
           00008000 00010000 ffffffffffffffff 00 01 00 00
        02 000000000000002a 00000007 00000002 00000000000003e8 03 6e6f
           01 00 08 0003800000000002
        00"""
    )
    assert decode_progress(key, value) == SNAPSHOT


def test_a_delta() -> None:
    """Type 1: its key has the sequence modulo 64, its slots are those that were done."""
    ((key, value),) = encode_progress([DELTA])
    assert key == hexed("0001 0001 67" + ID_HEX + "00000002 00000001")
    assert value == hexed(
        """0000 0000000000000041 00000005
        03 00000000 00010000 0000000000000032 00 01 00 00
           00000000 00008000 ffffffffffffffff 00 03 3c00 00 00
        02 000000000000003d 00000008 00000001 00000000000007d0 01
           01 00 08 0004000000000003
        00"""
    )
    assert decode_progress(key, value) == DELTA


def test_acknowledgements_that_are_pending() -> None:
    """Type 2: the producer and the member are in the key, the producer's epoch in the value."""
    ((key, value),) = encode_progress([PENDING])
    assert key == hexed("0002 0001 67" + ID_HEX + "00000002 0000000000001267 0002 6d31")
    assert value == hexed(
        """0000 0003 00000005
        03 00000000 00008000 0000000000000029 01 03 2b67 00 00
           00009c40 00009c41 ffffffffffffffff 00 03 3200 00 00
        00"""
    )
    assert decode_progress(key, value) == PENDING


def test_acknowledgements_that_are_forgotten() -> None:
    """One key is deleted, and says whose they were."""
    forgotten = AcksForgotten(**PLACE, producer_id=4_711, member_id="m1")
    ((key, value),) = encode_progress([forgotten])
    assert (key, value) == (encode_progress([PENDING])[0][0], None)
    assert decode_progress(key, None) == forgotten


def test_diverted_keys_and_what_was_taken_back() -> None:
    """Tags 0 to 2: keys with offsets, records that may be tried again, keys that were released."""
    _, value = encode_progress(
        [
            ProgressWritten(
                **PLACE,
                sequence=66,
                value=ProgressDelta(
                    leader_epoch=5,
                    forgiven=(61,),
                    diverted=(DivertedKey(9, 62),),
                    released=(8,),
                ),
            )
        ]
    )[0]
    assert value == hexed(
        """0000 0000000000000042 00000005 01 01
        03 00 12 02 0000000000000009 000000000000003e 00
           01 09 02 000000000000003d
           02 09 02 0000000000000008"""
    )


def test_failures_from_before_hashes_were_written() -> None:
    """The first hash of the slot stands for the key."""
    ((key, _),) = encode_progress([SNAPSHOT])
    read = decode_progress(
        key,
        hexed(
            """0000 0000000000000040 00000005
            02 00000000 00010000 0000000000000029 00 01 00 00
            02 000000000000002a 00000007 00000002 00000000000003e8 03 6e6f 00
            00"""
        ),
    )
    assert isinstance(read, ProgressWritten)
    assert isinstance(read.value, PartitionProgress)
    assert read.value.attempts == {42: Attempt(7 << 47, 2, 1_000, "no")}


def test_a_hash_of_another_slot() -> None:
    """Is damage."""
    ((key, value),) = encode_progress([SNAPSHOT])
    assert value is not None
    other = value.replace(hexed("0003800000000002"), hexed("0004000000000002"))
    with pytest.raises(JournalError, match="not of slot 7"):
        decode_progress(key, other)


@pytest.mark.parametrize(
    ("sequence", "numbers"), [(0, 0), (1, 1), (62, 62), (63, 63), (64, 63), (200, 63)]
)
def test_what_is_forgotten(sequence: int, numbers: int) -> None:
    """The snapshot, and every delta that there may be."""
    forgotten = ProgressForgotten(**PLACE, sequence=sequence)
    entries = encode_progress([forgotten])
    assert [key[:2] for key, _ in entries] == [b"\0\0"] + [b"\0\1"] * numbers
    assert [key[-1] for key, _ in entries[1:]] == list(range(1, numbers + 1))
    assert len({key for key, _ in entries}) == len(entries)
    for key, value in entries:
        assert value is None
        assert decode_progress(key, value) == forgotten


# Everything -----------------------------------------------------------------------------------

OFFSETS = st.one_of(st.integers(0, 100), st.integers(0, 2**62))
SETS = st.lists(st.tuples(OFFSETS, st.integers(0, 9)), max_size=6).map(
    lambda pairs: OffsetRanges((first, first + length) for first, length in pairs)
)
SLOT_RANGES = (
    st.lists(st.integers(0, SLOT_COUNT), min_size=2, max_size=2, unique=True)
    .map(sorted)
    .map(lambda pair: SlotRange(*pair))
)
ACKED = st.builds(AckedRange, SLOT_RANGES, st.integers(-1, 2**62), SETS)
HASHES = st.integers(0, 2**63 - 1)
ATTEMPTS = st.builds(
    Attempt,
    HASHES,
    st.integers(0, 2**31 - 1),
    st.integers(0, 2**63 - 1),
    st.text(max_size=20),
)
FAILED = st.builds(FailedAttempt, OFFSETS, ATTEMPTS)
EPOCHS = st.integers(-1, 2**31 - 1)


@st.composite
def progresses(draw: st.DrawFn) -> PartitionProgress:
    progress = new_progress(draw(st.integers(-1, 1000)))
    for acked in draw(st.lists(ACKED, max_size=4)):
        progress = with_done(progress, acked.slots, acked.watermark, acked.done)
    for failed in draw(st.lists(FAILED, max_size=3)):
        progress = with_attempt(progress, failed.offset, failed.attempt)
    diverted = draw(st.dictionaries(HASHES, OFFSETS, max_size=3))
    return PartitionProgress(progress.intervals, progress.attempts, draw(EPOCHS), diverted)


DELTAS = st.builds(
    ProgressDelta,
    leader_epoch=EPOCHS,
    acked=st.lists(ACKED, max_size=4).map(tuple),
    failed=st.lists(FAILED, max_size=3).map(tuple),
    forgiven=st.lists(OFFSETS, max_size=3).map(tuple),
    diverted=st.lists(st.builds(DivertedKey, HASHES, OFFSETS), max_size=3).map(tuple),
    released=st.lists(HASHES, max_size=3).map(tuple),
)
RECORDS = st.builds(
    ProgressWritten,
    group_id=st.text(max_size=10),
    topic_id=st.binary(min_size=16, max_size=16),
    partition=st.integers(0, 2**31 - 1),
    sequence=st.integers(0, 2**62),
    value=st.one_of(progresses(), DELTAS),
)


@given(RECORDS)
def test_everything_is_read_back(record: ProgressWritten) -> None:
    """Whatever is written is what is read."""
    ((key, value),) = encode_progress([record])
    assert decode_progress(key, value) == record


PENDINGS = st.builds(
    AcksPending,
    group_id=st.text(max_size=10),
    topic_id=st.binary(min_size=16, max_size=16),
    partition=st.integers(0, 2**31 - 1),
    producer_id=st.integers(0, 2**63 - 1),
    member_id=st.text(max_size=10),
    producer_epoch=st.integers(0, 2**15 - 1),
    leader_epoch=EPOCHS,
    acked=st.lists(ACKED, max_size=4).map(tuple),
)


def _varint(number: int) -> bytes:
    out = b""
    while number >= 0x80:
        out += bytes([number & 0x7F | 0x80])
        number >>= 7
    return out + bytes([number])


def _independently(record: AcksPending) -> tuple[bytes, bytes]:
    """The same bytes by hand; sets of offsets come as the codec that was chosen has them."""
    group, member = record.group_id.encode(), record.member_id.encode()
    key = struct.pack(">hh", 2, len(group)) + group + record.topic_id
    key += struct.pack(">iqh", record.partition, record.producer_id, len(member)) + member
    value = struct.pack(">hhi", 0, record.producer_epoch, record.leader_epoch)
    value += _varint(len(record.acked) + 1)
    for one in record.acked:
        done = offset_set.encode(one.done)
        value += struct.pack(">iiqb", *one.slots, one.watermark, done.codec)
        value += _varint(len(done.content) + 1) + bytes(done.content) + b"\0\0"
    return key, value + b"\0"


@given(PENDINGS)
def test_pending_acknowledgements_are_read_back(record: AcksPending) -> None:
    """Whatever is written is what is read, and what somebody else would write."""
    ((key, value),) = encode_progress([record])
    assert (key, value) == _independently(record)
    assert decode_progress(key, value) == record


# Damage ---------------------------------------------------------------------------------------


def test_a_type_that_is_not_known() -> None:
    """Is left to whoever knows it."""
    ((key, value),) = encode_progress([SNAPSHOT])
    assert decode_progress(b"\0\7" + key[2:], value) is None


@given(st.data())
def test_damage_is_a_journal_error(data: st.DataObject) -> None:
    """Bytes that are changed, cut or added are another record or an error, and nothing else."""
    ((key, value),) = encode_progress([data.draw(st.sampled_from([SNAPSHOT, DELTA, PENDING]))])
    assert value is not None
    position = data.draw(st.integers(0, len(value) - 1))
    kind = data.draw(st.sampled_from(["changed", "cut", "added"]))
    if kind == "changed":
        byte = bytes([data.draw(st.integers(0, 255))])
        value = value[:position] + byte + value[position + 1 :]
    else:
        value = value[:position] if kind == "cut" else value + b"\0"
    try:
        decode_progress(key, value)
    except JournalError as error:
        assert "__individual_commit_offsets" in str(error)


def _value(*slots: tuple[int, int], slot: int = 0) -> bytes:
    return PROGRESS_SNAPSHOT.value_encoder(0)(
        ProgressValue(
            slots=[
                DoneSlots(first_slot=first, end_slot=end, done=OffsetSet()) for first, end in slots
            ],
            failed=[FailedRecord(slot=slot)],
        )
    )


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (_value((0, 10), (20, SLOT_COUNT)), "its slots go from 10 to 20"),
        (_value((0, 10), (5, SLOT_COUNT)), "its slots go from 10 to 5"),
        (_value((1, SLOT_COUNT)), "its slots go from 0 to 1"),
        (_value((0, 10)), "its slots end at 10"),
        (_value(), "its slots end at 0"),
        (_value((0, SLOT_COUNT + 1)), "no slots from 0 to 65537"),
        (_value((-1, SLOT_COUNT)), "no slots from -1 to 65536"),
        (_value((0, 0), (0, SLOT_COUNT)), "no slots from 0 to 0"),
        (_value((0, SLOT_COUNT), slot=SLOT_COUNT), "no slot 65536"),
        (_value((0, SLOT_COUNT), slot=-1), "no slot -1"),
        (b"\0", "too few"),
        (b"\0\1", "no version 1"),
    ],
)
def test_nonsense(value: bytes, why: str) -> None:
    """What cannot be progress is not taken for it."""
    ((key, _),) = encode_progress([SNAPSHOT])
    with pytest.raises(JournalError, match=why):
        decode_progress(key, value)


def test_a_set_that_cannot_be_read() -> None:
    """Refusals of sets of offsets are errors of the journal here."""
    value = PROGRESS_SNAPSHOT.value_encoder(0)(
        ProgressValue(slots=[DoneSlots(end_slot=SLOT_COUNT, done=OffsetSet(codec=9, content=b"x"))])
    )
    ((key, _),) = encode_progress([SNAPSHOT])
    with pytest.raises(JournalError, match="codec 9 is not known"):
        decode_progress(key, value)
