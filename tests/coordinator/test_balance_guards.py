"""Every condition of the balance of loads is needed: where one never holds, a test fails.

As in `test_consumer_guards`, but of methods too.
"""

import ast
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FunctionType
from typing import Any

import pytest
import test_cooperative_balance
from test_cooperative_balance import TICK_MS, Clock

from anabranch.coordinator.cooperative import balance

# It takes longer than all the others together.
SLOW = {"test_zipf_with_sixteen_members"}


def conditions() -> list[tuple[int, str]]:
    tree = ast.parse(inspect.getsource(balance))
    return [
        (node.lineno, ast.unparse(node.test)) for node in ast.walk(tree) if isinstance(node, ast.If)
    ]


def codes(code: CodeType) -> Iterator[tuple[str, CodeType]]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant.co_qualname, constant
            yield from codes(constant)


def functions() -> Iterator[FunctionType]:
    for value in vars(balance).values():
        if isinstance(value, FunctionType) and value.__module__ == balance.__name__:
            yield value
        elif inspect.isclass(value) and value.__module__ == balance.__name__:
            yield from (one for one in vars(value).values() if isinstance(one, FunctionType))


@contextmanager
def never(line: int) -> Iterator[None]:
    """The code of all functions, with a condition in which nothing passes."""
    tree = ast.parse(inspect.getsource(balance))
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and node.lineno == line:
            node.test = ast.copy_location(ast.Constant(value=False), node.test)
    changed = dict(codes(compile(tree, str(balance.__file__), "exec")))
    before = {function: function.__code__ for function in functions()}
    try:
        for function, code in before.items():
            if code.co_qualname in changed and len(code.co_freevars) == len(
                changed[code.co_qualname].co_freevars
            ):
                function.__code__ = changed[code.co_qualname]
        yield
    finally:
        for function, code in before.items():
            function.__code__ = code


def cases() -> Iterator[Callable[..., None]]:
    for name, value in vars(test_cooperative_balance).items():
        if name.startswith("test_") and name not in SLOW and inspect.isfunction(value):
            yield value


def first_failure() -> str | None:
    for test in cases():
        with pytest.MonkeyPatch.context() as patch:
            given: dict[str, Any] = {
                "clock": Clock(balance.GroupBalance(balance.half_life_for(TICK_MS))),
                "monkeypatch": patch,
            }
            wanted = inspect.signature(test).parameters
            try:
                test(**{name: given[name] for name in wanted})
            except Exception as error:  # whatever it is, the test has noticed
                return f"{type(error).__name__} in {test.__name__}"
    return None


def test_with_all_conditions_in_place_the_tests_hold() -> None:
    """So that a failure below is the missing condition's."""
    assert first_failure() is None


@pytest.mark.parametrize(("line", "condition"), conditions())
def test_without_a_condition_a_test_fails(line: int, condition: str) -> None:
    """Each of them makes a difference."""
    with never(line):
        assert first_failure() is not None, condition
