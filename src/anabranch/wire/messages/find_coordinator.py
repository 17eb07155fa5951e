"""FindCoordinator (key 10): which broker looks after a group, a transactional id or a share group.

1 key types, throttle time and error messages (KIP-98, KIP-124), 2 responses leave before
throttling (KIP-219), 3 flexible, 4 many keys in one request (KIP-699), 5 TRANSACTION_ABORTABLE may
be answered (KIP-890), 6 share groups, whose keys read "group:topic id:partition" (KIP-932).
"""

from anabranch.wire.api import api
from anabranch.wire.schema import Int8, Int16, Int32, String, at, struct

KEY_TYPE_GROUP = 0
KEY_TYPE_TRANSACTION = 1
KEY_TYPE_SHARE = 2


@struct
class FindCoordinatorRequest:
    key: String = at("0-3")
    key_type: Int8 = at("1+")
    coordinator_keys: list[String] = at("4+")


@struct
class Coordinator:
    key: String = at("4+")
    node_id: Int32 = at("4+")
    host: String = at("4+")
    port: Int32 = at("4+")
    error_code: Int16 = at("4+")
    error_message: String | None = at("4+", default=None, ignorable=True)


@struct
class FindCoordinatorResponse:
    throttle_time_ms: Int32 = at("1+", ignorable=True)
    error_code: Int16 = at("0-3")
    error_message: String | None = at("1-3", default=None, ignorable=True)
    node_id: Int32 = at("0-3")
    host: String = at("0-3")
    port: Int32 = at("0-3")
    coordinators: list[Coordinator] = at("4+")


FIND_COORDINATOR = api(
    10,
    "FindCoordinator",
    request=FindCoordinatorRequest,
    response=FindCoordinatorResponse,
    versions="0-6",
    flexible="3+",
)
