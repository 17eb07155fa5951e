"""Which of the fetched records comes next. Pure.

Two ways to consume need two orders:

- `KeyQueue`, for workers: at most one record of a key is out at a time, different keys are out
  side by side. A key is *taken* from when its first record is ready until its last one is done;
  later records wait behind it. A record that failed keeps its key taken while it rests, so nothing
  of the key overtakes it.
- `BatchQueue`, for polling: records come in the order they arrived, several of a key in one batch.
  A record that failed comes again after its rest, and all later ones of its key behind it: those
  that were handed out already are taken back, and come again.

Records of a transaction that was aborted are *taken back*: they come again, before everything of
their keys that waits. A record of such a key that runs meanwhile is recalled: it comes again too.

Both know which range each record belongs to, so that a range can be dropped out of the middle.
What runs for a key keeps it taken even when its range is lost, and also for the same key of the
range when it comes back: one process never works on two records of a key at once.
"""

import heapq
from collections import deque
from collections.abc import Collection, Sequence
from itertools import count
from operator import attrgetter
from typing import Final, Protocol

from anabranch.client.range_work import RangeState, RangeWork
from anabranch.client.records import (
    BUFFERED,
    FINISHED,
    PARKED,
    RECALLED,
    RESTING,
    STARTED,
    UNORDERED,
    ConsumerRecord,
    OrderKey,
)

# Records that wait for a key and keep their content, however full the buffer is.
WAITING_WITH_CONTENT: Final = 64

KeyId = tuple[int, OrderKey]
"""A key of a partition: by which `keys` it is in, and what it is."""


def key_id(record: ConsumerRecord) -> KeyId:
    return id(record._work.keys), record._order


class WorkQueue(Protocol):
    """What both queues can do."""

    empty: list[ConsumerRecord]
    """Records whose turn has come and whose content is to be fetched again."""
    park_above: int
    """Records in the buffer of a range above which more of a key are parked."""

    def __len__(self) -> int:
        """How many records could be taken now."""

    def add(self, record: ConsumerRecord) -> None:
        """A record was fetched."""

    def add_resting(self, record: ConsumerRecord, until: float) -> None:
        """A record was fetched that failed before and still has to rest."""

    def take(self) -> ConsumerRecord | None:
        """The next record; it is out until it is finished or rests."""

    def may_finish(self, record: ConsumerRecord) -> bool:
        """Whether a record can be done now."""

    def finish(self, record: ConsumerRecord) -> None:
        """A record that was out will not come again."""

    def refilled(self, record: ConsumerRecord) -> None:
        """The content of a parked record is back."""

    def vanished(self, record: ConsumerRecord) -> None:
        """A record whose content was to be fetched again is not in the log any more."""

    def rest(self, record: ConsumerRecord, until: float) -> list[ConsumerRecord]:
        """A record that was out comes again later; returns those taken back with it."""

    def rest_until(self, record: ConsumerRecord, until: float) -> None:
        """A record that rests shall rest until another time."""

    def forget(self, record: ConsumerRecord) -> None:
        """A record that rests will not come again."""

    def wake(self, now: float) -> bool:
        """Make ready what has rested long enough; whether there was any."""

    @property
    def next_wake(self) -> float | None:
        """When something has rested long enough."""

    def resting_after(self, until: float) -> list[ConsumerRecord]:
        """The records that rest for longer than that."""

    def bring_back(self, records: list[ConsumerRecord]) -> None:
        """Records of one key, in order and parked, that were not to be processed and now are: they
        come before all of their key that wait."""

    def take_back(
        self, records: list[ConsumerRecord], running: list[ConsumerRecord]
    ) -> list[ConsumerRecord]:
        """Records that were finished come again, before all of their key that wait; `running` are
        those of their keys that are out, and come again behind them. Returns those that are not
        out any more."""

    def came_back(self, record: ConsumerRecord) -> None:
        """A record that was out has ended, and comes again in its turn."""

    def drop(self, work: RangeWork) -> None:
        """Forget the records of a range that are not out."""


