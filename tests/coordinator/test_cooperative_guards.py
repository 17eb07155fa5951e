"""Every condition of individual commits is needed: where one never holds, a story fails.

As for consumer groups (see `test_consumer_guards`): one condition after the other is made false in
the running functions, and the stories are told again, without what is checked at all times. Guards
that are no conditions of their own are in `test_cooperative_mutants`.
"""

import ast
from types import ModuleType

import pytest
import test_cooperative_acks
import test_cooperative_book
import test_cooperative_decisions
import test_cooperative_window
import test_story_txn_acks
import test_story_txn_offsets
import test_story_txn_order
from cooperative_story import Desk
from story import Story
from test_group_guards import Guard, functions_of, removed, told

from anabranch.coordinator.cooperative import (
    acks,
    book,
    decisions,
    holdings,
    individual_commit,
    pending_acks,
    plain_commit,
    retries,
    settling,
    stuck,
    txn_acks,
    txn_order,
    window,
)
from anabranch.coordinator.group import txn_end, txn_offsets, txn_waiters

MODULES: tuple[ModuleType, ...] = (
    acks,
    book,
    decisions,
    holdings,
    individual_commit,
    pending_acks,
    plain_commit,
    retries,
    settling,
    stuck,
    txn_acks,
    txn_end,
    txn_offsets,
    txn_order,
    txn_waiters,
    window,
)
# Without these it comes out the same.
SHORTCUTS = {
    ("holdings_of", "epoch is not None"),
    ("check_owner", "not group.members or not (progress or group.held_ranges)"),
}


def conditions() -> list[Guard]:
    return [
        Guard(module, function.name, node.lineno, condition)
        for module in MODULES
        for function in functions_of(module)
        for node in ast.walk(function)
        if isinstance(node, ast.If)
        and (function.name, condition := ast.unparse(node.test)) not in SHORTCUTS
    ]


def first_failure() -> str | None:
    for module in (
        test_cooperative_book,
        test_cooperative_acks,
        test_cooperative_window,
        test_cooperative_decisions,
        test_story_txn_offsets,
        test_story_txn_acks,
        test_story_txn_order,
    ):
        for story in told(module):
            try:
                story()
            except Exception as error:  # whatever it is, the story has noticed
                return f"{type(error).__name__} in {module.__name__}"
    return None


@pytest.fixture
def quick(monkeypatch):
    """Stories have to notice by themselves."""
    monkeypatch.setattr(Desk, "checks_replay", False)
    monkeypatch.setattr(Story, "checks_invariants", False)


@pytest.mark.usefixtures("quick")
def test_with_all_conditions_in_place_the_stories_hold():
    """So that a failure below is the missing condition's."""
    assert first_failure() is None


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("guard", conditions(), ids=str)
def test_without_a_condition_a_story_fails(guard):
    """Each of them is there for somebody, and a story tells of it."""
    with removed(guard):
        assert first_failure() is not None


def test_the_conditions_are_found():
    """Fences of senders, owners, limits and failures are among them."""
    functions = {guard.function for guard in conditions()}
    assert functions >= {
        "check_sender",
        "_refusal",
        "is_over",
        "stage_of",
        "count_stuck",
        "_take_failure",
        "check_owner",
        "take_plain_commit",
        "next_attempt",
        "attempt_after",
        "waiting_attempt",
        "logs_found",
        "settle",
        "commit_txn_offsets",
        "end_transaction",
        "take_txn_acks",
        "apply_acks",
        "is_growth_over",
        "lowest_that_waits",
        "with_waiters",
    }
