"""What decisions mean for acknowledgements that wait for others (see `cooperative.txn_order`), and
for those whose members are gone.
"""

from collections.abc import Iterator, Mapping

from anabranch.coordinator.cooperative.book import ProgressBook
from anabranch.coordinator.cooperative.commands import (
    AbortTransactions,
    AcksAnswer,
    TryAcksAgain,
)
from anabranch.coordinator.cooperative.pending_acks import PendingAcks
from anabranch.coordinator.cooperative.records import ProgressForgotten, ProgressWritten
from anabranch.coordinator.cooperative.txn_order import (
    AcksParked,
    ParkedAcks,
    answered,
    is_waiting_for,
)
from anabranch.coordinator.group.classic_state import ClassicGroup
from anabranch.coordinator.group.commands import Command, EndTransaction
from anabranch.coordinator.group.consumer_records import CurrentWritten, MemberWritten
from anabranch.coordinator.group.consumer_state import STATIC_LEAVING_EPOCH, ConsumerGroup
from anabranch.coordinator.runtime.result import Result, TimerKey, WaiterId
from anabranch.model.errors import ErrorCode

Groups = Mapping[str, ClassicGroup | ConsumerGroup]


def with_waiters(
    parked: ParkedAcks, groups: Groups, book: ProgressBook, command: Command, result: Result
) -> Result:
    """A decision, with what follows for those who wait."""
    told: dict[WaiterId, Result] = {}
    if isinstance(command, EndTransaction):
        for one in parked.of_producer(command.producer_id):
            # It is told the truth when it asks again.
            told[one.waiter] = answered(one, AcksAnswer(error=ErrorCode.CONCURRENT_TRANSACTIONS))
    for group_id, member_id in _gone(result):
        for one in parked.of_group(group_id):
            error = _told_of_gone(one, groups, book, member_id)
            if error is not ErrorCode.NONE:
                told.setdefault(one.waiter, answered(one, AcksAnswer(error=error)))
    for more in told.values():
        result = joined_results(result, more)
    moved = tuple(waiter for waiter in _moved(parked, result) if waiter not in told)
    if moved:
        result = joined_results(result, Result(tasks=(TryAcksAgain(waiters=moved),)))
    return result


def _moved(parked: ParkedAcks, result: Result) -> list[WaiterId]:
    """Who waits for something that has changed."""
    moved = [
        one.waiter
        for record in result.records
        if isinstance(record, ProgressWritten | ProgressForgotten)
        for one in parked.of_group(record.group_id)
        if (record.topic_id, record.partition) in one.waits
    ]
    return list(dict.fromkeys(moved))


def _gone(result: Result) -> Iterator[tuple[str, str]]:
    """The members that leave with a decision, for good or for a while."""
    for record in result.records:
        if not isinstance(record, MemberWritten | CurrentWritten):
            continue
        is_paused = record.member is not None and record.member.member_epoch == STATIC_LEAVING_EPOCH
        if record.member is None or is_paused:
            yield record.group_id, record.member_id


def _told_of_gone(
    parked: AcksParked, groups: Groups, book: ProgressBook, member_id: str
) -> ErrorCode:
    """What a request is told that waits when a member goes."""
    group_id = parked.command.group_id
    if parked.command.member_id == member_id:
        return ErrorCode.UNKNOWN_MEMBER_ID
    group = groups.get(group_id)
    member = group.members.get(member_id) if isinstance(group, ConsumerGroup) else None
    if member is None or not is_waiting_for(parked, member, book.of_group(group_id)):
        return ErrorCode.NONE
    return ErrorCode.REBALANCE_IN_PROGRESS


def joined_results(result: Result, more: Result) -> Result:
    """A decision and what follows from it; the answer is the first one's."""
    return Result(
        records=(*result.records, *more.records),
        response=result.response,
        timers=(*result.timers, *more.timers),
        wakes=(*result.wakes, *more.wakes),
        tasks=(*result.tasks, *more.tasks),
    )


# Members that are gone --------------------------------------------------------------------------


def orphans_timer(group_id: str) -> TimerKey:
    """The time to have transactions aborted whose members went while nobody looked."""
    return ("orphans", group_id)


def orphans(pending: PendingAcks, groups: Groups, group_id: str) -> list[AbortTransactions]:
    """What is to be aborted, because who acknowledged it is not there any more."""
    group = groups.get(group_id)
    return [
        AbortTransactions(
            group_id=group_id,
            member_id=member_id,
            producers=pending.producers_of(group_id, member_id),
        )
        for member_id in pending.members_of(group_id)
        if group is None or member_id not in group.members
    ]
