"""Every guard is needed: with any one of them removed a story fails.

A guard is an `if` that refuses: what it does names an error. One after the other is made to let
everything pass, in the running functions, and the stories and the matrix are told again.
"""

import ast
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import CodeType, ModuleType
from typing import Any

import pytest
import test_group_matrix
import test_story_joining
import test_story_leaving
import test_story_offsets
import test_story_rebalance
import test_story_sessions
import test_story_size
import test_story_static
import test_story_sync
from story import Story

from anabranch.coordinator.group import (
    classic_join,
    classic_rebalance,
    classic_sync,
    offsets,
)

# The matrix takes longer than all the stories.
STORIES = [
    test_story_sync,
    test_story_offsets,
    test_story_sessions,
    test_story_static,
    test_story_joining,
    test_story_leaving,
    test_story_size,
    test_story_rebalance,
    test_group_matrix,
]


@dataclass(frozen=True)
class Guard:
    module: ModuleType
    function: str
    line: int
    condition: str

    def __str__(self) -> str:
        return f"{self.function}: {self.condition}"


def functions_of(module: ModuleType) -> list[ast.FunctionDef]:
    tree = ast.parse(inspect.getsource(module))
    return [node for node in tree.body if isinstance(node, ast.FunctionDef)]


def refuses(node: ast.If) -> bool:
    """Whether the `if` leads to an error, one by name or one that was found before.

    Which rules a kind of group has is no guard: see `test_consumer_guards` for those of the other.
    """
    if ast.unparse(node.test).startswith("isinstance("):
        return False
    for part in (part for statement in node.body for part in ast.walk(statement)):
        match part:
            case ast.Attribute(value=ast.Name(id="ErrorCode"), attr=name) if name != "NONE":
                return True
            case ast.Name(id="error" | "_turn_away"):
                return True
    return False


def guards() -> list[Guard]:
    return [
        Guard(module, function.name, node.lineno, ast.unparse(node.test))
        for module in (classic_join, classic_rebalance, classic_sync, offsets)
        for function in functions_of(module)
        for node in ast.walk(function)
        if isinstance(node, ast.If) and refuses(node)
    ]


def code_without(guard: Guard) -> CodeType:
    """The function's code in which the condition never holds."""
    tree = ast.parse(inspect.getsource(guard.module))
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and node.lineno == guard.line:
            node.test = ast.copy_location(ast.Constant(value=False), node.test)
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
            except Exception as error:  # whatever it is, the story has noticed
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
    """Each guard keeps somebody out, and a story tells of it."""
    with removed(guard):
        assert first_failure() is not None


def test_the_guards_are_found():
    """Fencing of members, generations, instances and pending ids is among them."""
    functions = {guard.function for guard in guards()}

    assert functions >= {
        "check_member",
        "check_generation",
        "_check_request",
        "_check_sync",
        "_check_commit",
        "_check_delete_offsets",
        "_check_delete_group",
        "_join_pending",
        "_join_known",
        "join_group",
        "sync_group",
        "heartbeat",
        "leave_group",
        "commit_offsets",
        "delete_offsets",
        "delete_group",
    }
