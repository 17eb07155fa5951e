"""DeleteGroups (42), versions 0-3: forget empty groups and what they committed.

Version notes: 2 flexible; 3 a message beside the error.
"""

from anabranch.broker.broker import Broker
from anabranch.coordinator.group.commands import DeleteGroup
from anabranch.handlers.route import RequestContext, route
from anabranch.model.errors import ErrorCode, KafkaError
from anabranch.wire.messages.delete_groups import (
    DELETE_GROUPS,
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
)


def handle(
    broker: Broker, context: RequestContext, request: DeleteGroupsRequest
) -> DeleteGroupsResponse:
    return DeleteGroupsResponse(
        results=[
            DeletableGroupResult(
                group_id=group_id,
                error_code=(code := _delete(broker, group_id)),
                error_message=_message(group_id, code),
            )
            for group_id in request.groups_names
        ]
    )


def _delete(broker: Broker, group_id: str) -> ErrorCode:
    if not group_id:
        return ErrorCode.INVALID_GROUP_ID
    try:
        answer = broker.groups.submit(group_id, DeleteGroup(group_id=group_id))
    except KafkaError as error:
        return error.code
    code: ErrorCode = answer.error
    return code


def _message(group_id: str, code: ErrorCode) -> str | None:
    if code is ErrorCode.GROUP_ID_NOT_FOUND:
        return f"Group {group_id} not found."
    if code is ErrorCode.NON_EMPTY_GROUP:
        return f"Group {group_id} has members. Stop them first."
    return None


ROUTE = route(DELETE_GROUPS, "0-3", handle)
