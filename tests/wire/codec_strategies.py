"""Messages made from the schema tables, for the codec tests: random, full and bare ones.

A message of version N sets only fields that exist in N, so that nothing is lost by encoding it.
Fields of our own (tags of 10000 and above) stay at their defaults unless asked for, since no oracle
knows them.
"""

import typing
from typing import Any

from hypothesis import strategies as st
from kio.schema.errors import ErrorCode as KioErrorCode

from anabranch.model.errors import ErrorCode
from anabranch.wire.api import Api
from anabranch.wire.messages.table import APIS
from anabranch.wire.schema import FieldSpec, Primitive, at, fields_of, struct

# kio reads an error code it does not know as an error of its own.
ERROR_CODES = sorted({int(code) for code in ErrorCode} & {code.value for code in KioErrorCode})
# kio holds the one as a datetime, which ends in the year 9999, the other as a timedelta, which it
# writes by way of a float.
TIMES_MS = {
    "log_append_time_ms": st.just(-1) | st.integers(0, 253_402_300_799_999),
    "transaction_start_time_ms": st.integers(0, 10**12),
    "transaction_timeout_ms": st.integers(-1, 2**31 - 1),
    "retention_time_ms": st.just(-1) | st.integers(0, 10**12),
}

FIRST_PRIVATE_TAG = 10_000
# A private tag that no table declares.
UNUSED_TAG = 10_999

CASES = [
    (api, version)
    for api in APIS.values()
    for version in range(api.versions.first, api.versions.last + 1)
]
SIDED_CASES = [(api, version, kind) for api, version in CASES for kind in ("request", "response")]


def case_id(value: object) -> str:
    return value.name if isinstance(value, Api) else str(value)


def sided(api: Api, version: int, kind: str) -> tuple[type[Any], Any, Any]:
    """The class, encoder and decoder of an API's request or response."""
    if kind == "request":
        return api.request, api.encode_request(version), api.decode_request(version)
    return api.response, api.encode_response(version), api.decode_response(version)


def _is_private(field: FieldSpec) -> bool:
    return (field.placement.tag or 0) >= FIRST_PRIVATE_TAG


def _integers(format: str) -> st.SearchStrategy[int]:
    bits = {"b": 8, "h": 16, "i": 32, "q": 64}[format]
    low, high = -(1 << bits - 1), (1 << bits - 1) - 1
    return st.sampled_from([0, -1, 1, low, high]) | st.integers(low, high)


def _primitive(field: FieldSpec, primitive: Primitive) -> st.SearchStrategy[Any]:
    if field.name.endswith("error_code"):
        return st.sampled_from(ERROR_CODES)
    if field.name in TIMES_MS:
        return TIMES_MS[field.name]
    match primitive.name:
        case "bool":
            return st.booleans()
        case "uuid":
            return st.just(bytes(16)) | st.binary(min_size=16, max_size=16)
        case "string":
            return st.text(st.characters(exclude_categories=["Cs"]), max_size=6) | st.just("ä" * 80)
        case "records" | "bytes":
            return st.binary(max_size=8) | st.just(b"\xff" * 200)
        case _:
            assert primitive.format is not None
            return _integers(primitive.format)


def messages(cls: type[Any], version: int, *, flexible: bool) -> st.SearchStrategy[Any]:
    """Random messages of one class that its version can carry."""
    values: dict[str, st.SearchStrategy[Any]] = {}
    for field in fields_of(cls):
        if not field.exists_in(version, flexible=flexible) or _is_private(field):
            continue
        element = field.element
        value = (
            _primitive(field, element)
            if isinstance(element, Primitive)
            else messages(element, version, flexible=flexible)
        )
        if field.is_array:
            value = st.lists(value, max_size=2)
        elif (
            field.default is None
            and not field.nullable_in(version)
            and not isinstance(element, Primitive)
        ):
            # A tagged struct of defaults is the same as none at all, which is how Kafka writes it.
            value = value.filter(lambda made: made != type(made)())
        if field.nullable_in(version) or field.default is None:
            value = st.none() | value
        values[field.name] = value
    return st.builds(cls, **values)


def full_message(
    cls: type[Any], version: int, *, flexible: bool, private: bool = False, seed: int = 1
) -> Any:
    """A message whose every field differs from its default, neighbours differing too."""
    values: dict[str, Any] = {}
    for field in fields_of(cls):
        if field.exists_in(version, flexible=flexible) and (private or not _is_private(field)):
            seed += 1
            count = 2 if field.is_array else 1
            made = [_full_value(field, version, flexible, private, seed + i) for i in range(count)]
            values[field.name] = made if field.is_array else made[0]
    return cls(**values)


def _full_value(field: FieldSpec, version: int, flexible: bool, private: bool, seed: int) -> Any:
    element = field.element
    if not isinstance(element, Primitive):
        return full_message(element, version, flexible=flexible, private=private, seed=seed)
    if field.name.endswith("error_code"):
        return ERROR_CODES[seed % len(ERROR_CODES)] or 1
    match element.name:
        case "bool":
            return not field.default
        case "uuid":
            return bytes([seed % 255 + 1]) * 16
        case "string":
            return f"{field.name}-{seed}"
        case "records" | "bytes":
            return f"{field.name}-{seed}".encode()
        case "int8":
            return seed % 100 + 2
        case _:
            return 1000 + seed


def bare_message(cls: type[Any], version: int, *, flexible: bool) -> Any:
    """A message of defaults, null wherever its version allows it."""
    nulls = {
        field.name: None
        for field in fields_of(cls)
        if field.exists_in(version, flexible=flexible) and field.nullable_in(version)
    }
    return cls(**nulls)


def _annotation(field: FieldSpec, element: Any) -> Any:
    kind = typing.Annotated[object, element] if isinstance(element, Primitive) else element
    kind = list[kind] if field.is_array else kind
    return kind | None if field.is_nullable else kind


def with_private_tag(cls: type[Any], tag: int = UNUSED_TAG) -> type[Any]:
    """The same struct, with one more tagged field in it and in every struct inside it."""
    annotations: dict[str, Any] = {}
    body: dict[str, Any] = {"__annotations__": annotations}
    for field in fields_of(cls):
        element = field.element
        if not isinstance(element, Primitive):
            element = with_private_tag(element, tag)
        annotations[field.name] = _annotation(field, element)
        body[field.name] = field.placement
    annotations["private_note"] = typing.Annotated[str, Primitive("string", None, "")]
    body["private_note"] = at("0+", tag=tag, ignorable=True)
    return struct(type(cls.__name__, (), body))


def with_notes(message: Any, cls: type[Any], note: str) -> Any:
    """A message as an instance of a class from `with_private_tag`, a note in every struct."""
    values: dict[str, Any] = {"private_note": note}
    for field in fields_of(type(message)):
        value = getattr(message, field.name)
        inner = next(f.element for f in fields_of(cls) if f.name == field.name)
        if value is not None and not isinstance(inner, Primitive):
            value = (
                [with_notes(item, inner, note) for item in value]
                if field.is_array
                else with_notes(value, inner, note)
            )
        values[field.name] = value
    return cls(**values)
