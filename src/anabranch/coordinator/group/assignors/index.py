"""Who should own what, kept so that one change can be answered at the price of what it moves.

The index follows three things, each by its own call: members (`set_member`, `remove_member`),
targets (`set_target`) and topics (`set_image`). It can be fed in any order, and what it holds
depends on the present members, targets and topics only, never on the way there: an assignor that
reads it gives the same answer before and after a restart.

Rules
- A unit is owned by the member whose target has it, if that member subscribes to the topic and the
  partition exists. If several targets have it, it is owned by the first of them in order.
- A unit in a target that does not own it is astray: the next assignment takes it out.
- A partition that nobody owns is free.
- A target of somebody who is not a member is remembered, but owns nothing.
"""

from bisect import bisect_left, insort
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager

from anabranch.coordinator.group.assignors.crews import Crew, Holder, MemberSpec, OwnedTopic
from anabranch.model.cluster_image import ClusterImage, TopicImage
from anabranch.model.units import ALL_SLOTS, Unit

Target = frozenset[Unit]
NO_TARGET: Target = frozenset()


class TargetIndex:
    """The members, topics and targets of one group."""

    def __init__(self) -> None:
        self.members: dict[str, MemberSpec] = {}
        self.targets: dict[str, Target] = {}
        self.image = ClusterImage()
        # Those below are for assignors to read.
        self.crews: dict[frozenset[str], Crew] = {}
        self.topics: dict[bytes, OwnedTopic] = {}
        # The topics that have free partitions.
        self.open_topics: dict[bytes, OwnedTopic] = {}
        self.holders: dict[str, Holder] = {}
        self.member_ids: dict[str, str] = {}
        # Racks of members, and how many are in each.
        self.racks: dict[str, int] = {}
        self.astray: dict[bytes, dict[Unit, dict[str, Holder]]] = {}
        self._interest: dict[str, dict[frozenset[str], Crew]] = {}

    @property
    def subscribed_topics(self) -> Collection[str]:
        """The names that any member is subscribed to, whether such a topic exists or not."""
        return self._interest.keys()

    # Members --------------------------------------------------------------------------------------

    def set_member(self, spec: MemberSpec) -> None:
        """A member joined, or changed its subscription or rack."""
        known = self.members.get(spec.member_id)
        if known == spec:
            return
        if known is not None:
            self.remove_member(spec.member_id)
        crew = self.crews.get(spec.topics) or self._new_crew(spec.topics)
        holder = Holder(spec, crew)
        self.members[spec.member_id] = spec
        self.holders[spec.member_id] = holder
        self.member_ids[holder.key] = spec.member_id
        if holder.rack:
            self.racks[holder.rack] = self.racks.get(holder.rack, 0) + 1
        crew.size += 1
        crew.buckets.add(0, holder.rack, holder.key)
        target = self.targets.get(spec.member_id)
        if target:
            self._claim_all(holder, target)
            self._moved(holder, 0)

    def remove_member(self, member_id: str) -> None:
        """A member left; what it owned is free. Its target is forgotten by `set_target` only."""
        if self.members.pop(member_id, None) is None:
            return
        holder = self.holders.pop(member_id)
        crew, load = holder.crew, holder.load
        for unit in self.targets.get(member_id, NO_TARGET):
            self._release(holder, unit)
        crew.buckets.remove(load, holder.rack, holder.key)
        crew.load -= load
        crew.size -= 1
        if not crew.size:
            self._drop_crew(crew)
        del self.member_ids[holder.key]
        if holder.rack:
            self.racks[holder.rack] -= 1
            if not self.racks[holder.rack]:
                del self.racks[holder.rack]

    def _new_crew(self, topics: frozenset[str]) -> Crew:
        crew = self.crews[topics] = Crew(topics)
        for name in topics:
            interested = self._interest.setdefault(name, {})
            interested[topics] = crew
            if len(interested) == 1 and name in self.image.topics:
                self._add_topic(self.image.topics[name])
        return crew

    def _drop_crew(self, crew: Crew) -> None:
        del self.crews[crew.topics]
        for name in crew.topics:
            interested = self._interest[name]
            del interested[crew.topics]
            if not interested:
                if name in self.image.topics:
                    self._drop_topic(self.image.topics[name])
                del self._interest[name]

    # Targets --------------------------------------------------------------------------------------

    def set_target(self, member_id: str, target: Target | None) -> None:
        """A member's target was written, or deleted; costs what changes."""
        before = self.targets.get(member_id, NO_TARGET)
        if target is None:
            self.targets.pop(member_id, None)
            after = NO_TARGET
        else:
            after = self.targets[member_id] = target
        holder = self.holders.get(member_id)
        if holder is None:
            return
        load = holder.load
        gone = before - after
        for unit in gone:
            self._release(holder, unit)
        if len(after) > len(before) - len(gone):
            self._claim_all(holder, after - before)
        self._moved(holder, load)

    def owned(self, member_id: str) -> Target:
        """The part of a member's target that is not astray."""
        target = self.targets.get(member_id, NO_TARGET)
        holder = self.holders.get(member_id)
        if holder is None:
            return NO_TARGET
        return target if holder.load == len(target) else frozenset(holder.units)

    def _topic_for(self, holder: Holder, unit: Unit) -> OwnedTopic | None:
        """The topic of a unit, if the member may own the unit."""
        topic = self.topics.get(unit.topic_id)
        if (
            topic is None
            or unit.partition >= len(topic.owners)
            or topic.image.name not in holder.crew.topics
            or unit.slots != ALL_SLOTS
        ):
            return None
        return topic

    def _claim_all(self, holder: Holder, units: Target) -> None:
        """Claim units; those that are free without a frame for each, as there may be many."""
        topics, names, held = self.topics, holder.crew.topics, holder.crew.held
        fresh = []
        for unit in units:
            topic_id, partition, slots = unit
            topic = topics.get(topic_id)
            if (
                topic is None
                or partition not in topic.free
                or topic.image.name not in names
                or slots != ALL_SLOTS
            ):
                self._claim(holder, unit)
                continue
            topic.owners[partition] = holder
            topic.free.remove(partition)
            if not topic.free:
                self._close(topic)
            held[topic_id] = held.get(topic_id, 0) + 1
            fresh.append(unit)
        holder.load += len(fresh)
        holder.units.extend(fresh)
        holder.units.sort()

    def _claim(self, holder: Holder, unit: Unit) -> None:
        topic = self._topic_for(holder, unit)
        if topic is None:
            self._stray(holder, unit)
            return
        owner = topic.owners[unit.partition]
        if owner is not None:
            if owner.key < holder.key:
                self._stray(holder, unit)
                return
            # In a batch of records the new owner may come before the old one lets go.
            self._disown(topic, owner, unit)
            self._moved(owner, owner.load + 1)
            self._stray(owner, unit)
        self._own(topic, holder, unit)

    def _release(self, holder: Holder, unit: Unit) -> None:
        topic = self.topics.get(unit.topic_id)
        if (
            topic is None
            or unit.partition >= len(topic.owners)
            or topic.owners[unit.partition] is not holder
            or unit.slots != ALL_SLOTS
        ):
            self._unstray(holder, unit)
            return
        self._disown(topic, holder, unit)
        waiting = self.astray.get(unit.topic_id)
        if waiting and unit in waiting:
            self._adopt(unit)

    def _adopt(self, unit: Unit) -> None:
        """Let the first of those who have a free unit in their target own it."""
        strays = self.astray[unit.topic_id].get(unit, {})
        for key in sorted(strays):
            heir = strays[key]
            topic = self._topic_for(heir, unit)
            if topic is not None:
                self._unstray(heir, unit)
                self._own(topic, heir, unit)
                self._moved(heir, heir.load - 1)
                return

    def _own(self, topic: OwnedTopic, holder: Holder, unit: Unit) -> None:
        topic_id, partition, _ = unit
        topic.owners[partition] = holder
        topic.free.remove(partition)
        if not topic.free:
            self._close(topic)
        holder.load += 1
        insort(holder.units, unit)
        held = holder.crew.held
        held[topic_id] = held.get(topic_id, 0) + 1

    def _close(self, topic: OwnedTopic) -> None:
        """The last partition has found an owner."""
        # An emptied set keeps its size, and costs that much to look through.
        topic.free = set()
        del self.open_topics[topic.image.topic_id]

    def _disown(self, topic: OwnedTopic, holder: Holder, unit: Unit) -> None:
        topic_id, partition, _ = unit
        topic.owners[partition] = None
        if not topic.free:
            self.open_topics[topic_id] = topic
        topic.free.add(partition)
        holder.load -= 1
        del holder.units[bisect_left(holder.units, unit)]
        held = holder.crew.held
        if held[topic_id] == 1:
            del held[topic_id]
        else:
            held[topic_id] -= 1

    def _moved(self, holder: Holder, load_before: int) -> None:
        """Keep bucket and crew in line with a member's load."""
        if holder.load == load_before:
            return
        crew = holder.crew
        crew.load += holder.load - load_before
        crew.buckets.remove(load_before, holder.rack, holder.key)
        crew.buckets.add(holder.load, holder.rack, holder.key)

    def _stray(self, holder: Holder, unit: Unit) -> None:
        self.astray.setdefault(unit.topic_id, {}).setdefault(unit, {})[holder.key] = holder

    def _unstray(self, holder: Holder, unit: Unit) -> None:
        by_unit = self.astray[unit.topic_id]
        strays = by_unit[unit]
        del strays[holder.key]
        if not strays:
            del by_unit[unit]
            if not by_unit:
                del self.astray[unit.topic_id]

    # Topics ---------------------------------------------------------------------------------------

    def set_image(self, image: ClusterImage) -> None:
        """Topics were created, grew or went; costs a look at each topic that is subscribed to."""
        if image is self.image:
            return
        before, self.image = self.image.topics, image
        for name in self._interest:
            old, new = before.get(name), image.topics.get(name)
            if old is new or old == new:
                continue
            if (
                old is not None
                and new is not None
                and old.topic_id == new.topic_id
                and old.partitions <= new.partitions
            ):
                self._grow_topic(old, new)
                continue
            if old is not None:
                self._drop_topic(old)
            if new is not None:
                self._add_topic(new)

    def _add_topic(self, image: TopicImage) -> None:
        topic = OwnedTopic(image, self._interest[image.name])
        self.topics[image.topic_id] = topic
        if topic.free:
            self.open_topics[image.topic_id] = topic
        for unit in list(self.astray.get(image.topic_id, ())):
            self._adopt(unit)

    def _grow_topic(self, old: TopicImage, new: TopicImage) -> None:
        topic = self.topics[new.topic_id]
        topic.grow(new)
        if topic.free:
            self.open_topics[new.topic_id] = topic
        if new.partitions > old.partitions:
            for unit in list(self.astray.get(new.topic_id, ())):
                if unit.partition >= old.partitions:
                    self._adopt(unit)

    def _drop_topic(self, image: TopicImage) -> None:
        topic = self.topics.pop(image.topic_id)
        self.open_topics.pop(image.topic_id, None)
        lost: dict[Holder, int] = {}
        for partition, owner in enumerate(topic.owners):
            if owner is not None:
                lost[owner] = lost.get(owner, 0) + 1
                self._stray(owner, Unit(image.topic_id, partition))
        for owner, count in lost.items():
            owner.crew.held.pop(image.topic_id, None)
            owner.load -= count
            owner.units = [unit for unit in owner.units if unit.topic_id != image.topic_id]
            self._moved(owner, owner.load + count)

    # What if --------------------------------------------------------------------------------------

    @contextmanager
    def trial(
        self,
        members: Mapping[str, MemberSpec | None],
        targets: Mapping[str, Target | None] | None = None,
    ) -> Iterator[None]:
        """The index as it would be with other members and targets; afterwards it is as before.

        A decision is made before its records are written, and must not change anything: this lets
        it look ahead at the price of the change.
        """
        specs_before = {member_id: self.members.get(member_id) for member_id in members}
        targets_before = {member_id: self.targets.get(member_id) for member_id in targets or ()}
        try:
            self._set_all(members, targets or {})
            yield
        finally:
            self._set_all(specs_before, targets_before)

    def _set_all(
        self, members: Mapping[str, MemberSpec | None], targets: Mapping[str, Target | None]
    ) -> None:
        # Who leaves goes first, so that nobody finds a unit taken that is about to be free.
        for member_id, spec in members.items():
            if spec is None:
                self.remove_member(member_id)
        for member_id, target in targets.items():
            self.set_target(member_id, target)
        for spec in members.values():
            if spec is not None:
                self.set_member(spec)
