"""Measuring how much work each key range is, and moving ranges from members that have too much.

Members that share partitions tell with their heartbeats how long they were busy with which range.
The broker adds what it sees itself: which slots records arrive in, and which slots have records
that nobody has finished. Every `coop.resplit.interval.ms` each group that shares is judged by that
(`coordinator.cooperative.balance`), and ranges move as after any other change of its target.

Rules
- Nothing is measured of groups that do not share, and of topics that no such group reads; nothing
  runs while there is none, or while `coop.resplit.enable` is off.
- Only groups whose assignor goes by load are judged; KIP-X's own have ranges of equal width.
- Records are counted over the slot index by a kernel, off the loop, a sample of them where there
  are very many. Judging is off the loop too. A look that took long is followed by a rest that is
  ten times as long.
- What a member reports counts for slots that it holds, and for nothing else.
- A slot that is more than a fair load is looked at when it is first seen to be: the key that is
  most of its newest records is named with it.

All of it is lost with the process, and measured anew.
"""

import asyncio
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor
from typing import TYPE_CHECKING, NamedTuple

from anabranch.broker.slot_loads import SlotLoads, with_backlog
from anabranch.coordinator.cooperative.balance import (
    GroupBalance,
    GroupView,
    Judgement,
    half_life_for,
    rules_for,
)
from anabranch.coordinator.cooperative.cuts import Partition as Place
from anabranch.coordinator.cooperative.cuts import common
from anabranch.coordinator.cooperative.line_group import HotSlot
from anabranch.coordinator.cooperative.load import SlotWeights
from anabranch.coordinator.cooperative.resplit import ResplitRules, Verdict
from anabranch.coordinator.cooperative.unit_cuts import ranges_by_partition
from anabranch.coordinator.group.assignors.sharing import SharingAssignor
from anabranch.coordinator.group.cause import Cause
from anabranch.coordinator.group.consumer_commands import MoveRanges, RangeMove
from anabranch.coordinator.group.consumer_draft import ConsumerDraft
from anabranch.coordinator.group.consumer_ranges import (
    range_members,
    range_topics,
    shares_partitions,
)
from anabranch.coordinator.group.consumer_state import ConsumerGroup
from anabranch.coordinator.group.consumer_target import assignor_of
from anabranch.model.errors import KafkaError
from anabranch.model.units import SlotRange, Unit
from anabranch.observe import logs
from anabranch.observe import metrics as m

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker
    from anabranch.broker.group_coordinator import GroupCoordinator

# How many ranges of one heartbeat are taken.
_REPORTS_MAX = 1_024
# How often longer than a look its rest is at least.
_REST = 10
_HOT_MAX = 16
_NOTHING: Mapping[Place, SlotWeights] = {}


class RangeReport(NamedTuple):
    """What a member did for a range since its last report."""

    unit: Unit
    records: int
    busy_us: int


class HotKey(NamedTuple):
    """A hot slot, and the key that most of its newest records have, if one does."""

    slot: HotSlot
    key: bytes | None


@dataclasses.dataclass(slots=True)
class _Watched:
    """One group that shares."""

    balance: GroupBalance
    # Since the last look: records, and nanoseconds.
    reports: dict[tuple[Place, SlotRange], tuple[int, int]] = dataclasses.field(
        default_factory=dict
    )
    imbalance: float = 1.0
    hot: dict[tuple[Place, int], HotKey] = dataclasses.field(default_factory=dict)


