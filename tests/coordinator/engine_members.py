"""Members as our client is, without sockets and tasks: everything that it decides is the real one.

Real are the client's workload, holdings, leases, fetch plans and acknowledgements; what is told
here is only when each of them happens, and what gets lost on the way. A `StockMember` is any other
client: it has whole partitions, reads all of them, and commits offsets.
"""

from dataclasses import dataclass, field
from typing import Any

from engine_oracle import Oracle
from engine_world import (
    FINE,
    GROUP,
    REBALANCE_MS,
    TOPIC,
    Commit,
    Fate,
    Fetched,
    Logged,
    Told,
    World,
)

from anabranch.client.acks import Progress, confirm, gather, requests, take_back
from anabranch.client.fetch_plan import (
    BufferLimits,
    PartitionFetch,
    finish,
    plan,
    plan_refills,
)
from anabranch.client.holdings import Holdings
from anabranch.client.log_check import knows_beyond
from anabranch.client.range_work import DoneBefore, Place, RangeState, RangeWork, Rest
from anabranch.client.records import ConsumerRecord, TopicPartition
from anabranch.client.timing import Lease
from anabranch.client.work_queues import KeyQueue
from anabranch.client.workload import Workload
from anabranch.coordinator.cooperative.acks import Ack
from anabranch.coordinator.cooperative.commands import Failure
from anabranch.coordinator.cooperative.progress import PartitionProgress
from anabranch.coordinator.cooperative.retries import is_exhausted
from anabranch.coordinator.group import commands as c
from anabranch.coordinator.group import consumer_commands as cc
from anabranch.coordinator.group.consumer_ranges import whole_partitions_of
from anabranch.model.errors import ErrorCode
from anabranch.model.units import Unit
from anabranch.wire.offset_set import decode

_FENCING = {
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.FENCED_MEMBER_EPOCH,
    ErrorCode.GROUP_ID_NOT_FOUND,
}
_NOT_OURS = {
    ErrorCode.FENCED_MEMBER_EPOCH,
    ErrorCode.STALE_MEMBER_EPOCH,
    ErrorCode.UNKNOWN_MEMBER_ID,
}
_BUFFER = BufferLimits(12, 1 << 20)
_MAX_RANGES = 4
_FOR_EVER_S = 1e9
_DRAIN_SHARE = 0.8
_DRAIN_LEASE_MS = REBALANCE_MS * 9 // 10


@dataclass
class Flight:
    """A commit that is on its way, in one or more requests, and what it is made of."""

    commits: list[Commit]
    batches: list[list[Any]]
    told: dict[int, Progress]


