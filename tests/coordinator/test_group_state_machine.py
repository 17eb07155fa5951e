"""Random commands, passing time and restarts; what must hold, holds after each of them.

The story kit checks every step (see `invariants`): one leader, who is a member; in a Stable group
everybody has what the leader gave; the generation does not go back; whoever is parked is known to
the group and answered once; replay gives the same state. Here come the offsets, against a dict
that knows the rules by itself, and the end: when all timers have run out, nobody waits and nobody
is left.
"""

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from invariants import check_replay
from story import DELAY_MS, Story, subscription

from anabranch.coordinator.group import commands as c
from anabranch.coordinator.group.classic_state import ClassicGroup, ClassicMember
from anabranch.model.errors import ErrorCode

GROUPS = st.sampled_from(["g"] * 5 + ["h"])
CLIENTS = st.sampled_from(["a", "b", "c"])
INSTANCES = st.sampled_from([None, None, "i", "j"])
TOPICS = st.sampled_from(["x", "y"])
PARTITIONS = st.integers(0, 1)
PROTOCOL_CHOICES = [
    (("range", subscription("x")),),
    (("range", subscription("x")), ("sticky", subscription("x"))),
    (("range", subscription("x")), ("sticky", subscription("x"))),
    (("sticky", subscription("x", "y")), ("range", subscription("x", "y"))),
    (("sticky", b"unreadable"),),
    (),
]
PROTOCOLS = st.sampled_from(PROTOCOL_CHOICES)
# Mostly right, sometimes not: as far as the generation is from the present one.
OFF = st.sampled_from([0, 0, 0, 0, 0, 1, -1])
PICKS = st.integers(0, 10**6)
HOUR_MS = 3_600_000
RETENTION_MS = 2 * HOUR_MS


def has_groups(machine: "GroupMachine") -> bool:
    return bool(machine.story.shard.group_ids())


