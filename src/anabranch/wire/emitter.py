"""Source text under construction: what the two code generators share.

The generators fuse runs of fixed-size fields into one precompiled `struct.Struct`, because one
unpack of six fields costs about as much as an unpack of one. A run is collected in `pending` and
written out by the generator when a variable-length field or a block boundary ends it.
"""

import struct
from collections.abc import Callable
from typing import Any

from anabranch.wire.primitives import short_array_codecs
from anabranch.wire.schema import FieldSpec, Primitive


class Emitter:
    """Lines of a function body, its constants, and the run of fixed-size fields not yet written."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.namespace: dict[str, Any] = {}
        self.pending: list[tuple[str, str]] = []
        self._indent = 1
        self._names = 0

    def line(self, text: str) -> None:
        self.lines.append("    " * self._indent + text)

    def indent(self) -> None:
        self._indent += 1

    def dedent(self) -> None:
        self._indent -= 1

    def name(self, prefix: str) -> str:
        self._names += 1
        return f"{prefix}{self._names}"

    def constant(self, value: Any, prefix: str = "k") -> str:
        """Bind a value as a global of the generated function and return its name."""
        for name, known in self.namespace.items():
            if known is value:
                return name
        name = self.name(prefix)
        self.namespace[name] = value
        return name

    def struct_of(self, format: str, method: str) -> tuple[str, int]:
        """A bound method of the precompiled Struct for `format`, and its size."""
        key = f"{method}_{format.replace('?', 'o')}"
        size = struct.calcsize(">" + format)
        if key not in self.namespace:
            self.namespace[key] = getattr(struct.Struct(">" + format), method)
        return key, size

    def array_codecs(self, format: str, method: str) -> str:
        """The list of bound methods that pack or unpack short arrays of `format`, by length."""
        key = f"{method}_n{format.replace('?', 'o')}"
        if key not in self.namespace:
            self.namespace[key] = short_array_codecs(format, method)
        return key

    def default(self, field: FieldSpec) -> str:
        """An expression for a field's default; mutable defaults are made afresh each time."""
        if field.default is None:
            return "None"
        if field.is_array:
            return "[]"
        if isinstance(field.element, Primitive):
            return repr(field.default)
        return self.constant(field.element, "C") + "()"

    def compile(self, head: str, tail: str, filename: str) -> Callable[..., Any]:
        """Turn the lines into the function that `head` declares."""
        # ApiVersions requests had no fields at first, so a body may be empty.
        body = self.lines or ["    " * (self._indent + 1) + "pass"]
        source = "\n".join([head, *body, tail]) + "\n"
        exec(compile(source, filename, "exec"), self.namespace)
        function: Callable[..., Any] = self.namespace["generated"]
        return function
