"""One member's next step towards its target: a pure function of what it owns and should own.

Rules
- A unit moves only after its owner confirmed that it let go of it: a member is first told to give
  units up (UNREVOKED_PARTITIONS) and gets nothing new until it did.
- A unit that another member still holds is not handed out; the member waits for it
  (UNRELEASED_PARTITIONS) with what it already has, at the target's epoch. Nor is one, to anybody,
  of which records are acknowledged in a transaction that is open: whether they are done is not
  known yet.
- Who does not share gets a partition whole or not at all: as long as one piece of it is not free,
  none is.
- Confirming is done by the list of owned units in the heartbeat; a heartbeat without the list
  confirms nothing.
- A list without a unit that the member was given and not told to give up confirms nothing either,
  unlike in Kafka: the member is about to take it. librdkafka sends such lists until it has applied
  its first assignment, and after it reconnected. The member is told again what it has, and is taken
  on when it says that it has it. Who starts over has nothing but what it lists, and so has who has
  had the time of its rebalance timeout.
"""

from collections.abc import Callable, Collection, Mapping

from anabranch.coordinator.group.assignors.index import Target
from anabranch.coordinator.group.consumer_state import ConsumerMember, MemberState
from anabranch.model.errors import ErrorCode, KafkaError
from anabranch.model.units import ALL_SLOTS, Unit


def reconcile(
    member: ConsumerMember,
    *,
    target_epoch: int,
    target: Target,
    owned: Collection[Unit] | None,
    is_free: Callable[[Unit], bool],
    has_new_subscription: bool,
    is_subscribed: Callable[[Unit], bool],
    starts_over: bool = False,
) -> ConsumerMember:
    """The member after this heartbeat; the same object when nothing changes.

    `is_free` is whether nobody but this member holds a unit; `starts_over` is whether the member
    has, or counts as having, forgotten what it was given before: it has what it lists and no more.
    """
    step = _Step(member, target_epoch, target, owned, is_free, is_subscribed, starts_over)
    match member.state:
        case MemberState.STABLE:
            if member.member_epoch != target_epoch:
                return step.towards_target()
            return step.without_unsubscribed() if has_new_subscription else member
        case MemberState.UNREVOKED_PARTITIONS:
            if step.still_owns(member.pending_revocation):
                return step.without_unsubscribed() if has_new_subscription else member
            return step.towards_target()
        case MemberState.UNRELEASED_PARTITIONS:
            return step.towards_target()
        case _:
            # A state written by a newer version: start over, if the member owns nothing.
            if owned is None or owned:
                raise KafkaError(
                    ErrorCode.FENCED_MEMBER_EPOCH,
                    "The member is in a state that is not known here and has to rejoin.",
                )
            return step.towards_target()


class _Step:
    def __init__(
        self,
        member: ConsumerMember,
        target_epoch: int,
        target: Target,
        owned: Collection[Unit] | None,
        is_free: Callable[[Unit], bool],
        is_subscribed: Callable[[Unit], bool],
        starts_over: bool,
    ) -> None:
        self.member = member
        self.target_epoch = target_epoch
        self.target = target
        self.owned = owned
        self.is_free = is_free
        self.is_subscribed = is_subscribed
        self.starts_over = starts_over

    def still_owns(self, units: Mapping[Unit, int]) -> bool:
        """Whether the member has yet to confirm that it gave these up."""
        if self.owned is None:
            return bool(units)
        return any(unit in units for unit in self.owned)

    def is_about_to_take(self, units: Mapping[Unit, int]) -> bool:
        """Whether the member was given one of these and does not have it yet."""
        if self.owned is None or self.starts_over:
            return False
        return any(unit not in self.owned and self.is_subscribed(unit) for unit in units)

    def towards_target(self) -> ConsumerMember:
        member = self.member
        wanted = frozenset(unit for unit in self.target if self.is_subscribed(unit))
        keep = {unit: epoch for unit, epoch in member.assigned.items() if unit in wanted}
        give_up = {unit: epoch for unit, epoch in member.assigned.items() if unit not in wanted}
        if give_up and self.is_about_to_take(give_up):
            return member
        if give_up and self.still_owns(give_up):
            return self._revoking(keep, give_up)
        gain: dict[Unit, int] = {}
        has_unreleased = False
        for unit in sorted(wanted - keep.keys()):
            if self.is_free(unit) and (member.shares or self._is_whole_free(unit, wanted)):
                gain[unit] = self.target_epoch
            else:
                has_unreleased = True
        state = MemberState.UNRELEASED_PARTITIONS if has_unreleased else MemberState.STABLE
        return self._changed(self.target_epoch, state, {**keep, **gain}, {})

    def _is_whole_free(self, unit: Unit, wanted: frozenset[Unit]) -> bool:
        """Whether all other pieces of a unit's partition are free too."""
        if unit.slots == ALL_SLOTS:
            return True
        place = unit[:2]
        return all(self.is_free(other) for other in wanted if other[:2] == place)

    def without_unsubscribed(self) -> ConsumerMember:
        """Give up at once what the member does not want any more, without a new target."""
        member = self.member
        keep = {u: epoch for u, epoch in member.assigned.items() if self.is_subscribed(u)}
        give_up = {u: epoch for u, epoch in member.assigned.items() if u not in keep}
        if not give_up:
            return member
        owed = {**member.pending_revocation, **give_up}
        if self.still_owns(owed):
            return self._revoking(keep, owed)
        return self._changed(member.member_epoch, MemberState.STABLE, keep, {})

    def _revoking(self, keep: dict[Unit, int], give_up: dict[Unit, int]) -> ConsumerMember:
        epoch = self.member.member_epoch
        return self._changed(epoch, MemberState.UNREVOKED_PARTITIONS, keep, give_up)

    def _changed(
        self,
        epoch: int,
        state: MemberState,
        assigned: dict[Unit, int],
        pending_revocation: dict[Unit, int],
    ) -> ConsumerMember:
        member = self.member
        changed = member.with_(
            member_epoch=epoch,
            previous_member_epoch=member.member_epoch,
            state=state,
            assigned=assigned,
            pending_revocation=pending_revocation,
        )
        same = (
            member.member_epoch == epoch
            and member.state is state
            and member.assigned == assigned
            and member.pending_revocation == pending_revocation
        )
        return member if same else changed
