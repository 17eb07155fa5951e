"""Writes the encode function of one struct in one version.

An encode function takes a message and returns a list of byte strings; record batches stay the
views they were, so that a fetched segment reaches the socket without a copy.
"""

import struct
from collections.abc import Callable
from typing import Any

from anabranch.wire.emitter import Emitter
from anabranch.wire.primitives import (
    SHORT_ARRAY,
    SMALL_UVARINTS,
    EncodeError,
    encode_string_length,
    encode_uvarint,
)
from anabranch.wire.schema import FieldSpec, Primitive, fields_of

EncodeFunction = Callable[[Any], list[bytes | memoryview]]

_NULL_STRUCT = b"\xff"
_NULL_TAGGED_STRUCT = b"\x00"


def make_encoder(cls: type[Any], version: int, *, flexible: bool) -> EncodeFunction:
    """Generate the function that writes `cls` as `version` lays it out."""
    writer = _EncodeWriter(version, flexible)
    writer.struct(cls, "m")
    writer.flush()
    writer.emitter.lines = ["    " + line for line in writer.emitter.lines]
    writer.emitter.namespace.update(
        EncodeError=EncodeError,
        UV=SMALL_UVARINTS,
        uvarint=encode_uvarint,
        string_length=encode_string_length,
        pack=struct.pack,
        Unencodable=(struct.error, TypeError, AttributeError, OverflowError, UnicodeEncodeError),
    )
    head = "def generated(m):\n    out = []\n    w = out.append\n    try:"
    tail = (
        "    except Unencodable as error:\n"
        f"        raise EncodeError(f'{cls.__name__} v{version}: {{error}}') from error\n"
        "    return out"
    )
    return writer.emitter.compile(head, tail, f"<encode {cls.__name__} v{version}>")


