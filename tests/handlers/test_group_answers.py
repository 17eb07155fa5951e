"""What handlers of groups share: one response out of several outcomes."""

from typing import Any

from anabranch.broker.deferred import Deferred
from anabranch.handlers.group_answers import gather


def test_outcomes_that_are_there() -> None:
    """Nobody waits when nothing has to be waited for."""
    assert gather(["a", "b"], list) == ["a", "b"]
    assert gather([], list) == []


def test_outcomes_that_come_in_any_order() -> None:
    """The response comes with the last of them, and each is in its place."""
    late: list[Deferred[str]] = [Deferred(), Deferred()]
    got: list[Any] = []
    gather([late[0], "b", late[1]], list).deliver_to(got.append)
    late[1].complete("c")
    assert got == []
    late[0].complete("a")
    assert got == [["a", "b", "c"]]


def test_an_outcome_that_fails() -> None:
    """The response fails with it instead of being waited for in vain."""
    late: Deferred[str] = Deferred()
    errors: list[Exception] = []
    gather(["a", late], list).deliver_to(lambda value: None, errors.append)
    late.fail(RuntimeError("broken"))
    assert [str(error) for error in errors] == ["broken"]
