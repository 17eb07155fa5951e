"""All that a member has to do: its ranges, the records it has fetched, and which may be started.

Pure and without locks; who shares it between threads holds one lock around every call. Times come
as arguments, from the clock of the lease.

What is kept, whatever happens
- nothing is started after the lease has ended;
- nothing of a range is started once it is to be given back, or is lost;
- with a `KeyQueue` no two records of a key are ever out at once, also not when a range is lost
  while a record of it runs and comes back before that record is done;
- a record that is not done stays open, so that no commit can pass it;
- a record that counts with a transaction stays open, and in flight, until that has ended; if it is
  aborted, the record and all of its key that came after it are processed again, in order;
- nothing of a key that is diverted is started: its records are said to have failed, in order, and
  are open until the broker has them in the dead-letter topic.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

from anabranch.branch.slots import SlotRule
from anabranch.client.ordering import hash_of, slot_of
from anabranch.client.range_work import (
    DoneBefore,
    Failure,
    Place,
    RangeState,
    RangeWork,
    Rest,
    WaitingByKey,
)
from anabranch.client.records import (
    BUFFERED,
    DIVERTED,
    FINISHED,
    PARKED,
    PENDING,
    RECALLED,
    RESTING,
    STARTED,
    UNORDERED,
    ConsumerRecord,
    FencingToken,
    Headers,
    OrderKey,
    TopicPartition,
)
from anabranch.client.timing import Lease
from anabranch.client.work_queues import WAITING_WITH_CONTENT, KeyId, WorkQueue, key_id
from anabranch.model.units import SlotRange, Unit

Row = tuple[int, int, bytes | None, bytes | None, Headers, OrderKey, int]
"""A record as it came: offset, timestamp, key, value, headers, what it is ordered by, and slot."""


# What a failure asks for when the record was not tried.
_NOT_TRIED = -2
_NONE_DIVERTED: Mapping[int, int] = MappingProxyType({})


class Workload:
    """The ranges of one member, and its records."""

    def __init__(self, queue: WorkQueue, lease: Lease) -> None:
        self.queue = queue
        self.lease = lease
        # By what the records of each topic keep their order.
        self.rules: dict[bytes, SlotRule] = {}
        # Set when a range falls to so many records in the buffer while none are on their way.
        self.low_mark = 0
        self.is_hungry = False
        # Set when records were diverted, which the broker has to hear of.
        self.has_diverted = False
        # Whether what is done will be told to anybody.
        self.is_told = True
        # Whether what is processed is held for a transaction, and what is, as it was finished;
        # nothing more is started while it is paused.
        self.is_transactional = False
        self.held: list[ConsumerRecord] = []
        self.held_max = 0
        self.is_paused = False
        # Partitions of which parked records are being fetched again.
        self.refilling: set[Place] = set()
        self._by_place: dict[Place, list[RangeWork]] = {}
        self._keys: dict[Place, WaitingByKey] = {}

    # Ranges ---------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[RangeWork]:
        """Every range that is held, in order."""
        for works in self._by_place.values():
            yield from works

    def of_place(self, place: Place) -> Sequence[RangeWork]:
        """The ranges that are held of one partition, by slot."""
        return self._by_place.get(place, ())

    def begin(self, place: TopicPartition, unit: Unit, epoch: int) -> RangeWork:
        """Take a range that was given; nothing happens before it is loaded."""
        keys = self._keys.setdefault(unit[:2], {})
        work = RangeWork(place, unit.slots, FencingToken(*unit[:2], epoch), keys)
        self._insert(work)
        return work

    def _insert(self, work: RangeWork) -> None:
        works = self._by_place.setdefault(work.unit[:2], [])
        works.append(work)
        works.sort(key=lambda one: one.slots)

    def cut(self, work: RangeWork, slots: SlotRange) -> RangeWork:
        """Take some slots out of a range into one of their own, with their records."""
        part = work.cut(slots, lambda record: slot_of(record._order, record.offset))
        self._insert(part)
        return part

    def drain(self, work: RangeWork) -> None:
        """Start nothing more of the range; it is drained when nothing is in flight."""
        if work.state in (RangeState.LOADING, RangeState.ACTIVE):
            work.state = RangeState.DRAINING
            self.queue.drop(work)

    def end(self, work: RangeWork) -> None:
        """Forget the range, which was given back or is lost; what still runs is nobody's."""
        if work.state is RangeState.GONE:
            return
        self.queue.drop(work)
        work.end()
        place = work.unit[:2]
        works = self._by_place[place]
        works.remove(work)
        if not works:
            del self._by_place[place]
            if not self._keys[place]:
                del self._keys[place]

    # Records --------------------------------------------------------------------------------------

    def deliver(
        self,
        place: Place,
        asked: Sequence[SlotRange],
        records: Iterable[Row],
        first: int,
        upto: int,
    ) -> int:
        """Take over the records of the slots `asked` for, from the offset `first` up to `upto`.

        They may have been asked for before ranges came, went or were cut. A range takes them if it
        is wholly among the slots, and if they begin at or below where it has arrived; whatever was
        done, or came before, is left out. Returns how many records were taken.
        """
        takers = self._takers(place, asked, first)
        starts = [work.slots.first for work in takers]
        taken = 0
        work_first = work_end = 0
        for offset, timestamp, key, value, headers, order, slot in records:
            if not work_first <= slot < work_end:
                at = bisect_right(starts, slot) - 1
                if at < 0 or slot >= takers[at].slots.end:
                    continue
                work = takers[at]
                work_first, work_end = work.slots
                add = self.queue.add if not work.done_before and not work.rests else None
            if offset < work.position:
                continue
            if add is None:
                if work.is_done_before(slot, offset):
                    continue
                self._add(work, ConsumerRecord(work, offset, timestamp, key, value, headers, order))
            else:
                record = ConsumerRecord(work, offset, timestamp, key, value, headers, order)
                work.open[offset] = record
                add(record)
            taken += 1
        for work in takers:
            if work.position < upto:
                work.position = upto
                work.forget_done_below(upto)
        return taken

    def _takers(self, place: Place, asked: Sequence[SlotRange], first: int) -> list[RangeWork]:
        return [
            work
            for work in self.of_place(place)
            if work.state is RangeState.ACTIVE
            and first <= work.position
            and any(one.first <= work.slots.first and work.slots.end <= one.end for one in asked)
        ]

    def _add(self, work: RangeWork, record: ConsumerRecord) -> None:
        work.open[record.offset] = record
        rest = work.rests.pop(record.offset, None) if work.rests else None
        if rest is None:
            self.queue.add(record)
        else:
            record.attempt = rest.attempts + 1
            work.counted.add(record.offset)
            self.queue.add_resting(record, rest.until)

    def refill(
        self,
        place: Place,
        asked: Sequence[SlotRange],
        records: Iterable[Row],
        first: int,
        upto: int,
    ) -> int:
        """Give parked records of the slots `asked` for their content back.

        Those between `first` and `upto` whose turn has come and that are not there are not in the
        log any more, and are done with. Returns how many records there were.
        """
        # Of each key whose turn has come, as many as may wait with their content.
        room = {record._order: WAITING_WITH_CONTENT for record in self.queue.empty}
        works = self.of_place(place)
        found = 0
        for offset, timestamp, key, value, headers, order, slot in records:
            if not room.get(order):
                continue
            for work in works:
                record = work.open.get(offset)
                if (
                    record is not None
                    and record._state == PARKED
                    and work.slots.first <= slot < work.slots.end
                ):
                    record._refill(timestamp, key, value, headers)
                    work.parked -= 1
                    room[order] -= 1
                    found += 1
                    self.queue.refilled(record)
        for record in list(self.queue.empty):
            work = record._work
            slot = slot_of(record._order, record.offset)
            if (
                work.unit[:2] == place
                and first <= record.offset < upto
                and any(slots.first <= slot < slots.end for slots in asked)
            ):
                record._state = FINISHED
                work.parked -= 1
                del work.open[record.offset]
                work.acked.append(record.offset)
                self.queue.vanished(record)
                found += 1
        return found

    def take(self, now: float) -> ConsumerRecord | None:
        """The next record to start, if any may be."""
        if now >= self.lease.ends_at or self.is_paused:
            return None
        record = self.queue.take()
        while record is not None and record._work.diverted and self._divert(record):
            record = self.queue.take()
        if record is not None:
            work = record._work
            work.in_flight += 1
            if work.fetch is None and work.buffered <= self.low_mark:
                self.is_hungry = True
        return record

    def _divert(self, record: ConsumerRecord) -> bool:
        """Whether a record that was taken is not to be processed, because its key is diverted."""
        work, offset = record._work, record.offset
        if record._order is UNORDERED:
            return False
        key_hash = hash_of(record._order, offset)
        first_offset = work.diverted.get(key_hash)
        if first_offset is None or offset < first_offset:
            return False
        self.queue.finish(record)
        record._park(DIVERTED)
        work.parked += 1
        self.has_diverted = True
        if self.is_told:
            work.failures.append(Failure(offset, key_hash, _NOT_TRIED, "diverted"))
        return True

    def may_start(self, record: ConsumerRecord, now: float) -> bool:
        """Whether a record that was taken is still to be processed."""
        work = record._work
        return (
            record._state == STARTED
            and work.state is RangeState.ACTIVE
            and work.open.get(record.offset) is record
            and self.lease.may_start(now)
        )

    def done(self, record: ConsumerRecord, busy_s: float = 0.0) -> bool:
        """A record was processed; False when that does not count any more."""
        work = record._work
        state = record._state
        if state == RECALLED:
            self._came_back(record)
            return False
        if self.is_transactional:
            is_ours = self.hold(record)
            if is_ours:
                self.held.append(record)
                self.is_paused = self.is_paused or len(self.held) >= self.held_max
                work.busy_s += busy_s
            return is_ours
        if not self.queue.may_finish(record):
            return False
        record._state = FINISHED
        if state == STARTED:
            self.queue.finish(record)
        if work.open.get(record.offset) is not record:
            return False
        del work.open[record.offset]
        if self.is_told:
            work.acked.append(record.offset)
        work.records_done += 1
        work.busy_s += busy_s
        if state == STARTED:
            work.in_flight -= 1
        return True

    def failed(
        self,
        record: ConsumerRecord,
        *,
        retry_after_s: float,
        reason: str,
        now: float,
        busy_s: float = 0.0,
    ) -> bool:
        """A record could not be processed and rests; False when that does not count any more.

        A negative `retry_after_s` asks the broker for no more attempts; until it has decided, the
        record rests as long as `retry_after_s` says without its sign.
        """
        work = record._work
        if record._state == RECALLED:
            self._came_back(record)
            return False
        if record._state != STARTED:
            return False
        if work.open.get(record.offset) is not record:
            record._state = FINISHED
            self.queue.finish(record)
            return False
        work.in_flight -= 1
        work.busy_s += busy_s
        record.attempt += 1
        retry_after_ms = -1 if retry_after_s < 0 else round(retry_after_s * 1000)
        key_hash = hash_of(record._order, record.offset)
        if self.is_told:
            work.failures.append(Failure(record.offset, key_hash, retry_after_ms, reason))
        if work.state is RangeState.ACTIVE:
            work.in_flight -= len(self.queue.rest(record, now + abs(retry_after_s)))
        else:
            # It stays open and is the next owner's.
            record._state = BUFFERED
            self.queue.finish(record)
        return True

    def give_up(self, record: ConsumerRecord) -> None:
        """A record was started and then not processed, because its range is not ours any more."""
        if record._state == RECALLED:
            self._came_back(record)
            return
        if record._state != STARTED:
            return
        work = record._work
        record._state = FINISHED
        self.queue.finish(record)
        if work.open.get(record.offset) is record:
            record._state = BUFFERED
            work.in_flight -= 1

    # In transactions ------------------------------------------------------------------------------

    def hold(self, record: ConsumerRecord) -> bool:
        """A record was processed, and counts when a transaction is committed; False when it is not
        ours to process any more."""
        if record._state != STARTED:
            return False
        is_ours = record._work.open.get(record.offset) is record
        record._state = PENDING if is_ours else FINISHED
        self.queue.finish(record)
        return is_ours

    def is_held(self, record: ConsumerRecord) -> bool:
        """Whether a record that was held can still count."""
        state = record._work.state
        return record._state == PENDING and state in (RangeState.ACTIVE, RangeState.DRAINING)

    def settle(self, records: Iterable[ConsumerRecord]) -> None:
        """The transaction of records that were held is committed: they are done, and told."""
        for record in records:
            work = record._work
            if record._state != PENDING:
                continue
            record._state = FINISHED
            if work.open.get(record.offset) is record:
                del work.open[record.offset]
                work.records_done += 1
                work.in_flight -= 1

    def recall(self, records: Iterable[ConsumerRecord]) -> None:
        """The transaction of records that were held is aborted, or records were not processed:
        they come again, each key in order."""
        recalled: list[ConsumerRecord] = []
        for record in records:
            work = record._work
            if record._state not in (PENDING, STARTED):
                continue
            if work.open.get(record.offset) is not record:
                record._state = FINISHED
                continue
            work.in_flight -= 1
            record._state = BUFFERED
            recalled.append(record)
        # What is to be given back is the next owner's; but what runs behind it does not count.
        back = [record for record in recalled if record._work.state is RangeState.ACTIVE]
        for record in self.queue.take_back(back, self._running_behind(recalled)):
            record._work.in_flight -= 1

    def _running_behind(self, records: list[ConsumerRecord]) -> list[ConsumerRecord]:
        """Records that run, of the keys of these, and later than they are."""
        first_of: dict[KeyId, int] = {}
        for record in records:
            if record._order is not UNORDERED:
                key = key_id(record)
                first_of[key] = min(record.offset, first_of.get(key, record.offset))
        works = {id(record._work): record._work for record in records}
        return [
            other
            for work in works.values()
            for other in work.open.values()
            if other._state == STARTED and other.offset > first_of.get(key_id(other), other.offset)
        ]

    def _came_back(self, record: ConsumerRecord) -> None:
        """A record has ended that was recalled while it ran."""
        work = record._work
        is_open = work.open.get(record.offset) is record
        if is_open:
            work.in_flight -= 1
        if is_open and work.state is RangeState.ACTIVE:
            self.queue.came_back(record)
        else:
            record._state = BUFFERED if is_open else FINISHED
            self.queue.finish(record)

    def forsake(self, records: Iterable[ConsumerRecord]) -> None:
        """Nobody will know here whether the transaction of records that were held is committed:
        they stay open, and do not come again."""
        for record in records:
            work = record._work
            if record._state != PENDING:
                continue
            record._state = FINISHED
            if work.open.get(record.offset) is record:
                work.in_flight -= 1

    def wake(self, now: float) -> bool:
        """Make ready what has rested long enough."""
        return self.queue.wake(now)

    def counted(self, place: Place, offsets: Iterable[int]) -> None:
        """The broker has counted attempts at records that failed."""
        for work in self.of_place(place):
            work.counted.update(offset for offset in offsets if offset in work.open)

    def update_rests(
        self,
        work: RangeWork,
        done: Sequence[DoneBefore],
        rests: Mapping[int, Rest],
        diverted: Mapping[int, int] = _NONE_DIVERTED,
        now: float = 0.0,
    ) -> None:
        """Take over what the broker made of records that failed: their attempts and their rest,
        that it is done with them, or that they may be tried again; and which keys are diverted."""
        work.diverted = dict(diverted)
        released: dict[OrderKey, list[ConsumerRecord]] = {}
        for offset, record in sorted(work.open.items()):
            if record._state not in (RESTING, DIVERTED):
                continue
            slot = slot_of(record._order, offset)
            if any(one.has(slot, offset) for one in done):
                self._dealt_with(work, record)
            elif record._state == DIVERTED:
                key_hash = hash_of(record._order, offset)
                if offset < diverted.get(key_hash, offset + 1):
                    released.setdefault(record._order, []).append(record)
                elif offset not in rests and self.is_told:
                    # The broker refused to hear of it, or has yet to: it is told again.
                    work.failures.append(Failure(offset, key_hash, _NOT_TRIED, "diverted"))
            elif offset in rests:
                rest = rests[offset]
                if rest.attempts + 1 < record.attempt and not rest.is_exhausted:
                    continue  # from before it failed again, of which the broker will hear
                record.attempt = rest.attempts + 1
                self.queue.rest_until(record, rest.until)
                if rest.is_exhausted:
                    work.exhausted.add(offset)
            elif offset in work.counted:
                # Somebody released it: it is tried as if for the first time.
                work.counted.discard(offset)
                record.attempt = 1
                self.queue.rest_until(record, now)
        # Of records that have not come yet, what is known may be old by now.
        work.counted &= work.open.keys()
        work.exhausted &= rests.keys()
        work.rests = {offset: rests[offset] for offset in work.rests if offset in rests}
        for records in released.values():
            for record in records:
                record._state = PARKED
            self.queue.bring_back(records)

    def _dealt_with(self, work: RangeWork, record: ConsumerRecord) -> None:
        """The broker is done with a record that failed."""
        state, offset = record._state, record.offset
        record._state = FINISHED
        del work.open[offset]
        work.exhausted.discard(offset)
        work.acked.append(offset)
        if state == DIVERTED:
            work.parked -= 1
        else:
            self.queue.forget(record)

    @property
    def undecided_places(self) -> set[Place]:
        """Where records are that wait for the broker, or for somebody, to decide about them."""
        return {
            work.unit[:2]
            for work in self
            if work.exhausted or any(one._state == DIVERTED for one in work.open.values())
        }
