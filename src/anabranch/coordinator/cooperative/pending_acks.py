"""Acknowledgements of transactions that are open: kept apart until each is committed or aborted.

Rules
- They are kept for each producer, group, partition and member, with the producer's epoch. Who knows
  the member knows which transactions cannot go on when it is gone.
- They are progress only when their transaction is committed. Until then nothing that is seen of a
  group counts them, but what limits its memory (see `window`).
- They hang on the progress of their group and partition, as that does on a committed offset: where
  one is forgotten, so are they.
- A range that they touch has no other owner before they are gone (see `touches`, `consumer_draft`).
- `PendingAcks.replay` is the only way they change.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from anabranch.coordinator.cooperative.commands import NO_OFFSET
from anabranch.coordinator.cooperative.progress import intersect, new_progress, with_all_done
from anabranch.coordinator.cooperative.records import (
    AckedRange,
    AcksForgotten,
    AcksPending,
    AcksSettled,
    Place,
)
from anabranch.coordinator.cooperative.window import pending_bytes
from anabranch.model.units import Unit


class PendingKey(NamedTuple):
    """A member's acknowledgements of a partition in one transaction."""

    group_id: str
    place: Place
    producer_id: int
    member_id: str


@dataclass(frozen=True, slots=True)
class Pending:
    """What is acknowledged: disjoint ranges of slots, in order."""

    producer_epoch: int
    leader_epoch: int
    acked: tuple[AckedRange, ...]

    @property
    def ranges_count(self) -> int:
        return sum(len(one.done) for one in self.acked)


# What one group has pending, by partition.
GroupPending = Mapping[Place, Mapping[PendingKey, Pending]]

_NOTHING: GroupPending = {}
_NOBODY: Mapping[PendingKey, Pending] = {}


class PendingAcks:
    """What the groups of one shard have acknowledged in transactions that are open."""

    def __init__(self) -> None:
        self._of_group: dict[str, dict[Place, dict[PendingKey, Pending]]] = {}
        self._of_producer: dict[int, dict[PendingKey, Pending]] = {}
        # About how much memory all of it takes.
        self.state_bytes = 0

    # Looking --------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[str]:
        """The groups that have something pending."""
        return iter(self._of_group)

    def of_group(self, group_id: str) -> GroupPending:
        return self._of_group.get(group_id, _NOTHING)

    def of_place(self, group_id: str, place: Place) -> Mapping[PendingKey, Pending]:
        return self._of_group.get(group_id, _NOTHING).get(place, _NOBODY)

    def of_producer(self, producer_id: int) -> Mapping[PendingKey, Pending]:
        return self._of_producer.get(producer_id, _NOBODY)

    def epoch_of(self, producer_id: int) -> int:
        """The newest epoch in which a producer has something pending, or -1."""
        return max(
            (one.producer_epoch for one in self.of_producer(producer_id).values()), default=-1
        )

    def producers_of(self, group_id: str, member_id: str) -> tuple[tuple[int, int], ...]:
        """The producers, with their epochs, in whose transactions a member has acknowledged."""
        return tuple(
            dict.fromkeys(
                (key.producer_id, one.producer_epoch)
                for pending in self.of_group(group_id).values()
                for key, one in pending.items()
                if key.member_id == member_id
            )
        )

    def members_of(self, group_id: str) -> list[str]:
        """The members, some long gone perhaps, that have something pending; nobody is not one."""
        return sorted(
            {
                key.member_id
                for pending in self.of_group(group_id).values()
                for key in pending
                if key.member_id
            }
        )

    def has_record(self, group_id: str, place: Place, slot: int, offset: int) -> bool:
        """Whether a record is acknowledged in a transaction that is open."""
        return any(
            slot in range(*one.slots) and (offset < one.watermark or offset in one.done)
            for pending in self.of_place(group_id, place).values()
            for one in pending.acked
        )

    def touches(self, group_id: str, unit: Unit) -> bool:
        """Whether records of a unit are acknowledged in a transaction that is open."""
        return any(
            intersect(one.slots, unit.slots) is not None
            for pending in self.of_place(group_id, (unit.topic_id, unit.partition)).values()
            for one in pending.acked
        )

    # Changing -------------------------------------------------------------------------------------

    def replay(self, record: AcksPending | AcksForgotten | AcksSettled) -> None:
        place = (record.topic_id, record.partition)
        key = PendingKey(record.group_id, place, record.producer_id, record.member_id)
        known = self._of_producer.get(key.producer_id, _NOBODY).get(key)
        if isinstance(record, AcksPending):
            self._put(key, Pending(record.producer_epoch, record.leader_epoch, record.acked))
        elif isinstance(record, AcksSettled):
            # Be it nothing: the journal has it until the transaction ends.
            assert known is not None, "it is about what was read"
            self._put(key, Pending(known.producer_epoch, known.leader_epoch, record.acked))
        elif known is not None:
            self._drop(key, known)

    def forget(self, group_id: str, place: Place) -> None:
        """The progress that they hang on is gone."""
        for key, known in list(self.of_place(group_id, place).items()):
            self._drop(key, known)

    def _put(self, key: PendingKey, pending: Pending) -> None:
        of_producer = self._of_producer.setdefault(key.producer_id, {})
        before = of_producer.get(key)
        self.state_bytes += pending_bytes(pending.acked)
        self.state_bytes -= pending_bytes(before.acked) if before is not None else 0
        of_producer[key] = pending
        places = self._of_group.setdefault(key.group_id, {})
        places.setdefault(key.place, {})[key] = pending

    def _drop(self, key: PendingKey, known: Pending) -> None:
        self.state_bytes -= pending_bytes(known.acked)
        of_producer = self._of_producer[key.producer_id]
        del of_producer[key]
        if not of_producer:
            del self._of_producer[key.producer_id]
        places = self._of_group[key.group_id]
        del places[key.place][key]
        if not places[key.place]:
            del places[key.place]
        if not places:
            del self._of_group[key.group_id]


def joined(acked: Iterable[AckedRange]) -> tuple[AckedRange, ...]:
    """The same in disjoint ranges of slots, in order; what says nothing is left out."""
    progress = with_all_done(
        new_progress(NO_OFFSET), [(one.slots, one.watermark, one.done) for one in acked]
    )
    return tuple(
        AckedRange(one.slots, one.watermark, one.done)
        for one in progress.intervals
        if one.watermark != NO_OFFSET or one.done
    )


def forgotten(key: PendingKey) -> AcksForgotten:
    """The record that takes something pending away."""
    return AcksForgotten(
        group_id=key.group_id,
        topic_id=key.place[0],
        partition=key.place[1],
        producer_id=key.producer_id,
        member_id=key.member_id,
    )
