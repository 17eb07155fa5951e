"""DeleteGroups (42), versions 0-3: forget empty groups and what they committed.

Version notes: 2 flexible; 3 a message beside the error.
"""

from anabranch.broker.broker import Broker
from anabranch.broker.deferred import Deferred
from anabranch.coordinator.group.commands import DeleteGroup, DeleteGroupAnswer
from anabranch.handlers.group_answers import answer, gather
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
) -> DeleteGroupsResponse | Deferred[DeleteGroupsResponse]:
    # What is there twice is answered once, as Kafka does. The empty group id is one like any other:
    # it can hold offsets of clients from before groups.
    outcomes = [_delete(broker, group_id) for group_id in dict.fromkeys(request.groups_names)]
    response: DeleteGroupsResponse | Deferred[DeleteGroupsResponse] = gather(
        outcomes, lambda results: DeleteGroupsResponse(results=results)
    )
    return response


def _delete(broker: Broker, group_id: str) -> DeletableGroupResult | Deferred[DeletableGroupResult]:
    def result(outcome: DeleteGroupAnswer | KafkaError) -> DeletableGroupResult:
        if isinstance(outcome, KafkaError):
            return DeletableGroupResult(
                group_id=group_id, error_code=outcome.code, error_message=outcome.message
            )
        message = _message(group_id, outcome.error)
        return DeletableGroupResult(
            group_id=group_id, error_code=outcome.error, error_message=message
        )

    return answer(broker, group_id, DeleteGroup(group_id=group_id), result)


def _message(group_id: str, code: ErrorCode) -> str | None:
    if code is ErrorCode.GROUP_ID_NOT_FOUND:
        return f"Group {group_id} not found."
    if code is ErrorCode.NON_EMPTY_GROUP:
        return f"Group {group_id} has members. Stop them first."
    return None


ROUTE = route(DELETE_GROUPS, "0-3", handle)
