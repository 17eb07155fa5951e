"""What an assignment costs, counted in calls and not in time, and that it is the same anywhere."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from assignor_kit import Group, member, topic

from anabranch.coordinator.group.assignors.api import compute_targets
from anabranch.coordinator.group.assignors.range import RangeAssignor
from anabranch.coordinator.group.assignors.uniform import UniformAssignor


def calls(action: Callable[[], object]) -> int:
    """How many functions are called, in Python or C."""
    count = 0

    def count_one(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(count_one)
    try:
        action()
    finally:
        sys.setprofile(None)
    return count


def grown(members: int, racks: tuple[str, ...] = ("",)) -> Group:
    """A settled group with ten partitions for each member."""
    image = topic("t", members * 10, [racks[n % len(racks)] for n in range(members * 10)])
    group = Group(UniformAssignor(), image)
    for number in range(members):
        rack = racks[number % len(racks)] or None
        group.index.set_member(member(f"m{number:05}", rack=rack))
    group.assign()
    return group


@pytest.mark.parametrize("racks", [("",), ("x", "y", "z")], ids=["without racks", "with racks"])
def test_join_and_leave_cost_what_they_move(racks: tuple[str, ...]) -> None:
    """In a group twenty times as large a join or leave costs the same, replay included."""
    costs = []
    for members in (100, 2_000):
        group = grown(members, racks)

        def join(group: Group = group) -> None:
            spec = member("new", rack=racks[0] or None)
            changed = dict(compute_targets(group.assignor, group.index, {"new": spec}))
            group.index.set_member(spec)
            for member_id, target in changed.items():
                group.index.set_target(member_id, target)

        def leave(group: Group = group) -> None:
            changed = dict(compute_targets(group.assignor, group.index, {"m00007": None}))
            group.index.remove_member("m00007")
            for member_id, target in changed.items():
                group.index.set_target(member_id, target)

        costs.append((calls(join), calls(leave)))
    small, large = costs
    assert large[0] < 1.25 * small[0]
    assert large[1] < 1.25 * small[1]


@pytest.mark.parametrize("assignor", [UniformAssignor(), RangeAssignor()], ids=lambda a: a.name)
def test_first_assignment_is_made_in_bulk(assignor: UniformAssignor) -> None:
    """A hundred times the partitions cost no more calls: none is looked at by itself."""
    costs = []
    for partitions in (2_000, 200_000):
        group = Group(assignor, topic("t", partitions))
        for number in range(200):
            group.index.set_member(member(f"m{number:05}"))
        costs.append(calls(lambda group=group: compute_targets(group.assignor, group.index)))
    assert costs[1] < 1.1 * costs[0] + 50


PROGRAM = """
import hashlib, sys
sys.path[:0] = [{kit!r}]
from assignor_kit import Group, member, topic
from anabranch.coordinator.group.assignors.range import RangeAssignor
from anabranch.coordinator.group.assignors.uniform import UniformAssignor
for assignor in (UniformAssignor(), RangeAssignor()):
    group = Group(assignor)
    racks = ["x,y", "y,z", "z", "x"] * 5
    group.set_topics(*(topic(name, 20, racks) for name in "tuvw"))
    for n in range(25):
        spec = member(f"m{{n}}", ["t u v w", "t u", "v"][n % 3], rack="xyz"[n * 7 % 3])
        group.join(spec)
    for n in range(0, 25, 4):
        group.leave(f"m{{n}}")
    state = sorted((key, sorted(target)) for key, target in group.targets.items())
    print(hashlib.sha256(repr(state).encode()).hexdigest())
"""


def test_answers_do_not_depend_on_the_hash_seed() -> None:
    """Two processes that differ in the order of their sets come to the same targets."""
    outputs = []
    for seed in ("1", "2"):
        outputs.append(
            subprocess.run(
                [sys.executable, "-c", PROGRAM.format(kit=str(Path(__file__).parent))],
                env={**os.environ, "PYTHONHASHSEED": seed},
                capture_output=True,
                text=True,
                check=True,
                timeout=60,
            ).stdout
        )
    assert outputs[0] == outputs[1]
    assert len(outputs[0].splitlines()) == 2
