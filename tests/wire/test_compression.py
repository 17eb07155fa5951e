"""Codecs against aiokafka's and the standard library's, and what hostile payloads get."""

import gzip
import struct

import cramjam
import lz4.frame
import pytest
from aiokafka import codec as aiokafka_codec
from hypothesis import given
from hypothesis import strategies as st

from anabranch.model.errors import ErrorCode, KafkaError
from anabranch.wire.compression import (
    CODEC_NAMES,
    GZIP,
    LZ4,
    NONE,
    SNAPPY,
    ZSTD,
    codec_name,
    codec_number,
    compress,
    decompress,
)

CODECS = range(len(CODEC_NAMES))
REAL_CODECS = (GZIP, SNAPPY, LZ4, ZSTD)

ORACLE_ENCODE = {
    GZIP: aiokafka_codec.gzip_encode,
    SNAPPY: aiokafka_codec.snappy_encode,
    LZ4: aiokafka_codec.lz4_encode,
    ZSTD: aiokafka_codec.zstd_encode,
}
ORACLE_DECODE = {
    GZIP: gzip.decompress,
    SNAPPY: aiokafka_codec.snappy_decode,
    LZ4: lz4.frame.decompress,
    ZSTD: aiokafka_codec.zstd_decode,
}

payloads = st.one_of(
    st.binary(max_size=300),
    st.builds(
        lambda unit, times: unit * times, st.binary(min_size=1, max_size=40), st.integers(1, 4000)
    ),
)


def refused(codec: int, data: bytes, max_bytes: int = 1 << 20) -> KafkaError:
    with pytest.raises(KafkaError) as caught:
        decompress(codec, data, max_bytes=max_bytes)
    return caught.value


@pytest.mark.parametrize("codec", CODECS)
@given(data=payloads)
def test_own_round_trip(codec: int, data: bytes) -> None:
    """Every codec gives back what was compressed."""
    assert decompress(codec, compress(codec, data), max_bytes=len(data)) == data


@pytest.mark.parametrize("codec", REAL_CODECS)
@given(data=payloads.filter(bool))
def test_others_read_ours(codec: int, data: bytes) -> None:
    """An independent reader decompresses our payload."""
    assert ORACLE_DECODE[codec](compress(codec, data)) == data


@pytest.mark.parametrize("codec", REAL_CODECS)
@given(data=payloads)
def test_we_read_others(codec: int, data: bytes) -> None:
    """We decompress an independent writer's payload."""
    assert decompress(codec, bytes(ORACLE_ENCODE[codec](data)), max_bytes=len(data)) == data


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("wrap", [bytes, bytearray, memoryview])
def test_any_buffer(codec: int, wrap: type) -> None:
    """Bytes, bytearrays and memoryviews are all taken, both ways."""
    packed = compress(codec, wrap(b"anabranch" * 9))
    assert decompress(codec, wrap(packed), max_bytes=1000) == b"anabranch" * 9


def test_raw_snappy_is_read() -> None:
    """A single raw snappy block, as librdkafka sends, needs no framing."""
    packed = bytes(cramjam.snappy.compress_raw(b"raw block " * 50))
    assert decompress(SNAPPY, packed, max_bytes=1000) == b"raw block " * 50


def test_xerial_framing_is_javas() -> None:
    """Snappy is written as the magic, versions 1 and 1, then blocks of 32 KiB of plain bytes."""
    data = bytes(range(256)) * 300
    packed = compress(SNAPPY, data)
    assert packed[:16] == b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
    pos, sizes = 16, []
    while pos < len(packed):
        (size,) = struct.unpack_from(">i", packed, pos)
        sizes.append(cramjam.snappy.decompress_raw_len(packed[pos + 4 : pos + 4 + size]))
        pos += 4 + size
    assert sizes == [32768, 32768, len(data) - 65536]


def test_joined_streams_are_read() -> None:
    """Gzip members, xerial streams and zstd frames that follow one another are one payload."""
    for codec in (GZIP, SNAPPY, ZSTD):
        packed = compress(codec, b"one ") + compress(codec, b"two")
        assert decompress(codec, packed, max_bytes=7) == b"one two"
        assert refused(codec, packed, max_bytes=6).code is ErrorCode.CORRUPT_MESSAGE


