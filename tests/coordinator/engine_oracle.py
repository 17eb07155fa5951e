"""What should be true of a group that shares partitions, from plain sets; nothing is clever here.

The oracle sees what happens outside: which member starts and finishes which record, what it tells,
and what the coordinator answers. From that it knows for each record, by its identity (leader epoch
and offset), whether it was processed and whether it is acknowledged, and compares with the engine.

The invariants have names, S1 to S17 for safety and L1 to L4 for liveness; docs/reference/
invariants.md says where each is checked. Those that are looked at after every step are in
`engine_invariants`; here are those about single events:

S3  a key is worked on by one member at a time, of those that think they may
S4  within an ownership records of a key start in order; an ownership begins at or below the first
    record that is not acknowledged and leaves none out
S7  an acknowledgement counts only from the owner, of its epoch, for what it was shown
S8  what is acknowledged is the very record that was processed, not another one at its offset
S16 a record is acknowledged by a decision only after it is in the dead-letter topic, or skipped on
    purpose; nothing of a key that is diverted is processed
6.3 a record is processed a second time only if somebody lost what it had done (a licence)
"""

from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from engine_world import SLOTS, Commit, Fate, Ident, Logged, Told, World

from anabranch.branch._kernels import xxh64
from anabranch.branch.slots import slot_of_key
from anabranch.client.records import ConsumerRecord
from anabranch.coordinator.cooperative.acks import Ack
from anabranch.coordinator.cooperative.commands import Action, Decision
from anabranch.coordinator.cooperative.progress import PartitionProgress
from anabranch.coordinator.cooperative.records import Place
from anabranch.coordinator.cooperative.retries import is_exhausted
from anabranch.coordinator.cooperative.window import begun_offset
from anabranch.model.errors import ErrorCode
from anabranch.model.offset_ranges import OffsetRanges
from anabranch.model.units import ALL_SLOTS, SlotRange

if TYPE_CHECKING:
    from engine_members import Member, StockMember

_LIMITED = (ErrorCode.THROTTLING_QUOTA_EXCEEDED,)
_TAKEN = (ErrorCode.NONE, *_LIMITED)


def ident_of(record: ConsumerRecord) -> Ident:
    """The kit puts the leader epoch where a record has its time."""
    return Ident(record.timestamp, record.offset)


def key_of(record: ConsumerRecord) -> bytes:
    assert record.key is not None
    return record.key


