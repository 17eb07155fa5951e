"""How a message is declared: one class per struct, spanning all versions of its API.

A struct is a slotted dataclass whose annotations name Kafka's types and whose defaults carry the
versions a field exists in::

    @struct
    class PartitionProduceData:
        index: Int32 = at("0+")
        records: Records | None = at("0+")

The class is what handlers work with; the same class is the table from which `codegen` writes the
encode and decode functions of each version. Everything that differs between versions (presence,
nullability, tags, flexible encoding) is said here and nowhere else, so a handler never branches on
the shape of bytes.

Rules, as in Kafka's own schemas:
- a field outside its versions decodes to its default, and encoding drops it; dropping a value that
  is not the default is an error unless the field is `ignorable`;
- `T | None` is nullable in all versions of the field unless `nullable="N+"` narrows it; a tagged
  struct that Kafka leaves out when it holds defaults is `T | None` with `nullable="none"`, and
  None is "left out", so that a message on the hot path does not carry structs that say nothing;
- `tag=n` makes the field a tagged field (from `tagged` on, by default in all flexible versions);
  tags of 10000 and above are ours, below are Kafka's.
"""

import dataclasses
import inspect
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar, dataclass_transform

T = TypeVar("T")

VERSION_MAX = 32767
ZERO_UUID = bytes(16)


@dataclass(frozen=True, slots=True)
class Versions:
    """An inclusive range of versions; empty when `last < first`."""

    first: int
    last: int

    def __contains__(self, version: object) -> bool:
        return isinstance(version, int) and self.first <= version <= self.last


NO_VERSIONS = Versions(1, 0)


def parse_versions(text: str) -> Versions:
    """Read "3+", "0-12", "9" or "none"."""
    if text == "none":
        return NO_VERSIONS
    if text.endswith("+"):
        return Versions(int(text[:-1]), VERSION_MAX)
    first, _, last = text.partition("-")
    return Versions(int(first), int(last or first))


@dataclass(frozen=True, slots=True)
class Primitive:
    """A Kafka type: its name, its struct format when it has a fixed size, its default value."""

    name: str
    format: str | None
    default: Any


Bool = Annotated[bool, Primitive("bool", "?", False)]
Int8 = Annotated[int, Primitive("int8", "b", 0)]
Int16 = Annotated[int, Primitive("int16", "h", 0)]
UInt16 = Annotated[int, Primitive("uint16", "H", 0)]
Int32 = Annotated[int, Primitive("int32", "i", 0)]
UInt32 = Annotated[int, Primitive("uint32", "I", 0)]
Int64 = Annotated[int, Primitive("int64", "q", 0)]
Float64 = Annotated[float, Primitive("float64", "d", 0.0)]
Uuid = Annotated[bytes, Primitive("uuid", "16s", ZERO_UUID)]
String = Annotated[str, Primitive("string", None, "")]
Bytes = Annotated[bytes, Primitive("bytes", None, b"")]
# Record batches: decoded as a view into the receive buffer, encoded without a copy.
Records = Annotated[bytes | memoryview, Primitive("records", None, b"")]


@dataclass(frozen=True, slots=True)
class Placement:
    """What `at` says about a field, before its type is known."""

    versions: Versions
    tag: int | None
    tagged: Versions | None
    nullable: Versions | None
    ignorable: bool
    default: Any


_UNSET: Any = object()


def at(
    versions: str,
    *,
    default: Any = _UNSET,
    nullable: str | None = None,
    tag: int | None = None,
    tagged: str | None = None,
    ignorable: bool = False,
) -> Any:
    """Place a field: the versions it exists in, and how it is encoded there."""
    return Placement(
        versions=parse_versions(versions),
        tag=tag,
        tagged=parse_versions(tagged) if tagged is not None else None,
        nullable=parse_versions(nullable) if nullable is not None else None,
        ignorable=ignorable,
        default=default,
    )


@dataclass(frozen=True, slots=True)
class FieldSpec:
    """One field of a struct with its type resolved."""

    name: str
    element: "Primitive | type[Any]"
    is_array: bool
    is_nullable: bool
    placement: Placement
    default: Any

    def nullable_in(self, version: int) -> bool:
        if not self.is_nullable:
            return False
        return self.placement.nullable is None or version in self.placement.nullable

    def exists_in(self, version: int, *, flexible: bool) -> bool:
        """Whether a version carries the field; a tag has no place in a version without tags."""
        if version not in self.placement.versions:
            return False
        return flexible or self.placement.tag is None or self.placement.tagged is not None

    def tagged_in(self, version: int, *, flexible: bool) -> bool:
        if self.placement.tag is None or not flexible:
            return False
        return self.placement.tagged is None or version in self.placement.tagged


def fields_of(cls: type[Any]) -> tuple[FieldSpec, ...]:
    """The fields of a class made by `struct`, in wire order."""
    specs: tuple[FieldSpec, ...] = cls.__wire_fields__
    return specs


def _resolve(annotation: Any) -> "tuple[Primitive | type[Any], bool, bool]":
    """An annotation as (element type, is array, is nullable)."""
    is_nullable = False
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        inner = [a for a in typing.get_args(annotation) if a is not type(None)]
        if len(inner) == 1:
            annotation, is_nullable = inner[0], True
    is_array = typing.get_origin(annotation) is list
    if is_array:
        (annotation,) = typing.get_args(annotation)
    if typing.get_origin(annotation) is Annotated:
        return typing.get_args(annotation)[1], is_array, is_nullable
    if isinstance(annotation, type) and hasattr(annotation, "__wire_fields__"):
        return annotation, is_array, is_nullable
    raise TypeError(f"not a wire type: {annotation!r}")


def _default_of(
    element: "Primitive | type[Any]", is_array: bool, placement: Placement
) -> "tuple[Any, Callable[[], Any] | None]":
    """A field's default as (value, factory for a fresh one when it is mutable)."""
    if placement.default is not _UNSET:
        return placement.default, None
    if is_array:
        return [], list
    if isinstance(element, Primitive):
        return element.default, None
    return element(), element


@dataclass_transform(kw_only_default=True)
def struct(cls: type[T]) -> type[T]:
    """Make a class a wire struct: a slotted dataclass whose fields all have defaults."""
    specs: list[FieldSpec] = []
    annotations = inspect.get_annotations(cls)
    for name, annotation in annotations.items():
        placement = cls.__dict__.get(name)
        if not isinstance(placement, Placement):
            raise TypeError(f"{cls.__name__}.{name} needs `= at(versions)`")
        element, is_array, is_nullable = _resolve(annotation)
        default, factory = _default_of(element, is_array, placement)
        specs.append(FieldSpec(name, element, is_array, is_nullable, placement, default))
        if factory is not None:
            setattr(cls, name, dataclasses.field(default_factory=factory))
        else:
            setattr(cls, name, dataclasses.field(default=default))
    made = dataclass(slots=True)(cls)
    made.__wire_fields__ = tuple(specs)  # type: ignore[attr-defined]
    return made