class GroupMachine(RuleBasedStateMachine):
    """Clients that do what they like."""

    def __init__(self) -> None:
        super().__init__()
        self.story = Story(
            offsets_retention_ms=RETENTION_MS, max_size=3, new_member_join_timeout_ms=100_000
        )
        self.story.checks_replay = False  # at every restart and at the end
        self.ids: list[tuple[str, str | None]] = [("z-0", None), ("z-0", "i")]
        self.offsets: dict[tuple[str, str, int], c.CommittedOffset] = {}
        self.empty_since_ms: dict[str, int] = {}
        self.is_empty: dict[str, bool] = {}

    # Who there is -------------------------------------------------------------------------------

    def shown(self, group_id: str) -> ClassicGroup | None:
        self.story.group_id = group_id
        return self.story.group

    def generation(self, group_id: str, off: int) -> int:
        group = self.shown(group_id)
        return (group.generation_id if group is not None else 0) + off

    def somebody(self, group_id: str, pick: int) -> tuple[str, str | None]:
        """Somebody who was told an id once; mostly a member."""
        members = self.members(group_id)
        if members and pick % 4:
            member = members[pick // 4 % len(members)]
            return member.member_id, member.group_instance_id
        return self.ids[pick // 4 % len(self.ids)]

    def members(self, group_id: str) -> list[ClassicMember]:
        group = self.shown(group_id)
        members = [] if group is None else list(group.members.values())
        return sorted(members, key=lambda member: member.member_id)

    # Members ------------------------------------------------------------------------------------

    @initialize(clients=st.lists(CLIENTS, max_size=3), instance=INSTANCES)
    def begin(self, clients: list[str], instance: str | None) -> None:
        """Mostly there is a Stable group to begin with, with a static member or without."""
        if instance is not None:
            self.story.join("s", group_instance_id=instance, protocols=PROTOCOL_CHOICES[1])
        if clients:
            self.story.joined(*clients, protocols=PROTOCOL_CHOICES[1])
            self.ids += [(m.member_id, m.group_instance_id) for m in self.members("g")]
            self.everybody_syncs("g")

    @rule(
        group_id=GROUPS,
        client=CLIENTS,
        instance=INSTANCES,
        protocols=PROTOCOLS,
        is_told_id=st.booleans(),
        skips=st.booleans(),
    )
    def join_new(
        self,
        group_id: str,
        client: str,
        instance: str | None,
        protocols: Any,
        is_told_id: bool,
        skips: bool,
    ) -> None:
        self.shown(group_id)
        step = self.story.join(
            client,
            protocols=protocols,
            group_instance_id=instance,
            requires_known_member_id=is_told_id,
            can_skip_assignment=skips,
        )
        name = client if instance is None else instance
        self.ids.append((f"{name}-{self.story._uniques}", instance))
        if step.answer is not None and step.answer.error is ErrorCode.NONE:
            assert step.answer.skip_assignment <= skips

    @precondition(has_groups)
    @rule(group_id=GROUPS, pick=PICKS, protocols=PROTOCOLS, instance=INSTANCES)
    def join_known(self, group_id: str, pick: int, protocols: Any, instance: str | None) -> None:
        member_id, own = self.somebody(group_id, pick)
        instance = instance if pick % 7 == 0 else own
        self.story.join("k", member_id, protocols=protocols, group_instance_id=instance)

    @precondition(has_groups)
    @rule(group_id=GROUPS)
    def everybody_rejoins(self, group_id: str) -> None:
        """As well-behaved clients do."""
        for member in self.members(group_id):
            now = self.shown(group_id)
            known = now.members.get(member.member_id) if now is not None else None
            if known is not None and known.join_waiter is None:
                self.story.join(
                    "k",
                    member.member_id,
                    protocols=known.protocols,
                    group_instance_id=member.group_instance_id,
                )

    @precondition(has_groups)
    @rule(group_id=GROUPS, pick=PICKS, off=OFF)
    def sync(self, group_id: str, pick: int, off: int) -> None:
        member_id, instance = self.somebody(group_id, pick)
        group = self.shown(group_id)
        given = {
            m: f"{m}/{group.generation_id}/{pick}".encode()
            for m in (group.members if group is not None else {})
            if len(m) != pick % 5
        }
        self.story.sync(
            member_id, self.generation(group_id, off), given, group_instance_id=instance
        )

    @precondition(has_groups)
    @rule(group_id=GROUPS)
    def everybody_syncs(self, group_id: str) -> None:
        group = self.shown(group_id)
        for member_id in sorted(group.pending_syncs) if group is not None else []:
            now = self.shown(group_id)
            assert now is not None
            given = {m: f"{m}/{now.generation_id}".encode() for m in now.members}
            self.story.sync(member_id, now.generation_id, given)

    @precondition(has_groups)
    @rule(group_id=GROUPS, pick=PICKS, off=OFF)
    def heartbeat(self, group_id: str, pick: int, off: int) -> None:
        member_id, instance = self.somebody(group_id, pick)
        before = self.shown(group_id)
        answer = self.story.heartbeat(member_id, self.generation(group_id, off), instance).answer
        if answer.error is ErrorCode.NONE:
            assert before is not None
            assert member_id in before.members
            assert off == 0

    @precondition(has_groups)
    @rule(group_id=GROUPS, picks=st.lists(PICKS, max_size=3), is_admin=st.booleans())
    def leave(self, group_id: str, picks: list[int], is_admin: bool) -> None:
        leaving = [self.somebody(group_id, pick) for pick in picks]
        if is_admin:
            leaving = [("", instance) for _, instance in leaving]
        answer = self.story.leave(*leaving).answer
        after = self.shown(group_id)
        for left in answer.members:
            if left.error is ErrorCode.NONE and after is not None:
                assert left.member_id not in after.members
                assert left.member_id not in after.pending_members

    # Offsets ------------------------------------------------------------------------------------

    @rule(
        group_id=GROUPS,
        pick=PICKS,
        off=OFF,
        is_anonymous=st.booleans(),
        topic=TOPICS,
        partition=PARTITIONS,
        offset=st.integers(0, 99),
        retention_ms=st.sampled_from([-1, -1, -1, 0, HOUR_MS]),
    )
    def commit(
        self,
        group_id: str,
        pick: int,
        off: int,
        is_anonymous: bool,
        topic: str,
        partition: int,
        offset: int,
        retention_ms: int,
    ) -> None:
        member_id, instance = self.somebody(group_id, pick)
        generation_id = self.generation(group_id, off)
        if is_anonymous:
            member_id, instance, generation_id = "", None, -1
        expected = self.may_commit(group_id, member_id, instance, generation_id)
        step = self.story.commit(
            offset,
            member_id,
            generation_id,
            topic=topic,
            partition=partition,
            group_instance_id=instance,
            retention_ms=retention_ms,
        )
        assert (step.answer.error is ErrorCode.NONE) == expected
        if expected:
            now_ms = self.story.now_ms
            self.offsets[group_id, topic, partition] = c.CommittedOffset(
                offset=offset,
                commit_timestamp_ms=now_ms,
                expire_timestamp_ms=-1 if retention_ms < 0 else now_ms + retention_ms,
            )

    def may_commit(
        self, group_id: str, member_id: str, instance: str | None, generation_id: int
    ) -> bool:
        group = self.shown(group_id)
        if group is None or not group.members:
            is_idle = group is None or group.state.value == "Empty"
            return is_idle and generation_id < 0
        member = group.members.get(member_id)
        if member is None or member.is_new or instance not in (None, member.group_instance_id):
            return False
        return generation_id == group.generation_id and group.state.value != "CompletingRebalance"

    @precondition(has_groups)
    @rule(group_id=GROUPS, topic=TOPICS, partition=PARTITIONS)
    def delete_offset(self, group_id: str, topic: str, partition: int) -> None:
        group = self.shown(group_id)
        answer = self.story.delete_offsets((topic, partition)).answer
        if group is None:
            assert answer.error is ErrorCode.GROUP_ID_NOT_FOUND
        elif answer.errors == (ErrorCode.NONE,):
            assert topic not in subscribed(group)
            self.offsets.pop((group_id, topic, partition), None)

    @precondition(has_groups)
    @rule(group_id=GROUPS, pick=PICKS)
    def delete_group(self, group_id: str, pick: int) -> None:
        group = self.shown(group_id)
        if group is not None and not group.members and pick % 4:
            return  # or there would hardly be a group to look at
        answer = self.story.delete_group().answer
        deletes = group is not None and group.state.value == "Empty"
        assert (answer.error is ErrorCode.NONE) == deletes
        if deletes:
            self.offsets = {key: o for key, o in self.offsets.items() if key[0] != group_id}

    @precondition(has_groups)
    @rule(topic=TOPICS)
    def delete_topic(self, topic: str) -> None:
        self.story.submit(c.DeleteTopicOffsets(topic=topic))
        self.offsets = {key: o for key, o in self.offsets.items() if key[1] != topic}

    @precondition(has_groups)
    @rule()
    def expire(self) -> None:
        kept = {key: o for key, o in self.offsets.items() if not self.is_expired(key, o)}
        self.story.expire()
        self.offsets = kept
        for name in ("g", "h"):
            group = self.shown(name)
            if group is not None and group.state.value == "Empty" and not group.pending_members:
                assert self.story.shard.offsets(name), "an empty group without offsets is kept"

    def is_expired(self, key: tuple[str, str, int], offset: c.CommittedOffset) -> bool:
        """KIP-211, in the words of the KIP."""
        group = self.shown(key[0])
        assert group is not None
        since_ms = offset.commit_timestamp_ms
        if group.protocol_type is not None:
            if group.state.value == "Empty":
                since_ms = self.empty_since_ms[key[0]]
            elif group.state.value != "Stable" or key[1] in subscribed(group):
                return False
        if offset.expire_timestamp_ms != -1:
            return offset.expire_timestamp_ms <= self.story.now_ms
        return since_ms + RETENTION_MS <= self.story.now_ms

    # Time ---------------------------------------------------------------------------------------

    @rule(
        delay_ms=st.sampled_from([1, 1_000, DELAY_MS, 9_999, 30_000, 60_000]),
        are_alive=st.booleans(),
    )
    def time_passes(self, delay_ms: int, are_alive: bool) -> None:
        end_ms = self.story.now_ms + delay_ms
        while (next_ms := self.story.timers.next_deadline_ms()) is not None and next_ms <= end_ms:
            if are_alive:
                self.everybody_is_alive()
                next_ms = min(next_ms, self.story.now_ms + 1_000)
            self.story.wait(max(next_ms - self.story.now_ms, 0))
            self.note_empty_groups()
            if self.story.now_ms >= end_ms:
                return
        self.story.wait(end_ms - self.story.now_ms)

    def everybody_is_alive(self) -> None:
        for group_id in ("g", "h"):
            for member in self.members(group_id):
                self.story.heartbeat(member.member_id, self.generation(group_id, 0))

    @rule(pick=PICKS)
    def a_long_time_passes(self, pick: int) -> None:
        if pick % 4 == 0:
            self.time_passes(HOUR_MS, are_alive=False)

    @rule()
    def the_next_timer_fires(self) -> None:
        next_ms = self.story.timers.next_deadline_ms()
        if next_ms is not None:
            self.story.now_ms = max(self.story.now_ms, next_ms)
            self.story.fire()

    @rule(max_size=st.integers(1, 3))
    def restart(self, max_size: int) -> None:
        check_replay(self.story)
        assigned = dict(sorted(self.story.given))
        self.story.restart(max_size=max_size)
        for name, generation in assigned.items():
            group = self.shown(name)
            assert group is not None
            assert group.generation_id >= generation, "an assignment was forgotten"
        # A rebalance under way is forgotten: a group may be empty again since it was so last.
        self.is_empty = dict.fromkeys(self.empty_since_ms, True)

    # Always -------------------------------------------------------------------------------------

    @invariant()
    def note_empty_groups(self) -> None:
        """When a group was first seen empty; the steps are small enough to see it at once."""
        for name in ("g", "h"):
            group = self.shown(name)
            if group is None:
                self.empty_since_ms.pop(name, None)
            is_empty = group is not None and group.state.value == "Empty"
            if is_empty and not (self.is_empty.get(name) and name in self.empty_since_ms):
                self.empty_since_ms[name] = self.story.now_ms
            self.is_empty[name] = is_empty

    @invariant()
    def offsets_are_what_was_committed(self) -> None:
        shard = self.story.shard
        committed = {
            (name, topic, partition): offset
            for name in shard.group_ids()
            for (topic, partition), offset in shard.offsets(name).items()
        }
        assert committed == self.offsets

    def teardown(self) -> None:
        """When all timers have run out nobody waits and nobody is left."""
        check_replay(self.story)
        self.story.wait(10 * HOUR_MS)
        assert not self.story.parked
        assert len(self.story.timers) == 0
        for group in self.story.shard.groups.values():
            assert group.state.value == "Empty"


def subscribed(group: ClassicGroup) -> set[str]:
    """The topics of all members; everything, where they have no protocol in common yet."""
    topics: set[str] = set()
    for member in group.members.values():
        metadata = dict(member.protocols).get(group.protocol_name or "")
        if metadata is None or not metadata:
            return {"x", "y"}
        topics |= {name for name in ("x", "y") if name.encode() in metadata}
    return topics


TestGroups = GroupMachine.TestCase
TestGroups.settings = settings(max_examples=150, stateful_step_count=60)
