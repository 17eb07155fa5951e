"""The rules of the schema language, on small structs: versions, nulls, tags, losses, refusals."""

from typing import Any

import pytest

from anabranch.wire.api import Api, api
from anabranch.wire.primitives import DecodeError, EncodeError, encode_uvarint, read_uvarint
from anabranch.wire.schema import (
    NO_VERSIONS,
    VERSION_MAX,
    Bool,
    Bytes,
    Float64,
    Int8,
    Int16,
    Int32,
    Int64,
    Records,
    String,
    UInt16,
    UInt32,
    Uuid,
    Versions,
    at,
    parse_versions,
    struct,
)


@struct
class Inner:
    number: Int32 = at("0+")
    word: String = at("2+", ignorable=True)


@struct
class Outer:
    name: String | None = at("0+", default="", nullable="1+")
    added: Int64 = at("1+", default=-1)
    hint: Int16 = at("1+", default=7, ignorable=True)
    dropped: Bool = at("0-1")
    inners: list[Inner] | None = at("0+", nullable="1+")
    cursor: Inner | None = at("2+", default=None)
    note: String | None = at("2+", tag=0, default=None)
    place: Inner | None = at("2+", tag=1, nullable="none", default=None)
    numbers: list[Int32] = at("2+", tag=3)
    origin: Inner | None = at("2+", tag=4)
    private: Int64 = at("2+", tag=10_000, default=-1)


@struct
class Empty:
    pass


THING = api(999, "Thing", request=Outer, response=Empty, versions="0-2", flexible="2+")


@struct
class AllTypes:
    boolean: Bool = at("0+")
    int8: Int8 = at("0+")
    int16: Int16 = at("0+")
    uint16: UInt16 = at("0+")
    int32: Int32 = at("0+")
    uint32: UInt32 = at("0+")
    int64: Int64 = at("0+")
    float64: Float64 = at("0+")
    uuid: Uuid = at("0+")
    text: String = at("0+")
    data: Bytes = at("0+")
    batch: Records = at("0+")
    booleans: list[Bool] = at("0+")
    longs: list[Int64] = at("0+")
    floats: list[Float64] = at("0+")
    uuids: list[Uuid] = at("0+")
    texts: list[String] = at("0+")
    blobs: list[Bytes] = at("0+")
    maybe_longs: list[Int64] | None = at("0+", default=None)
    maybe_uuids: list[Uuid] | None = at("0+", default=None)
    maybe_data: Bytes | None = at("0+", default=None)


TYPES = api(998, "Types", request=AllTypes, response=Empty, versions="0-1", flexible="1+")


def encode(message: Any, version: int, of: Api = THING) -> bytes:
    return b"".join(of.encode_request(version)(message))


def decode(data: bytes, version: int, of: Api = THING) -> Any:
    message, pos = of.decode_request(version)(memoryview(data), 0)
    assert pos == len(data)
    return message


@pytest.mark.parametrize(
    ("text", "versions"),
    [
        ("3+", Versions(3, VERSION_MAX)),
        ("0-12", Versions(0, 12)),
        ("9", Versions(9, 9)),
        ("none", NO_VERSIONS),
    ],
)
def test_version_ranges_are_read_as_kafka_writes_them(text: str, versions: Versions) -> None:
    """A range is "N+", "N-M", "N" or "none"."""
    assert parse_versions(text) == versions
    assert (versions.first in versions) is (versions != NO_VERSIONS)


def test_version_zero_has_old_encodings() -> None:
    """A version that is not flexible uses int16 and int32 lengths and has no tag section."""
    message = Outer(name="ab", dropped=True, inners=[Inner(number=5)])
    data = encode(message, 0)
    assert data == b"\0\2ab\1\0\0\0\1\0\0\0\5"
    assert decode(data, 0) == message


