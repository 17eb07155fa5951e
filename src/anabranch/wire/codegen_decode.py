"""Writes the decode function of one struct in one version.

A decode function takes `(buf, pos)` and returns `(message, pos)`. It trusts nothing: a slice past
the end of the buffer is caught by the final position check, an array that cannot fit the bytes left
is refused before its loop starts, so a hostile length costs no memory.
"""

import struct
from collections.abc import Callable
from typing import Any

from anabranch.wire.emitter import Emitter
from anabranch.wire.primitives import (
    SHORT_ARRAY,
    DecodeError,
    bad_length,
    finish_string_length,
    finish_uvarint,
    read_uvarint,
    skip_tags,
    too_many_elements,
)
from anabranch.wire.schema import FieldSpec, Primitive, fields_of

DecodeFunction = Callable[[memoryview, int], tuple[Any, int]]


def make_decoder(
    cls: type[Any], version: int, *, flexible: bool, elements_max: int | None = None
) -> DecodeFunction:
    """Generate the function that reads `cls` as `version` lays it out.

    With `elements_max` it refuses messages whose arrays have more elements than that, taken
    together: a megabyte of one-byte elements would become a hundred times as much in memory.
    """
    writer = _DecodeWriter(version, flexible, counts=elements_max is not None)
    result = writer.struct(cls)
    writer.emitter.lines = ["    " + line for line in writer.emitter.lines]
    writer.emitter.namespace.update(
        DecodeError=DecodeError,
        bad_length=bad_length,
        finish=finish_uvarint,
        finish_string=finish_string_length,
        read_uvarint=read_uvarint,
        skip_tags=skip_tags,
        too_many_elements=too_many_elements,
        unpack_from=struct.unpack_from,
        Malformed=(struct.error, IndexError, UnicodeDecodeError, OverflowError),
    )
    budget = f"    left = {elements_max}\n" if elements_max is not None else ""
    head = f"def generated(buf, pos=0):\n    end = len(buf)\n{budget}    try:"
    tail = (
        "    except Malformed as error:\n"
        f"        raise DecodeError(f'{cls.__name__} v{version}: {{error}}') from None\n"
        "    if pos > end:\n"
        f"        raise DecodeError('{cls.__name__} v{version} is cut off')\n"
        f"    return {result}, pos"
    )
    return writer.emitter.compile(head, tail, f"<decode {cls.__name__} v{version}>")