class RangeLoads:
    """The loads of all groups that share; lives on the event loop."""

    def __init__(
        self,
        broker: "Broker",
        groups: "GroupCoordinator",
        executor: Executor,
        steady_ms: Callable[[], int],
    ) -> None:
        self._broker = broker
        self._groups = groups
        self._steady_ms = steady_ms
        self._slots = SlotLoads(broker, groups, executor, steady_ms)
        self._watched: dict[str, _Watched] = {}
        self._interval_ms = 0
        self._delay_ms = 0
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self.rounds = 0

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()

    @property
    def is_enabled(self) -> bool:
        return self._broker.get_bool("coop.resplit.enable")

    # What others ask ------------------------------------------------------------------------------

    def weights_of(self, group_id: str) -> Mapping[Place, SlotWeights]:
        """What a new target of a group goes by."""
        watched = self._watched.get(group_id)
        if watched is None or not self.is_enabled:
            return _NOTHING
        return watched.balance.weights

    def hot_keys(self, group_id: str, topic_id: bytes, partition: int) -> list[HotKey]:
        """The slots of a partition that are more than a fair load by themselves."""
        watched = self._watched.get(group_id)
        if watched is None:
            return []
        place = (topic_id, partition)
        return [hot for (where, _), hot in watched.hot.items() if where == place]

    def imbalance(self, group_id: str) -> float | None:
        """The load of the busiest member over the mean; None when nobody measures it."""
        watched = self._watched.get(group_id)
        return watched.imbalance if watched is not None else None

    def take(self, group_id: str, member_id: str, reports: Iterable[RangeReport]) -> None:
        """A heartbeat of a member that shares."""
        if not self.is_enabled:
            return
        try:
            group = self._groups.group(group_id)
        except KafkaError:
            return  # the heartbeat is refused for the same reason
        member = group.members.get(member_id) if isinstance(group, ConsumerGroup) else None
        if member is None or not member.shares:
            return
        watched = self._watched.get(group_id)
        if watched is None:
            balance = GroupBalance(half_life_for(self._interval()))
            watched = self._watched[group_id] = _Watched(balance)
            self._wake()
        held = ranges_by_partition(member.held)
        for (topic_id, partition, slots), records, busy_us in list(reports)[:_REPORTS_MAX]:
            place = (topic_id, partition)
            for part in common([slots], held.get(place, ())):
                known = watched.reports.get((place, part), (0, 0))
                if records > 0 and busy_us > 0:
                    watched.reports[place, part] = (
                        known[0] + records,
                        known[1] + busy_us * 1_000,
                    )

    # Looking now and then -------------------------------------------------------------------------

    def _interval(self) -> int:
        """How often to look; with another interval everything is measured anew."""
        interval_ms = self._broker.get_int("coop.resplit.interval.ms")
        if interval_ms != self._interval_ms:
            self._interval_ms = self._delay_ms = interval_ms
            self._slots.measure_anew(half_life_for(interval_ms))
            for watched in self._watched.values():
                watched.balance = GroupBalance(half_life_for(interval_ms))
        return interval_ms

    def _wake(self) -> None:
        """See to it that somebody looks, in a while."""
        if self._timer is None and self._task is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._delay_ms / 1000, self._begin)

    def _begin(self) -> None:
        self._timer = None
        self._task = asyncio.ensure_future(self._look_once())

    async def _look_once(self) -> None:
        began_ms = self._steady_ms()
        try:
            await self.look()
        except Exception as error:  # the next look may do better
            logs.error("group.load.failed", reason=repr(error))
        took_ms = self._steady_ms() - began_ms
        self._delay_ms = max(self._interval(), _REST * took_ms)
        self._task = None
        if self._watched:
            self._wake()

    async def look(self) -> None:
        """Judge every group that shares, and have ranges moved."""
        interval_ms = self._interval()
        views = {}
        for group_id in sorted(self._watched):
            view = self._view(group_id) if self.is_enabled else None
            if view is None:
                del self._watched[group_id]
            else:
                views[group_id] = view
        places = {place for view in views.values() for place in view.shared_places()}
        self._slots.keep(places)
        arriving = {place: await self._slots.arrivals(place) for place in sorted(places)}
        rules = rules_for(interval_ms)
        if self._delay_ms > interval_ms:
            rules = dataclasses.replace(rules, tick_ms=self._delay_ms - self._delay_ms // 10)
        for group_id, view in views.items():
            try:
                await self._look_at(group_id, view, arriving, rules)
            except KafkaError as error:
                logs.warning("group.load.failed", group=group_id, reason=error.message)

    def _view(self, group_id: str) -> GroupView | None:
        """A group whose ranges may move by load; None for any other."""
        try:
            group = self._groups.group(group_id)
        except KafkaError:
            return None
        if not isinstance(group, ConsumerGroup):
            return None
        draft = ConsumerDraft(group, self._groups.environment(group_id), self._steady_ms())
        if not shares_partitions(draft):
            return None
        assignor = assignor_of(draft)
        if not (isinstance(assignor, SharingAssignor) and assignor.is_by_load):
            return None
        members = range_members(draft)
        return GroupView(
            group_epoch=group.group_epoch,
            members=members,
            topics=range_topics(draft, members),
            owners={member.member_id: group.target(member.member_id) for member in members},
            is_settled=group.is_settled,
        )

    async def _look_at(
        self,
        group_id: str,
        view: GroupView,
        arriving: Mapping[Place, Mapping[int, float]],
        rules: ResplitRules,
    ) -> None:
        backlogs = {}
        for place in view.shared_places():
            backlog = await self._slots.backlog(group_id, place)
            if backlog is not None:
                backlogs[place] = backlog
        watched = self._watched[group_id]
        reports, watched.reports = watched.reports, {}
        balance, now_ms = watched.balance, self._steady_ms()
        horizon_s = self._slots.half_life_ms / 1000

        def judge() -> Judgement:
            for (place, slots), (records, busy_ns) in reports.items():
                balance.report(place, slots, records, busy_ns)
            rates = {
                place: with_backlog(arriving[place], backlogs.get(place), horizon_s)
                for place in view.shared_places()
            }
            coming = sum(sum(arriving[place].values()) for place in rates)
            all_work = sum(sum(of_slots.values()) for of_slots in rates.values())
            # Half of it, and so as much as comes in a while, waits.
            is_behind = all_work > 2 * coming
            return balance.judge(view, rates, now_ms, is_behind=is_behind, rules=rules)

        judgement = await self._slots.in_thread(judge)
        if judgement.verdict not in (Verdict.EARLY, Verdict.UNSETTLED):
            watched.imbalance = judgement.imbalance
            await self._name_hot(group_id, watched, judgement.hot)
        if judgement.moves and self.is_enabled:
            self._move(group_id, view, judgement)

    def _move(self, group_id: str, view: GroupView, judgement: Judgement) -> None:
        command = MoveRanges(
            group_id=group_id,
            group_epoch=view.group_epoch,
            moves=tuple(RangeMove(move.unit, move.target) for move in judgement.moves),
            cause=Cause.LOAD,
        )
        logs.info(
            "group.ranges.moving",
            group=group_id,
            ranges=len(judgement.moves),
            imbalance=round(judgement.imbalance, 2),
        )
        self.rounds += 1
        try:
            self._groups.submit(group_id, command)
        except KafkaError as error:
            logs.error("group.load.failed", group=group_id, reason=error.message)

    # Hot slots ------------------------------------------------------------------------------------

    async def _name_hot(self, group_id: str, watched: _Watched, hot: tuple[HotSlot, ...]) -> None:
        found: dict[tuple[Place, int], HotKey] = {}
        for slot in hot[:_HOT_MAX]:
            place = (slot.topic_id, slot.partition)
            known = watched.hot.get((place, slot.slot))
            if known is not None:
                found[place, slot.slot] = HotKey(slot, known.key)
                continue
            key = await self._slots.hot_key(place, slot.slot)
            found[place, slot.slot] = HotKey(slot, key)
            topic = self._broker.topics.get_by_id(slot.topic_id)
            logs.warning(
                "group.slot.hot",
                group=group_id,
                topic=topic.name if topic is not None else slot.topic_id.hex(),
                partition=slot.partition,
                slot=slot.slot,
                member=slot.member_id,
                share=round(slot.share, 3),
                key=key[:64].decode("utf-8", "backslashreplace") if key is not None else "",
            )
        watched.hot = found

    # Showing --------------------------------------------------------------------------------------

    def collect_metrics(self) -> Iterator[tuple[m.Metric, m.Values]]:
        imbalance: dict[m.Labels, float] = {}
        hot: dict[m.Labels, float] = {}
        for group_id, watched in sorted(self._watched.items()):
            imbalance[(group_id,)] = watched.imbalance
            for (topic_id, partition), _ in watched.hot:
                topic = self._broker.topics.get_by_id(topic_id)
                if topic is not None:
                    labels = (group_id, topic.name, str(partition))
                    hot[labels] = hot.get(labels, 0) + 1
        yield m.GROUP_LOAD_IMBALANCE, imbalance
        yield m.GROUP_HOT_SLOTS, hot
