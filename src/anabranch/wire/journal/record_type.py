"""What a record type of an internal topic is: its number, its key and value structs, its versions.

A coordinator keeps its state as keyed records. The key is the type's number (int16) and then the
key's struct, which has one layout for good; the value is a version (int16) and then the value's
struct in that version. A null value is a tombstone.

    key    int16 type      group id, topic, ...
    value  int16 version   offset, metadata, ...

New versions are not made any more, since an older broker cannot read them: what comes to a value
comes as a tagged field (KIP-915).
"""

import struct as packing
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from anabranch.wire.codegen_decode import make_decoder
from anabranch.wire.codegen_encode import make_encoder
from anabranch.wire.primitives import DecodeError, EncodeError
from anabranch.wire.schema import Versions, parse_versions

PREFIX_SIZE = 2
_INT16 = packing.Struct(">h")

Encode = Callable[[Any], bytes]
Decode = Callable[[bytes], Any]


@dataclass(frozen=True, slots=True, eq=False)
class RecordType:
    """One type of record; `versions` are those of the value that this code can read and write."""

    number: int
    name: str
    key: type[Any]
    value: type[Any]
    versions: Versions
    first_flexible: int
    _made: dict[tuple[str, int], Any] = field(default_factory=dict, repr=False)

    def key_encoder(self) -> Encode:
        """A function that writes a key, type included; from any object with the key's fields."""
        return self._codec("encode_key", 0)

    def key_decoder(self) -> Decode:
        """A function that reads a key, whose type the caller has read."""
        return self._codec("decode_key", 0)

    def value_encoder(self, version: int) -> Encode:
        """A function that writes a value in a version, version included; likewise."""
        return self._codec("encode_value", version)

    def value_decoder(self, version: int) -> Decode:
        """A function that reads a value of a version, which the caller has read."""
        return self._codec("decode_value", version)

    def _codec(self, kind: str, version: int) -> Callable[[Any], Any]:
        made = self._made.get((kind, version))
        if made is None:
            made = self._make(kind, version)
            self._made[kind, version] = made
        function: Callable[[Any], Any] = made
        return function

    def _make(self, kind: str, version: int) -> Callable[[Any], Any]:
        if kind == "encode_key":
            return _encoder(self.key, 0, flexible=False, prefix=self.number)
        if kind == "decode_key":
            return _decoder(self.key, 0, flexible=False)
        if version not in self.versions:
            refusal = EncodeError if kind == "encode_value" else DecodeError
            raise refusal(f"{self.name} has no version {version}")
        flexible = version >= self.first_flexible
        if kind == "encode_value":
            return _encoder(self.value, version, flexible=flexible, prefix=version)
        return _decoder(self.value, version, flexible=flexible)


def record_type(
    number: int, name: str, *, key: type[Any], value: type[Any], versions: str, flexible: str
) -> RecordType:
    """Declare a record type: `versions` as "0-4", `flexible` as "4+" or "none"."""
    return RecordType(
        number=number,
        name=name,
        key=key,
        value=value,
        versions=parse_versions(versions),
        first_flexible=parse_versions(flexible).first if flexible != "none" else 1 << 15,
    )


def read_prefix(data: bytes) -> int:
    """The type of a key, or the version of a value."""
    if len(data) < PREFIX_SIZE:
        raise DecodeError(f"{len(data)} bytes are too few for a key or a value of a record")
    number: int = _INT16.unpack_from(data)[0]
    return number


def _encoder(cls: type[Any], version: int, *, flexible: bool, prefix: int) -> Encode:
    encode_parts: Callable[[Any], list[Any]] = make_encoder(cls, version, flexible=flexible)
    prefix_bytes = _INT16.pack(prefix)

    def encode(message: Any) -> bytes:
        return prefix_bytes + b"".join(encode_parts(message))

    return encode


def _decoder(cls: type[Any], version: int, *, flexible: bool) -> Decode:
    decode_at: Callable[[Any, int], tuple[Any, int]] = make_decoder(cls, version, flexible=flexible)

    def decode(data: bytes) -> Any:
        message, end = decode_at(data, PREFIX_SIZE)
        if end != len(data):
            raise DecodeError(f"{cls.__name__} v{version} is followed by {len(data) - end} bytes")
        return message

    return decode
