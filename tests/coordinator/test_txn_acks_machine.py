"""Exactly once in any order of events: what members acknowledge in transactions, against what is
visible in the end.

Records come; members take them in any order, acknowledge them in transactions, commit, abort, join,
leave, pause, crash and come back; ranges move while transactions are open; the broker dies at any
point of a decision. After every step:

S12 a record is done if and only if a transaction with it is committed, and never with two
S12 a range of which something is pending has no owner but who acknowledged it
S5  the stable offset is at or below every record that is not done
S13 what the journals say is what is known; what is kept is limited
L2  when all are healthy again everything has an owner, and is done

    ANABRANCH_ENGINE_SECONDS=600 pytest tests/coordinator/test_txn_acks_machine.py
"""

import os
import time
from collections import Counter
from typing import Any

import pytest
from engine_world import ALL_KEYS, FATES, GROUP, SESSION_MS, SLOTS
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from txn_acks_world import TxnMember, TxnWorld

from anabranch.coordinator.cooperative.holdings import owners_by_place
from anabranch.coordinator.cooperative.progress import intersect
from anabranch.coordinator.cooperative.settings import (
    ANY_ORDER,
    STABLE_ORDER,
    CooperativeSettings,
)
from anabranch.coordinator.group import consumer_commands as cc
from anabranch.coordinator.group.cause import Cause
from anabranch.model.units import SLOT_COUNT, SlotRange, Unit

SECONDS = int(os.environ.get("ANABRANCH_ENGINE_SECONDS", "0"))
PICKS = st.integers(0, 23)
FATE = st.sampled_from(FATES)
MEMBERS_MAX = 4
RECORDS_MAX = 30
EDGES = [0, *(slot + 4096 for slot in SLOTS[:-1]), SLOT_COUNT]
SLOT_RANGES = [SlotRange(first, end) for first in EDGES for end in EDGES if first < end]
HEARTBEAT_MS = 5_000


def alive(machine: Any) -> bool:
    return bool(machine.living)