@dataclass(eq=False)
class Member:
    """One process with our client."""

    world: World
    oracle: Oracle
    member_id: str
    instance_id: str | None = None
    epoch: int = 0
    is_alive: bool = True
    running: list[ConsumerRecord] = field(default_factory=list)
    fetches: list[tuple[int, PartitionFetch, Fetched]] = field(default_factory=list)
    flights: list[Flight] = field(default_factory=list)
    sent: list[Commit] = field(default_factory=list)
    leader_epochs: dict[Place, int] = field(default_factory=dict)
    said_held: Any = None
    draining_since_ms: int | None = None

    def __post_init__(self) -> None:
        self.lease = Lease()
        self.workload = Workload(KeyQueue(), self.lease)
        self.holdings = Holdings(self.workload, self._place_of)
        self.oracle.comes(self)

    def __repr__(self) -> str:
        return self.member_id

    def _place_of(self, topic_id: bytes, partition: int) -> TopicPartition | None:
        return (
            TopicPartition(TOPIC, partition) if (topic_id, partition) in self.world.logs else None
        )

    @property
    def has_lease(self) -> bool:
        """Whether it may start records, by its own clock.

        Who does not give back in time is forgotten, however often it sends heartbeats. Our client
        does not look at that yet: it relies on having abandoned by then what takes so long.
        """
        since_ms = self.draining_since_ms
        is_overdue = since_ms is not None and self.world.now_ms - since_ms >= _DRAIN_LEASE_MS
        return self.is_alive and not is_overdue and self.lease.may_start(self.world.now_s)

    # Heartbeats -----------------------------------------------------------------------------------

    def beat(self, fate: Fate = FINE) -> None:
        world, is_joining = self.world, self.epoch == 0
        held = {} if is_joining else self.holdings.held
        owned = None
        if is_joining or held != self.said_held:
            owned = tuple(Unit(*place, one) for place, ranges in held.items() for one in ranges)
        sent_at = world.now_s
        self.said_held = None
        if not fate.arrives:
            return
        answer = world.submit(
            cc.ConsumerHeartbeat(
                group_id=GROUP,
                member_id=self.member_id,
                member_epoch=self.epoch,
                instance_id=self.instance_id,
                rebalance_timeout_ms=REBALANCE_MS if is_joining else -1,
                subscribed_topic_names=(TOPIC,) if is_joining else None,
                owned=owned,
                shares=True,
            ),
            fate,
        )
        if not fate.is_answered:
            return
        if answer.error in _FENCING:
            self.epoch = 0
            self.lease.end()
            self._lost(self.holdings.lose_all())
            return
        if answer.error is not ErrorCode.NONE:
            assert answer.error is ErrorCode.UNRELEASED_INSTANCE_ID, answer
            return
        self.said_held = held
        self.epoch = answer.member_epoch
        self.lease.renew(sent_at, answer.lease_ms / 1000)
        if answer.assignment is not None:
            assert answer.epochs is not None
            target = dict(zip(answer.assignment, answer.epochs, strict=True))
            self._lost(self.holdings.assign(target).lost)
            if self.draining_since_ms is None and self._draining:
                self.draining_since_ms = world.now_ms

    @property
    def _draining(self) -> list[RangeWork]:
        return [one for one in self.workload if one.state is RangeState.DRAINING]

    def _lost(self, works: list[RangeWork]) -> None:
        for work in works:
            self.oracle.loses(self, work.unit[:2], work.slots)

    def leave(self) -> None:
        """Stop in order: what runs ends, progress is stored, and everybody is told."""
        while self.running:
            self.finish(0)
        self.land_all()
        self.commit()
        if self.epoch > 0:
            self.world.submit(
                cc.ConsumerHeartbeat(
                    group_id=GROUP,
                    member_id=self.member_id,
                    member_epoch=-1 if self.instance_id is None else -2,
                    instance_id=self.instance_id,
                    shares=True,
                )
            )
        self.crash()

    def crash(self) -> None:
        """kill -9: nobody hears of it again."""
        self.is_alive = False
        for work in list(self.workload):
            self.oracle.loses(self, work.unit[:2], work.slots)
        self.oracle.goes(self)

    # Taking over ----------------------------------------------------------------------------------

    def load(self) -> None:
        """Find out where ranges begin."""
        for work in list(self.workload):
            if work.state is RangeState.LOADING:
                found = self.world.fetch_offsets(self.member_id, self.epoch, work.unit[:2])
                if found is not None:
                    self._begin(work, found)

    def _begin(self, work: RangeWork, found: PartitionProgress) -> None:
        parts = [
            DoneBefore(one.slots, one.watermark, one.done)
            for one in found.within(work.slots)
            if one.watermark >= 0
        ]
        known = len(parts)
        earliest = self.world.logs[work.unit[:2]].start
        parts += [
            DoneBefore(one.slots, earliest) for one in found.within(work.slots) if one.watermark < 0
        ]
        position = min(one.watermark for one in parts)
        is_known = known == len(parts)
        work.load(position, parts, committed=position if is_known else -1)
        work.rests = self._rests(found)
        work.diverted = dict(found.diverted)
        work.exhausted = {
            offset
            for offset, attempt in found.attempts.items()
            if is_exhausted(attempt) and work.slots.first <= attempt.slot < work.slots.end
        }
        place = work.unit[:2]
        known_epoch = self.world.logs[place].leader_epoch
        work.leader_epoch = self.leader_epochs.setdefault(place, known_epoch)
        self.oracle.loads(self, work, position)

    def _rests(self, found: PartitionProgress) -> dict[int, Rest]:
        now_ms, now_s = self.world.now_ms, self.world.now_s
        return {
            offset: Rest(
                attempt.count,
                now_s + min(max(0, attempt.not_before_ms - now_ms) / 1000, _FOR_EVER_S),
                is_exhausted=is_exhausted(attempt),
            )
            for offset, attempt in found.attempts.items()
        }

    def refresh_rests(self, place: Place) -> None:
        found = self.world.fetch_offsets(self.member_id, self.epoch, place)
        if found is None:
            return
        for work in list(self.workload.of_place(place)):
            done = [
                DoneBefore(one.slots, one.watermark, one.done)
                for one in found.within(work.slots)
                if one.watermark >= 0
            ]
            rests, now_s = self._rests(found), self.world.now_s
            self.workload.update_rests(work, done, rests, found.diverted, now_s)

    def watch_rests(self) -> None:
        """See what became of records that failed."""
        for place in {work.unit[:2] for work in self.workload if work.state is RangeState.ACTIVE}:
            self.refresh_rests(place)

    def reload(self, works: list[RangeWork]) -> None:
        """Start over with ranges whose log has changed under them."""
        for work in works:
            if work.is_held:
                self.oracle.loses(self, work.unit[:2], work.slots)
                self.workload.end(work)
        self.holdings.begin_missing()

    # Records --------------------------------------------------------------------------------------

    def fetch(self, span: int) -> None:
        """Ask for records of all ranges that have room; the answers come later."""
        self.load()
        planned = [
            *plan(self.workload, _BUFFER, lambda place: 0).get(0, []),
            *plan_refills(self.workload, lambda place: 0).get(0, []),
        ]
        for fetch in planned:
            place, log = fetch.place, self.world.logs.get(fetch.place)
            epoch = self.leader_epochs.setdefault(place, log.leader_epoch if log else 0)
            fetch.leader_epoch = epoch
            answer = self.world.fetch(
                self.member_id, self.epoch, place, fetch.asked, fetch.first, epoch, span
            )
            self.fetches.append((self.world.lives, fetch, answer))

    def take_fetch(self, pick: int) -> None:
        """An answer comes, maybe after everything has changed."""
        if not self.fetches:
            return
        life, fetch, answer = self.fetches.pop(pick % len(self.fetches))
        works = [one for one in self.workload.of_place(fetch.place) if one.fetch is fetch]
        if life != self.world.lives:
            pass  # the connection is gone
        elif answer.error is ErrorCode.NONE:
            rows = [
                (one.ident.offset, one.ident.leader_epoch, one.key, b"", (), one.key, one.slot)
                for one in answer.rows
            ]
            upto = max(answer.covered_offset, fetch.first)
            take = self.workload.refill if fetch.is_refill else self.workload.deliver
            take(fetch.place, fetch.asked, rows, fetch.first, upto)
            for work in works:
                work.leader_epoch = fetch.leader_epoch
        elif answer.error is ErrorCode.FENCED_LEADER_EPOCH:
            self._refresh_leader(fetch.place)
        elif answer.error is ErrorCode.OFFSET_OUT_OF_RANGE:
            if fetch.first < answer.log_start_offset:
                for work in works:
                    work.position = max(work.position, answer.log_start_offset)
                if fetch.is_refill:
                    start = answer.log_start_offset
                    self.workload.refill(fetch.place, fetch.asked, [], fetch.first, start)
            else:
                self.reload(works)
        finish(self.workload, fetch)

    def _refresh_leader(self, place: Place) -> None:
        """There is a new leader epoch: see which ranges have read what is not there any more."""
        log = self.world.logs.get(place)
        if log is None:
            return
        self.leader_epochs[place] = log.leader_epoch
        astray = []
        for work in self.workload.of_place(place):
            if work.state is RangeState.LOADING:
                continue
            if knows_beyond(work, log.end_of(work.leader_epoch)):
                astray.append(work)
            else:
                work.leader_epoch = log.leader_epoch
        self.reload(astray)

    def start(self, count: int) -> None:
        self.workload.wake(self.world.now_s)
        for _ in range(count if self.has_lease else 0):
            record = self.workload.take(self.world.now_s)
            if record is None:
                return
            self.oracle.starts(self, record)
            self.running.append(record)

    def finish(self, pick: int) -> None:
        if self.running:
            record = self.running.pop(pick % len(self.running))
            self.oracle.finishes(self, record, counts=self.workload.done(record))

    def fail(self, pick: int, retry_after_s: float) -> None:
        if self.running:
            record = self.running.pop(pick % len(self.running))
            now = self.world.now_s
            self.oracle.fails(self, record)
            self.workload.failed(record, retry_after_s=retry_after_s, reason="no", now=now)

    # Commits --------------------------------------------------------------------------------------

    def take_off(self, works: list[RangeWork] | None = None) -> None:
        """Gather what is done; it arrives later."""
        chosen = list(self.workload) if works is None else works
        told = {id(work): one for work in chosen if (one := gather(work)) is not None}
        batches = list(requests(list(told.values()), max_ranges=_MAX_RANGES, max_bytes=1 << 20))
        if batches:
            commits = [Commit(self.member_id, self.epoch, _told(batch)) for batch in batches]
            self.flights.append(Flight(commits, batches, told))

    def land(self, fate: Fate = FINE) -> None:
        """What was sent first arrives; of several requests the last one has the fate."""
        if not self.flights:
            return
        flight = self.flights.pop(0)
        for commit, batch in zip(flight.commits, flight.batches, strict=True):
            self.sent.append(commit)
            of_this = fate if commit is flight.commits[-1] else FINE
            if not self._send(commit, batch, flight, of_this):
                break
        for told in flight.told.values():
            take_back(told)

    def _send(self, commit: Commit, batch: list[Any], flight: Flight, fate: Fate) -> bool:
        """One request; False when the others are not sent any more."""
        if not fate.arrives:
            return False
        there, answer = self.oracle.commits(self, commit, fate)
        if not fate.is_answered or answer.error is not ErrorCode.NONE:
            return False
        found = dict(zip((one.place for one in there), answer.partitions, strict=True))
        for ack in batch:
            if ack.work.unit[:2] not in found:
                return False
            self._answered(ack, found[ack.work.unit[:2]], flight)
        for told in there:
            if told.failures:
                judged = found[told.place].failures
                counted = [one.failure.offset for one in judged if not one.error_code]
                self.workload.counted(told.place, counted)
                self.refresh_rests(told.place)
        return True

    def _answered(self, ack: Any, answer: Any, flight: Flight) -> None:
        told = flight.told.get(id(ack.work))
        if told is None:
            return
        slots = ack.key_range.slots
        codes = [
            one.error_code
            for one in answer.outcomes
            if one.slots.first < slots.end and slots.first < one.slots.end and one.error_code
        ]
        if not codes:
            if ack.is_last:
                del flight.told[id(ack.work)]
                confirm(told, answer.stable_offset)
            return
        if codes[0] in _NOT_OURS:
            del flight.told[id(ack.work)]
        elif codes[0] is ErrorCode.FENCED_LEADER_EPOCH:
            del flight.told[id(ack.work)]
            self.reload([ack.work])

    def land_all(self, fate: Fate = FINE) -> None:
        while self.flights:
            self.land(fate)

    def commit(self, fate: Fate = FINE, works: list[RangeWork] | None = None) -> None:
        """One commit at a time: what is on its way arrives first."""
        self.land_all()
        self.take_off(works)
        self.land_all(fate)

    def send_again(self, pick: int) -> None:
        """A request that the network has kept for long comes once more."""
        if self.sent:
            self.oracle.commits(self, self.sent[pick % len(self.sent)], FINE)

    # Giving back ----------------------------------------------------------------------------------

    def give_back(self, fate: Fate = FINE) -> None:
        """What has drained is stored and given back; what takes too long is abandoned."""
        draining = self._draining
        now_ms = self.world.now_ms
        if not draining:
            self.draining_since_ms = None
            return
        if self.draining_since_ms is None:
            self.draining_since_ms = now_ms
        if now_ms - self.draining_since_ms >= REBALANCE_MS * _DRAIN_SHARE:
            for record in [one for one in self.running if one._work in draining]:
                self.running.remove(record)
                self.oracle.abandons(self, record)
                self.workload.give_up(record)
        drained = [one for one in draining if one.in_flight == 0]
        if drained:
            self.commit(fate, drained)
            for work in drained:
                if work.state is RangeState.DRAINING:
                    self.oracle.gives_back(self, work.unit[:2], work.slots)
                    self.holdings.drained(work)
            self.holdings.begin_missing()

    # All of it ------------------------------------------------------------------------------------

    def turn(self, count: int = 4) -> None:
        """What a healthy process does all the time."""
        self.beat()
        self.watch_rests()
        self.fetch(span=8)
        while self.fetches:
            self.take_fetch(0)
        self.start(count)
        while self.running:
            self.finish(0)
        self.give_back()
        self.commit()


