"""Every condition of consumer groups is needed: where one never holds, a story fails.

Stories say exactly what follows, so that this goes for all conditions and not only for those that
refuse. One after the other is made false in the running functions, and the stories are told again,
without what is checked at all times: they have to notice by themselves.
"""

import ast
from collections.abc import Iterator
from types import ModuleType

import pytest
import test_consumer_assignor_errors
import test_consumer_cadence
import test_consumer_fencing
import test_consumer_joining
import test_consumer_leaving
import test_consumer_moves
import test_consumer_offsets
import test_consumer_ranges
import test_consumer_reconciling
import test_consumer_regex
import test_consumer_restart
import test_consumer_sharing_assignors
import test_consumer_size
import test_consumer_static
import test_consumer_topics
import test_cooperative_engine_stories
import test_reconcile
import test_txn_acks_draining
from consumer_story import ConsumerStory
from test_group_guards import Guard, functions_of, removed, told

from anabranch.coordinator.group import (
    cadence,
    consumer_heartbeat,
    consumer_leave,
    consumer_moves,
    consumer_offsets,
    consumer_regex,
    consumer_target,
    reconcile,
)

# Where to look first; the others are told after these.
STORIES: dict[ModuleType, list[ModuleType]] = {
    consumer_heartbeat: [
        test_consumer_fencing,
        test_consumer_static,
        test_consumer_joining,
        test_consumer_size,
        test_consumer_restart,
        test_consumer_regex,
        test_consumer_ranges,
        test_cooperative_engine_stories,
        test_txn_acks_draining,
    ],
    consumer_leave: [test_consumer_leaving],
    consumer_moves: [test_consumer_moves],
    consumer_offsets: [test_consumer_offsets],
    consumer_regex: [test_consumer_regex, test_consumer_topics],
    consumer_target: [
        test_consumer_topics,
        test_consumer_leaving,
        test_consumer_assignor_errors,
        test_consumer_ranges,
        test_consumer_sharing_assignors,
    ],
    reconcile: [test_reconcile, test_consumer_reconciling, test_consumer_ranges],
    cadence: [test_consumer_cadence],
}
# Without these it comes out the same.
SHORTCUTS = {
    ("reconcile_member", "is_there and (not has_new_topics)"),
    ("_topic_causes", "not draft.member_count"),
    ("ask_to_resolve", "regexes"),
    ("check_regex", "not regex or draft.group.regex_subscribers[regex]"),
    ("metadata_hash", "not known"),
}
# Told in the stories of members that speak the other protocol.
MIGRATION = {
    ("_described", "member.classic is not None"),
    ("_stale", "member.classic is not None"),
}


def conditions() -> list[Guard]:
    return [
        Guard(module, function.name, node.lineno, condition)
        for module in STORIES
        for function in functions_of(module)
        for node in ast.walk(function)
        if isinstance(node, ast.If)
        and (function.name, condition := ast.unparse(node.test)) not in SHORTCUTS | MIGRATION
    ]


def modules(first: list[ModuleType]) -> Iterator[ModuleType]:
    yield from first
    yield from (m for some in STORIES.values() for m in some if m not in first)


def first_failure(first: list[ModuleType]) -> str | None:
    for module in modules(first):
        for story in told(module):
            try:
                story()
            except BaseException as error:  # whatever it is, the story has noticed
                if isinstance(error, KeyboardInterrupt):
                    raise
                return f"{type(error).__name__} in {module.__name__}"
    return None


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(ConsumerStory, "checks_invariants", False)


@pytest.mark.usefixtures("quick")
def test_with_all_conditions_in_place_the_stories_hold():
    """So that a failure below is the missing condition's."""
    assert first_failure([]) is None


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("guard", conditions(), ids=str)
def test_without_a_condition_a_story_fails(guard):
    """Each makes a difference that a story tells of."""
    with removed(guard):
        assert first_failure(STORIES[guard.module]) is not None


def test_the_conditions_are_found():
    """Form, fencing, static members, room, leaving, expressions, commits and fetches."""
    assert {guard.function for guard in conditions()} >= {
        "consumer_heartbeat",
        "check_form",
        "_check_join",
        "_find_member",
        "_static_member",
        "check_room",
        "check_epoch",
        "_leaving",
        "check_regex",
        "regexes_resolved",
        "bring_up_target",
        "check_commit",
        "check_fetch",
        "reconcile",
        "heartbeat_interval_ms",
    }