def test_flexible_version_has_compact_encodings_and_tags() -> None:
    """A flexible version uses varint lengths, and every struct ends with its tags in order."""
    message = Outer(
        name=None,
        added=1,
        inners=[Inner(number=5, word="x")],
        note="hi",
        numbers=[1],
        private=2,
    )
    data = encode(message, 2)
    assert data == (
        b"\0"  # name: null
        b"\0\0\0\0\0\0\0\1"
        b"\0\7"
        b"\2\0\0\0\5\2x\0"  # one inner struct with an empty tag section
        b"\xff"  # cursor: null
        b"\3"  # three tags
        b"\0\3\3hi"
        b"\3\5\2\0\0\0\1"
        b"\x90\x4e\x08\0\0\0\0\0\0\0\2"
    )
    assert decode(data, 2) == message


def test_nullable_struct_is_led_by_a_byte() -> None:
    """A plain nullable struct is announced by 1, and null is -1 (KIP-893)."""
    message = Outer(cursor=Inner(number=9, word="w"))
    data = encode(message, 2)
    assert b"\x01\0\0\0\x09\x02w\0" in data
    assert decode(data, 2) == message


def test_tagged_struct_that_is_none_is_left_out() -> None:
    """A tagged struct with nullable="none" is absent when None and has no null on the wire."""
    bare, full = encode(Outer(), 2), encode(Outer(place=Inner(number=1)), 2)
    assert bare.endswith(b"\0")
    assert full == bare[:-1] + b"\1\1\6\0\0\0\1\1\0"
    assert decode(full, 2).place == Inner(number=1)


def test_nullable_struct_in_a_tag_is_led_by_a_varint() -> None:
    """In a tag a nullable struct is announced by 1 too, but null is 0, unless it is the default."""
    bare = encode(Outer(), 2)
    for origin, tag in ((None, b"\4\1\0"), (Inner(number=1), b"\4\7\1\0\0\0\1\1\0")):
        data = encode(Outer(origin=origin), 2)
        assert data == bare[:-1] + b"\1" + tag
        assert decode(data, 2).origin == origin
    assert decode(bare, 2).origin == Inner()


def test_missing_fields_decode_to_their_defaults() -> None:
    """A field that a version does not have reads as its default."""
    message = decode(encode(Outer(name="x"), 0), 0)
    assert (message.added, message.hint, message.cursor, message.numbers) == (-1, 7, None, [])


def test_defaults_are_not_shared() -> None:
    """Two messages never share a mutable default."""
    first, second = Outer(), Outer()
    assert first.inners is not second.inners
    assert decode(encode(first, 0), 0).numbers is not decode(encode(second, 0), 0).numbers


def test_loss_is_refused_unless_ignorable() -> None:
    """Encoding refuses to drop a value that is not the default, except of an ignorable field."""
    encode(Outer(hint=3), 0)
    encode(Outer(inners=[Inner(word="lost")]), 0)
    with pytest.raises(EncodeError, match="version 0 cannot carry added"):
        encode(Outer(added=5), 0)
    with pytest.raises(EncodeError, match="version 2 cannot carry dropped"):
        encode(Outer(dropped=True), 2)
    with pytest.raises(EncodeError, match="version 1 cannot carry cursor"):
        encode(Outer(cursor=Inner()), 1)


def test_tags_have_no_place_in_versions_without_tags() -> None:
    """A tagged field declared for an old version too is not smuggled into its bytes."""

    @struct
    class Early:
        word: String = at("0+")
        extra: Int32 = at("0+", tag=10_001)

    early = api(997, "Early", request=Early, response=Empty, versions="0-1", flexible="1+")
    assert encode(Early(word="a"), 0, early) == b"\0\1a"
    with pytest.raises(EncodeError, match="cannot carry extra"):
        encode(Early(extra=1), 0, early)
    assert decode(encode(Early(extra=1), 1, early), 1, early) == Early(extra=1)


def test_field_can_become_tagged_in_a_later_version() -> None:
    """`tagged` moves a plain field into the tags from a version on, as Kafka allows."""

    @struct
    class Moved:
        epoch: Int32 = at("0+", tag=0, tagged="2+", default=-1)

    moved = api(996, "Moved", request=Moved, response=Empty, versions="0-2", flexible="1+")
    assert encode(Moved(epoch=1), 0, moved) == b"\0\0\0\1"
    assert encode(Moved(epoch=1), 1, moved) == b"\0\0\0\1\0"
    assert encode(Moved(epoch=1), 2, moved) == b"\1\0\4\0\0\0\1"
    for version in range(3):
        assert decode(encode(Moved(epoch=1), version, moved), version, moved) == Moved(epoch=1)


