"""The whole cooperative engine in any order of events, against an oracle of plain sets.

The real coordinator, driven by members that decide as our client does and a broker that is only
numbers (`engine_world`, `engine_members`). Everything that can happen to a group happens: records
come, are fetched, started, finished, fail; acknowledgements come early, late, twice, in parts and
not at all; members pause beyond their lease, crash, come, leave, and come back as themselves;
ranges move; the broker dies at any point of a decision; logs lose their ends, their beginnings and
what is in between; topics are made again; the journal of individual commits is lost.

After every step the invariants of `engine_oracle` and `engine_invariants` hold. At the end all
become healthy, and everything is done (L1), in the time it may take (L2), by owners of everything
(L4).

    ANABRANCH_ENGINE_SECONDS=600 pytest tests/coordinator/test_cooperative_engine_machine.py

looks for as long at examples that nobody has seen; otherwise they are the same each time.
"""

import os
import time
from typing import Any

import pytest
from engine_invariants import Watch
from engine_members import Member, StockMember
from engine_oracle import Oracle
from engine_world import (
    ALL_KEYS,
    FATES,
    FINE,
    GROUP,
    SESSION_MS,
    SLOTS,
    TOPIC,
    Commit,
    Told,
    World,
)
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

from anabranch.client.ordering import hash_of
from anabranch.coordinator.cooperative.acks import Ack
from anabranch.coordinator.cooperative.commands import Action, CountStuck, Decision, Failure
from anabranch.coordinator.cooperative.holdings import holdings_of
from anabranch.coordinator.cooperative.records import Place
from anabranch.coordinator.cooperative.retries import exhausted_offsets
from anabranch.coordinator.cooperative.settings import (
    BLOCK_KEY,
    DLQ,
    DLQ_KEY,
    CooperativeSettings,
)
from anabranch.coordinator.group import commands as c
from anabranch.coordinator.group import consumer_commands as cc
from anabranch.coordinator.group.cause import Cause
from anabranch.model.errors import ErrorCode
from anabranch.model.offset_ranges import OffsetRanges
from anabranch.model.units import SLOT_COUNT, SlotRange, Unit

SECONDS = int(os.environ.get("ANABRANCH_ENGINE_SECONDS", "0"))
PICKS = st.integers(0, 23)
FATE = st.sampled_from(FATES)
MEMBERS_MAX = 4
RECORDS_MAX = 40
# A lease is over after nine tenths of it.
DELAYS = st.sampled_from([100, 1_000, 10_000, 30_000, SESSION_MS])
EDGES = [0, *(slot + 4096 for slot in SLOTS[:-1]), SLOT_COUNT]
SLOT_RANGES = [SlotRange(first, end) for first in EDGES for end in EDGES if first < end]
HEARTBEAT_MS = 5_000


def alive(machine: Any) -> bool:
    return bool(machine.living)


