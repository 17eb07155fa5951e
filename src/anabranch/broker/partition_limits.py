"""How many partitions one request, and this broker as a whole, may have.

A partition costs a folder, a few files and one open file for as long as the broker runs, so a
careless number in one request must not be able to use them up.
"""

from anabranch.model.errors import ErrorCode, KafkaError

PARTITIONS_PER_REQUEST_MAX = 10_000
"""Kafka's bound for what one CreateTopics or CreatePartitions may add."""

# Open files that stay free for connections, indexes being written, and the metadata store.
_OPEN_FILES_RESERVED = 256


def check_request_size(partitions: int) -> None:
    """Refuse a request that would add too many partitions at once."""
    if partitions > PARTITIONS_PER_REQUEST_MAX:
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION,
            f"The request would create {partitions} partitions; at most "
            f"{PARTITIONS_PER_REQUEST_MAX} are possible in one request. Split it.",
        )


def check_room(existing: int, additional: int) -> None:
    """Refuse partitions for which the process could not keep their files open."""
    limit = open_files_max()
    if existing + additional > limit - _OPEN_FILES_RESERVED:
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION,
            f"This broker has {existing} partitions and may have {limit} files open, which is too "
            f"few for {additional} more partitions. Raise its limit of open files (ulimit -n).",
        )


def open_files_max() -> int:
    """How many files this process may have open."""
    import resource  # not there on every platform, and needed only when topics are made

    soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft if soft != resource.RLIM_INFINITY else 1 << 31
