"""When members of a group were last heard from, by the timers of their sessions."""

from collections.abc import Callable

from anabranch.coordinator.group.consumer_draft import ConsumerDraft, Environment
from anabranch.coordinator.group.consumer_state import ConsumerGroup
from anabranch.coordinator.group.draft import session_timer
from anabranch.coordinator.group.shard import Group
from anabranch.coordinator.runtime.result import TimerKey


def heard_ago_ms(
    group: Group,
    left_ms: Callable[[TimerKey], int | None],
    environment: Callable[[str], Environment],
) -> dict[str, int]:
    """How long ago each member was heard from.

    Who waits in a request of its own needs no heartbeat, and has no timer: it is not in here.
    """
    sessions: dict[str, int]
    if isinstance(group, ConsumerGroup):
        draft = ConsumerDraft(group, environment(group.group_id), 0)
        sessions = {one.member_id: draft.session_ms(one) for one in group.members.values()}
    else:
        sessions = {one.member_id: one.session_timeout_ms for one in group.members.values()}
    found = {}
    for member_id, session_ms in sessions.items():
        left = left_ms(session_timer(group.group_id, member_id))
        if left is not None:
            found[member_id] = max(0, session_ms - left)
    return found
