"""Progress goes with the committed offset that it hangs on, and with it what is pending on it."""

import dataclasses
from collections.abc import Callable

from anabranch.coordinator.cooperative.book import ProgressBook
from anabranch.coordinator.cooperative.pending_acks import forgotten
from anabranch.coordinator.cooperative.records import Place, ProgressForgotten
from anabranch.coordinator.group.offsets import Offsets
from anabranch.coordinator.group.records import GroupRecord, OffsetCommitted
from anabranch.coordinator.runtime.result import Result
from anabranch.model.cluster_image import ClusterImage

_NO_TOPIC_ID = bytes(16)


def with_progress_forgotten(
    result: Result,
    book: ProgressBook,
    offsets: Callable[[str], Offsets],
    image: ClusterImage,
) -> Result:
    """A decision about offsets, with what is forgotten before them.

    What the journal has without such an offset goes before there is one again.
    """
    if not book:
        return result
    gone: list[GroupRecord] = []
    for record in result.records:
        if type(record) is not OffsetCommitted:
            continue
        place = _place_of(record, offsets(record.group_id), image)
        sequence = book.left_of(record.group_id).get(place)
        if record.value is None:
            tracked = book.of_group(record.group_id).get(place)
            sequence = tracked.sequence if tracked is not None else None
        if sequence is not None:
            gone += map(forgotten, book.pending.of_place(record.group_id, place))
            gone.append(
                ProgressForgotten(
                    group_id=record.group_id,
                    topic_id=place[0],
                    partition=place[1],
                    sequence=sequence,
                )
            )
    return dataclasses.replace(result, records=(*gone, *result.records))


def _place_of(record: OffsetCommitted, offsets: Offsets, image: ClusterImage) -> Place:
    """Where a committed offset is, by the id that its topic has, or had when it was written."""
    value = record.value or offsets.get((record.topic, record.partition))
    # There is none where all that is forgotten is pending in a transaction.
    topic_id = value.topic_id if value is not None else _NO_TOPIC_ID
    if topic_id == _NO_TOPIC_ID and record.topic in image.topics:
        topic_id = image.topics[record.topic].topic_id
    return topic_id, record.partition
