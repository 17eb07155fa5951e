"""KIP-X's own assignors: `key-range-round-robin` and `key-range-range`.

Where members outnumber a topic's partitions, partitions are dealt out to members in reverse: each
member gets one partition, and the members of a partition share its slots in ranges of equal width.

    5 members, 3 partitions        5 members, topics with 2 and 3 partitions
    key-range-round-robin          key-range-range
      p0: m1, m4                     t1 p0: m1, m2, m3
      p1: m2, m5                     t1 p1: m4, m5
      p2: m3                         t2 p0: m1, m2
                                     t2 p1: m3, m4
                                     t2 p2: m5

Elsewhere they are Kafka's round robin, in one circle over the partitions of all topics, and Kafka's
range, topic by topic.

What KIP-X leaves open or gets wrong, and what holds here
- In its sketch members that do not share get nothing as soon as others share. Here they come first:
  each gets a whole partition while there are any, and the members that share share the rest. So it
  is all members that have to outnumber the partitions, and not only those that share; with nobody
  else in the group that is the same.
- Its ranges are [0, N/2 - 1] and [N/2, N] with N = Long.MAX; here cuts are at whole slots only,
  i * 65,536 div n. Of two halves ours meet at 2^62, and KIP-X's one hash value before it.
- It does nothing while members do not outnumber partitions (five members on four partitions: three
  have as much as before), each topic is dealt out by itself, so that the first members have most,
  ranges are equally wide whatever their load, and every change moves almost everything. That is how
  these two are meant to be; `line-cut` is the assignor without it.
"""

from collections.abc import Iterable, Iterator, Sequence

from anabranch.coordinator.cooperative.cuts import (
    RangeMember,
    RangeTopic,
    equal_cuts,
    member_order,
)
from anabranch.model.units import Unit

ROUND_ROBIN_NAME = "key-range-round-robin"
RANGE_NAME = "key-range-range"

Targets = dict[str, frozenset[Unit]]


def key_range_round_robin(members: Iterable[RangeMember], topics: Iterable[RangeTopic]) -> Targets:
    """Member k gets partition k modulo the number of partitions, or a share of it."""
    ordered = sorted(members, key=member_order)
    found: dict[str, list[Unit]] = {member.member_id: [] for member in ordered}
    at = 0
    for topic in sorted(topics, key=lambda topic: topic.name):
        some = [member for member in ordered if topic.name in member.topics]
        if not _is_shared(topic, some):
            # Kafka's circle goes on with the next topic, past those who do not subscribe to it.
            for partition in range(topic.partitions if some else 0):
                while topic.name not in ordered[at % len(ordered)].topics:
                    at += 1
                found[ordered[at % len(ordered)].member_id].append(Unit(topic.topic_id, partition))
                at += 1
            continue
        for partitions, sharers in _owners_first(topic, some, found):
            for at_partition, partition in enumerate(partitions):
                _share(topic, partition, sharers[at_partition :: len(partitions)], found)
    return {member_id: frozenset(units) for member_id, units in found.items()}


def key_range_range(members: Iterable[RangeMember], topics: Iterable[RangeTopic]) -> Targets:
    """Partitions in a row for members in a row, or members in a row for each partition."""
    ordered = sorted(members, key=member_order)
    found: dict[str, list[Unit]] = {member.member_id: [] for member in ordered}
    for topic in sorted(topics, key=lambda topic: topic.name):
        some = [member for member in ordered if topic.name in member.topics]
        if not _is_shared(topic, some):
            for member, partitions in zip(some, _blocks(topic.partitions, len(some)), strict=True):
                units = (Unit(topic.topic_id, partition) for partition in partitions)
                found[member.member_id].extend(units)
            continue
        for partitions, sharers in _owners_first(topic, some, found):
            blocks = _blocks(len(sharers), len(partitions))
            for partition, block in zip(partitions, blocks, strict=True):
                _share(topic, partition, [sharers[place] for place in block], found)
    return {member_id: frozenset(units) for member_id, units in found.items()}


def _is_shared(topic: RangeTopic, members: Sequence[RangeMember]) -> bool:
    return (
        topic.is_shareable
        and 0 < topic.partitions < len(members)
        and any(member.is_sharing for member in members)
    )


def _owners_first(
    topic: RangeTopic, members: Sequence[RangeMember], found: dict[str, list[Unit]]
) -> Iterator[tuple[range, list[RangeMember]]]:
    """Give whole partitions to those who do not share; what is left, and for whom, if anything."""
    owners = [member for member in members if not member.is_sharing][: topic.partitions]
    for partition, member in enumerate(owners):
        found[member.member_id].append(Unit(topic.topic_id, partition))
    if len(owners) < topic.partitions:
        sharers = [member for member in members if member.is_sharing]
        yield range(len(owners), topic.partitions), sharers


def _share(
    topic: RangeTopic,
    partition: int,
    members: Sequence[RangeMember],
    found: dict[str, list[Unit]],
) -> None:
    for member, slots in zip(members, equal_cuts(len(members)), strict=True):
        found[member.member_id].append(Unit(topic.topic_id, partition, slots))


def _blocks(things: int, takers: int) -> Iterator[range]:
    """Things in a row for each of some takers; the first ones get one more."""
    if not takers:
        return
    share, extras = divmod(things, takers)
    first = 0
    for taker in range(takers):
        end = first + share + (taker < extras)
        yield range(first, end)
        first = end
