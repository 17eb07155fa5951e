"""How far members were shown the records of partitions: an acknowledgement cannot go beyond it.

Kept in memory only, on the event loop. It counts since a member holds what it holds: what it saw
of a partition before it lost it and got it again, it has yet to see. Nobody can tell what was shown
before this process started, so ownerships that are older than that are not known at all.
"""

from anabranch.coordinator.cooperative.records import Place

# A member that fetches and never commits is not remembered epoch by epoch for ever.
_EPOCHS_MAX = 8


class Deliveries:
    """What members of groups were shown."""

    def __init__(self) -> None:
        # By group, member and partition: the offset below which it was shown what it asked for, by
        # the epoch since which it held that.
        self._shown: dict[str, dict[str, dict[Place, dict[int, int]]]] = {}
        self._loaded_epochs: dict[str, int] = {}

    def group_loaded(self, group_id: str, epoch: int) -> None:
        """A group was read from the journal at the start, when its members were at this epoch."""
        self._loaded_epochs[group_id] = epoch

    def note(
        self,
        group_id: str,
        topic_id: bytes,
        partition: int,
        member_id: str,
        epoch: int,
        covered_offset: int,
    ) -> None:
        """A member was shown records below `covered_offset` of what it holds since `epoch`."""
        member = self._shown.setdefault(group_id, {}).setdefault(member_id, {})
        epochs = member.setdefault((topic_id, partition), {})
        epochs[epoch] = max(covered_offset, epochs.get(epoch, 0))
        if len(epochs) > _EPOCHS_MAX:
            oldest, next_oldest = sorted(epochs)[:2]
            epochs[next_oldest] = max(epochs[next_oldest], epochs.pop(oldest))

    def delivered(
        self, group_id: str, topic_id: bytes, partition: int, member_id: str, since_epoch: int
    ) -> int | None:
        """Below which offset a member was shown records since an epoch; None when nobody knows.

        `since_epoch` is the oldest epoch of what it holds of the partition.
        """
        if since_epoch <= self._loaded_epochs.get(group_id, -1):
            return None
        member = self._shown.get(group_id, {}).get(member_id, {})
        epochs = member.get((topic_id, partition), {})
        return max(
            (offset for epoch, offset in epochs.items() if epoch >= since_epoch), default=None
        )

    def forget_member(self, group_id: str, member_id: str) -> None:
        """A member is gone."""
        members = self._shown.get(group_id)
        if members is not None and members.pop(member_id, None) is not None and not members:
            del self._shown[group_id]
