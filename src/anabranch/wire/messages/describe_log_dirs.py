"""DescribeLogDirs (key 35): where partitions lie on disk and how large they are (KIP-113).

1 responses leave before throttling (KIP-219), 2 flexible, 3 a top-level error (KIP-784),
4 size and free space of the volume (KIP-827), 5 cordoned directories (KIP-1066).
"""

from anabranch.wire.api import api
from anabranch.wire.schema import Bool, Int16, Int32, Int64, String, at, struct


@struct
class DescribableLogDirTopic:
    topic: String = at("0+")
    partitions: list[Int32] = at("0+")


@struct
class DescribeLogDirsRequest:
    topics: list[DescribableLogDirTopic] | None = at("0+", default=None)


@struct
class DescribeLogDirsPartition:
    partition_index: Int32 = at("0+")
    partition_size: Int64 = at("0+")
    offset_lag: Int64 = at("0+")
    is_future_key: Bool = at("0+")


@struct
class DescribeLogDirsTopic:
    name: String = at("0+")
    partitions: list[DescribeLogDirsPartition] = at("0+")


@struct
class DescribeLogDirsResult:
    error_code: Int16 = at("0+")
    log_dir: String = at("0+")
    topics: list[DescribeLogDirsTopic] = at("0+")
    total_bytes: Int64 = at("4+", default=-1, ignorable=True)
    usable_bytes: Int64 = at("4+", default=-1, ignorable=True)
    is_cordoned: Bool = at("5+", ignorable=True)


@struct
class DescribeLogDirsResponse:
    throttle_time_ms: Int32 = at("0+")
    error_code: Int16 = at("3+", ignorable=True)
    results: list[DescribeLogDirsResult] = at("0+")


DESCRIBE_LOG_DIRS = api(
    35,
    "DescribeLogDirs",
    request=DescribeLogDirsRequest,
    response=DescribeLogDirsResponse,
    versions="1-5",
    flexible="2+",
)