class _DecodeWriter:
    def __init__(self, version: int, flexible: bool, *, counts: bool) -> None:
        self.version = version
        self.flexible = flexible
        self.counts = counts
        self.emitter = Emitter()

    # Runs of fixed-size fields --------------------------------------------------------------

    def _fixed(self, format: str) -> str:
        """Add one fixed-size field to the run and return the variable that will hold it."""
        variable = self.emitter.name("v")
        self.emitter.pending.append((format, variable))
        return variable

    def _flush(self) -> None:
        out = self.emitter
        if not out.pending:
            return
        format = "".join(f for f, _ in out.pending)
        unpack, size = out.struct_of(format, "unpack_from")
        names = ", ".join(variable for _, variable in out.pending)
        if format == "B":
            out.line(f"{names} = buf[pos]")  # half the price of an unpack
        else:
            out.line(f"{names}, = {unpack}(buf, pos)")
        out.line(f"pos += {size}")
        out.pending.clear()

    def _uvarint(self, finish: str = "finish") -> str:
        """Read an unsigned varint, its first byte fused into the run before it."""
        value = self._fixed("B")
        self._flush()
        self.emitter.line(f"if {value} > 127: {value}, pos = {finish}(buf, pos, {value})")
        return value

    def _length(self, *, is_string: bool = False) -> str:
        """Read a length; -1 means null in both encodings."""
        if not self.flexible:
            length = self._fixed("h" if is_string else "i")
            self._flush()
            return length
        length = self._uvarint("finish_string" if is_string else "finish")
        self.emitter.line(f"{length} -= 1")
        return length

    # Structs and fields ---------------------------------------------------------------------

    def struct(self, cls: type[Any]) -> str:
        """Read a struct and return the variable that holds it."""
        out = self.emitter
        values: dict[str, str] = {}
        tagged: list[FieldSpec] = []
        for field in fields_of(cls):
            if not field.exists_in(self.version, flexible=self.flexible):
                values[field.name] = out.default(field)
            elif field.tagged_in(self.version, flexible=self.flexible):
                tagged.append(field)
            else:
                values[field.name] = self.field(field)
        if self.flexible:
            self._tags(tagged, values)
        self._flush()
        result = out.name("m")
        arguments = ", ".join(values[field.name] for field in fields_of(cls))
        out.line(f"{result} = {out.constant(cls, 'C')}({arguments})")
        return result

    def field(self, field: FieldSpec, *, tagged: bool = False) -> str:
        nullable = field.nullable_in(self.version)
        if field.is_array:
            return self._array(field, nullable)
        if tagged and nullable and not isinstance(field.element, Primitive):
            return self._nullable_struct(field.element, "> 0")
        return self._element(field, field.element, nullable)

    def _element(self, field: FieldSpec, element: "Primitive | type[Any]", nullable: bool) -> str:
        if not isinstance(element, Primitive):
            return self._nullable_struct(element, ">= 0") if nullable else self.struct(element)
        if element.format is not None:
            return self._fixed(element.format)
        length = self._length(is_string=element.name == "string")
        value = self.emitter.name("v")
        self._unless_null(length, value, nullable, field)
        self._slice(element, length, value)
        self.emitter.dedent()
        return value

    def _unless_null(self, length: str, value: str, nullable: bool, field: FieldSpec) -> None:
        """Open the branch that reads `length` bytes or elements; null or refusal stand before."""
        out = self.emitter
        out.line(f"if {length} < 0:")
        refusal = f"bad_length({length}, {field.name!r})"
        if nullable:
            if not self.flexible:
                out.line(f"    if {length} != -1: {refusal}")
            out.line(f"    {value} = None")
        else:
            out.line(f"    {refusal}")
        out.line("else:")
        out.indent()

    def _slice(self, element: Primitive, length: str, value: str) -> None:
        out = self.emitter
        stop = out.name("e")
        out.line(f"{stop} = pos + {length}")
        if element.name == "string":
            out.line(f"{value} = str(buf[pos:{stop}], 'utf-8')")
        elif element.name == "bytes":
            out.line(f"{value} = bytes(buf[pos:{stop}])")
        else:
            out.line(f"{value} = buf[pos:{stop}]")
        out.line(f"pos = {stop}")

    def _array(self, field: FieldSpec, nullable: bool) -> str:
        out = self.emitter
        length = self._length()
        value = out.name("v")
        self._unless_null(length, value, nullable, field)
        element = field.element
        smallest = self._smallest(element, nullable=False)
        needed = length if smallest == 1 else f"{smallest} * {length}"
        out.line(f"if {needed} > end - pos: bad_length({length}, {field.name!r})")
        if self.counts:
            out.line(f"left -= {length}")
            out.line("if left < 0: too_many_elements()")
        if isinstance(element, Primitive) and element.format is not None:
            if element.name == "uuid":
                out.line(f"{value} = [bytes(buf[i:i+16]) for i in range(pos, pos+16*{length}, 16)]")
                out.line(f"pos += 16 * {length}")
            else:
                size = struct.calcsize(">" + element.format)
                form = f"f'>{{{length}}}{element.format}'"
                short = out.array_codecs(element.format, "unpack_from")
                out.line(
                    f"if {length} <= {SHORT_ARRAY}: {value} = list({short}[{length}](buf, pos))"
                )
                out.line(f"else: {value} = list(unpack_from({form}, buf, pos))")
                out.line(f"pos += {size} * {length}")
        else:
            out.line(f"{value} = []")
            out.line(f"for _ in range({length}):")
            out.indent()
            item = self._element(field, element, nullable=False)
            self._flush()
            out.line(f"{value}.append({item})")
            out.dedent()
        out.dedent()
        return value

    def _smallest(self, element: "Primitive | type[Any]", nullable: bool) -> int:
        """The fewest bytes an element can take: what makes an array's length believable."""
        if isinstance(element, Primitive):
            if element.format is not None:
                return struct.calcsize(">" + element.format)
            return 1 if self.flexible else 2 if element.name == "string" else 4
        if nullable:
            return 1
        size = 1 if self.flexible else 0
        for field in fields_of(element):
            if not field.exists_in(self.version, flexible=self.flexible):
                continue
            if field.tagged_in(self.version, flexible=self.flexible):
                continue
            if field.is_array:
                size += 1 if self.flexible else 4
            else:
                size += self._smallest(field.element, field.nullable_in(self.version))
        return size

    def _nullable_struct(self, cls: type[Any], is_present: str) -> str:
        """A nullable struct is led by a byte: negative for null (KIP-893), in a tag 0 for null."""
        out = self.emitter
        present = self._fixed("b")
        self._flush()
        value = out.name("v")
        out.line(f"{value} = None")
        out.line(f"if {present} {is_present}:")
        out.indent()
        out.line(f"{value} = {self.struct(cls)}")
        out.dedent()
        return value

    def _tags(self, tagged: list[FieldSpec], values: dict[str, str]) -> None:
        """Read the tag section; tags nobody here knows are passed over."""
        out = self.emitter
        if not tagged:
            count = self._uvarint()
            out.line(f"if {count}: pos = skip_tags(buf, pos, {count})")
            return
        for field in tagged:
            values[field.name] = out.name("t")
            out.line(f"{values[field.name]} = {out.default(field)}")
        count = self._uvarint()
        tag, size, stop = out.name("g"), out.name("s"), out.name("e")
        out.line(f"for _ in range({count}):")
        out.indent()
        out.line(f"{tag}, pos = read_uvarint(buf, pos)")
        out.line(f"{size}, pos = read_uvarint(buf, pos)")
        out.line(f"{stop} = pos + {size}")
        out.line(f"if {stop} > end: bad_length({size}, 'a tagged field')")
        for field in tagged:
            out.line(f"if {tag} == {field.placement.tag}:")
            out.indent()
            value = self.field(field, tagged=True)
            self._flush()
            out.line(f"{values[field.name]} = {value}")
            out.line(f"if pos != {stop}: bad_length({size}, {field.name!r})")
            out.dedent()
        out.line(f"pos = {stop}")
        out.dedent()
