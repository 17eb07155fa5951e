"""DescribeLogDirs (35), versions 1-5: where partitions lie and how large they are (KIP-113).

Version notes: 3 an error for the whole; 4 size and free space of the volume (KIP-827); 5 cordoned
directories, of which there are none.
"""

import os
from pathlib import Path

from anabranch.broker.broker import Broker
from anabranch.handlers.route import RequestContext, route
from anabranch.log.partition_log import PartitionLog
from anabranch.model.errors import ErrorCode
from anabranch.observe import logs
from anabranch.wire.messages.describe_log_dirs import (
    DESCRIBE_LOG_DIRS,
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)


def handle(
    broker: Broker, context: RequestContext, request: DescribeLogDirsRequest
) -> DescribeLogDirsResponse:
    by_directory: dict[Path, dict[str, list[PartitionLog]]] = {
        directory.path: {} for directory in broker.engine.directories
    }
    for log in _asked_logs(broker, request):
        path = broker.engine.directory_of(log).path
        by_directory[path].setdefault(log.topic, []).append(log)
    return DescribeLogDirsResponse(
        results=[_describe(path, topics) for path, topics in by_directory.items()]
    )


def _asked_logs(broker: Broker, request: DescribeLogDirsRequest) -> list[PartitionLog]:
    """The logs that are asked for and exist; the others have no directory to appear in."""
    every = broker.engine.logs
    if request.topics is None:
        return [every[key] for key in sorted(every)]
    keys = sorted({(one.topic, index) for one in request.topics for index in one.partitions})
    return [every[key] for key in keys if key in every]


def _describe(path: Path, topics: dict[str, list[PartitionLog]]) -> DescribeLogDirsResult:
    result = DescribeLogDirsResult(log_dir=str(path.absolute()))
    try:
        volume = os.statvfs(path)
    except OSError as error:
        logs.warning("log.directory.unreadable", folder=str(path), reason=str(error))
        result.error_code = ErrorCode.KAFKA_STORAGE_ERROR
        return result
    result.total_bytes = volume.f_blocks * volume.f_frsize
    result.usable_bytes = volume.f_bavail * volume.f_frsize
    result.topics = [
        DescribeLogDirsTopic(
            name=name,
            partitions=[
                DescribeLogDirsPartition(
                    partition_index=log.partition, partition_size=log.size_bytes
                )
                for log in partitions
            ],
        )
        for name, partitions in topics.items()
    ]
    return result


ROUTE = route(DESCRIBE_LOG_DIRS, "1-5", handle)
