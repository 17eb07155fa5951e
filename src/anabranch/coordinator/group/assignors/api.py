"""What an assignor is: a name, and a function from members, topics and targets to new targets.

An assignor sees the previous target, not what members own at the moment: it says where things
should end up, and reconciliation takes care of the way there. It returns targets only for members
whose target changes, so that its answer is as small as what moves. It must not change the index,
and the same members, topics and targets must give the same answer in whatever order they came.
"""

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from anabranch.coordinator.group.assignors.crews import MemberSpec
from anabranch.coordinator.group.assignors.index import Target, TargetIndex

__all__ = [
    "Assignor",
    "AssignorError",
    "MemberSpec",
    "Target",
    "TargetIndex",
    "Targets",
    "compute_targets",
]

Targets = Mapping[str, Target]


class AssignorError(Exception):
    """An assignor cannot be used, or gave an answer that cannot."""


@runtime_checkable
class Assignor(Protocol):
    """A way to share out partitions."""

    @property
    def name(self) -> str: ...

    def assign(self, index: TargetIndex) -> Targets:
        """The targets that change; members not named keep theirs."""
        ...


def compute_targets(
    assignor: Assignor,
    index: TargetIndex,
    members: Mapping[str, MemberSpec | None] | None = None,
    targets: Mapping[str, Target | None] | None = None,
) -> Targets:
    """The targets that change if these members join, change (a spec) or leave (None).

    `targets` are those that are written with the same decision, such as that of a static member
    that comes back under a new member id. The index is left as it was.
    """
    if not members and not targets:
        return assignor.assign(index)
    with index.trial(members or {}, targets):
        return assignor.assign(index)