class Engine(RuleBasedStateMachine):
    """One group, its members, its topic."""

    @initialize(
        partitions=st.integers(1, 2),
        members=st.integers(1, 3),
        disposition=st.sampled_from([BLOCK_KEY, DLQ, DLQ_KEY]),
    )
    def begin(self, partitions: int, members: int, disposition: str) -> None:
        limits = CooperativeSettings(
            max_ranges=5,
            max_window_offsets=12,
            delivery_limit=3,
            retry_backoff_ms=1_000,
            disposition=disposition,
        )
        self.world = World(limits, partitions)
        self.oracle = Oracle(self.world)
        self.watch = Watch(self.world, self.oracle)
        self.members: list[Member] = []
        self.stock: list[StockMember] = []
        self.names = 0
        self.has_lost_journal = False
        for _ in range(members):
            self.join(is_static=False)
        for _ in range(4):
            self.everybody(10)
        for place, log in self.world.logs.items():
            for number in range(20 - 4 * place[1]):
                log.append(ALL_KEYS[number * 5 % len(ALL_KEYS)])
        for member in self.living:
            member.fetch(span=3)

    # Who there is ---------------------------------------------------------------------------------

    @property
    def living(self) -> list[Member]:
        return [member for member in self.members if member.is_alive]

    @property
    def living_stock(self) -> list[StockMember]:
        return [member for member in self.stock if member.is_alive]

    def pick(self, number: int) -> Member:
        return self.living[number % len(self.living)]

    def _name(self) -> str:
        self.names += 1
        return f"m{self.names}"

    # Records --------------------------------------------------------------------------------------

    @rule(partition=PICKS, keys=st.lists(st.sampled_from(ALL_KEYS), min_size=1, max_size=8))
    def produce(self, partition: int, keys: list[bytes]) -> None:
        logs = list(self.world.logs.values())
        log = logs[partition % len(logs)]
        for key in keys:
            if log.end < RECORDS_MAX:
                log.append(key)

    @precondition(alive)
    @rule(pick=PICKS, span=st.integers(1, 12))
    def fetch(self, pick: int, span: int) -> None:
        """Several requests are on their way at once, if there are ranges for them."""
        self.pick(pick).fetch(span)

    @precondition(lambda self: any(member.fetches for member in self.living))
    @rule(pick=PICKS, which=PICKS)
    def fetch_is_answered(self, pick: int, which: int) -> None:
        waiting = [member for member in self.living if member.fetches]
        waiting[pick % len(waiting)].take_fetch(which)

    @precondition(alive)
    @rule(pick=PICKS, count=st.integers(1, 6))
    def start(self, pick: int, count: int) -> None:
        member = self.pick(pick)
        member.fetch(span=4)
        while member.fetches:
            member.take_fetch(0)
        member.start(count)

    @precondition(lambda self: any(member.running for member in self.living))
    @rule(pick=PICKS, which=st.lists(PICKS, min_size=1, max_size=4))
    def finish(self, pick: int, which: list[int]) -> None:
        busy = [member for member in self.living if member.running]
        for one in which:
            busy[pick % len(busy)].finish(one)

    @precondition(alive)
    @rule(pick=PICKS, count=st.integers(2, 6), left=st.integers(0, 3), which=PICKS, fate=FATE)
    def work(self, pick: int, count: int, left: int, which: int, fate: Any) -> None:
        """Some records, in any order of their ends, of which some take longer."""
        member = self.pick(pick)
        self.start(pick, count)
        while len(member.running) > left:
            member.finish(which)
        member.commit(fate)

    @precondition(alive)
    @rule(
        pick=PICKS,
        which=st.lists(PICKS, min_size=1, max_size=3),
        retry_after_s=st.sampled_from([0.0, 3.0, -1.0]),
        is_told=st.booleans(),
    )
    def fail(self, pick: int, which: list[int], retry_after_s: float, is_told: bool) -> None:
        member = self.pick(pick)
        self.start(pick, len(which))
        for one in which:
            member.fail(one, retry_after_s)
        if is_told:
            member.commit()

    # Commits --------------------------------------------------------------------------------------

    @precondition(alive)
    @rule(pick=PICKS, fate=FATE)
    def commit(self, pick: int, fate: Any) -> None:
        self.pick(pick).commit(fate)

    @precondition(alive)
    @rule(pick=PICKS, which=PICKS)
    def commit_in_part(self, pick: int, which: int) -> None:
        member = self.pick(pick)
        works = list(member.workload)
        if works:
            member.commit(works=[works[which % len(works)]])

    @precondition(alive)
    @rule(pick=PICKS)
    def send_commit(self, pick: int) -> None:
        """It arrives later, with the next one, or when it is let."""
        member = self.pick(pick)
        if not member.flights:
            member.take_off()

    @precondition(lambda self: any(member.flights for member in self.living))
    @rule(pick=PICKS, fate=FATE)
    def commit_arrives(self, pick: int, fate: Any) -> None:
        waiting = [member for member in self.living if member.flights]
        waiting[pick % len(waiting)].land(fate)

    @precondition(lambda self: any(member.sent for member in self.members))
    @rule(pick=PICKS, which=PICKS)
    def commit_arrives_again(self, pick: int, which: int) -> None:
        """Also of members that are long gone."""
        heard = [member for member in self.members if member.sent]
        heard[pick % len(heard)].send_again(which)

    @precondition(alive)
    @rule(
        pick=PICKS,
        which=PICKS,
        slots=st.one_of(st.none(), st.sampled_from(SLOT_RANGES)),
        ahead=st.integers(-2, 1),
        beyond=st.integers(-4, 2),
        of_log=st.booleans(),
        is_range=st.booleans(),
        is_failure=st.booleans(),
        leader_epoch=st.integers(-2, 0),
    )
    def lie(
        self,
        pick: int,
        which: int,
        slots: SlotRange | None,
        ahead: int,
        beyond: int,
        of_log: bool,
        is_range: bool,
        is_failure: bool,
        leader_epoch: int,
    ) -> None:
        """A client that says anything: what it was shown and holds counts, and nothing else.

        Of its own slots or others, of epochs before and after its own, near the end of what it was
        shown or of the log, by the leader epoch or an earlier one.
        """
        member = self.pick(pick)
        works = list(member.workload)
        if not works:
            return
        work = works[which % len(works)]
        place, log = work.unit[:2], self.world.logs.get(work.unit[:2])
        if log is None:
            return
        end = max(0, (log.end if of_log else max(work.position, 0)) + beyond)
        done = OffsetRanges([(end - 1, end - 1)] if is_range and end else [])
        ack = Ack(slots or work.slots, work.token.epoch + ahead, -1 if is_range else end, done)
        failures: tuple[Failure, ...] = ()
        record = log.records.get(end - 1)
        if is_failure and record is not None:
            failures = (Failure(end - 1, hash_of(record.key, end - 1), 0, "a lie"),)
        told = Told(place, max(log.leader_epoch + leader_epoch, -1), (ack,), failures)
        commit = Commit(member.member_id, max(member.epoch, 0), (told,))
        self.oracle.commits(member, commit, FINE, is_lie=True)

    @precondition(alive)
    @rule(pick=PICKS, which=PICKS, ahead=st.sampled_from([-2, -1, 1]), below=st.integers(0, 2))
    def lie_about_the_epoch(self, pick: int, which: int, ahead: int, below: int) -> None:
        """It was shown the records and holds their slots, but not since then."""
        member = self.pick(pick)
        works = [one for one in member.workload if one.position > below]
        if works:
            work = works[which % len(works)]
            place, log = work.unit[:2], self.world.logs.get(work.unit[:2])
            if log is not None:
                ack = Ack(work.slots, work.token.epoch + ahead, work.position - below)
                commit = Commit(member.member_id, member.epoch, (Told(place, -1, (ack,)),))
                self.oracle.commits(member, commit, FINE, is_lie=True)

    @precondition(alive)
    @rule(pick=PICKS, partition=PICKS, offset=st.integers(0, RECORDS_MAX))
    def commit_an_offset(self, pick: int, partition: int, offset: int) -> None:
        """A member that shares commits as others do: only for a partition that it has whole."""
        member = self.pick(pick)
        places = list(self.world.logs)
        place = places[partition % len(places)]
        offset = min(offset, self.world.logs[place].end)
        known = self.world.member(member.member_id)
        held = holdings_of(known, *place).slots if known is not None else {}
        has_progress = self.world.progress(place) is not None
        answer = self._commit_offset(place, offset, member.member_id, max(member.epoch, 0))
        is_taken = answer.error is ErrorCode.NONE and answer.errors == (ErrorCode.NONE,)
        is_whole = sum(slots.end - slots.first for slots in held) == SLOT_COUNT
        assert not is_taken or is_whole or not has_progress, "S14: committed for others"
        if is_taken:
            self.oracle.commits_offset(place, offset)

    def _commit_offset(self, place: Place, offset: int, member_id: str, epoch: int) -> Any:
        return self.world.submit(
            c.CommitOffsets(
                group_id=GROUP,
                member_id=member_id,
                group_instance_id=None,
                generation_id=epoch,
                retention_ms=-1,
                knows_group_id_not_found=True,
                offsets=(
                    c.OffsetToCommit(
                        topic=TOPIC,
                        topic_id=place[0],
                        partition=place[1],
                        offset=offset,
                        leader_epoch=self.world.logs[place].leader_epoch,
                        metadata=None,
                    ),
                ),
            )
        )

    @rule(
        partition=PICKS, slots=st.sampled_from(SLOT_RANGES), watermark=st.integers(0, RECORDS_MAX)
    )
    def acknowledge_as_nobody(self, partition: int, slots: SlotRange, watermark: int) -> None:
        """Nobody in particular, which counts in a group without members only."""
        places = list(self.world.logs)
        place = places[partition % len(places)]
        log = self.world.logs[place]
        told = Told(place, log.leader_epoch, (Ack(slots, -1, min(watermark, log.end)),))
        self.oracle.commits(self.members[0], Commit("", -1, (told,)), FINE, is_lie=True)

    # Records after their last attempt -------------------------------------------------------------

    def waiting(self) -> list[tuple[Place, int]]:
        found = []
        for place in self.world.logs:
            progress = self.world.progress(place)
            if progress is not None:
                found += [(place, offset) for offset in exhausted_offsets(progress)]
        return found

    @precondition(lambda self: self.waiting())
    @rule(fate=FATE)
    def dispose(self, fate: Any) -> None:
        """What the broker does by itself, if it was told to."""
        disposition = self.world.settings.disposition
        if disposition == BLOCK_KEY or not fate.arrives:
            return
        for place, offset in self.waiting():
            if not fate.kills or place in self.world.logs:
                decision = Decision(Action.DLQ, offset, diverts=disposition == DLQ_KEY)
                self.oracle.decides(place, [decision], fate)

    @precondition(lambda self: self.waiting())
    @rule(pick=PICKS, action=st.sampled_from(Action), of_key=st.booleans(), fate=FATE)
    def decide(self, pick: int, action: Action, of_key: bool, fate: Any) -> None:
        """What an administrator does."""
        place, offset = self.waiting()[pick % len(self.waiting())]
        progress = self.world.progress(place)
        assert progress is not None
        decision = Decision(action, offset)
        if of_key:
            decision = Decision(action, key_hash=progress.attempts[offset].key_hash)
        if fate.arrives:
            self.oracle.decides(place, [decision], fate)

    @precondition(lambda self: any(member.running for member in self.living))
    @rule(pick=PICKS, which=PICKS)
    def stuck(self, pick: int, which: int) -> None:
        """A record that somebody does not finish: it counts as a failure, and its slot moves."""
        busy = [member for member in self.living if member.running]
        running = busy[pick % len(busy)].running
        record = running[which % len(running)]
        place, key_hash = record._work.unit[:2], hash_of(record._order, record.offset)
        log, group = self.world.logs.get(place), self.world.group
        there = log.records.get(record.offset) if log is not None else None
        if group is None or there is None or there.key != record.key:
            return
        if record._work.diverted:
            return  # it would have been left out
        self.world.submit(
            CountStuck(
                group_id=GROUP,
                topic_id=place[0],
                partition=place[1],
                offset=record.offset,
                key_hash=key_hash,
                reason="stuck",
            )
        )
        slots = SlotRange(there.slot, there.slot + 1)
        self.world.submit(
            cc.MoveRanges(
                group_id=GROUP,
                group_epoch=group.group_epoch,
                moves=(cc.RangeMove(Unit(*place, slots), None),),
                cause=Cause.STUCK,
            )
        )

    # Members --------------------------------------------------------------------------------------

    @precondition(alive)
    @rule(pick=PICKS, fate=FATE)
    def beat(self, pick: int, fate: Any) -> None:
        self.pick(pick).beat(fate)

    @precondition(alive)
    @rule(pick=PICKS, fate=FATE)
    def give_back(self, pick: int, fate: Any) -> None:
        self.pick(pick).give_back(fate)

    @precondition(lambda self: len(self.living) < MEMBERS_MAX)
    @rule(is_static=st.booleans())
    def join(self, is_static: bool) -> None:
        name = self._name()
        instance_id = f"i{name}" if is_static else None
        member = Member(self.world, self.oracle, name, instance_id)
        self.members.append(member)
        member.beat()

    @precondition(alive)
    @rule(pick=PICKS)
    def leave(self, pick: int) -> None:
        self.pick(pick).leave()

    @precondition(alive)
    @rule(pick=PICKS)
    def crash(self, pick: int) -> None:
        self.pick(pick).crash()

    @property
    def away(self) -> list[str]:
        running = {member.instance_id for member in self.living}
        return sorted({m.instance_id for m in self.members if m.instance_id} - running)

    @precondition(lambda self: self.away and len(self.living) < MEMBERS_MAX)
    @rule(pick=PICKS)
    def come_back(self, pick: int) -> None:
        """A static member that left or crashed, under a new member id."""
        instance_id = self.away[pick % len(self.away)]
        member = Member(self.world, self.oracle, self._name(), instance_id)
        self.members.append(member)
        member.beat()

    @precondition(lambda self: not self.living_stock)
    @rule()
    def stock_joins(self) -> None:
        member = StockMember(self.world, self.oracle, self._name())
        self.stock.append(member)
        member.beat()

    @precondition(lambda self: self.living_stock)
    @rule(count=st.integers(1, 10))
    def stock_turn(self, count: int) -> None:
        self.living_stock[0].turn(count)

    @precondition(lambda self: self.living_stock)
    @rule(is_orderly=st.booleans())
    def stock_goes(self, is_orderly: bool) -> None:
        member = self.living_stock[0]
        if is_orderly:
            member.leave()
        else:
            member.crash()

    @rule(count=st.integers(1, 6), keys=st.lists(st.sampled_from(ALL_KEYS), max_size=8))
    def everybody(self, count: int, keys: tuple[bytes, ...] | list[bytes] = ()) -> None:
        """A moment in which nothing goes wrong."""
        self.produce(count, list(keys))
        for member in self.living:
            member.turn(count)
        for stock in self.living_stock:
            stock.turn(count)
        self.world.wait(100)

    @rule(
        moves=st.lists(
            st.tuples(PICKS, st.sampled_from(SLOT_RANGES), PICKS), min_size=1, max_size=2
        )
    )
    def move_ranges(self, moves: list[tuple[int, SlotRange, int]]) -> None:
        group = self.world.group
        if group is None:
            return
        places, names = list(self.world.logs), [*sorted(group.members), None]
        self.world.submit(
            cc.MoveRanges(
                group_id=GROUP,
                group_epoch=group.group_epoch,
                moves=tuple(
                    cc.RangeMove(Unit(*places[at % len(places)], slots), names[to % len(names)])
                    for at, slots, to in moves
                ),
                cause=Cause.LOAD,
            )
        )

    # Time and the broker --------------------------------------------------------------------------

    @rule(delay_ms=DELAYS, sleepers=st.sets(st.integers(0, MEMBERS_MAX), max_size=2))
    def time_passes(self, delay_ms: int, sleepers: set[int]) -> None:
        """Everybody sends heartbeats but those who are paused, beyond their lease or not."""
        awake = [one for index, one in enumerate(self.living) if index not in sleepers]
        left_ms = delay_ms
        while left_ms > 0:
            self.world.wait(min(left_ms, HEARTBEAT_MS))
            left_ms -= HEARTBEAT_MS
            for member in awake:
                member.give_back()
                member.beat()

    @precondition(lambda self: len(self.living) > 1)
    @rule(
        count=st.integers(1, 6),
        slots=st.sampled_from(SLOT_RANGES),
        to=PICKS,
        left=st.integers(0, 3),
        fate=FATE,
    )
    def move_busy_ranges(self, count: int, slots: SlotRange, to: int, left: int, fate: Any) -> None:
        """Ranges change hands while everybody is at work, and some records take their time."""
        for member in self.living:
            self.start(self.living.index(member), count)
        for place in range(len(self.world.logs)):
            self.move_ranges([(place, slots, to)])
        self.world.wait(100)
        for _ in range(3):
            for member in self.living:
                member.beat()
                while len(member.running) > left:
                    member.finish(0)
                member.give_back(fate)
                fate = FINE

    @rule(lost=st.lists(st.integers(0, 5), max_size=2))
    def broker_restarts(self, lost: list[int]) -> None:
        """Logs may lose their ends, but no log what only a committed offset tells of."""
        may_lose = [
            min(count, max(0, log.end - (self.world.committed(place) or 0)))
            if self.world.progress(place) is None
            else count
            for count, (place, log) in zip(lost, self.world.logs.items(), strict=False)
        ]
        self.world.restart(may_lose)

    @precondition(alive)
    @rule(
        count=st.integers(1, 6),
        lost=st.integers(1, 5),
        keys=st.lists(st.sampled_from(ALL_KEYS), max_size=8),
        goes_on=st.booleans(),
    )
    def log_is_cut_under_work(
        self, count: int, lost: int, keys: list[bytes], goes_on: bool
    ) -> None:
        """Records are done that the log loses before anybody was told; others come instead."""
        for index, member in enumerate(self.living):
            self.start(index, count)
            while member.running:
                member.finish(0)
        cuts = []
        for place, log in self.world.logs.items():
            works = [one for member in self.living for one in member.workload.of_place(place)]
            arrived = max((work.position for work in works), default=0)
            cuts.append(max(0, log.end - max(0, arrived - lost)))
        self.broker_restarts(cuts)
        for partition in range(len(self.world.logs)):
            self.produce(partition, keys)
        for member in self.living:
            if goes_on:
                member.fetch(span=8)
                while member.fetches:
                    member.take_fetch(0)
            member.commit()

    @rule()
    def individual_journal_is_lost(self) -> None:
        """Not in the moment between a start with a shorter log and the note of it."""
        self.world.wait(0)
        self.world.individual.clear()
        self.world.restart()
        self.oracle.restarted(without_journal=True)
        self.has_lost_journal = True

    @rule()
    def individual_journal_loses_its_end(self) -> None:
        """The last commit is in the journal of groups only."""
        self.world.wait(0)
        self.oracle.forget_last_commit()

    @rule(partition=PICKS, offset=st.integers(0, RECORDS_MAX))
    def retain(self, partition: int, offset: int) -> None:
        logs = list(self.world.logs.values())
        logs[partition % len(logs)].retain_from(offset)

    @rule(partition=PICKS, offsets=st.sets(st.integers(0, RECORDS_MAX), max_size=4))
    def compact(self, partition: int, offsets: set[int]) -> None:
        logs = list(self.world.logs.values())
        log = logs[partition % len(logs)]
        for offset in offsets:
            log.records.pop(offset, None)

    @rule()
    def recreate_topic(self) -> None:
        places = list(self.world.logs)
        self.world.recreate_topic()
        for place in places:
            self.oracle.forget(place)

    @precondition(lambda self: self.world.group is not None)
    @rule(partition=PICKS, offset=st.integers(0, RECORDS_MAX))
    def reset(self, partition: int, offset: int) -> None:
        """An administrator; refused while anybody is there."""
        places = list(self.world.logs)
        place = places[partition % len(places)]
        offset = min(offset, self.world.logs[place].end)
        answer = self._commit_offset(place, offset, "", -1)
        group = self.world.group
        is_empty = group is None or not group.members
        assert (answer.error is ErrorCode.NONE) == is_empty, "S5: a reset while members live"
        if is_empty:
            self.oracle.reset(place, offset)

    @precondition(alive)
    @rule(partition=PICKS, offset=st.integers(0, RECORDS_MAX))
    def everybody_leaves_and_it_is_reset(self, partition: int, offset: int) -> None:
        for member in self.living:
            member.leave()
        for stock in self.living_stock:
            stock.leave()
        self.world.wait(2 * SESSION_MS)
        self.reset(partition, offset)

    # What always holds ----------------------------------------------------------------------------

    @invariant()
    def holds(self) -> None:
        if hasattr(self, "watch"):
            self.watch.check()

    def teardown(self) -> None:
        if hasattr(self, "watch"):
            self.heal()

    def heal(self) -> None:
        """All become healthy: L1, L2 and L4."""
        if not self.living:
            self.join(is_static=False)
        for stock in self.living_stock:
            stock.leave()
        # L2: whoever is gone is noticed in time, and everything has an owner soon after.
        for _ in range(SESSION_MS // HEARTBEAT_MS + 4):
            self.world.wait(HEARTBEAT_MS)
            for member in self.living:
                member.turn(0)
        self.watch.check()
        group = self.world.group
        assert group is not None
        assert group.members.keys() <= {member.member_id for member in self.living}, "L2"
        if self.has_lost_journal:
            # Members do not know that the broker has forgotten what they told it, and tell it
            # again when they get on.
            for log in self.world.logs.values():
                for key in ALL_KEYS[: len(SLOTS)]:
                    log.append(key)
        for _ in range(60):
            self.world.wait(1_000)
            for member in self.living:
                member.turn(10)
            # S16, L1: what waits for somebody gets an answer.
            for place, offset in self.waiting():
                self.oracle.decides(place, [Decision(Action.DLQ, offset)], FINE)
            if not self.left():
                break
        self.watch.check()
        assert group.is_settled, "L4: something is still on its way"
        assert not self.left(), f"L1: {self.left()} is not done"

    def left(self) -> list[Any]:
        """What is not done."""
        return [
            (place[1], record)
            for place, log in self.world.logs.items()
            for record in log.records.values()
            if record.ident not in self.oracle.acked[place]
        ]


# Without the phase that explains failures, whose tracing takes longer than all the rest.
EXAMPLES = settings(
    max_examples=200,
    stateful_step_count=50,
    deadline=None,
    phases=(Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink),
)


# Time enough to make a failure small.
@pytest.mark.timeout(900 + SECONDS)
def test_the_engine_keeps_its_invariants() -> None:
    """Whatever happens in whatever order; for as long as there is time where that is asked for."""
    end_s = time.monotonic() + SECONDS
    run_state_machine_as_test(Engine, settings=EXAMPLES)
    while time.monotonic() < end_s:
        new = settings(EXAMPLES, derandomize=False, database=None, print_blob=True)
        run_state_machine_as_test(Engine, settings=new)
