"""As much of Go's templates, and of Helm's functions, as the chart uses; for want of Helm.

Strict where Helm is lenient: a value that does not exist is an error, so that a typing mistake in a
template, or in values.yaml, does not pass.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import yaml

_ACTION = re.compile(r"{{(-?)\s*(.*?)\s*(-?)}}", re.DOTALL)
_WORD = re.compile(r'"(?:[^"\\]|\\.)*"|\(|\)|\||:=|,|[^\s()|,]+')


class TemplateError(Exception):
    """A template that cannot be rendered."""


class Chart:
    """The templates of a chart, which may include each other."""

    def __init__(self, templates: Mapping[str, str]) -> None:
        self.defined: dict[str, list[Any]] = {}
        for name, text in templates.items():
            tokens = _tokens(text)
            self.defined[name] = self._parse(tokens)
            if next(tokens, None) is not None:
                raise TemplateError(f"{name}: there is an end too many")

    def render(self, name: str, context: Mapping[str, Any]) -> str:
        return self._run(self.defined[name], context, {"$": context})

    # Parsing ------------------------------------------------------------------------------------

    def _parse(self, tokens: Iterator[tuple[str, str]], until: tuple[str, ...] = ()) -> list[Any]:
        """Nodes up to one of some words, which is kept as the last node."""
        nodes: list[Any] = []
        for kind, text in tokens:
            if kind == "text":
                nodes.append(("text", text))
                continue
            word, _, rest = text.partition(" ")
            if word in until:
                return [*nodes, word]
            if word == "define":
                body = self._parse(tokens, ("end",))
                self.defined[json.loads(rest)] = body[:-1]
            elif word in ("if", "with", "range"):
                body = self._parse(tokens, ("else", "end"))
                other = self._parse(tokens, ("end",)) if body[-1] == "else" else ["end"]
                nodes.append((word, _WORD.findall(rest), body[:-1], other[:-1]))
            elif word in ("end", "else"):
                raise TemplateError(f"{word} without a beginning")
            else:
                nodes.append(("value", _WORD.findall(text)))
        if until:
            raise TemplateError(f"no {' or '.join(until)}")
        return nodes

    # Running ------------------------------------------------------------------------------------

    def _run(self, nodes: list[Any], dot: Any, names: Mapping[str, Any]) -> str:
        return "".join(self._run_one(node, dot, names) for node in nodes)

    def _run_one(self, node: Any, dot: Any, names: Mapping[str, Any]) -> str:
        if node[0] == "text":
            return str(node[1])
        words = node[1]
        if node[0] == "value":
            return _text(self._pipeline(words, dot, names))
        if node[0] == "range":
            key, _, value, _, *words = words
            found = self._pipeline(words, dot, names)
            return "".join(
                self._run(node[2], found[k], {**names, key: k, value: found[k]})
                for k in sorted(found)
            )
        found = self._pipeline(words, dot, names)
        if not found:
            return self._run(node[3], dot, names)
        return self._run(node[2], found if node[0] == "with" else dot, names)

    def _pipeline(self, words: list[str], dot: Any, names: Mapping[str, Any]) -> Any:
        value: list[Any] = []
        for command in _split(words):
            function, *operands = command
            arguments = [self._operand(one, dot, names) for one in operands] + value
            if isinstance(function, str) and function in _FUNCTIONS:
                value = [_FUNCTIONS[function](*arguments)]
            elif function == "include":
                value = [self._run(self.defined[arguments[0]], arguments[1], {"$": arguments[1]})]
            elif not arguments:
                value = [self._operand(function, dot, names)]
            else:
                raise TemplateError(f"there is no function {function}")
        return value[0]

    def _operand(self, word: Any, dot: Any, names: Mapping[str, Any]) -> Any:
        if isinstance(word, list):
            return self._pipeline(word, dot, names)
        if word.startswith('"'):
            return json.loads(word)
        if re.fullmatch(r"\d+", word):
            return int(word)
        first, *path = word.split(".")
        value = names[first] if first else dot
        if first and not first.startswith("$"):
            raise TemplateError(f"{word} means nothing")
        for part in filter(None, path):
            if part not in value:
                raise TemplateError(f"there is no {word}")
            value = value[part]
        return value


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    position, trims = 0, False
    for found in _ACTION.finditer(text):
        before = text[position : found.start()]
        before = before.lstrip() if trims else before
        yield "text", before.rstrip() if found[1] else before
        yield "action", found[2]
        position, trims = found.end(), bool(found[3])
    yield "text", text[position:].lstrip() if trims else text[position:]


def _split(words: list[str]) -> list[list[Any]]:
    """The commands of a pipeline, brackets as lists of words."""
    commands: list[list[Any]] = [[]]
    depth, inner = 0, []
    for word in words:
        if word == ")":
            depth -= 1
            if not depth:
                commands[-1].append(inner)
                continue
        if depth:
            inner.append(word)
        if word == "(":
            inner = inner if depth else []
            depth += 1
        elif not depth and word == "|":
            commands.append([])
        elif not depth:
            commands[-1].append(word)
    return commands


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _to_yaml(value: Any) -> str:
    return yaml.safe_dump(value, default_flow_style=False).rstrip().removesuffix("\n...")


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "contains": lambda part, text: part in text,
    "default": lambda other, value: value or other,
    "eq": lambda one, other: one == other,
    "nindent": lambda width, text: "\n" + re.sub("^(?=.)", " " * width, text, flags=re.MULTILINE),
    "print": lambda *parts: "".join(map(_text, parts)),
    "printf": lambda form, *values: form.replace("%v", "%s") % values,
    "quote": lambda value: json.dumps(_text(value)),
    "sha256sum": lambda text: hashlib.sha256(text.encode()).hexdigest(),
    "toYaml": _to_yaml,
    "trimSuffix": lambda suffix, text: text.removesuffix(suffix),
    "trunc": lambda size, text: text[:size],
}
