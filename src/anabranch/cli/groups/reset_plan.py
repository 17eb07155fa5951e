"""Where `groups reset` puts each offset, by what the cluster knows of the partitions."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from anabranch.cli.cluster import list_offsets, offset_ranges
from anabranch.cli.errors import CliError
from anabranch.cli.groups.lookup import Committed, TopicPartitionKey
from anabranch.cli.options import Connection
from anabranch.model import offset_reset
from anabranch.model.lag import lag
from anabranch.model.offset_reset import NothingCommittedError, Target, TargetKind, name_of

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

__all__ = ["Change", "Target", "TargetKind", "new_offset", "plan"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One partition's offset before and after, and why it is not what was asked for."""

    topic: str
    partition: int
    before: int | None
    after: int
    lag: int  # when it is done
    remark: str | None


def plan(
    admin: "AdminClient",
    connection: Connection,
    target: Target,
    keys: list[TopicPartitionKey],
    committed: Mapping[TopicPartitionKey, Committed],
) -> list[Change]:
    """The new offset of each partition; CliError where there can be none."""
    from confluent_kafka.admin import OffsetSpec

    ranges = offset_ranges(admin, connection, keys)
    found: dict[TopicPartitionKey, int] = {}
    if target.kind in (TargetKind.DATETIME, TargetKind.DURATION):
        found = list_offsets(admin, connection, keys, OffsetSpec.for_timestamp(target.value))
    changes = []
    for key in keys:
        start, end = ranges[key]
        before = committed[key].offset if key in committed else None
        after, remark = new_offset(target, key, before, start, end, found.get(key, -1))
        changes.append(
            Change(
                topic=key[0],
                partition=key[1],
                before=before,
                after=after,
                lag=lag(end, after, start),
                remark=remark,
            )
        )
    return changes


def new_offset(
    target: Target,
    key: TopicPartitionKey,
    before: int | None,
    start: int,
    end: int,
    found: int,
) -> tuple[int, str | None]:
    """One partition's new offset and a remark; CliError where there can be none."""
    try:
        return offset_reset.new_offset(target, key, before, start, end, found)
    except NothingCommittedError:
        raise CliError(
            f"Cannot shift the offset of {name_of(key)}",
            "nothing was committed for it",
            "leave that partition out, or use another target such as --to-earliest",
        ) from None
