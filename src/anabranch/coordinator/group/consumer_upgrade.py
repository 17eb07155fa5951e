"""Classic groups that become consumer groups while their members live (KIP-848)."""

from anabranch.coordinator.group.classic_state import ClassicGroup, ClassicState
from anabranch.coordinator.group.consumer_commands import ConsumerHeartbeat
from anabranch.coordinator.group.consumer_draft import Environment
from anabranch.coordinator.group.consumer_heartbeat import consumer_heartbeat, refused
from anabranch.coordinator.group.records import GroupWritten
from anabranch.coordinator.group.settings import GroupSettings
from anabranch.coordinator.runtime.result import Result
from anabranch.model.errors import ErrorCode, KafkaError


def heartbeat_that_upgrades(
    group: ClassicGroup,
    command: ConsumerHeartbeat,
    environment: Environment,
    settings: GroupSettings,
    now_ms: int,
) -> Result:
    """A consumer-protocol member joins a classic group."""
    if group.state is not ClassicState.EMPTY:
        why = f"Group {command.group_id} is a classic group with members."
        return refused(command, KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, why))
    result = consumer_heartbeat(None, command, environment, settings, now_ms)
    return Result(
        records=(GroupWritten(group_id=command.group_id, group=None), *result.records),
        response=result.response,
        timers=result.timers,
        tasks=result.tasks,
    )
