"""A group in small: members and topics that change, targets that are assigned and replayed."""

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from anabranch.coordinator.group.assignors.api import (
    Assignor,
    MemberSpec,
    Target,
    TargetIndex,
    compute_targets,
)
from anabranch.model.cluster_image import ClusterImage, TopicImage
from anabranch.model.units import Unit


def topic_id(name: str, generation: int = 0) -> bytes:
    return f"{name}/{generation}".encode().ljust(16, b".")


def topic(name: str, partitions: int, racks: Iterable[str] = (), generation: int = 0) -> TopicImage:
    """A topic; `racks` has the racks of each partition, separated by commas."""
    sets = tuple(frozenset(filter(None, some.split(","))) for some in racks)
    return TopicImage(name, topic_id(name, generation), partitions, sets)


def member(
    member_id: str, topics: str = "t", instance: str | None = None, rack: str | None = None
) -> MemberSpec:
    return MemberSpec(
        member_id=member_id,
        instance_id=instance,
        rack_id=rack,
        topics=frozenset(topics.split()),
    )


def units(name: str, *partitions: int) -> Target:
    return frozenset(Unit(topic_id(name), partition) for partition in partitions)


def image_of(*topics: TopicImage) -> ClusterImage:
    return ClusterImage().with_topics({image.name: image for image in topics})


class Group:
    """A group whose decisions are replayed as soon as they are made."""

    def __init__(self, assignor: Assignor, *topics: TopicImage) -> None:
        self.assignor = assignor
        self.index = TargetIndex()
        self.set_topics(*topics)

    @property
    def targets(self) -> Mapping[str, Target]:
        return self.index.targets

    def set_topics(self, *topics: TopicImage) -> None:
        self.index.set_image(image_of(*topics))

    def join(self, *specs: MemberSpec) -> dict[str, Target]:
        """Members join, or change; the targets that change by it."""
        before = snapshot(self.index)
        changed = dict(
            compute_targets(self.assignor, self.index, {spec.member_id: spec for spec in specs})
        )
        assert snapshot(self.index) == before, "a decision must not change the index"
        for spec in specs:
            self.index.set_member(spec)
        return self._replay(changed)

    def leave(self, *member_ids: str) -> dict[str, Target]:
        before = snapshot(self.index)
        changed = dict(compute_targets(self.assignor, self.index, dict.fromkeys(member_ids)))
        assert snapshot(self.index) == before, "a decision must not change the index"
        for member_id in member_ids:
            self.index.set_target(member_id, None)
            self.index.remove_member(member_id)
        return self._replay(changed)

    def assign(self) -> dict[str, Target]:
        """What the assignor says about the group as it is."""
        return self._replay(dict(compute_targets(self.assignor, self.index)))

    def _replay(self, changed: dict[str, Target]) -> dict[str, Target]:
        for member_id, target in changed.items():
            assert target != self.targets.get(member_id, frozenset()), "nothing changed"
            self.index.set_target(member_id, target)
        check_complete(self.index)
        return changed

    def loads(self) -> dict[str, int]:
        return {member_id: len(self.targets.get(member_id, ())) for member_id in self.index.members}


def check_complete(index: TargetIndex) -> None:
    """Every partition of a subscribed topic is in one target, that of a subscriber."""
    owners: Counter[Unit] = Counter()
    names = {image.topic_id: image.name for image in index.image.topics.values()}
    for member_id, target in index.targets.items():
        spec = index.members[member_id]
        for unit in target:
            assert names.get(unit.topic_id) in spec.topics, f"{unit} is not for {member_id}"
            owners[unit] += 1
    subscribed = set().union(*(spec.topics for spec in index.members.values()))
    wanted = {
        Unit(image.topic_id, partition)
        for image in index.image.topics.values()
        if image.name in subscribed
        for partition in range(image.partitions)
    }
    assert owners == Counter(wanted), "a partition has no owner, or two"


def snapshot(index: TargetIndex) -> Any:
    """Everything in an index, as plain values that can be compared."""
    return {
        "members": index.members.copy(),
        "targets": {key: value for key, value in index.targets.items() if value},
        "racks": index.racks.copy(),
        "ids": index.member_ids.copy(),
        "owned": {
            member_id: (holder.load, list(holder.units))
            for member_id, holder in index.holders.items()
        },
        "crews": {
            topics: (
                crew.size,
                crew.load,
                crew.held.copy(),
                {
                    load: {rack: list(keys) for rack, keys in by_rack.items()}
                    for load, by_rack in crew.buckets.by_load.items()
                },
            )
            for topics, crew in index.crews.items()
        },
        "topics": {
            key: (
                owned.image,
                [owner and owner.member_id for owner in owned.owners],
                owned.free.copy(),
                set(owned.crews),
            )
            for key, owned in index.topics.items()
        },
        "open": set(index.open_topics),
        "astray": {
            key: {unit: set(strays) for unit, strays in by_unit.items()}
            for key, by_unit in index.astray.items()
        },
    }