class ExactlyOnce(RuleBasedStateMachine):
    """One group whose members have a transaction each."""

    @initialize(
        partitions=st.integers(1, 2),
        members=st.integers(1, 3),
        order=st.sampled_from([ANY_ORDER, ANY_ORDER, STABLE_ORDER]),
        max_ranges=st.sampled_from([4, 10_000]),
    )
    def begin(self, partitions: int, members: int, order: str, max_ranges: int) -> None:
        limits = CooperativeSettings(txn_order=order, max_ranges=max_ranges)
        self.world = TxnWorld(limits, partitions)
        self.members: list[TxnMember] = []
        for _ in range(members):
            self.join(is_static=False)
        for _ in range(4):
            self.everybody(0)
        for log in self.world.logs.values():
            for number in range(12):
                log.append(ALL_KEYS[number * 5 % len(ALL_KEYS)])

    @property
    def living(self) -> list[TxnMember]:
        return [member for member in self.members if member.is_alive]

    def pick(self, number: int) -> TxnMember:
        return self.living[number % len(self.living)]

    # Records --------------------------------------------------------------------------------------

    @rule(partition=PICKS, keys=st.lists(st.sampled_from(ALL_KEYS), min_size=1, max_size=6))
    def produce(self, partition: int, keys: list[bytes]) -> None:
        logs = list(self.world.logs.values())
        log = logs[partition % len(logs)]
        for key in keys:
            if log.end < RECORDS_MAX:
                log.append(key)

    @precondition(alive)
    @rule(pick=PICKS, count=st.integers(1, 3), fate=FATE, skip=st.integers(0, 3))
    def work(self, pick: int, count: int, fate: Any, skip: int) -> None:
        self.pick(pick).work(count, fate, skip)

    @precondition(alive)
    @rule(pick=PICKS, fate=FATE)
    def commit(self, pick: int, fate: Any) -> None:
        member = self.pick(pick)
        member.listen()
        member.end(is_commit=True, fate=fate)

    @precondition(alive)
    @rule(pick=PICKS, fate=FATE)
    def abort(self, pick: int, fate: Any) -> None:
        self.pick(pick).end(is_commit=False, fate=fate)

    @precondition(alive)
    @rule(count=st.integers(1, 4), commits=st.lists(PICKS, max_size=4))
    def work_together(self, count: int, commits: list[int]) -> None:
        """Several transactions are open at once, and end in any order."""
        for member in self.living:
            member.work(count)
        for pick in commits:
            self.commit(pick, FATES[0])

    # Members --------------------------------------------------------------------------------------

    @precondition(alive)
    @rule(pick=PICKS, fate=FATE)
    def beat(self, pick: int, fate: Any) -> None:
        self.pick(pick).beat(fate)

    @precondition(lambda self: len(self.living) < MEMBERS_MAX)
    @rule(is_static=st.booleans())
    def join(self, is_static: bool) -> None:
        number = len(self.members) + 1
        instance_id = f"i{number}" if is_static else None
        self._join(TxnMember(self.world, f"m{number}", number, instance_id))

    def _join(self, member: TxnMember) -> None:
        self.members.append(member)
        member.beat()

    @precondition(alive)
    @rule(pick=PICKS)
    def leave(self, pick: int) -> None:
        """With whatever transaction it has open."""
        self.pick(pick).leave()

    @precondition(alive)
    @rule(pick=PICKS)
    def crash(self, pick: int) -> None:
        self.pick(pick).is_alive = False

    @precondition(alive)
    @rule(pick=PICKS)
    def start_over(self, pick: int) -> None:
        """A consumer joins again under its own id, and its producer goes on as if nothing were."""
        member = self.pick(pick)
        member.epoch, member.units, member.done = 0, {}, {}
        member.beat()

    @precondition(lambda self: any(not one.is_alive for one in self.members))
    @rule(pick=PICKS, is_commit=st.booleans())
    def a_zombie_ends_its_transaction(self, pick: int, is_commit: bool) -> None:
        """A process that everybody took for dead goes on."""
        dead = [one for one in self.members if not one.is_alive]
        zombie = dead[pick % len(dead)]
        zombie.listen()
        zombie.end(is_commit=is_commit)

    @precondition(lambda self: any(not one.is_alive for one in self.members))
    @rule(pick=PICKS, count=st.integers(1, 3))
    def a_zombie_works_on(self, pick: int, count: int) -> None:
        dead = [one for one in self.members if not one.is_alive]
        dead[pick % len(dead)].work(count)

    @property
    def away(self) -> list[str]:
        running = {member.instance_id for member in self.living}
        return sorted({m.instance_id for m in self.members if m.instance_id} - running)

    @precondition(lambda self: self.away and len(self.living) < MEMBERS_MAX)
    @rule(pick=PICKS)
    def come_back(self, pick: int) -> None:
        """A static member, under a new member id and with a new producer."""
        number = len(self.members) + 1
        instance_id = self.away[pick % len(self.away)]
        self._join(TxnMember(self.world, f"m{number}", number, instance_id))

    @rule(count=st.integers(0, 3))
    def everybody(self, count: int) -> None:
        """A moment in which nothing goes wrong."""
        for member in self.living:
            member.beat()
            member.listen()
            member.work(count)
            member.listen()
            member.end(is_commit=True)
        self.world.wait(100)

    @rule(partition=PICKS, slots=st.sampled_from(SLOT_RANGES), to=PICKS)
    def move_ranges(self, partition: int, slots: SlotRange, to: int) -> None:
        """While transactions are open; everybody hears of it at once."""
        group = self.world.group
        if group is None:
            return
        places, names = list(self.world.logs), [*sorted(group.members), None]
        unit = Unit(*places[partition % len(places)], slots)
        self.world.submit(
            cc.MoveRanges(
                group_id=GROUP,
                group_epoch=group.group_epoch,
                moves=(cc.RangeMove(unit, names[to % len(names)]),),
                cause=Cause.LOAD,
            )
        )
        for _ in range(2):
            for member in self.living:
                member.beat()

    # Time and the broker --------------------------------------------------------------------------

    @rule(
        delay_ms=st.sampled_from([100, 10_000, SESSION_MS, 2 * SESSION_MS]),
        sleepers=st.sets(st.integers(0, MEMBERS_MAX), max_size=2),
    )
    def time_passes(self, delay_ms: int, sleepers: set[int]) -> None:
        awake = [one for index, one in enumerate(self.living) if index not in sleepers]
        left_ms = delay_ms
        while left_ms > 0:
            self.world.wait(min(left_ms, HEARTBEAT_MS))
            left_ms -= HEARTBEAT_MS
            for member in awake:
                member.beat()

    @rule()
    def broker_restarts(self) -> None:
        self.world.restart()

    # What always holds ----------------------------------------------------------------------------

    @invariant()
    def holds(self) -> None:
        if hasattr(self, "members"):
            self.check()

    def check(self) -> None:
        world = self.world
        seen = Counter(world.visible)
        for place, log in world.logs.items():
            progress = world.progress(place)
            for offset, record in log.records.items():
                count = seen[place, record.ident]
                is_done = progress is not None and progress.is_done(record.slot, offset)
                assert count <= 1, f"S12: {record.ident} is visible twice"
                assert is_done == bool(count), f"S12: {record.ident} done {is_done}, seen {count}"
                assert progress is None or offset >= progress.stable_offset or is_done, "S5"
        self.check_pending()

    def check_pending(self) -> None:
        shard, read = self.world.shard, self.world.read()
        pending = shard.pending_acks.of_group(GROUP)
        assert pending == read.pending_acks.of_group(GROUP), "S13: other acks were written"
        assert shard.pending_acks.state_bytes == read.pending_acks.state_bytes, "S13"
        # What was never answered is forgotten a moment after the start.
        is_due = self.world.timers.deadline_ms(("settle", GROUP)) is not None
        group = self.world.group
        owners = owners_by_place(group) if group is not None else {}
        for place, of_place in pending.items():
            kept = sum(one.ranges_count for one in of_place.values())
            progress = self.world.progress(place)
            assert progress is not None or is_due, "S12: pending on nothing"
            assert kept <= 2 * self.world.settings.max_ranges, "S13: too much is pending"
            for key, one in of_place.items():
                assert self.world.transactions[key.producer_id].is_open, "S12: it has ended"
                for acked in one.acked:
                    for owned in owners.get(place, ()):
                        is_touched = intersect(owned.slots, acked.slots) is not None
                        assert not is_touched or owned.owner == key.member_id, (
                            f"S12: {owned.owner} has what {key.member_id} acknowledged"
                        )

    def teardown(self) -> None:
        if hasattr(self, "members"):
            self.heal()

    def heal(self) -> None:
        """All become healthy; who is dead stays so."""
        if not self.living:
            self.join(is_static=False)
        for _ in range(2 * SESSION_MS // HEARTBEAT_MS + 4):
            self.world.wait(HEARTBEAT_MS)
            for member in self.living:
                member.beat()
        self.check()
        for _ in range(150):
            self.world.wait(500)
            self.everybody(4)
            if not self.left():
                break
        self.check()
        assert not self.left(), f"L2: {self.left()} is not done"
        assert not self.world.shard.pending_acks.of_group(GROUP)

    def left(self) -> list[Any]:
        seen = set(self.world.visible)
        return [
            (place[1], record)
            for place, log in self.world.logs.items()
            for record in log.records.values()
            if (place, record.ident) not in seen
        ]


EXAMPLES = settings(
    max_examples=100,
    stateful_step_count=40,
    deadline=None,
    phases=(Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink),
)


@pytest.mark.timeout(900 + SECONDS)
def test_everything_is_visible_exactly_once() -> None:
    """Whatever happens in whatever order; for as long as there is time where that is asked for."""
    end_s = time.monotonic() + SECONDS
    run_state_machine_as_test(ExactlyOnce, settings=EXAMPLES)
    while time.monotonic() < end_s:
        new = settings(EXAMPLES, derandomize=False, database=None, print_blob=True)
        run_state_machine_as_test(ExactlyOnce, settings=new)
