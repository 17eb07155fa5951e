"""Members with different subscriptions: how many units of each topic go to each crew.

Within a crew members are alike, so that balance between crews is a matter of numbers: crew c has
L(c) units for n(c) members, the busiest of whom has ceil(L/n) and the idlest floor(L/n). A unit is
better off elsewhere if it can go from a crew to another whose idlest member has at least two units
less than the busiest of the first, directly or by a chain: A gives a unit of x to B, who gives one
of y to C. When no such chain is left, nobody can have less without somebody having as much or more
(an optimal semi-matching). Kafka's assignor looks at one topic at a time and may stop before.

Rules
- Free units are poured first, topic by topic, to the crews with the lowest loads: the topics with
  most partitions per subscriber first, then those with fewer subscribers, as they have least
  choice.
- Then units move along chains. Only what a crew has more or less at the end moves; in between it
  is arithmetic.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from anabranch.coordinator.group.assignors.crews import Crew, OwnedTopic
from anabranch.coordinator.group.assignors.index import TargetIndex

# Subscriptions looked at in search of chains, at half a microsecond each. Five subscriptions to a
# hundred topics take about a thousand. The limit keeps a group in which thousands of members have
# as many different subscriptions from blocking the broker: there, balance stays a little short of
# the best, and later assignments go on from it.
WORK_MAX = 200_000


def share_out(index: TargetIndex, crews: Sequence[Crew]) -> list[dict[bytes, int]]:
    """How many units of each topic each crew should have more (or less, negative)."""
    shares = _Shares(index, crews)
    for topic in sorted(index.open_topics.values(), key=shares.urgency):
        shares.pour(topic)
    shares.settle()
    return [
        {
            topic_id: held.get(topic_id, 0) - crew.held.get(topic_id, 0)
            for topic_id in held.keys() | crew.held.keys()
            if held.get(topic_id, 0) != crew.held.get(topic_id, 0)
        }
        for crew, held in zip(crews, shares.held, strict=True)
    ]


class _Link(NamedTuple):
    """One step of a chain: what to give to whom, where it ends, the moves with this one."""

    taker: int
    topic_id: bytes
    end: int
    moves: int


class _Shares:
    def __init__(self, index: TargetIndex, crews: Sequence[Crew]) -> None:
        self.crews = crews
        self.work = 0
        self.sizes = [crew.size for crew in crews]
        self.loads = [crew.load for crew in crews]
        self.held = [dict(crew.held) for crew in crews]
        numbers = {crew.topics: number for number, crew in enumerate(crews)}
        by_name = {topic.image.name: topic_id for topic_id, topic in index.topics.items()}
        self.topics = [[by_name[name] for name in crew.names if name in by_name] for crew in crews]
        self.subscribers = {
            topic_id: sorted(numbers[topics] for topics in topic.crews)
            for topic_id, topic in index.topics.items()
        }

    def urgency(self, topic: OwnedTopic) -> tuple[float, int, str]:
        image = topic.image
        members = sum(self.sizes[crew] for crew in self.subscribers[image.topic_id])
        return (-image.partitions / members, members, image.name)

    # Pouring --------------------------------------------------------------------------------------

    def pour(self, topic: OwnedTopic) -> None:
        """Raise the lowest loads with the free units of a topic, as water would."""
        topic_id, amount = topic.image.topic_id, len(topic.free)
        sizes, loads = self.sizes, self.loads
        crews = sorted(self.subscribers[topic_id], key=lambda crew: loads[crew] / sizes[crew])
        members = units = 0
        water = 0
        for at, crew in enumerate(crews):
            members += sizes[crew]
            units += loads[crew]
            water = (amount + units) // members
            if at + 1 < len(crews):
                after = crews[at + 1]
                if loads[after] >= sizes[after] * water:
                    break
        for height in (water, water + 1):
            for crew in crews:
                count = min(amount, sizes[crew] * height - loads[crew])
                if count > 0:
                    self._add(crew, topic_id, count)
                    amount -= count
        assert not amount, "water stands above its level"

    def _add(self, crew: int, topic_id: bytes, count: int) -> None:
        held = self.held[crew]
        held[topic_id] = held.get(topic_id, 0) + count
        self.loads[crew] += count

    # Moving along chains --------------------------------------------------------------------------

    def settle(self) -> None:
        """Move units along chains to the idlest crews, until there are none, or work is over.

        When no chain leads to the idlest ones, whoever could give to them is not better off giving
        to anybody else either: those crews are settled, and the idlest of the others come next.
        """
        open_crews = sorted(range(len(self.sizes)), key=self._idlest)
        while open_crews and self.work < WORK_MAX:
            lowest = min(map(self._idlest, open_crews))
            idlest = [crew for crew in open_crews if self._idlest(crew) == lowest]
            links = self._reach(idlest)
            has_moved = False
            for busy in sorted(
                links, key=lambda crew: (-self._busiest(crew), links[crew].moves, crew)
            ):
                if self._busiest(busy) - lowest < 2:
                    break
                has_moved = self._move(busy, links) or has_moved
            if not has_moved:
                open_crews = [c for c in open_crews if c not in links and self._idlest(c) > lowest]

    def _busiest(self, crew: int) -> int:
        return -(-self.loads[crew] // self.sizes[crew])

    def _idlest(self, crew: int) -> int:
        return self.loads[crew] // self.sizes[crew]

    def _reach(self, idlest: Sequence[int]) -> dict[int, _Link]:
        """The crews from which chains lead to one of these: by the fewest moves, then steps."""
        links: dict[int, _Link] = {}
        ends = set(idlest)
        seen_crews: set[int] = set()
        seen_topics: set[bytes] = set()
        queue, with_one_more = deque(idlest), deque[int]()
        moves = 0
        while queue or with_one_more:
            if not queue:
                queue, with_one_more = with_one_more, queue
                moves += 1
            crew = queue.popleft()
            if crew in seen_crews:
                continue
            seen_crews.add(crew)
            end = links[crew].end if crew in links else crew
            self.work += len(self.topics[crew])
            for topic_id in self.topics[crew]:
                if topic_id in seen_topics:
                    continue
                seen_topics.add(topic_id)
                self.work += len(self.subscribers[topic_id])
                for giver in self.subscribers[topic_id]:
                    held = self.held[giver].get(topic_id, 0)
                    if not held or giver in seen_crews or giver in ends:
                        continue
                    # What came only now can go to somebody else without a move.
                    is_new = held > self.crews[giver].held.get(topic_id, 0)
                    cost = moves if is_new else moves + 1
                    if giver not in links or cost < links[giver].moves:
                        links[giver] = _Link(crew, topic_id, end, cost)
                        (queue if is_new else with_one_more).append(giver)
        return links

    def _move(self, busy: int, links: Mapping[int, _Link]) -> bool:
        """Move as many units along a chain as make things better."""
        idle = links[busy].end
        if self._busiest(busy) - self._idlest(idle) < 2:
            return False  # an earlier chain ended there
        chain = []
        crew = busy
        while crew != idle:
            link = links[crew]
            chain.append((crew, link.taker, link.topic_id))
            crew = link.taker
        self.work += len(chain)
        # An earlier chain may have used up what this one would give on.
        most = min(self.held[giver].get(topic_id, 0) for giver, _, topic_id in chain)
        count = self._worthwhile(busy, idle, most)
        if not count:
            return False
        for giver, taker, topic_id in chain:
            self._add(giver, topic_id, -count)
            self._add(taker, topic_id, count)
        return True

    def _worthwhile(self, busy: int, idle: int, most: int) -> int:
        """How many units, up to `most`, each make the busy one better off than the idle one worse.

        The more have moved the less the next one brings, so that a binary search finds it.
        """
        low, high = 0, most
        while low < high:
            count = (low + high + 1) // 2
            left = -(-(self.loads[busy] - count + 1) // self.sizes[busy])
            if left - (self.loads[idle] + count - 1) // self.sizes[idle] >= 2:
                low = count
            else:
                high = count - 1
        return low
