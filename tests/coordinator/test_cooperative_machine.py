"""Individual commits against a plain oracle: any order of events, and a restart anywhere.

The oracle is a set of (slot, offset) that are done and a set of slots that somebody has spoken of.
Slots 0 to 7 are looked at one by one; 8 stands for all the others. Whatever a crash leaves of the
two journals is read again: everything, without the last of one of them, or without one at all.
Members stay where they are here; see `test_cooperative_engine_machine` for all of it.
"""

import copy
from dataclasses import dataclass, field
from typing import Any

from cooperative_story import GROUP, PLACE, TOPIC, TOPIC_ID, Desk, ack
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from anabranch.coordinator.cooperative.commands import Failure
from anabranch.coordinator.cooperative.progress import Attempt
from anabranch.coordinator.cooperative.retries import next_attempt
from anabranch.coordinator.group import commands as c
from anabranch.model.errors import ErrorCode
from anabranch.model.units import ALL_SLOTS, SLOT_COUNT, SlotRange

SLOTS = range(9)
LAST = 30
OFFSETS = st.integers(0, LAST)
RANGES = [
    SlotRange(first, end if end < 9 else SLOT_COUNT)
    for first in SLOTS
    for end in range(first + 1, 10)
]
# Who holds which slots, since which epoch; both members are at epoch 6.
HELD = {
    "a": {SlotRange(0, 4): 5},
    "b": {SlotRange(4, 8): 6, SlotRange(8, SLOT_COUNT): 5},
}
EPOCH = 6


def slots_of(slots: SlotRange) -> set[int]:
    return {slot for slot in SLOTS if slots.first <= slot < slots.end}


@dataclass
class Oracle:
    """What a group has done of a partition."""

    done: set[tuple[int, int]] = field(default_factory=set)
    spoken: set[int] = field(default_factory=set)
    attempts: dict[int, Attempt] = field(default_factory=dict)

    def take(self, slots: set[int], watermark: int, offsets: set[int]) -> None:
        below = set(range(max(watermark, 0)))
        self.done |= {(slot, offset) for slot in slots for offset in below | offsets}
        if watermark >= 0:
            self.spoken |= slots
        self.tidy()

    def expire(self, start: int) -> None:
        self.take(set(self.spoken), start, set())

    def lose(self, end: int) -> None:
        self.done = {(slot, offset) for slot, offset in self.done if offset < end}
        self.attempts = {o: attempt for o, attempt in self.attempts.items() if o < end}

    def tidy(self) -> None:
        self.attempts = {
            offset: attempt
            for offset, attempt in self.attempts.items()
            if (attempt.slot, offset) not in self.done
        }

    @property
    def stable(self) -> int:
        if len(self.spoken) < len(SLOTS):
            return -1
        return min(
            next(offset for offset in range(1000) if (slot, offset) not in self.done)
            for slot in SLOTS
        )