def rebuilt(index: TargetIndex, order: int = 0) -> TargetIndex:
    """An index of the same group, fed from nothing, in one of several orders."""
    fresh = TargetIndex()
    steps: list[tuple[Any, ...]] = [
        (fresh.set_image, index.image),
        *((fresh.set_member, spec) for spec in index.members.values()),
        *((fresh.set_target, key, target) for key, target in index.targets.items()),
    ]
    if order % 2:
        steps.reverse()
    if order >= 2:
        steps = steps[1::2] + steps[::2]
    for call, *arguments in steps:
        call(*arguments)
    return fresh


# Oracles: slow and sure ---------------------------------------------------------------------------


def all_assignments(index: TargetIndex) -> Iterable[dict[Unit, str]]:
    """Every way to give each partition to a subscriber."""
    wanted = []
    for image in index.image.topics.values():
        able = [key for key, spec in index.members.items() if image.name in spec.topics]
        if able:
            wanted.extend((Unit(image.topic_id, p), able) for p in range(image.partitions))
    for choice in itertools.product(*(able for _, able in wanted)):
        yield {unit: owner for (unit, _), owner in zip(wanted, choice, strict=True)}


def profile(loads: Iterable[int]) -> list[int]:
    """Loads, highest first: the lower in dictionary order, the better the balance."""
    return sorted(loads, reverse=True)


def best_possible(index: TargetIndex, before: Mapping[str, Target]) -> tuple[list[int], int]:
    """The best balance there is, and the fewest moves that lead to it."""
    owners = {unit: key for key, target in before.items() for unit in target}
    best: tuple[list[int], int] | None = None
    for assignment in all_assignments(index):
        counts = Counter(assignment.values())
        score = (
            profile(counts[key] for key in index.members),
            count_moves(owners, assignment, index),
        )
        if best is None or score < best:
            best = score
    assert best is not None
    return best


def count_moves(before: Mapping[Unit, str], after: Mapping[Unit, str], index: TargetIndex) -> int:
    """Units that go to somebody else although their owner is there and still wants them."""
    names = {image.topic_id: image.name for image in index.image.topics.values()}
    return sum(
        1
        for unit, owner in after.items()
        if (old := before.get(unit)) is not None
        and old != owner
        and old in index.members
        and names[unit.topic_id] in index.members[old].topics
    )


def owners_of(targets: Mapping[str, Target]) -> dict[Unit, str]:
    return {unit: key for key, target in targets.items() for unit in target}


def cheapest(index: TargetIndex, before: Mapping[str, Target]) -> tuple[list[int], int]:
    """What `best_possible` says, by shortest paths: for groups too large to try everything.

    Units come one by one; each takes the way that costs least, where a place at somebody with a
    higher load costs more than any number of moves, and may push other units on to others.
    """
    owners = owners_of(before)
    able = {
        Unit(image.topic_id, partition): subscribers
        for image in index.image.topics.values()
        if (subscribers := [k for k, spec in index.members.items() if image.name in spec.topics])
        for partition in range(image.partitions)
    }

    def cost(unit: Unit, owner: str) -> int:
        old = owners.get(unit)
        return int(old in able[unit] and old != owner)

    has: dict[str, set[Unit]] = {key: set() for key in index.members}
    for new in able:
        reached = {key: cost(new, key) for key in able[new]}
        way: dict[str, tuple[str | None, Unit]] = dict.fromkeys(able[new], (None, new))
        is_shorter = True
        while is_shorter:
            is_shorter = False
            for key in list(reached):
                for unit in has[key]:
                    for other in able[unit]:
                        total = reached[key] - cost(unit, key) + cost(unit, other)
                        if other != key and total < reached.get(other, 10**9):
                            reached[other], way[other] = total, (key, unit)
                            is_shorter = True
        end: str | None = min(reached, key=lambda key: (len(has[key]), reached[key]))
        while end is not None:
            start, unit = way[end]
            has[end].add(unit)
            if start is not None:
                has[start].remove(unit)
            end = start
    moves = sum(cost(unit, key) for key, units in has.items() for unit in units)
    return profile(map(len, has.values())), moves
