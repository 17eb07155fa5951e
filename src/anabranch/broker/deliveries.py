"""How far members were shown the records of partitions: an acknowledgement cannot go beyond it.

And how far any member of a group was, as long as the group has members: that is how much it has
under way.

Kept in memory only, on the event loop. It counts since a member holds what it holds: what it saw
of a partition before it lost it and got it again, it has yet to see. Nobody can tell what was shown
before this process started, so ownerships that are older than that are not known at all.
"""

from collections.abc import Callable

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
        self._highest: dict[str, dict[Place, int]] = {}
        # What somebody of a group reads with records of transactions that are open or aborted.
        self._uncommitted: dict[str, set[Place]] = {}
        # Told of a group and partition of which somebody was shown what nobody was before.
        self.on_news: Callable[[str, bytes, int], None] = lambda group_id, topic_id, partition: None

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
        reached_offset: int | None = None,
        *,
        is_committed: bool = False,
    ) -> None:
        """A member was shown records below `covered_offset` of what it holds since `epoch`.

        `reached_offset` follows the last batch that was opened for it, which may lie beyond.
        `is_committed` is whether it was shown committed records only.
        """
        if not is_committed:
            self._uncommitted.setdefault(group_id, set()).add((topic_id, partition))
        member = self._shown.setdefault(group_id, {}).setdefault(member_id, {})
        epochs = member.setdefault((topic_id, partition), {})
        epochs[epoch] = max(covered_offset, epochs.get(epoch, 0))
        if len(epochs) > _EPOCHS_MAX:
            oldest, next_oldest = sorted(epochs)[:2]
            epochs[next_oldest] = max(epochs[next_oldest], epochs.pop(oldest))
        highest = covered_offset if reached_offset is None else max(covered_offset, reached_offset)
        if highest > self.highest(group_id, topic_id, partition):
            self._highest.setdefault(group_id, {})[topic_id, partition] = highest
            self.on_news(group_id, topic_id, partition)

    def highest(self, group_id: str, topic_id: bytes, partition: int) -> int:
        """Below which offset any member was shown records since the group had none; else 0.

        It is where a batch ends: whoever may read as far as this can read all of it.
        """
        return self._highest.get(group_id, {}).get((topic_id, partition), 0)

    def reads_uncommitted(self, group_id: str, topic_id: bytes, partition: int) -> bool:
        """Whether any member was shown records of transactions that are open or aborted."""
        return (topic_id, partition) in self._uncommitted.get(group_id, ())

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

    def was_shown(
        self,
        group_id: str,
        topic_id: bytes,
        partition: int,
        member_id: str,
        since_epoch: int,
        offset: int,
    ) -> bool:
        """Whether a member has seen an offset since an epoch; of what nobody knows, it has."""
        if since_epoch <= self._loaded_epochs.get(group_id, -1):
            return True
        shown = self.delivered(group_id, topic_id, partition, member_id, since_epoch)
        return shown is not None and offset < shown

    def forget_member(self, group_id: str, member_id: str) -> None:
        """A member is gone."""
        members = self._shown.get(group_id)
        if members is not None and members.pop(member_id, None) is not None and not members:
            del self._shown[group_id]
            self._highest.pop(group_id, None)
            self._uncommitted.pop(group_id, None)
