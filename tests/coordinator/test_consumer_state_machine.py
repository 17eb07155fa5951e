"""Random members, topics, commits, silence and restarts; what must hold, holds after each of them.

The story kit checks every step (see `consumer_invariants`). Here come the offsets, against the
rules in other words, and the end: when everybody does what it is told, a bounded number of rounds
leads to a group that is Stable, in which each subscribed partition has one owner, who subscribes to
it, and the shares are even.
"""

from typing import Any

from consumer_story import INTERVAL_MS, SESSION_MS, ConsumerStory, topic, units
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from anabranch.coordinator.group.consumer_state import ConsumerGroup, ConsumerMember
from anabranch.model.errors import ErrorCode
from anabranch.model.units import Unit

IDS = st.sampled_from(["a", "b", "c", "d"])
INSTANCES = st.sampled_from([None, None, None, "i", "j"])
NAMES = st.sampled_from(["t", "t", "t", "t,u", "u", "", "gone"])
REGEXES = st.sampled_from([None, None, None, "[tu]", "t.*", ""])
ASSIGNORS = st.sampled_from([None, None, None, "uniform", "range"])
PICKS = st.integers(0, 10**6)
# Mostly right, sometimes not: as far as the epoch is from the one the member is at.
OFF = st.sampled_from([0, 0, 0, 0, -1, 1])
REFUSALS = {25, 69, 82, 110, 111}


def has_members(machine: "ConsumerMachine") -> bool:
    group = machine.story.shard.group("g")
    return isinstance(group, ConsumerGroup) and bool(group.members)


