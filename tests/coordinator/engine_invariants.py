"""What holds of a group that shares partitions after every step, whatever has happened.

S1  no two members that think they may start records have the same slot
S2  the epoch of a slot grows with every change of its owner, also over restarts
S5  the stable offset is at or below every record that is not acknowledged; it never goes back
S6  what is acknowledged stays acknowledged
S9  what is withheld from members is done (`S9` of whole logs: tests/branch)
S10 where a member has arrived it has left out nothing of its own ranges
S13 what is kept is limited, and what the journals say is what is known
S14 members that do not share own whole partitions
S15 targets are disjoint and cover everything while somebody is there
S16 no record is tried more often than the limit says
"""

from collections import defaultdict

from engine_oracle import Oracle
from engine_world import GROUP, SLOTS, World

from anabranch.client.range_work import RangeState
from anabranch.coordinator.cooperative.holdings import owners_by_place
from anabranch.coordinator.cooperative.records import Place
from anabranch.coordinator.group.consumer_state import STATIC_LEAVING_EPOCH, ConsumerGroup
from anabranch.model.units import SLOT_COUNT


class Watch:
    """Looks at a world after each step, and remembers what must not go back."""

    def __init__(self, world: World, oracle: Oracle) -> None:
        self.world = world
        self.oracle = oracle
        self.owners: dict[tuple[Place, int], str] = {}
        self.epochs: dict[tuple[Place, int], int] = {}
        self.stable: dict[Place, int] = {}
        self.committed: dict[Place, int] = {}

    def check(self) -> None:
        self.check_leases()
        group = self.world.group
        if group is not None:
            self.check_epochs(group)
            self.check_owners(group)
            self.check_targets(group)
        for place in self.world.logs:
            self.check_progress(place)
            self.check_stable(place)
        self.check_positions()
        self.check_journals()

    def check_leases(self) -> None:
        """S1, as the members themselves see it."""
        taken: dict[tuple[Place, int], str] = {}
        for member in self.oracle.members:
            if not member.has_lease:
                continue
            for work in member.workload:
                for slot in SLOTS:
                    if work.slots.first <= slot < work.slots.end:
                        where = (work.unit[:2], slot)
                        assert where not in taken, f"S1: {taken[where]} and {member} have {where}"
                        taken[where] = member.member_id

    def check_epochs(self, group: ConsumerGroup) -> None:
        """S2."""
        for place, owners in owners_by_place(group).items():
            for slots, owner, epoch in owners:
                is_away = group.members[owner].member_epoch == STATIC_LEAVING_EPOCH
                for slot in SLOTS:
                    if is_away or not slots.first <= slot < slots.end:
                        continue
                    where = (place, slot)
                    known = self.epochs.get(where, -1)
                    if self.owners.get(where) == owner:
                        assert epoch >= known, f"S2: the epoch of {where} went back"
                    else:
                        assert epoch > known, f"S2: {owner} got {where} without a new epoch"
                    self.owners[where], self.epochs[where] = owner, epoch

    def check_owners(self, group: ConsumerGroup) -> None:
        """S1 as the coordinator has it, and S14."""
        for owners in owners_by_place(group).values():
            end = 0
            for slots, owner, _ in owners:
                assert slots.first >= end, f"S1: {owner} and another have {slots}"
                end = slots.end
        for member in group.members.values():
            if member.shares:
                continue
            widths: dict[Place, int] = defaultdict(int)
            for unit in member.assigned:
                widths[unit[:2]] += unit.slots.end - unit.slots.first
            assert set(widths.values()) <= {SLOT_COUNT}, f"S14: {member.member_id} has a part"

    def check_targets(self, group: ConsumerGroup) -> None:
        """S15, while the target is that of the group."""
        is_due = self.world.timers.deadline_ms(("refresh", GROUP)) is not None
        if group.group_epoch != group.target_epoch or not group.members or is_due:
            return
        for place in self.world.logs:
            found = sorted(
                unit.slots
                for target in group.targets.values()
                for unit in target
                if unit[:2] == place
            )
            end = 0
            for slots in found:
                assert slots.first == end, f"S15: {place} has a gap or an overlap at {end}"
                end = slots.end
            assert end == SLOT_COUNT, f"S15: {place} is not covered"

    def check_progress(self, place: Place) -> None:
        """S6, and that nothing else counts as done; S13 and S16."""
        progress, committed = self.world.progress(place), self.world.committed(place)
        for offset, record in self.world.logs[place].records.items():
            if progress is not None:
                is_done = progress.is_done(record.slot, offset)
            else:
                is_done = committed is not None and offset < committed
            is_acked = record.ident in self.oracle.acked[place]
            assert is_done or not is_acked, f"S6: {record.ident} is not done any more"
            assert is_acked or not is_done, f"S7: {record.ident} is done and was not acknowledged"
        if progress is not None:
            settings = self.world.settings
            assert len(progress.attempts) <= settings.max_ranges, "S13: too many attempts"
            for attempt in progress.attempts.values():
                assert attempt.count <= settings.delivery_limit, "S16: tried too often"

    def check_stable(self, place: Place) -> None:
        """S5; what was found at a start is projected a moment later."""
        progress, committed = self.world.progress(place), self.world.committed(place)
        is_due = self.world.timers.deadline_ms(("settle", GROUP)) is not None
        floor = self.oracle.floors.get(place)
        if not is_due:
            self.oracle.floors.pop(place, None)
        for known, offset in (
            (self.stable, progress.stable_offset if progress is not None else None),
            (self.committed, committed),
        ):
            if offset is None:
                known.pop(place, None)
                continue
            least = known.get(place, -1)
            if floor is not None:
                least = min(least, floor)
            assert offset >= least, f"S5: the stable offset went back from {least} to {offset}"
            known[place] = offset
            if known is self.committed and is_due:
                continue
            for at, record in self.world.logs[place].records.items():
                is_acked = record.ident in self.oracle.acked[place]
                assert at >= offset or is_acked, f"S5: {offset} is above {record.ident}"

    def check_positions(self) -> None:
        """S10: whatever a member has passed is done, or it has it."""
        for member in self.oracle.members:
            if not member.has_lease:
                continue
            for work in member.workload:
                place = work.unit[:2]
                log = self.world.logs.get(place)
                is_known = log is not None and work.leader_epoch == log.leader_epoch
                if not is_known or work.state is not RangeState.ACTIVE:
                    continue
                for offset, record in log.records.items():
                    if work.slots.first <= record.slot < work.slots.end and offset < work.position:
                        is_done = self.oracle.is_done_by(member, place, record.ident)
                        assert is_done or offset in work.open, f"S10: {member} left out {offset}"

    def check_journals(self) -> None:
        """S13: what was written is what is known."""
        read, shard = self.world.read(), self.world.shard
        assert read.offsets(GROUP) == shard.offsets(GROUP), "S13: other offsets were written"
        written, known = read.progress(GROUP), shard.progress(GROUP)
        assert known.keys() <= written.keys(), "S13: progress was not written"
        for place, tracked in known.items():
            same = tracked.needs_snapshot or written[place] == tracked
            assert same, "S13: other progress was written"
        group, again = shard.group(GROUP), read.group(GROUP)
        if isinstance(group, ConsumerGroup):
            assert isinstance(again, ConsumerGroup)
            assert again.members == group.members, "S13: other members were written"
            assert again.owners == group.owners, "S13: other owners were written"
            assert again.targets == group.targets, "S13: other targets were written"
