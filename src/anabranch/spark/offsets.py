"""Offsets as Spark's checkpoint has them, in the JSON of Spark's `kafka` source. Pure.

    {"orders":{"0":23,"1":42}}

Rules
- Spark compares offsets as texts. So an offset that follows another keeps its order of topics and
  partitions, and new ones come after it, sorted; and whoever finds nothing new gives the very same
  offset back.
- A query's first offset is not stored by Spark until its first batch is done, and is asked for
  again after a crash. So the end of batch 0 carries where it began, as `__from__`, in whose place
  no topic's name can be. The ends of all later batches are as Kafka's source writes them.
- A partition that is new in the end of a batch is read from its beginning.
"""

from collections.abc import Mapping
from typing import Any, Final

from anabranch.spark.errors import DataLossError

Place = tuple[str, int]
Offsets = dict[Place, int]

FROM: Final = "__from__"


def to_json(offsets: Mapping[Place, int], like: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """An offset for Spark, in the order of an earlier one as far as it goes."""
    ordered: dict[str, dict[str, int]] = {}
    for place in from_json(like or {}):
        if place in offsets:
            ordered.setdefault(place[0], {})[str(place[1])] = offsets[place]
    for topic, partition in sorted(offsets):
        ordered.setdefault(topic, {}).setdefault(str(partition), offsets[topic, partition])
    return dict(ordered)


def from_json(offset: Mapping[str, Any]) -> Offsets:
    """What Spark hands back, without where batch 0 began."""
    try:
        return {
            (topic, int(partition)): int(number)
            for topic, partitions in offset.items()
            if topic != FROM
            for partition, number in partitions.items()
        }
    except (ValueError, TypeError, AttributeError) as error:
        raise DataLossError(
            f"the checkpoint's offset is not one of a Kafka or Anabranch source: {dict(offset)!r};"
            " use a checkpointLocation of this query, or a new one"
        ) from error


def with_start(end: dict[str, Any], start: Mapping[Place, int]) -> dict[str, Any]:
    """The end of batch 0, with where it began."""
    return {**end, FROM: to_json(start)}


def start_of(start: Mapping[str, Any], end: Mapping[str, Any]) -> Offsets:
    """Where a batch begins: where its end says, or else where Spark says."""
    carried = end.get(FROM)
    return from_json(carried if isinstance(carried, Mapping) else start)
