"""DeleteGroups (key 42): forget groups that have no members, with their offsets (KIP-229).

1 responses leave before throttling (KIP-219), 2 flexible, 3 an error message for each group
(KIP-1331).
"""

from anabranch.wire.api import api
from anabranch.wire.schema import Int16, Int32, String, at, struct


@struct
class DeleteGroupsRequest:
    groups_names: list[String] = at("0+")


@struct
class DeletableGroupResult:
    group_id: String = at("0+")
    error_code: Int16 = at("0+")
    error_message: String | None = at("3+", default=None, ignorable=True)


@struct
class DeleteGroupsResponse:
    throttle_time_ms: Int32 = at("0+")
    results: list[DeletableGroupResult] = at("0+")


DELETE_GROUPS = api(
    42,
    "DeleteGroups",
    request=DeleteGroupsRequest,
    response=DeleteGroupsResponse,
    versions="0-3",
    flexible="2+",
)
