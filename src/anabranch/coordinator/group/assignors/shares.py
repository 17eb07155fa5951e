"""Members with different subscriptions: how many units of each topic go to each crew.

Within a crew members are alike, so that balance between crews is a matter of numbers: crew c has
L(c) units for n(c) members, the busiest of whom has ceil(L/n) and the idlest floor(L/n). A unit is
better off elsewhere if it can go from a crew to another whose idlest member has at least two units
less than the busiest of the first, directly or by a chain: A gives a unit of x to B, who gives one
of y to C. When no such chain is left, nobody can have less without somebody having as much or more
(an optimal semi-matching), which Kafka's assignor, looking at one topic at a time, does not reach.

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

# One sweep finds all chains there are but those that other chains open or close; two to four
# sweeps are usual. The limit keeps a hostile group from costing more than it is worth.
SWEEPS_MAX = 64


def share_out(index: TargetIndex, crews: Sequence[Crew]) -> list[dict[bytes, int]]:
    """How many units of each topic each crew should have more (or less, negative)."""
    shares = _Shares(index, crews)
    for topic in sorted(index.open_topics.values(), key=shares.urgency):
        shares.pour(topic)
    for _ in range(SWEEPS_MAX):
        if not shares.sweep():
            break
    return [
        {
            topic_id: held.get(topic_id, 0) - crew.held.get(topic_id, 0)
            for topic_id in held.keys() | crew.held.keys()
            if held.get(topic_id, 0) != crew.held.get(topic_id, 0)
        }
        for crew, held in zip(crews, shares.held, strict=True)
    ]


class _Link(NamedTuple):
    """One step of a chain: what to give to whom, and the moves that are left with this one."""

    moves: int
    taker: int
    topic_id: bytes


class _Shares:
    def __init__(self, index: TargetIndex, crews: Sequence[Crew]) -> None:
        self.crews = crews
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

    def sweep(self) -> bool:
        """Look for chains to every crew, the idlest first; whether there was any.

        A crew that was reached on the way to an idler one is not looked at again: who could give
        to it could have given to the other.
        """
        has_moved = False
        seen_crews: set[int] = set()
        seen_topics: set[bytes] = set()
        for idle in sorted(range(len(self.sizes)), key=self._idlest):
            if idle in seen_crews:
                continue
            links = self._reach(idle, seen_crews, seen_topics)
            for busy in sorted(
                links, key=lambda crew: (-self._busiest(crew), links[crew].moves, crew)
            ):
                if self._busiest(busy) - self._idlest(idle) < 2:
                    break
                if self._move(busy, idle, links):
                    has_moved = True
        return has_moved

    def _busiest(self, crew: int) -> int:
        return -(-self.loads[crew] // self.sizes[crew])

    def _idlest(self, crew: int) -> int:
        return self.loads[crew] // self.sizes[crew]

    def _reach(self, idle: int, seen_crews: set[int], seen_topics: set[bytes]) -> dict[int, _Link]:
        """The crews from which chains lead to `idle`, by the fewest moves."""
        links: dict[int, _Link] = {}
        queue = deque([idle])
        while queue:
            crew = queue.popleft()
            if crew in seen_crews:
                continue
            seen_crews.add(crew)
            moves = links[crew].moves if crew != idle else 0
            for topic_id in self.topics[crew]:
                if topic_id in seen_topics:
                    continue
                seen_topics.add(topic_id)
                for giver in self.subscribers[topic_id]:
                    held = self.held[giver].get(topic_id, 0)
                    if not held or giver in seen_crews:
                        continue
                    # What came only now can go to somebody else without a move.
                    is_new = held > self.crews[giver].held.get(topic_id, 0)
                    cost = moves if is_new else moves + 1
                    if giver not in links or cost < links[giver].moves:
                        links[giver] = _Link(cost, crew, topic_id)
                        if is_new:
                            queue.appendleft(giver)
                        else:
                            queue.append(giver)
        return links

    def _move(self, busy: int, idle: int, links: Mapping[int, _Link]) -> bool:
        """Move as many units along a chain as make things better."""
        chain = []
        crew = busy
        while crew != idle:
            link = links[crew]
            chain.append((crew, link.taker, link.topic_id))
            crew = link.taker
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