class Commits(RuleBasedStateMachine):
    """One partition of a group, its log, and the journals of its coordinator."""

    @initialize(end=OFFSETS)
    def begin(self, end: int) -> None:
        self.desk = Desk(retry_backoff_ms=1_000, delivery_limit=3)
        self.log = self.desk.logs[PLACE]
        self.log.end = end
        self.oracle: Oracle | None = None
        self.committed = -1
        self.has_offset = False
        self.enter()
        self.remember()

    def enter(self) -> None:
        for member_id, held in HELD.items():
            self.desk.holds(member_id, EPOCH, held)

    def leave(self) -> None:
        for member_id in HELD:
            self.desk.leaves(member_id)

    def remember(self) -> None:
        """What there is before the next event, which a crash may leave half done."""
        self.was_due = self.is_due
        self.before = (
            dict(self.desk.primary),
            dict(self.desk.individual),
            copy.deepcopy(self.oracle),
        )

    def _begun(self) -> Oracle:
        """The oracle, begun from the committed offset if nothing is known yet."""
        if self.oracle is not None:
            return self.oracle
        begun = Oracle()
        if self.has_offset:
            # Beyond the end of the log nothing is done, whatever was committed.
            begun.take(set(SLOTS), min(self.committed, self.log.end), set())
        return begun

    # What happens -------------------------------------------------------------------------------

    @rule(
        member_id=st.sampled_from("ab"),
        slots=st.sampled_from(RANGES),
        epoch=st.integers(4, 7),
        watermark=st.integers(-1, LAST),
        pairs=st.lists(st.tuples(OFFSETS, st.integers(0, 3)), max_size=3),
        delivered=st.one_of(st.none(), OFFSETS),
        old=st.booleans(),
    )
    def acknowledge(
        self,
        member_id: str,
        slots: SlotRange,
        epoch: int,
        watermark: int,
        pairs: list[tuple[int, int]],
        delivered: int | None,
        old: bool,
    ) -> None:
        self.remember()
        acked = ack(slots, epoch, watermark, *((first, first + n) for first, n in pairs))
        leader_epoch = self.log.epochs[0][0] if old else None
        step = self.desk.ack(
            member_id, EPOCH, acked, delivered=delivered, leader_epoch=leader_epoch
        )
        limit = min(
            self.log.end,
            self.log.end if delivered is None else delivered,
            self.log.end_of(leader_epoch) if leader_epoch is not None else self.log.end,
        )
        begun = self._begun()
        begun.expire(self.log.start)
        taken: set[int] = set()
        if epoch <= EPOCH and acked.end_offset <= limit:
            for held, since in HELD[member_id].items():
                if since <= epoch:
                    taken |= slots_of(held) & slots_of(slots)
        offsets = {o for first, n in pairs for o in range(first, first + n + 1)}
        begun.take(taken, watermark, offsets)
        if taken or self.oracle is not None:
            self.oracle = begun
            self._projected()
        accepted = {
            slot
            for one in step.partition.outcomes
            if one.error_code is ErrorCode.NONE
            for slot in slots_of(one.slots)
        }
        assert accepted == taken
        if self.oracle is not None:
            assert step.partition.stable_offset == self.oracle.stable

    @rule(
        member_id=st.sampled_from("ab"),
        slot=st.sampled_from(SLOTS),
        offset=OFFSETS,
        retry_after_ms=st.sampled_from([-1, 0, 3_000]),
    )
    def fail(self, member_id: str, slot: int, offset: int, retry_after_ms: int) -> None:
        self.remember()
        failure = Failure(offset, slot << 47, retry_after_ms, "no")
        step = self.desk.fail(member_id, EPOCH, failure)
        begun = self._begun()
        begun.expire(self.log.start)
        is_held = any(slot in slots_of(held) for held in HELD[member_id])
        known = begun.attempts.get(offset)
        is_taken = is_held and offset < self.log.end and (known is None or known.slot == slot)
        if is_taken and (slot, offset) not in begun.done:
            attempt = next_attempt(known, failure, self.desk.settings, self.desk.now_ms)
            begun.attempts[offset] = attempt
        if (is_taken or (is_held and (slot, offset) in begun.done and offset < self.log.end)) or (
            self.oracle is not None
        ):
            self.oracle = begun
            self._projected()
        (outcome,) = step.partition.failures
        if is_taken:
            assert outcome.error_code is ErrorCode.NONE

    def _projected(self) -> None:
        assert self.oracle is not None
        self.committed, self.has_offset = self.oracle.stable, True

    @rule(offset=OFFSETS)
    def reset(self, offset: int) -> None:
        """An administrator, while nobody is there."""
        self.remember()
        self.leave()
        self.desk.commit(offset)
        self.enter()
        if self.oracle is not None:
            self.oracle = Oracle()
            self.oracle.take(set(SLOTS), offset, set())
        self.committed, self.has_offset = offset, True

    @rule(offset=OFFSETS)
    def commit_by_the_owner_of_it_all(self, offset: int) -> None:
        self.remember()
        self.leave()
        self.desk.holds("a", EPOCH, {ALL_SLOTS: EPOCH})
        self.desk.commit(offset, "a", EPOCH)
        self.leave()
        self.enter()
        if self.oracle is not None:
            if offset < self.oracle.stable:
                self.oracle = Oracle()
            self.oracle.take(set(SLOTS), offset, set())
        self.committed, self.has_offset = offset, True

    @rule()
    def forget(self) -> None:
        """The group's offsets are deleted, or the group is."""
        self.remember()
        self.leave()
        self.desk.submit(c.DeleteOffsets(group_id=GROUP, partitions=((TOPIC, 0),)))
        self.enter()
        self.oracle, self.committed, self.has_offset = None, -1, False

    @rule(count=st.integers(1, 10))
    def produce(self, count: int) -> None:
        self.log.end = min(self.log.end + count, LAST)

    @rule(start=OFFSETS)
    def retain(self, start: int) -> None:
        self.log.start = min(max(start, self.log.start), self.log.end)

    @rule(passed_ms=st.sampled_from([500, 1_000, 10_000]))
    def wait(self, passed_ms: int) -> None:
        self.desk.now_ms += passed_ms

    @rule()
    def compact(self) -> None:
        self.desk.compact()

    # Crashes ------------------------------------------------------------------------------------

    @rule(lost=st.integers(0, 5))
    def restart(self, lost: int) -> None:
        """Both journals are there; the log may have lost its end."""
        self._start(max(self.log.start, self.log.end - lost))

    @rule()
    def ring(self) -> None:
        """There is time to write down what was found at the start."""
        is_due = self.is_due
        self.desk.ring()
        if is_due and self.oracle is not None:
            self._projected()

    @property
    def is_due(self) -> bool:
        return self.desk.timers.next_deadline_ms() is not None

    @precondition(lambda self: not self._has_members_news())
    @rule()
    def restart_without_the_committed_offset(self) -> None:
        """The last event was written to the journal of progress only."""
        primary, individual, _ = self.before
        if self.desk.individual == individual or self._reset_went_back(primary):
            return
        self.desk.primary = dict(primary)
        offset = self._offset_in(self.desk)
        if offset is None:
            self.oracle, self.committed, self.has_offset = None, -1, False
        else:
            self.committed, self.has_offset = offset, True
        self._start(self.log.end)

    @rule()
    def restart_without_the_last_progress(self) -> None:
        """The journal of progress lost its last event, the other did not."""
        _, individual, oracle = self.before
        if self.was_due:
            return  # the journal did not have what the oracle knew
        self.desk.individual = dict(individual)
        self.oracle = oracle if self.has_offset else None
        self._start(self.log.end)

    @rule()
    def restart_without_the_journal(self) -> None:
        self.desk.individual = {}
        self.oracle = None
        self._start(self.log.end)

    def _has_members_news(self) -> bool:
        return not hasattr(self, "before")

    def _offset_in(self, desk: Desk) -> int | None:
        found = desk.read().offsets(GROUP).get((TOPIC, 0))
        return found.offset if found is not None else None

    def _reset_went_back(self, primary: dict[bytes, bytes | None]) -> bool:
        """Whether the event lowered offsets: then the higher of both undoes it, as is promised."""
        present = self._offset_in(self.desk)
        kept = dict(self.desk.primary)
        self.desk.primary = dict(primary)
        before = self._offset_in(self.desk)
        self.desk.primary = kept
        return before is not None and (present is None or present < before)

    def _start(self, end: int) -> None:
        self.log.cut(end, self.log.leader_epoch + 1)
        read = self.desk.read()
        found = read.offsets(GROUP).get((TOPIC, 0))
        if self.oracle is not None:
            # Plain commits leave the leader epoch as it was: beyond its end they count only by the
            # committed offset.
            known_epoch = read.progress(GROUP)[PLACE].progress.leader_epoch
            self.oracle.lose(min(self.log.end, self.log.end_of(known_epoch)))
            if found is not None:
                # A log that was cut under a committed offset may have grown again.
                epoch = found.leader_epoch
                known = self.log.end if epoch < 0 else self.log.end_of(epoch)
                self.oracle.take(set(SLOTS), min(self.committed, known), set())
            self.oracle.expire(self.log.start)
        self.desk.restart()
        self.remember()

    # What always holds --------------------------------------------------------------------------

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "desk"):
            return
        progress = self.desk.progress()
        if self.oracle is None:
            assert progress is None
        else:
            assert progress is not None
            for slot in SLOTS:
                interval = progress.interval_of(slot)
                assert (interval.watermark >= 0) == (slot in self.oracle.spoken)
                for offset in range(LAST + 10):
                    assert interval.is_done(offset) == ((slot, offset) in self.oracle.done)
            assert progress.stable_offset == self.oracle.stable
            assert dict(progress.attempts) == self.oracle.attempts
        found: Any = self.desk.shard.offsets(GROUP).get((TOPIC, 0))
        assert (found.offset if found is not None else None) == (
            self.committed if self.has_offset else None
        )

    @invariant()
    def nothing_is_skipped(self) -> None:
        """Below the committed offset everything is done."""
        if hasattr(self, "desk") and self.oracle is not None and not self.is_due:
            assert all(
                (slot, offset) in self.oracle.done
                for slot in SLOTS
                for offset in range(min(self.committed, self.log.end))
            )
            assert (TOPIC_ID, 0) in self.desk.shard.progress(GROUP)


TestCommits = Commits.TestCase
TestCommits.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