@pytest.mark.parametrize(
    ("message", "version"),
    [
        (Outer(name=None), 0),
        (Outer(inners=None), 0),
        (Outer(inners=[None]), 0),  # type: ignore[list-item]
        (Outer(inners=[Inner(word=None)]), 2),  # type: ignore[arg-type]
        (Outer(numbers=None), 2),  # type: ignore[arg-type]
        (Outer(private=None), 2),  # type: ignore[arg-type]
    ],
)
def test_none_where_null_is_not_allowed_is_refused(message: Outer, version: int) -> None:
    """None in a field that its version does not let be null is an EncodeError."""
    with pytest.raises(EncodeError):
        encode(message, version)


@pytest.mark.parametrize("data", [b"\xff\xff\1\0\0\0\0", b"\0\0\1\xff\xff\xff\xff"])
def test_null_bytes_where_null_is_not_allowed_are_refused(data: bytes) -> None:
    """A length of -1 in a field that its version does not let be null is a DecodeError."""
    with pytest.raises(DecodeError, match="impossible length -1"):
        decode(data, 0)


@pytest.mark.parametrize("data", [b"\xff\xfe", b"\x80\0", b"\x7f\xff"])
def test_impossible_string_lengths_are_refused(data: bytes) -> None:
    """A string length below -1 or past the end of the message is a DecodeError."""
    with pytest.raises(DecodeError):
        decode(data + b"\0" * 20, 1)


@pytest.mark.parametrize("length", [-2, -(1 << 31), 11, 100, (1 << 31) - 1])
def test_impossible_array_lengths_are_refused(length: int) -> None:
    """An array length below -1, or of more elements than fit in what follows, is a DecodeError."""
    head = encode(Outer(name="x"), 1)[:-4]
    with pytest.raises(DecodeError, match="inners"):
        decode(head + length.to_bytes(4, "big", signed=True) + b"\0" * 40, 1)


def test_compact_strings_keep_kafkas_limit() -> None:
    """A compact string is at most 32767 bytes long, as every Kafka client checks."""
    longest = Outer(note="x" * 32767)
    assert decode(encode(longest, 2), 2) == longest
    with pytest.raises(EncodeError, match="too long"):
        encode(Outer(note="x" * 32768), 2)
    with pytest.raises(EncodeError):
        encode(Outer(name="x" * 32768), 0)
    with pytest.raises(DecodeError, match="impossible length 32768"):
        THING.decode_request(2)(memoryview(encode_uvarint(32769) + bytes(40000)), 0)


def test_bad_text_is_refused() -> None:
    """Bytes that are not UTF-8 cannot be decoded, and text that is not Unicode not encoded."""
    with pytest.raises(DecodeError):
        decode(b"\0\2\xff\xfe\0\0\0\0\0", 0)
    with pytest.raises(EncodeError):
        encode(Outer(name="\ud800"), 0)


def test_wrong_types_are_encode_errors() -> None:
    """A value of the wrong type or size is an EncodeError that names the message."""
    for broken in (Outer(added="x"), Outer(hint=1 << 20), Outer(name=5), Outer(inners=3)):  # type: ignore[arg-type]
        with pytest.raises(EncodeError, match="Outer v1"):
            encode(broken, 1)


