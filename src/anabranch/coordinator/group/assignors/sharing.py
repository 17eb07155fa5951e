"""Assignors that share partitions by key range, where members and topics let them.

They have two sides. `share` gives out key ranges; it is asked while somebody shares. `assign` is
what every assignor has: it gives out whole partitions, and is asked while nobody does. So a group
may vote for one of these whoever is in it.

    line-cut               as even as the measured load allows, sticky; else as `uniform`
    key-range-round-robin  KIP-X's: partition k goes to the members k, k + P, k + 2 P, ...
    key-range-range        KIP-X's: each partition goes to members in a row
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol, runtime_checkable

from anabranch.coordinator.cooperative import line_cut as line
from anabranch.coordinator.cooperative import reverse_assign as reverse
from anabranch.coordinator.cooperative.cuts import Partition, RangeMember, RangeTopic
from anabranch.coordinator.cooperative.load import SlotWeights
from anabranch.coordinator.group.assignors.api import Assignor, Targets
from anabranch.coordinator.group.assignors.index import NO_TARGET, TargetIndex
from anabranch.coordinator.group.assignors.uniform import UniformAssignor
from anabranch.model.units import Unit


@runtime_checkable
class SharingAssignor(Assignor, Protocol):
    """An assignor that can also give out parts of partitions."""

    @property
    def is_by_load(self) -> bool:
        """Whether it goes by weights, so that moving ranges by load is in its spirit."""
        ...

    def share(
        self,
        members: Sequence[RangeMember],
        topics: Sequence[RangeTopic],
        held: Mapping[str, Collection[Unit]],
        weights: Mapping[Partition, SlotWeights],
    ) -> Targets:
        """The targets of all members; `held` is what they were to have until now."""
        ...


class LineCutAssignor:
    """Even by load and sticky."""

    name = line.NAME
    is_by_load = True

    def __init__(self) -> None:
        self._whole = UniformAssignor()

    def assign(self, index: TargetIndex) -> Targets:
        """Whole partitions, as `uniform` gives them out."""
        return self._whole.assign(index)

    def share(
        self,
        members: Sequence[RangeMember],
        topics: Sequence[RangeTopic],
        held: Mapping[str, Collection[Unit]],
        weights: Mapping[Partition, SlotWeights],
    ) -> Targets:
        return line.line_cut(members, topics, held, weights).targets


class ReverseAssignor:
    """One of KIP-X's two: it looks at members and topics only."""

    is_by_load = False

    def __init__(
        self, name: str, way: Callable[[Sequence[RangeMember], Sequence[RangeTopic]], Targets]
    ) -> None:
        self.name = name
        self._way = way

    def assign(self, index: TargetIndex) -> Targets:
        """Whole partitions in the same order, as in KIP-X when members do not outnumber them."""
        members = [
            RangeMember(
                member_id=spec.member_id,
                topics=spec.topics,
                is_sharing=False,
                instance_id=spec.instance_id,
            )
            for spec in index.members.values()
        ]
        topics = [
            RangeTopic(topic.image.name, topic_id, topic.image.partitions, is_shareable=False)
            for topic_id, topic in index.topics.items()
        ]
        return {
            member_id: target
            for member_id, target in self._way(members, topics).items()
            if target != index.targets.get(member_id, NO_TARGET)
        }

    def share(
        self,
        members: Sequence[RangeMember],
        topics: Sequence[RangeTopic],
        held: Mapping[str, Collection[Unit]],
        weights: Mapping[Partition, SlotWeights],
    ) -> Targets:
        return self._way(members, topics)


def key_range_round_robin() -> ReverseAssignor:
    return ReverseAssignor(reverse.ROUND_ROBIN_NAME, reverse.key_range_round_robin)


def key_range_range() -> ReverseAssignor:
    return ReverseAssignor(reverse.RANGE_NAME, reverse.key_range_range)


SHARING_ASSIGNORS: Mapping[str, Callable[[], SharingAssignor]] = {
    line.NAME: LineCutAssignor,
    reverse.ROUND_ROBIN_NAME: key_range_round_robin,
    reverse.RANGE_NAME: key_range_range,
}