def _told(batch: list[Any]) -> tuple[Told, ...]:
    """Ranges that were read by different leader epochs are judged by the oldest."""
    by_place: dict[Place, list[Any]] = {}
    for ack in batch:
        by_place.setdefault(ack.work.unit[:2], []).append(ack)
    return tuple(
        Told(
            place=place,
            leader_epoch=min(
                (ack.work.leader_epoch for ack in acks if ack.work.leader_epoch >= 0), default=-1
            ),
            acks=tuple(
                Ack(ack.key_range.slots, ack.work.token.epoch, ack.watermark, decode(ack.done))
                for ack in acks
            ),
            failures=tuple(
                Failure(one.offset, one.key_hash, one.retry_after_ms, one.reason)
                for ack in acks
                for one in ack.failures
            ),
        )
        for place, acks in by_place.items()
    )


@dataclass(eq=False)
class StockMember:
    """One process with any other client: whole partitions, offsets, and no idea of key ranges."""

    world: World
    oracle: Oracle
    member_id: str
    epoch: int = 0
    is_alive: bool = True
    owned: tuple[Unit, ...] = ()
    positions: dict[Place, int] = field(default_factory=dict)
    leader_epochs: dict[Place, int] = field(default_factory=dict)

    def __repr__(self) -> str:
        return self.member_id

    def beat(self) -> None:
        is_joining = self.epoch == 0
        answer = self.world.submit(
            cc.ConsumerHeartbeat(
                group_id=GROUP,
                member_id=self.member_id,
                member_epoch=self.epoch,
                rebalance_timeout_ms=REBALANCE_MS if is_joining else -1,
                subscribed_topic_names=(TOPIC,) if is_joining else None,
                owned=() if is_joining else self.owned,
            )
        )
        if answer.error in _FENCING:
            self.epoch, self.owned, self.positions = 0, (), {}
            return
        assert answer.error is ErrorCode.NONE, answer
        self.epoch = answer.member_epoch
        if answer.assignment is not None:
            self.owned = tuple(whole_partitions_of(answer.assignment))
            places = {unit[:2] for unit in self.owned}
            self.positions = {p: o for p, o in self.positions.items() if p in places}

    def poll(self, count: int) -> None:
        """Read on, process, and commit."""
        for unit in self.owned:
            place = unit[:2]
            log = self.world.logs.get(place)
            member = self.world.member(self.member_id)
            if log is None or member is None or unit not in whole_partitions_of([*member.assigned]):
                continue  # its fetches are not fenced; its commits would be
            if place not in self.positions:
                committed = self.world.committed(place)
                begin = log.start
                if committed is not None and committed >= 0:
                    begin = min(committed, log.end_of(self.world.committed_epoch(place)))
                self.positions[place] = begin
                self.oracle.stock_takes_over(self, place, begin)
            # A new leader epoch: it goes back to where the log has lost what it had read.
            read_by = self.leader_epochs.get(place, log.leader_epoch)
            self.leader_epochs[place] = log.leader_epoch
            position = min(self.positions[place], log.end_of(read_by))
            upto = min(max(position, log.start) + count, log.end)
            rows = [r for o, r in sorted(log.records.items()) if position <= o < upto]
            for record in rows:
                self.oracle.stock_processes(self, place, record)
            self.positions[place] = upto
            self._commit(place, upto, rows)

    def _commit(self, place: Place, offset: int, rows: list[Logged]) -> None:
        asked = c.OffsetToCommit(
            topic=TOPIC,
            topic_id=place[0],
            partition=place[1],
            offset=offset,
            leader_epoch=rows[-1].ident.leader_epoch if rows else -1,
            metadata=None,
        )
        answer = self.world.submit(
            c.CommitOffsets(
                group_id=GROUP,
                member_id=self.member_id,
                group_instance_id=None,
                generation_id=self.epoch,
                retention_ms=-1,
                knows_group_id_not_found=True,
                offsets=(asked,),
            )
        )
        if answer.error is ErrorCode.NONE and answer.errors == (ErrorCode.NONE,):
            self.oracle.stock_commits(place, offset)

    def turn(self, count: int = 4) -> None:
        self.beat()
        self.poll(count)

    def crash(self) -> None:
        self.is_alive = False

    def leave(self) -> None:
        if self.epoch > 0:
            self.world.submit(
                cc.ConsumerHeartbeat(group_id=GROUP, member_id=self.member_id, member_epoch=-1)
            )
        self.is_alive = False