def test_misordered_and_unknown_tags_are_read() -> None:
    """Tags decode in any order, and those nobody knows are passed over."""
    start = encode(Outer(), 2)[:-1]
    tags = b"\3" + b"\x90\x4e\x08\0\0\0\0\0\0\0\2" + b"\x05\2zz" + b"\0\2\2a"
    assert decode(start + tags, 2) == Outer(private=2, note="a")
    for wrong in (
        b"\1\0\4\2a\0\0",
        b"\1\0\1\2a",
        b"\1\0\x7f\2a",
        b"\1\5\x7f\2a",
        b"\xff\xff\xff\xff\x0f",
    ):
        with pytest.raises(DecodeError):
            decode(start + wrong, 2)


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize("count", [0, 1, 32, 33, 300])
def test_all_types_and_array_lengths_round_trip(version: int, count: int) -> None:
    """Every wire type survives, in arrays shorter and longer than the precompiled ones."""
    message = AllTypes(
        boolean=True,
        int8=-128,
        int16=-32768,
        uint16=65535,
        int32=-(1 << 31),
        uint32=(1 << 32) - 1,
        int64=(1 << 63) - 1,
        float64=-0.5,
        uuid=b"0123456789abcdef",
        text="ø" * count,
        data=b"d" * count,
        batch=b"r" * count * 100,
        booleans=[i % 2 == 0 for i in range(count)],
        longs=list(range(count)),
        floats=[i / 2 for i in range(count)],
        uuids=[i.to_bytes(16, "big") for i in range(count)],
        texts=["t" * i for i in range(count)],
        blobs=[b"b" * i for i in range(count)],
        maybe_longs=list(range(count)),
        maybe_uuids=[i.to_bytes(16, "big") for i in range(count)],
        maybe_data=b"",
    )
    assert decode(encode(message, version, TYPES), version, TYPES) == message
    bare = AllTypes()
    assert decode(encode(bare, version, TYPES), version, TYPES) == bare


def test_records_are_views_both_ways() -> None:
    """Records come out as a view of the receive buffer and go in without a copy."""
    batch = memoryview(bytes(1000))
    parts = TYPES.encode_request(1)(AllTypes(batch=batch))
    assert any(part is batch for part in parts)
    buffer = bytearray(b"".join(parts))
    decoded, _ = TYPES.decode_request(1)(memoryview(buffer), 0)
    assert isinstance(decoded.batch, memoryview)
    assert decoded.batch.obj is buffer


def test_decoding_starts_and_stops_where_told() -> None:
    """A message in the middle of a buffer is read from its position and no further."""
    data = encode(Outer(name="mid"), 1)
    message, pos = THING.decode_request(1)(memoryview(b"before" + data + b"after"), 6)
    assert (message, pos) == (Outer(name="mid"), 6 + len(data))


def test_empty_struct_has_no_bytes() -> None:
    """A message without fields is nothing, or an empty tag section."""
    assert THING.encode_response(0)(Empty()) == []
    assert b"".join(THING.encode_response(2)(Empty())) == b"\0"
    assert THING.decode_response(0)(memoryview(b""), 0) == (Empty(), 0)


def test_versions_outside_the_range_are_refused() -> None:
    """A codec is made only for a version that the table declares, and only once."""
    with pytest.raises(ValueError, match="Thing has no version 3"):
        THING.decode_request(3)
    assert THING.decode_request(2) is THING.decode_request(2)


def test_response_header_follows_the_version() -> None:
    """A flexible response has a tagged header, except where the API asks for a plain one."""
    plain = api(
        995,
        "Plain",
        request=Outer,
        response=Empty,
        versions="0-2",
        flexible="2+",
        plain_response_header=True,
    )
    assert [THING.has_tagged_response_header(v) for v in range(3)] == [False, False, True]
    assert not plain.has_tagged_response_header(2)


def test_fields_need_placement_and_wire_types() -> None:
    """A table with a field that has no versions, or no wire type, fails at import."""
    with pytest.raises(TypeError, match="needs `= at"):

        @struct
        class NoVersions:
            number: Int32 = 5

    with pytest.raises(TypeError, match="not a wire type"):

        @struct
        class NoType:
            number: int = at("0+")


@pytest.mark.parametrize("value", [0, 127, 128, 16383, 16384, (1 << 21) - 1, 1 << 21, 0xFFFFFFFF])
def test_varints_round_trip(value: int) -> None:
    """An unsigned varint of up to 32 bits is read as it was written, in as few bytes as can be."""
    data = encode_uvarint(value)
    assert len(data) == max(1, -(-value.bit_length() // 7))
    assert read_uvarint(data, 0) == (value, len(data))


def test_overlong_varints_are_refused() -> None:
    """More than 32 bits are neither read nor written."""
    for data in (b"\xff\xff\xff\xff\x10", b"\xff\xff\xff\xff\xff\x01"):
        with pytest.raises(DecodeError):
            read_uvarint(data, 0)
    with pytest.raises(EncodeError):
        encode_uvarint(1 << 32)
