"""Every condition is needed: with any one of them removed a story fails.

A guard is any `if` of the modules that decide. One after the other is made to never hold, in the
running functions, and the stories and the matrix are told again; likewise what the functions that
answer with yes or no ask for: each part of an `and` is taken for granted, each of an `or` left out.
"""

import ast
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import CodeType, ModuleType
from typing import Any

import pytest
import test_transaction_describing
import test_transaction_ending
import test_transaction_markers
import test_transaction_matrix
import test_transaction_partitions
import test_transaction_preparing
import test_transaction_producers
import test_transaction_sinks
from transaction_story import Story

from anabranch.coordinator.transaction import (
    describe,
    ending,
    fencing,
    partitions,
    preparing,
    producer,
    sink_state,
    sinks,
    state,
)

MODULES = (producer, partitions, ending, fencing, describe, state, preparing, sinks, sink_state)
# What only the journal's codec asks, whose tests are with it.
ELSEWHERE = {"ended_epoch"}
STORIES = [
    test_transaction_producers,
    test_transaction_partitions,
    test_transaction_ending,
    test_transaction_markers,
    test_transaction_describing,
    test_transaction_matrix,
    test_transaction_preparing,
    test_transaction_sinks,
]


@dataclass(frozen=True)
class Guard:
    module: ModuleType
    function: str
    line: int
    column: int
    condition: str
    instead: bool

    def __str__(self) -> str:
        return f"{self.function}: {self.condition} is {self.instead}"


def functions_of(module: ModuleType) -> list[ast.FunctionDef]:
    tree = ast.parse(inspect.getsource(module))
    return [node for node in tree.body if isinstance(node, ast.FunctionDef)]


def conditions(function: ast.FunctionDef) -> Iterator[tuple[ast.expr, bool]]:
    """What may be replaced, and by what."""
    for node in ast.walk(function):
        if isinstance(node, ast.If):
            yield node.test, False
        if isinstance(node, ast.If | ast.IfExp) and not isinstance(node.test, ast.BoolOp):
            yield node.test, True
        if isinstance(node, ast.BoolOp):
            for part in node.values:
                yield part, isinstance(node.op, ast.And)


def is_about_none(condition: ast.expr) -> bool:
    """Without these the function ends in an exception, which is no wrong answer."""
    return "None" in ast.unparse(condition)


def guards() -> list[Guard]:
    return [
        Guard(module, function.name, test.lineno, test.col_offset, ast.unparse(test), instead)
        for module in MODULES
        for function in functions_of(module)
        if function.name not in ELSEWHERE
        for test, instead in conditions(function)
        if not isinstance(test, ast.Constant) and not (instead and is_about_none(test))
    ]


class Replaced(ast.NodeTransformer):
    def __init__(self, guard: Guard) -> None:
        self.guard = guard
        self.count = 0

    def visit(self, node: ast.AST) -> Any:
        node = self.generic_visit(node)
        if (
            isinstance(node, ast.expr)
            and (node.lineno, node.col_offset) == (self.guard.line, self.guard.column)
            and ast.unparse(node) == self.guard.condition
        ):
            self.count += 1
            return ast.copy_location(ast.Constant(value=self.guard.instead), node)
        return node


def code_without(guard: Guard) -> CodeType:
    """The function's code in which the condition always or never holds."""
    replaced = Replaced(guard)
    tree = replaced.visit(ast.parse(inspect.getsource(guard.module)))
    assert replaced.count == 1
    compiled = compile(tree, str(guard.module.__file__), "exec")
    for constant in compiled.co_consts:
        if isinstance(constant, CodeType) and constant.co_name == guard.function:
            return constant
    raise LookupError(guard.function)


@contextmanager
def removed(guard: Guard) -> Iterator[None]:
    """The code is replaced inside the function, so that whoever imported it runs the other."""
    function = getattr(guard.module, guard.function)
    code = function.__code__
    function.__code__ = code_without(guard)
    try:
        yield
    finally:
        function.__code__ = code


def told(module: ModuleType) -> Iterator[Callable[[], Any]]:
    """The stories of a module, each as often as it has parameters."""
    for name, function in vars(module).items():
        if not name.startswith("test_"):
            continue
        [names, rows] = ["", [()]]
        for mark in getattr(function, "pytestmark", []):
            names, rows = mark.args
        for row in rows:
            is_single = isinstance(names, str) and "," not in names
            arguments = (row,) if names and is_single else tuple(row)
            yield lambda function=function, arguments=arguments: function(*arguments)


def first_failure() -> str | None:
    for module in STORIES:
        for story in told(module):
            try:
                story()
            except (
                Exception,
                pytest.fail.Exception,
            ) as error:  # whatever it is, the story has noticed
                return f"{type(error).__name__} in {module.__name__}"
    return None


@pytest.fixture
def quick(monkeypatch):
    """Stories have to notice by themselves, without what is checked at all times."""
    monkeypatch.setattr(Story, "checks_invariants", False)


@pytest.mark.usefixtures("quick")
def test_with_all_guards_in_place_the_stories_hold():
    """So that a failure below is the missing guard's."""
    assert first_failure() is None


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("guard", guards(), ids=str)
def test_without_a_guard_a_story_fails(guard):
    """Each guard makes a difference, and a story tells of it."""
    with removed(guard):
        assert first_failure() is not None


def test_the_guards_are_found():
    """Fencing, what is asked again, used-up epochs and markers are among them."""
    functions = {guard.function for guard in guards()}

    assert functions >= {
        "_check_request",
        "_check_producer",
        "has_epoch_before",
        "_initialize",
        "_abort_first",
        "_check_add",
        "_check_verify",
        "_add",
        "check_producer",
        "fenced_code",
        "_end_in_same_epoch",
        "_end_in_next_epoch",
        "_decided",
        "_write_down",
        "_check_prepare",
        "_is_meant",
        "commit_batch",
        "_check_listed",
        "_is_prepared_for",
        "listed_ended",
        "time_is_up",
        "_check_abort",
        "markers_written",
        "try_markers_again",
        "completed",
        "decided",
        "with_partitions",
    }