class _EncodeWriter:
    def __init__(self, version: int, flexible: bool) -> None:
        self.version = version
        self.flexible = flexible
        self.emitter = Emitter()
        self.write = "w"  # the append method in use; tagged fields divert it

    # Runs of fixed-size fields --------------------------------------------------------------

    def _fixed(self, format: str, expression: str) -> None:
        self.emitter.pending.append((format, expression))

    def flush(self) -> None:
        out = self.emitter
        if not out.pending:
            return
        format = "".join(f for f, _ in out.pending)
        values = ", ".join(e for f, e in out.pending if f != "x")
        out.pending.clear()
        if not values:
            out.line(f"{self.write}({bytes(len(format))!r})")
            return
        pack, _ = out.struct_of(format, "pack")
        out.line(f"{self.write}({pack}({values}))")

    def _uvarint(self, expression: str, slow: str) -> None:
        """Write an unsigned varint, as one more byte of the run before it when it is small."""
        out = self.emitter
        number = out.name("n")
        out.line(f"{number} = {expression}")
        if not any(f != "x" for f, _ in out.pending):
            self.flush()
            out.line(f"{self.write}(UV[{number}] if {number} < 16384 else {slow}({number}))")
            return
        format = "".join(f for f, _ in out.pending)
        values = ", ".join(e for f, e in out.pending if f != "x")
        out.pending.clear()
        fused, _ = out.struct_of(format + "B", "pack")
        alone, _ = out.struct_of(format, "pack")
        out.line(f"if {number} < 128: {self.write}({fused}({values}, {number}))")
        out.line(f"else: {self.write}({alone}({values}) + {slow}({number}))")

    def _length(self, value: str, nullable: bool, *, is_string: bool = False) -> None:
        """Write a length; null is -1, or 0 in the compact form."""
        if self.flexible:
            self._uvarint(
                f"len({value}) + 1 if {value} is not None else 0"
                if nullable
                else f"len({value}) + 1",
                "string_length" if is_string else "uvarint",
            )
        else:
            self._fixed(
                "h" if is_string else "i",
                f"len({value}) if {value} is not None else -1" if nullable else f"len({value})",
            )
            self.flush()

    # Structs and fields ---------------------------------------------------------------------

    def struct(self, cls: type[Any], expression: str) -> None:
        tagged: list[FieldSpec] = []
        for field in fields_of(cls):
            value = f"{expression}.{field.name}"
            if not field.exists_in(self.version, flexible=self.flexible):
                self._refuse_loss(field, value)
            elif field.tagged_in(self.version, flexible=self.flexible):
                tagged.append(field)
            else:
                self.field(field, value)
        if self.flexible:
            self._tags(sorted(tagged, key=lambda f: f.placement.tag or 0), expression)

    def _differs(self, field: FieldSpec, value: str) -> str:
        """An expression that is true when a value is not its field's default."""
        if field.default is None:
            return f"{value} is not None"
        if field.is_array:
            return f"{value} is None or len({value})"
        return f"{value} != {self.emitter.default(field)}"

    def _refuse_loss(self, field: FieldSpec, value: str) -> None:
        if field.placement.ignorable:
            return
        message = f"version {self.version} cannot carry {field.name}"
        self.emitter.line(f"if {self._differs(field, value)}: raise EncodeError({message!r})")

    def field(self, field: FieldSpec, value: str, null: bytes = _NULL_STRUCT) -> None:
        nullable = field.nullable_in(self.version)
        if field.is_array:
            self._array(field, value, nullable)
        else:
            self._element(field.element, value, nullable, null)

    def _element(
        self,
        element: "Primitive | type[Any]",
        value: str,
        nullable: bool,
        null: bytes = _NULL_STRUCT,
    ) -> None:
        out = self.emitter
        if not isinstance(element, Primitive):
            self._nullable_struct(element, value, null) if nullable else self.struct(element, value)
            return
        if element.format is not None:
            self._fixed(element.format, value)
            return
        local = out.name("b")
        out.line(f"{local} = {value}")
        if element.name == "string":
            condition = f" if {local} is not None else None" if nullable else ""
            out.line(f"{local} = {local}.encode(){condition}")
        self._length(local, nullable, is_string=element.name == "string")
        if nullable:
            out.line(f"if {local} is not None: {self.write}({local})")
        else:
            out.line(f"{self.write}({local})")

    def _array(self, field: FieldSpec, value: str, nullable: bool) -> None:
        out = self.emitter
        items = out.name("a")
        out.line(f"{items} = {value}")
        self._length(items, nullable)
        element = field.element
        if isinstance(element, Primitive) and element.format is not None:
            if element.name == "uuid":
                guard = f"if {items} is not None: " if nullable else ""
                out.line(f"{guard}{self.write}(b''.join({items}))")
            else:
                count = out.name("n")
                short = out.array_codecs(element.format, "pack")
                form = f"f'>{{{count}}}{element.format}'"
                if nullable:
                    out.line(f"{items} = {items} or ()")
                out.line(f"{count} = len({items})")
                out.line(f"if {count} > {SHORT_ARRAY}: {self.write}(pack({form}, *{items}))")
                out.line(f"elif {count}: {self.write}({short}[{count}](*{items}))")
            return
        item = out.name("i")
        source = f"({items} or ())" if nullable else items
        out.line(f"for {item} in {source}:")
        out.indent()
        self._element(element, item, nullable=False)
        self.flush()
        out.dedent()

    def _nullable_struct(self, cls: type[Any], value: str, null: bytes) -> None:
        """A nullable struct is led by a byte: -1 for null, 1 for present (KIP-893).

        In a tag Kafka leads it by a varint instead: 0 for null, 1 for present.
        """
        out = self.emitter
        local = out.name("s")
        self.flush()
        out.line(f"{local} = {value}")
        out.line(f"if {local} is None: {self.write}({null!r})")
        out.line("else:")
        out.indent()
        out.line(f"{self.write}(b'\\x01')")
        self.struct(cls, local)
        self.flush()
        out.dedent()

    def _tags(self, tagged: list[FieldSpec], expression: str) -> None:
        """Write the tag section: only values that differ from their defaults, by rising tag."""
        out = self.emitter
        if not tagged:
            self._fixed("x", "")
            return
        self.flush()
        section, outer = out.name("g"), self.write
        present = [self._differs(field, f"{expression}.{field.name}") for field in tagged]
        # Most messages have nothing to say in their tags, so that case costs only the tests.
        out.line(f"if {' or '.join(present)}:")
        out.indent()
        out.line(f"{section} = []")
        for field, differs in zip(tagged, present, strict=True):
            out.line(f"if {differs}:")
            out.indent()
            parts = out.name("p")
            out.line(f"{parts} = []")
            self.write = f"{parts}.append"
            self.field(field, f"{expression}.{field.name}", _NULL_TAGGED_STRUCT)
            self.flush()
            out.line(f"{parts} = b''.join({parts})")
            tag = encode_uvarint(field.placement.tag or 0)
            out.line(f"{section} += ({tag!r}, uvarint(len({parts})), {parts})")
            out.dedent()
        self.write = outer
        out.line(f"{self.write}(UV[len({section}) // 3] + b''.join({section}))")
        out.dedent()
        out.line(f"else: {self.write}(b'\\x00')")