class Oracle:
    """What was done, by whom."""

    def __init__(self, world: World) -> None:
        self.world = world
        world.on_restart = self.restarted
        self.members: list[Member] = []
        # Acknowledged, and known to be: records by partition.
        self.acked: dict[Place, set[Ident]] = defaultdict(set)
        # Acknowledged by a member that lied, or skipped by an administrator.
        self.lied: dict[Place, set[Ident]] = defaultdict(set)
        # Was acknowledged, and a journal that is gone knew of it: its owner may still know.
        self.remembered: dict[Place, set[Ident]] = defaultdict(set)
        # How often each record was processed, and how often again it may be.
        self.processed: Counter[tuple[Place, Ident]] = Counter()
        self.licences: Counter[tuple[Place, Ident]] = Counter()
        self.duplicates = 0
        # Of each member: what it processed and has not lost, and where it is with each key.
        self.finished: dict[Member, set[tuple[Place, Ident]]] = {}
        self.ever_finished: dict[Member, set[tuple[Place, Ident]]] = {}
        self.started: dict[Member, dict[tuple[Place, bytes], int]] = {}
        self.failed: dict[Member, set[tuple[Place, int]]] = {}
        # Keys whose records are not to be processed, from which offset on.
        self.diverted: dict[tuple[Place, bytes], int] = {}
        # What was acknowledged, and written, before the last commit.
        self._before: Any = None
        # The stable offset may go back to here: somebody has reset it, or records are gone.
        self.floors: dict[Place, int] = {}

    def comes(self, member: "Member") -> None:
        self.members.append(member)
        self.finished[member] = set()
        self.ever_finished[member] = set()
        self.started[member] = {}
        self.failed[member] = set()

    def goes(self, member: "Member") -> None:
        """Its process is gone, and with it whatever ran."""
        for record in member.running:
            self.licences[record._work.unit[:2], ident_of(record)] += 1
        member.running.clear()

    # Work -----------------------------------------------------------------------------------------

    def loads(self, member: "Member", work: Any, position: int) -> None:
        """S4: whoever takes over begins at or below the first record that is not acknowledged."""
        place = work.unit[:2]
        for record in self.world.logs[place].records.values():
            if work.slots.first <= record.slot < work.slots.end:
                is_acked = record.ident in self.acked[place]
                assert is_acked or position <= record.ident.offset, f"S4: {work} begins too late"

    def starts(self, member: "Member", record: ConsumerRecord) -> None:
        place, ident, key = record._work.unit[:2], ident_of(record), key_of(record)
        log = self.world.logs.get(place)
        assert member.has_lease, "S1: started without a lease"
        for other in self.members:
            if other is not member and other.has_lease:
                busy = [one for one in other.running if one._work.is_held]
                where = [(one._work.unit[:2], key_of(one)) for one in busy]
                assert (place, key) not in where, f"S3: {key!r} runs at {other} and {member}"
        last = self.started[member].get((place, key), -1)
        is_retry = (place, record.offset) in self.failed[member]
        assert last < record.offset or (is_retry and last == record.offset), "S4: out of order"
        self.started[member][place, key] = record.offset
        first = self.diverted.get((place, key), record.offset + 1)
        assert record.offset < first, f"S16: {key!r} is diverted from {first} on"
        if log is None or log.records.get(record.offset, (None,))[0] != ident:
            return  # it was deleted, or the log has lost it: then nobody will hear of it
        is_excused = ident in self.lied[place] or self.licences[place, ident]
        is_done = ident in self.acked[place] and not is_excused
        assert not is_done, "S4: done, yet started"
        for offset, earlier in log.records.items():
            if earlier.key == key and offset < record.offset:
                is_done = self.is_done_by(member, place, earlier.ident)
                assert is_done, f"S4: {record.offset} overtook {offset}"

    def is_done_by(self, member: "Member", place: Place, ident: Ident) -> bool:
        """Whether a member may take a record for done: it is, or the member did it itself."""
        is_acked = ident in self.acked[place] or ident in self.remembered[place]
        return is_acked or (place, ident) in self.finished[member]

    def finishes(self, member: "Member", record: ConsumerRecord, *, counts: bool) -> None:
        place, ident = record._work.unit[:2], ident_of(record)
        self._process(place, ident)
        if counts:
            self.finished[member].add((place, ident))
            self.ever_finished[member].add((place, ident))

    def _process(self, place: Place, ident: Ident) -> None:
        """6.3: processed again only with a licence."""
        which = (place, ident)
        self.processed[which] += 1
        self.duplicates += self.processed[which] > 1
        if self.processed[which] > 1 + self.licences[which]:
            self.licences[which] += self._lost_unnoticed(place, ident)
        assert self.processed[which] <= 1 + self.licences[which], f"6.3: {ident} without a reason"

    def _lost_unnoticed(self, place: Place, ident: Ident) -> int:
        """How many members have it, done or running, and do not know yet that it is another's."""
        record = self.world.logs[place].records.get(ident.offset)
        count = 0
        for member in self.members:
            known = self.world.member(member.member_id)
            has_slot = known is not None and any(
                unit[:2] == place and record and unit.slots.first <= record.slot < unit.slots.end
                for unit in known.held
            )
            runs = any(
                one._work.unit[:2] == place and ident_of(one) == ident for one in member.running
            )
            count += not has_slot and (runs or (place, ident) in self.finished[member])
        return count

    def fails(self, member: "Member", record: ConsumerRecord) -> None:
        self.failed[member].add((record._work.unit[:2], record.offset))

    def abandons(self, member: "Member", record: ConsumerRecord) -> None:
        self.licences[record._work.unit[:2], ident_of(record)] += 1

    def loses(self, member: "Member", place: Place, slots: SlotRange) -> None:
        """A member has some slots no more, and did not store what it did for them."""
        for record in member.running:
            slot = slot_of_key(key_of(record))
            if record._work.unit[:2] == place and slots.first <= slot < slots.end:
                self.licences[place, ident_of(record)] += 1
        self.gives_back(member, place, slots)

    def gives_back(self, member: "Member", place: Place, slots: SlotRange) -> None:
        """A member has some slots no more; what the coordinator did not hear of is done again."""
        log = self.world.logs.get(place)
        for where, ident in list(self.finished[member]):
            record = log.records.get(ident.offset) if log is not None else None
            is_gone = record is None or record.ident != ident
            if where == place and (is_gone or slots.first <= record.slot < slots.end):
                if ident not in self.acked[place]:
                    self.licences[place, ident] += 1
                if not is_gone:
                    self.finished[member].discard((where, ident))
        for where, key in list(self.started[member]):
            if where == place and slots.first <= slot_of_key(key) < slots.end:
                del self.started[member][where, key]

    # Commits --------------------------------------------------------------------------------------

    def commits(
        self, member: "Member", commit: Commit, fate: Fate, *, is_lie: bool = False
    ) -> tuple[tuple[Told, ...], Any]:
        """A commit arrives: S7 and S8, from who holds what and from what was processed."""
        world = self.world
        predicted = {
            (told.place, number): self._takeable(commit, told, ack)
            for told in commit.told
            if told.place in world.logs
            for number, ack in enumerate(told.acks)
        }
        failures = {
            (told.place, one.offset): self._takeable(
                commit,
                told,
                Ack(
                    SlotRange(one.slot, one.slot + 1),
                    commit.member_epoch,
                    done=OffsetRanges([(one.offset, one.offset)]),
                ),
            )
            for told in commit.told
            if told.place in world.logs
            for one in told.failures
        }
        known = {told.place: world.progress(told.place) for told in commit.told}
        self._before = (
            {place: set(idents) for place, idents in self.acked.items()},
            dict(world.primary),
            dict(world.individual),
        )
        there, answer = world.commit(commit, fate)
        if answer.error is not ErrorCode.NONE:
            assert not any(predicted.values()), f"S7: {answer.error!r}"
            return there, answer
        if fate.journals_written == 0:
            return there, answer
        for told, answered in zip(there, answer.partitions, strict=True):
            self._take(member, commit, told, answered, predicted, failures, is_lie)
            progress = None if fate.kills else world.progress(told.place)
            if progress is not None:
                if not any(one.error_code in _LIMITED for one in answered.outcomes):
                    self._check_limits(known[told.place], progress, told)
                assert progress.stable_offset == answered.stable_offset, "S5: another was told"
                assert progress.stable_offset == world.committed(told.place), "S5: not projected"
        if fate.kills:
            self.restarted()
        return there, answer

    def _check_limits(
        self, before: PartitionProgress | None, after: PartitionProgress, told: Told
    ) -> None:
        """S13: ranges come on top only up to the limits; watermarks may cut what there is."""
        limits = self.world.settings
        has_more = after.ranges_count > (before.ranges_count if before is not None else 0)
        if has_more and len(told.acks) == 1 and told.acks[0].done:
            window = after.last_done_offset - begun_offset(after)
            is_within = after.ranges_count <= limits.max_ranges
            assert is_within and window <= limits.max_window_offsets, "S13: beyond the limits"

    def _takeable(self, commit: Commit, told: Told, ack: Ack) -> frozenset[int]:
        """The slots of an acknowledgement that must count, of those that matter."""
        world, group = self.world, self.world.group
        facts = world.facts(commit, told)
        if ack.end_offset > min(
            facts.delivered_offset, facts.log_end_offset, facts.epoch_end_offset
        ):
            return frozenset()
        known = world.member(commit.member_id)
        if known is None:
            is_free = commit.member_epoch < 0 and (group is None or not group.members)
            everything = {(*told.place, ALL_SLOTS): -1}
            return _within(ack, told.place, everything) if is_free else frozenset()
        if not 0 <= commit.member_epoch <= known.member_epoch or ack.epoch > known.member_epoch:
            return frozenset()
        return _within(ack, told.place, {**known.assigned, **known.pending_revocation})

    def _take(
        self,
        member: "Member",
        commit: Commit,
        told: Told,
        answered: Any,
        predicted: dict[tuple[Place, int], frozenset[int]],
        predicted_failures: dict[tuple[Place, int], frozenset[int]],
        is_lie: bool,
    ) -> None:
        outcomes = list(answered.outcomes)
        for number, ack in enumerate(told.acks):
            mine = _parts_of(ack, outcomes)
            taken = {
                slot
                for one in mine
                if one.error_code in _TAKEN
                for slot in SLOTS
                if one.slots.first <= slot < one.slots.end
            }
            assert taken == predicted[told.place, number], f"S7: {ack} of {commit.member_id}"
            is_full = any(one.error_code is ErrorCode.THROTTLING_QUOTA_EXCEEDED for one in mine)
            self._apply(member, told.place, ack, taken, is_full=is_full, is_lie=is_lie)
        for outcome in answered.failures:
            is_taken = outcome.error_code is ErrorCode.NONE
            failed = (told.place, outcome.failure.offset)
            assert not is_taken or predicted_failures[failed], f"S7: {failed} of {commit.member_id}"

    def _apply(
        self,
        member: "Member",
        place: Place,
        ack: Ack,
        taken: set[int],
        *,
        is_full: bool,
        is_lie: bool,
    ) -> None:
        for offset, record in self.world.logs[place].records.items():
            is_told = offset < ack.watermark or (not is_full and offset in ack.done)
            if record.slot not in taken or not is_told or record.ident in self.acked[place]:
                continue
            if is_lie:
                self.lied[place].add(record.ident)
            elif record.ident not in self.lied[place]:
                # A commit may have been on its way while the member started over.
                is_done = self.is_done_by(member, place, record.ident)
                is_done = is_done or (place, record.ident) in self.ever_finished[member]
                assert is_done, f"S8: {record.ident} was acknowledged and not processed"
            self.acked[place].add(record.ident)

    # Decisions ------------------------------------------------------------------------------------

    def decides(self, place: Place, decisions: list[Decision], fate: Fate) -> None:
        """S16: what is counted as done by a decision is somewhere else, or was not wanted."""
        world = self.world
        log, progress = world.logs[place], world.progress(place)
        tried = {} if progress is None else dict(progress.attempts)
        answer = world.decide(place, decisions, fate)
        if fate.journals_written == 0:
            return
        for decision, outcome in zip(decisions, answer.outcomes, strict=True):
            if outcome.error_code is not ErrorCode.NONE:
                continue
            for offset, attempt in tried.items():
                is_of_key = decision.offset < 0 and attempt.key_hash == decision.key_hash
                if (decision.offset == offset or is_of_key) and is_exhausted(attempt):
                    self._decided(place, decision, log.records.get(offset))
            if decision.offset < 0 and decision.action is Action.RELEASE:
                for key in [key for where, key in self.diverted if where == place]:
                    if xxh64(key) >> 1 == decision.key_hash:
                        del self.diverted[place, key]

    def _decided(self, place: Place, decision: Decision, record: Logged | None) -> None:
        if record is None or decision.action is Action.RELEASE:
            return
        if decision.action is Action.DLQ:
            assert (place, record.ident) in self.world.dead, f"S16: {record.ident} is nowhere"
        self.acked[place].add(record.ident)
        self.lied[place].add(record.ident)
        if decision.diverts:
            first = self.diverted.get((place, record.key), record.ident.offset)
            self.diverted[place, record.key] = min(first, record.ident.offset)

    # Other members --------------------------------------------------------------------------------

    def stock_takes_over(self, member: "StockMember", place: Place, position: int) -> None:
        """It reads from the committed offset, whatever was done above it."""
        for offset, record in self.world.logs[place].records.items():
            assert offset >= position or record.ident in self.acked[place], "S5: begins too late"
            self.licences[place, record.ident] += offset >= position

    def stock_processes(self, member: "StockMember", place: Place, record: Logged) -> None:
        self._process(place, record.ident)

    def commits_offset(self, place: Place, offset: int) -> None:
        """A member that owns all of a partition says that everything below an offset is done."""
        records = self.world.logs[place].records
        stable = min(
            (at for at, record in records.items() if record.ident not in self.acked[place]),
            default=self.world.logs[place].end,
        )
        if offset < stable or self.world.progress(place) is None:
            # Its own ranges know better, until it has them anew.
            self.remembered[place] |= self.acked[place]
            self.reset(place, offset)
            return
        for at, record in records.items():
            if at < offset and record.ident not in self.acked[place]:
                self.acked[place].add(record.ident)
                self.lied[place].add(record.ident)

    def stock_commits(self, place: Place, offset: int) -> None:
        for at, record in self.world.logs[place].records.items():
            if at < offset and record.ident not in self.acked[place]:
                assert self.processed[place, record.ident], f"S8: {record.ident} was skipped"
                self.acked[place].add(record.ident)

    # What takes back ------------------------------------------------------------------------------

    def reset(self, place: Place, offset: int) -> None:
        """An administrator has everything from an offset on done again."""
        self.floors[place] = offset
        below = set()
        for at, record in self.world.logs[place].records.items():
            if at < offset:
                below.add(record.ident)
            else:
                self.licences[place, record.ident] += 1
        self.lied[place] |= below
        self.acked[place] = below
        self._forget_diverted(place, 0)

    def forget(self, place: Place) -> None:
        for known in (self.acked, self.lied, self.remembered):
            known.pop(place, None)
        self._forget_diverted(place, 0)

    def _forget_diverted(self, place: Place, end: int) -> None:
        for where, key in list(self.diverted):
            if where == place and self.diverted[where, key] >= end:
                del self.diverted[where, key]

    def forget_last_commit(self) -> None:
        """The journal of individual commits lost its end, if nothing else was written since."""
        if self._before is None:
            return
        acked, _, individual = self._before
        world = self.world
        lost = [key for key in world.individual if key not in individual]
        is_last = list(world.individual)[len(world.individual) - len(lost) :] == lost
        same = all(world.individual.get(key) == individual[key] for key in individual)
        self._before = None
        if not is_last or not same:
            return
        world.individual = dict(individual)
        world.restart()
        for place, idents in self.acked.items():
            committed = world.committed(place) or 0
            kept = {one for one in idents if one in acked.get(place, ()) or one.offset < committed}
            for ident in idents - kept:
                self.licences[place, ident] += 1
                self.remembered[place].add(ident)
            self.acked[place] = kept

    def restarted(self, *, without_journal: bool = False) -> None:
        """Nothing is lost but what the logs have lost, and what hung on a lost journal."""
        for place, log in self.world.logs.items():
            there = {record.ident for record in log.records.values()}
            self.acked[place] &= there
            self.floors[place] = min(self.floors.get(place, log.end), log.end)
            committed = self.world.committed(place)
            is_forgotten = committed is None or without_journal
            self._forget_diverted(place, 0 if is_forgotten else log.end)
            if is_forgotten:
                end = -1 if committed is None else committed
                kept = {ident for ident in self.acked[place] if ident.offset < end}
                for ident in self.acked[place] - kept:
                    self.licences[place, ident] += 1
                    self.remembered[place].add(ident)
                self.acked[place] = kept


def _within(ack: Ack, place: Place, held: Mapping[Any, int]) -> frozenset[int]:
    """The slots of an acknowledgement that are held since its epoch, of those that matter."""
    return frozenset(
        slot
        for slot in SLOTS
        for unit, epoch in held.items()
        if unit[:2] == place
        and unit[2].first <= slot < unit[2].end
        and ack.slots.first <= slot < ack.slots.end
        and epoch <= ack.epoch
    )


def _parts_of(ack: Ack, outcomes: list[Any]) -> list[Any]:
    """The outcomes of an acknowledgement, which come in its order and cover its slots."""
    parts = [outcomes.pop(0)]
    while parts[-1].slots.end < ack.slots.end:
        parts.append(outcomes.pop(0))
    assert parts[0].slots.first == ack.slots.first, "S7: an outcome of something else"
    return parts