class _Rests:
    """Records that are not to come before a certain time."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, ConsumerRecord]] = []
        self._numbers = count()

    def add(self, record: ConsumerRecord, until: float) -> None:
        record._state = RESTING
        heapq.heappush(self._heap, (until, next(self._numbers), record))

    def due(self, now: float) -> list[ConsumerRecord]:
        found = []
        while self._heap and self._heap[0][0] <= now:
            found.append(heapq.heappop(self._heap)[2])
        return found

    def remove(self, record: ConsumerRecord) -> None:
        self._heap = [entry for entry in self._heap if entry[2] is not record]
        heapq.heapify(self._heap)

    def drop(self, work: RangeWork) -> list[ConsumerRecord]:
        dropped = [entry[2] for entry in self._heap if entry[2]._work is work]
        if dropped:
            self._heap = [entry for entry in self._heap if entry[2]._work is not work]
            heapq.heapify(self._heap)
        return dropped

    def take(self, keys: set[KeyId]) -> list[tuple[float, ConsumerRecord]]:
        """Take out the records of some keys, with the times until which they rest."""
        taken = [(entry[0], entry[2]) for entry in self._heap if key_id(entry[2]) in keys]
        if taken:
            self._heap = [entry for entry in self._heap if key_id(entry[2]) not in keys]
            heapq.heapify(self._heap)
        return taken

    @property
    def next_due(self) -> float | None:
        return self._heap[0][0] if self._heap else None

    def longer_than(self, until: float) -> list[ConsumerRecord]:
        return [record for at, _, record in self._heap if at > until]


class KeyQueue:
    """One record of a key at a time.

    Of a key that is slow, or rests, many records may wait. Beyond a number they are parked: only
    their places are kept, so that they do not fill the buffer and other keys go on. When the turn
    of a parked record has come it is `empty`, and is fetched again with those that follow it.

    A key that has more records left than each worker has on average would be the last to end,
    when all others have nothing to do any more. The next record of such a key does not queue: it
    is the first to be taken. There are fewer such keys than workers, so others go on beside them.
    """

    def __init__(self) -> None:
        self._ready: deque[ConsumerRecord] = deque()
        self._rests = _Rests()
        self.empty: list[ConsumerRecord] = []
        # Records are parked only in ranges that have more than this in the buffer.
        self.park_above = 0
        # How many records are worked on side by side.
        self.workers = 1
        # How many wait for a key.
        self._behind = 0
        # Records that were resting when earlier ones of their key came again: in their turn they
        # rest until then.
        self._unrested: dict[ConsumerRecord, float] = {}

    def __len__(self) -> int:
        return len(self._ready)

    def add(self, record: ConsumerRecord) -> None:
        order = record._order
        if order is UNORDERED:
            self._ready.append(record)
            return
        keys = record._work.keys
        if order not in keys:
            keys[order] = None
            self._ready.append(record)
            return
        waiting = keys[order]
        self._behind += 1
        if waiting is None:
            keys[order] = deque((record,))
            return
        waiting.append(record)
        if len(waiting) > WAITING_WITH_CONTENT:
            work = record._work
            if waiting[-2]._state == PARKED or work.buffered > self.park_above:
                record._park()
                work.parked += 1

    def add_resting(self, record: ConsumerRecord, until: float) -> None:
        if record._order is not UNORDERED and record._order in record._work.keys:
            self.add(record)  # whatever it waits for takes as long as it takes
            return
        if record._order is not UNORDERED:
            record._work.keys[record._order] = None
        self._rests.add(record, until)

    def take(self) -> ConsumerRecord | None:
        if not self._ready:
            return None
        record = self._ready.popleft()
        record._state = STARTED
        return record

    def may_finish(self, record: ConsumerRecord) -> bool:
        return record._state == STARTED

    def finish(self, record: ConsumerRecord) -> None:
        order = record._order
        if order is UNORDERED:
            return
        keys = record._work.keys
        waiting = keys[order]
        if not waiting:
            del keys[order]
            return
        following = waiting.popleft()
        self._behind -= 1
        if not waiting:
            keys[order] = None
        self._make_ready(following, len(waiting))

    def _make_ready(self, record: ConsumerRecord, waiting: int) -> None:
        """The turn of a record has come, for whose key so many more wait."""
        if record._state == PARKED:
            self.empty.append(record)
            return
        until = self._unrested.pop(record, None) if self._unrested else None
        if until is not None:
            self._rests.add(record, until)
            return
        left = len(self._ready) + self._behind + 1
        if (waiting + 1) * self.workers > left:
            self._ready.appendleft(record)
        else:
            self._ready.append(record)

    def bring_back(self, records: list[ConsumerRecord]) -> None:
        keys, order = records[0]._work.keys, records[0]._order
        heads = [
            other
            for other in (*self._ready, *self.empty)
            if other._order == order and other._work.keys is keys
        ]
        is_free = order not in keys or bool(heads)
        for head in heads:
            (self.empty if head._state == PARKED else self._ready).remove(head)
        waited = keys.get(order)
        waiting = _sorted(records + heads, waited)
        if is_free:
            self.empty.append(waiting.popleft())
        self._behind += len(waiting) - len(waited or ())
        keys[order] = waiting or None

    def refilled(self, record: ConsumerRecord) -> None:
        if record in self.empty:
            self.empty.remove(record)
            waiting = record._work.keys.get(record._order)
            self._make_ready(record, len(waiting or ()))

    def vanished(self, record: ConsumerRecord) -> None:
        self.empty.remove(record)
        self.finish(record)

    def rest(self, record: ConsumerRecord, until: float) -> list[ConsumerRecord]:
        self._rests.add(record, until)
        return []

    def rest_until(self, record: ConsumerRecord, until: float) -> None:
        self._rests.remove(record)
        self._rests.add(record, until)

    def forget(self, record: ConsumerRecord) -> None:
        self._rests.remove(record)
        self.finish(record)

    def wake(self, now: float) -> bool:
        due = self._rests.due(now)
        for record in due:
            record._state = BUFFERED
        self._ready.extendleft(reversed(due))
        return bool(due)

    @property
    def next_wake(self) -> float | None:
        return self._rests.next_due

    def resting_after(self, until: float) -> list[ConsumerRecord]:
        return self._rests.longer_than(until)

    def drop(self, work: RangeWork) -> None:
        keys = work.keys
        for order, waiting in keys.items():
            if waiting and any(record._work is work for record in waiting):
                left = deque(record for record in waiting if record._work is not work)
                self._behind -= len(waiting) - len(left)
                keys[order] = left or None
        heads = [record for record in self._ready if record._work is work]
        if heads:
            self._ready = deque(record for record in self._ready if record._work is not work)
        heads += self._rests.drop(work)
        heads += [record for record in self.empty if record._work is work]
        self.empty = [record for record in self.empty if record._work is not work]
        for record in heads:
            if record._state != PARKED:
                record._state = BUFFERED
            self.finish(record)
        for record in [one for one in self._unrested if one._work is work]:
            del self._unrested[record]

    def take_back(
        self, records: list[ConsumerRecord], running: list[ConsumerRecord]
    ) -> list[ConsumerRecord]:
        by_key: dict[KeyId, list[ConsumerRecord]] = {}
        for record in records:
            if record._order is UNORDERED:
                self._ready.appendleft(record)
            else:
                by_key.setdefault(key_id(record), []).append(record)
        for record in running:
            record._state = RECALLED
        heads = self._take_heads(by_key.keys())
        for key, some in by_key.items():
            keys, order = some[0]._work.keys, some[0]._order
            head = heads.get(key)
            # Whoever is out has the key until it has ended.
            is_free = order not in keys or head is not None
            waited = keys.get(order)
            waiting = _sorted(some if head is None else [*some, head], waited)
            first = waiting.popleft() if is_free else None
            keys[order] = waiting or None
            self._behind += len(waiting) - len(waited or ())
            if first is None:
                continue
            if first._state == PARKED or first in self._unrested:
                self._make_ready(first, len(waiting))
            else:
                self._ready.appendleft(first)
        return []

    def _take_heads(self, keys: Collection[KeyId]) -> dict[KeyId, ConsumerRecord]:
        """Take the records out whose turn it would be, of some keys."""
        heads: dict[KeyId, ConsumerRecord] = {}
        for record in (*self._ready, *self.empty):
            if record._order is not UNORDERED and key_id(record) in keys:
                heads[key_id(record)] = record
        taken = set(heads.values())
        if taken:
            self._ready = deque(one for one in self._ready if one not in taken)
            self.empty = [one for one in self.empty if one not in taken]
        for until, record in self._rests.take(set(keys)):
            record._state = BUFFERED
            self._unrested[record] = until
            heads[key_id(record)] = record
        return heads

    def came_back(self, record: ConsumerRecord) -> None:
        keys, order = record._work.keys, record._order
        record._state = BUFFERED
        waiting = _sorted([record], keys[order])
        first = waiting.popleft()
        keys[order] = waiting or None
        self._make_ready(first, len(waiting))


class BatchQueue:
    """Records as they came.

    A key is in `keys` while a record of it rests, with the later records that were held back. Many
    of them are parked, as in a `KeyQueue`.
    """

    def __init__(self) -> None:
        self._ready: deque[ConsumerRecord] = deque()
        self._rests = _Rests()
        self.empty: list[ConsumerRecord] = []
        self.park_above = 0

    def __len__(self) -> int:
        return len(self._ready)

    def add(self, record: ConsumerRecord) -> None:
        held_back = record._work.keys.get(record._order)
        if held_back is None:
            self._ready.append(record)
            return
        held_back.append(record)
        if len(held_back) > WAITING_WITH_CONTENT:
            work = record._work
            if held_back[-2]._state == PARKED or work.buffered > self.park_above:
                record._park()
                work.parked += 1

    def add_resting(self, record: ConsumerRecord, until: float) -> None:
        self._hold_back(record, [], until)

    def take(self) -> ConsumerRecord | None:
        while self._ready:
            record = self._ready.popleft()
            if record._state == BUFFERED:  # and not done after it was taken back
                record._state = STARTED
                return record
        return None

    def may_finish(self, record: ConsumerRecord) -> bool:
        # Also one that was taken back: the application has processed it nevertheless.
        return record._state in (STARTED, BUFFERED)

    def finish(self, record: ConsumerRecord) -> None:
        pass

    def rest(self, record: ConsumerRecord, until: float) -> list[ConsumerRecord]:
        order = record._order
        if order is UNORDERED:
            self._rests.add(record, until)
            return []
        taken_back = [
            other
            for other in record._work.open.values()
            if other._state == STARTED and other._order == order and other.offset > record.offset
        ]
        for other in taken_back:
            other._state = BUFFERED
        work = record._work
        later = [other for other in self._ready if other._work is work and other._order == order]
        if later:
            self._ready = deque(
                other for other in self._ready if other._work is not work or other._order != order
            )
        self._hold_back(record, taken_back + later, until)
        return taken_back

    def _hold_back(self, record: ConsumerRecord, later: list[ConsumerRecord], until: float) -> None:
        if record._order is not UNORDERED:
            keys = record._work.keys
            keys[record._order] = _sorted(later, keys.get(record._order))
        self._rests.add(record, until)

    def wake(self, now: float) -> bool:
        due = self._rests.due(now)
        awake: list[ConsumerRecord] = []
        for record in due:
            record._state = BUFFERED
            awake.extend(self._released(record, [record]))
        self._ready.extendleft(reversed(awake))
        return bool(due)

    def rest_until(self, record: ConsumerRecord, until: float) -> None:
        self._rests.remove(record)
        self._rests.add(record, until)

    def forget(self, record: ConsumerRecord) -> None:
        self._rests.remove(record)
        record._state = FINISHED
        self._ready.extendleft(reversed(self._released(record, [])))

    def _released(
        self, record: ConsumerRecord, records: list[ConsumerRecord]
    ) -> Sequence[ConsumerRecord]:
        """What comes after a record that does not rest any more.

        All of a key come together, in order, when the last of them may.
        """
        order = record._order
        if order is UNORDERED:
            return records
        keys = record._work.keys
        keys[order] = _sorted(records, keys.get(order))
        return self._with_content(record)

    def _with_content(self, record: ConsumerRecord) -> list[ConsumerRecord]:
        """What of a record's key can be handed out: up to the first that is without content."""
        work, order = record._work, record._order
        held_back = work.keys.get(order)
        if held_back is None or any(
            other._order == order and other._state == RESTING for other in work.open.values()
        ):
            return []
        found = []
        while held_back and held_back[0]._state != PARKED:
            found.append(held_back.popleft())
        if not held_back:
            del work.keys[order]
        elif held_back[0] not in self.empty:
            self.empty.append(held_back[0])
        return found

    def bring_back(self, records: list[ConsumerRecord]) -> None:
        work, order = records[0]._work, records[0]._order
        later = [other for other in self._ready if other._work is work and other._order == order]
        if later:
            self._ready = deque(
                other for other in self._ready if other._work is not work or other._order != order
            )
        work.keys[order] = _sorted(records + later, work.keys.get(order))
        self._ready.extend(self._with_content(records[0]))

    def refilled(self, record: ConsumerRecord) -> None:
        if record in self.empty:
            self.empty.remove(record)
            self._ready.extend(self._with_content(record))

    def vanished(self, record: ConsumerRecord) -> None:
        self.empty.remove(record)
        held_back = record._work.keys.get(record._order)
        if held_back is not None:
            held_back.remove(record)
            self._ready.extend(self._with_content(record))

    @property
    def next_wake(self) -> float | None:
        return self._rests.next_due

    def resting_after(self, until: float) -> list[ConsumerRecord]:
        return self._rests.longer_than(until)

    def take_back(
        self, records: list[ConsumerRecord], running: list[ConsumerRecord]
    ) -> list[ConsumerRecord]:
        back: list[ConsumerRecord] = []
        for record in running:
            record._state = BUFFERED
        again = [one for one in running if one._work.state is RangeState.ACTIVE]
        for record in sorted([*records, *again], key=attrgetter("offset")):
            keys, order = record._work.keys, record._order
            if order is not UNORDERED and order in keys:
                keys[order] = _sorted([record], keys[order])
            else:
                back.append(record)
        self._ready.extendleft(reversed(back))
        return running

    def came_back(self, record: ConsumerRecord) -> None:
        raise AssertionError("what is out of a batch is taken back at once")

    def drop(self, work: RangeWork) -> None:
        self._ready = deque(record for record in self._ready if record._work is not work)
        for record in self._rests.drop(work):
            record._state = BUFFERED
            work.keys.pop(record._order, None)
        for record in [one for one in self.empty if one._work is work]:
            self.empty.remove(record)
            work.keys.pop(record._order, None)


def _sorted(
    records: list[ConsumerRecord], more: deque[ConsumerRecord] | None
) -> deque[ConsumerRecord]:
    return deque(sorted([*records, *(more or ())], key=attrgetter("offset")))