def test_lz4_blocks_are_independent() -> None:
    """Java refuses linked lz4 blocks, so ours are not, and no content size is stored."""
    info = lz4.frame.get_frame_info(compress(LZ4, b"x" * 200_000))
    assert info["block_linked"] is False
    assert info["content_size"] == 0
    assert info["block_size"] == 65536


@pytest.mark.parametrize("codec", (GZIP, LZ4, ZSTD))
def test_levels(codec: int) -> None:
    """The level reaches the library: another level, other bytes, the same content."""
    data = b"".join(b"%d bottles of beer on the wall, " % n for n in range(2000))
    assert compress(codec, data, 9) != compress(codec, data, 1)
    assert decompress(codec, compress(codec, data, 9), max_bytes=len(data)) == data


@pytest.mark.parametrize("codec", CODECS)
def test_bomb_is_refused(codec: int) -> None:
    """A payload one byte over the limit is refused, at the limit it passes."""
    packed = compress(codec, bytes(3_000_000))
    assert len(decompress(codec, packed, max_bytes=3_000_000)) == 3_000_000
    error = refused(codec, packed, max_bytes=2_999_999)
    assert error.code is ErrorCode.CORRUPT_MESSAGE


def test_snappy_length_lie_is_refused() -> None:
    """A snappy block that declares far more than it can hold is refused before allocating."""
    lie = b"\x80\x80\x80\x20" + b"\x00a"  # declares 64 MiB in two bytes
    assert "declares 67108864" in refused(SNAPPY, lie, max_bytes=1 << 30).message


@pytest.mark.parametrize("codec", REAL_CODECS)
def test_truncation_is_refused(codec: int) -> None:
    """Every proper prefix of a payload is CORRUPT_MESSAGE, and so are trailing bytes."""
    packed = compress(codec, b"the quick brown fox " * 20)
    for size in range(len(packed)):
        if codec == SNAPPY and size == 16:
            continue  # the xerial header alone is an empty stream
        assert refused(codec, packed[:size]).code is ErrorCode.CORRUPT_MESSAGE, size
    assert refused(codec, packed + b"\x01\x02\x03\x04\x05").code is ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize("codec", CODECS)
@given(data=st.binary(max_size=200))
def test_garbage_gives_only_kafka_errors(codec: int, data: bytes) -> None:
    """Random bytes decompress to something within the limit or give CORRUPT_MESSAGE."""
    try:
        assert len(decompress(codec, data, max_bytes=10_000)) <= 10_000
    except KafkaError as error:
        assert error.code is ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize("codec", REAL_CODECS)
@given(
    data=payloads,
    edits=st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(0, 255)), min_size=1, max_size=4),
)
def test_mutations_give_only_kafka_errors(
    codec: int, data: bytes, edits: list[tuple[int, int]]
) -> None:
    """A payload with changed bytes decompresses within the limit or gives CORRUPT_MESSAGE."""
    packed = bytearray(compress(codec, data))
    for index, value in edits:
        if packed:
            packed[index % len(packed)] = value
    try:
        assert len(decompress(codec, packed, max_bytes=200_000)) <= 200_000
    except KafkaError as error:
        assert error.code is ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize("codec", (-1, 5, 7))
def test_unknown_codec(codec: int) -> None:
    """A codec number that Kafka does not have is UNSUPPORTED_COMPRESSION_TYPE."""
    assert refused(codec, b"").code is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    with pytest.raises(KafkaError):
        compress(codec, b"")


def test_names() -> None:
    """Codec names are those of compression.type, and an unknown one is said to be."""
    assert [codec_name(codec) for codec in (NONE, *REAL_CODECS)] == list(CODEC_NAMES)
    assert [codec_number(name) for name in CODEC_NAMES] == [0, 1, 2, 3, 4]
    assert codec_name(6) == "unknown(6)"
    with pytest.raises(ValueError, match="choose one of none, gzip"):
        codec_number("brotli")