class ConsumerMachine(RuleBasedStateMachine):
    """Clients that mostly do what they should."""

    def __init__(self) -> None:
        super().__init__()
        self.story = ConsumerStory(t=4, checks_replay=False)
        self.generations: dict[str, int] = {}

    @property
    def members(self) -> list[ConsumerMember]:
        if not has_members(self):
            return []
        return sorted(self.story.group.members.values(), key=lambda member: member.member_id)

    def somebody(self, pick: int) -> ConsumerMember:
        return self.members[pick % len(self.members)]

    @initialize(count=st.integers(0, 3))
    def begin(self, count: int) -> None:
        self.story.stable(*"abc"[:count])

    # Members --------------------------------------------------------------------------------------

    @rule(member_id=IDS, instance=INSTANCES, names=NAMES, regex=REGEXES, assignor=ASSIGNORS)
    def join(
        self,
        member_id: str,
        instance: str | None,
        names: str,
        regex: str | None,
        assignor: str | None,
    ) -> None:
        """A new member, or one that starts over; also under the id of somebody else."""
        step = self.story.join(
            member_id, names, regex, instance_id=instance, server_assignor=assignor
        )
        assert step.answer.error.value in {0, *REFUSALS}
        if step.answer.error is ErrorCode.NONE:
            member = self.story.member(member_id)
            assert set(step.answer.assignment) == set(member.assigned)

    @precondition(has_members)
    @rule(pick=PICKS)
    def obey(self, pick: int) -> None:
        member = self.somebody(pick)
        if member.member_epoch > 0 and member.member_id in self.story.clients:
            self.story.ack(member.member_id)

    @precondition(has_members)
    @rule()
    def everybody_obeys(self) -> None:
        for pick in range(len(self.members)):
            self.obey(pick)

    @precondition(has_members)
    @rule(pick=PICKS, off=OFF, owned=st.sampled_from([None, "", "t0", "t0 t1", "u0", "all"]))
    def heartbeat(self, pick: int, off: int, owned: str | None) -> None:
        """Also of epochs and units that are not right."""
        member = self.somebody(pick)
        epoch = max(1, member.member_epoch + off)
        has = None if owned is None else units(owned) if owned != "all" else tuple(member.held)
        before = (member.member_epoch, member.previous_member_epoch)
        step = self.story.send(member.member_id, epoch, owned=has, instance_id=member.instance_id)
        if step.answer.error is ErrorCode.NONE:
            assert epoch in before
        else:
            assert step.answer.error is ErrorCode.FENCED_MEMBER_EPOCH
            assert epoch != before[0]

    @precondition(has_members)
    @rule(pick=PICKS, names=NAMES, regex=REGEXES)
    def subscribe(self, pick: int, names: str, regex: str | None) -> None:
        member = self.somebody(pick)
        if member.member_epoch > 0:
            self.story.send(
                member.member_id,
                member.member_epoch,
                instance_id=member.instance_id,
                subscribed_topic_names=tuple(filter(None, names.split(","))),
                subscribed_topic_regex=regex,
            )

    @precondition(has_members)
    @rule(pick=PICKS)
    def leave(self, pick: int) -> None:
        member = self.somebody(pick)
        step = self.story.leave(member.member_id, member.instance_id)
        assert step.answer.error is ErrorCode.NONE
        assert member.member_id not in self.story.group.members

    @precondition(has_members)
    @rule(pick=PICKS)
    def leave_for_a_while(self, pick: int) -> None:
        static = [member for member in self.members if member.instance_id is not None]
        if static:
            member = static[pick % len(static)]
            before = self.story.group.group_epoch
            self.story.leave_for_a_while(member.member_id, member.instance_id)
            assert self.story.group.group_epoch == before

    @precondition(has_members)
    @rule(pick=PICKS, successor=st.sampled_from(["x", "y"]))
    def return_static(self, pick: int, successor: str) -> None:
        away = [member for member in self.members if member.member_epoch == -2]
        if away and successor not in self.story.group.members:
            member = away[pick % len(away)]
            names = ",".join(member.subscribed_topic_names)
            step = self.story.join(
                successor, names, member.subscribed_topic_regex, instance_id=member.instance_id
            )
            assert step.answer.error is ErrorCode.NONE

    # Topics ---------------------------------------------------------------------------------------

    @rule(name=st.sampled_from(["t", "u", "tt"]), pick=PICKS)
    def change_topic(self, name: str, pick: int) -> None:
        known = self.story.image.topics.get(name)
        if known is None:
            generation = self.generations.get(name, 0)
            self.story.topics(**{name: topic(name, 1 + pick % 4, generation)})
        elif pick % 3 == 0:
            self.generations[name] = self.generations.get(name, 0) + 1
            self.story.topics(**{name: None})
        elif known.partitions < 8:
            generation = self.generations.get(name, 0)
            self.story.topics(**{name: topic(name, known.partitions + 1, generation)})

    @precondition(lambda machine: machine.story.tasks)
    @rule(pick=PICKS)
    def resolve(self, pick: int) -> None:
        """Matching takes as long as it takes: answers may come in any order."""
        tasks = self.story.tasks
        tasks.insert(0, tasks.pop(pick % len(tasks)))
        self.story.resolve()

    # Commits --------------------------------------------------------------------------------------

    @precondition(has_members)
    @rule(pick=PICKS, partition=st.integers(0, 5), epoch=st.integers(-1, 12))
    def commit(self, pick: int, partition: int, epoch: int) -> None:
        member = self.somebody(pick)
        unit = Unit(self.story.image.topics["t"].topic_id, partition) if self.has_t else None
        step = self.story.commit(f"t{partition}", 1, member.member_id, epoch)
        since = {**member.assigned, **member.pending_revocation}.get(unit) if unit else None
        is_current = epoch == member.member_epoch
        # The kit names topics of the first generation; later ones have other ids.
        is_first = unit is not None and unit.topic_id == units("t0")[0].topic_id
        held = is_first and since is not None and since <= epoch < member.member_epoch
        if is_first or is_current:
            assert (step.answer.error is ErrorCode.NONE) == (is_current or (held and epoch >= 0))

    @property
    def has_t(self) -> bool:
        return "t" in self.story.image.topics

    # Time -----------------------------------------------------------------------------------------

    @rule(delay_ms=st.sampled_from([1, 20, INTERVAL_MS, 1_000, 20_000, SESSION_MS]))
    def time_passes(self, delay_ms: int) -> None:
        self.story.wait(delay_ms)

    @rule()
    def restart(self) -> None:
        self.story._check_replay()
        self.story.restart()

    # The end --------------------------------------------------------------------------------------

    def teardown(self) -> None:
        self.story._check_replay()
        if not has_members(self):
            return
        self.everybody_comes_back()
        if not has_members(self):
            return
        self.story.settle()
        self.check_settled()

    def everybody_comes_back(self) -> None:
        """Those who were away or lost track start over."""
        for member in self.members:
            self.story.send(
                member.member_id,
                0,
                instance_id=member.instance_id,
                rebalance_timeout_ms=60_000,
                subscribed_topic_names=member.subscribed_topic_names,
                owned=(),
            )
        for name in list(self.story.clients):
            if name not in self.story.group.members:
                del self.story.clients[name]

    def check_settled(self) -> None:
        group = self.story.group
        assert group.state.value == "Stable"
        assert not group.moving_since_ms
        wanted = {
            Unit(image.topic_id, partition)
            for image in self.story.image.topics.values()
            if any(image.name in group.topics_of(m) for m in group.members.values())
            for partition in range(image.partitions)
        }
        assert group.owners.keys() == wanted
        for unit, owner in group.owners.items():
            name = self.story.image.by_id[unit.topic_id].name
            assert name in group.topics_of(group.members[owner])
            assert unit in group.target(owner)
        self.check_even(group)

    @staticmethod
    def check_even(group: ConsumerGroup) -> None:
        subscriptions = {group.topics_of(member) for member in group.members.values()}
        is_uniform = group.votes["range"] <= group.votes["uniform"]
        if len(subscriptions) == 1 and is_uniform:
            loads = [len(member.assigned) for member in group.members.values()]
            assert max(loads) - min(loads) <= 1


def single_change(story: ConsumerStory, change: Any) -> int:
    """The units that have another owner after a change than before, of those that were owned."""
    before = dict(story.group.owners)
    change()
    story.settle()
    return sum(story.group.owners[unit] != owner for unit, owner in before.items())


def test_one_join_or_leave_moves_what_it_must():
    """A join takes the newcomer's share from the others, a leave gives away what was left."""
    story = ConsumerStory(t=24, checks_replay=False)
    names = [f"m{number}" for number in range(8)]
    for count, name in enumerate(names, start=1):
        moved = 0 if count == 1 else None
        if count == 1:
            story.stable(name)
        else:
            moved = single_change(story, lambda name=name: story.join(name))
        assert moved == (24 // count if count > 1 else 0)
    while len(names) > 1:
        leaver = names.pop(len(names) // 2)
        had = len(story.member(leaver).assigned)
        assert single_change(story, lambda leaver=leaver: story.leave(leaver)) == had


TestConsumerGroups = ConsumerMachine.TestCase
TestConsumerGroups.settings = settings(max_examples=40, stateful_step_count=40)
