"""How `anabranch groups describe --ranges` shows shared partitions: tables, sentences and JSON."""

from collections.abc import Iterator
from typing import Any

from anabranch.cli.groups.waiting import ways_out
from anabranch.cli.output import note, printable, text_field, write_blank_line, write_table
from anabranch.client import GroupProgress, GroupRange, PartitionProgress, RetriedRecord
from anabranch.client.stable_hold import Hold, duration, explain_stable_offset, find_hold
from anabranch.model.units import slot_of_hash

Found = dict[str, GroupProgress]


def write_ranges(found: Found) -> None:
    """Partitions, their ranges, what is special of them, and a sentence for each partition."""
    _write_partitions(found)
    write_blank_line()
    _write_ranges(found)
    if any(partition.retried for _, partition in _all(found)):
        write_blank_line()
        _write_retried(found)
    if any(partition.diverted for _, partition in _all(found)):
        write_blank_line()
        _write_diverted(found)
    if any(partition.hot for _, partition in _all(found)):
        write_blank_line()
        _write_hot(found)
    for group, partition in _all(found):
        note(f"{group}: {explain_stable_offset(partition, is_enabled=found[group].is_enabled)}")
    for sentence in ways_out(found):
        note(sentence)


def _all(found: Found) -> Iterator[tuple[str, PartitionProgress]]:
    for group, progress in found.items():
        for partition in progress.partitions:
            yield group, partition


def _write_partitions(found: Found) -> None:
    write_table(
        (
            *("GROUP", "TOPIC", "PARTITION", "STABLE-OFFSET", "HIGH-WATERMARK", "WINDOW"),
            *("IN-FLIGHT", "OLDEST-OPEN", "AGE", "STALLED", "#RANGES", "#RETRIED"),
        ),
        [
            (
                *(group, one.topic, one.partition),
                *(one.stable_offset, one.high_watermark, one.window, one.in_flight),
                None if one.oldest is None else one.oldest.offset,
                *(time_text(one.oldest_age_ms), time_text(one.stalled_ms)),
                *(len(one.ranges), len(one.retried)),
            )
            for group, one in _all(found)
        ],
    )


def _write_ranges(found: Found) -> None:
    write_table(
        (
            *("GROUP", "TOPIC", "PARTITION", "SLOTS", "CONSUMER-ID", "CLIENT-ID", "EPOCH"),
            *("WATERMARK", "DELIVERED", "IN-FLIGHT", "GAPS", "DONE-ABOVE"),
        ),
        [
            (group, one.topic, one.partition, *_range_cells(row))
            for group, one in _all(found)
            for row in one.ranges
        ],
    )


def _range_cells(row: GroupRange) -> tuple[object, ...]:
    return (
        *(row.slots_text, row.owner, row.client_id, row.epoch),
        *(_known(row.watermark), row.delivered_offset, row.in_flight),
        *(len(row.gaps), row.done.offsets_count),
    )


def _write_retried(found: Found) -> None:
    write_table(
        (
            *("GROUP", "TOPIC", "PARTITION", "OFFSET", "SLOTS", "KEY-HASH"),
            *("ATTEMPTS", "REST", "REASON"),
        ),
        [
            (group, one.topic, one.partition, *_retried_cells(one, retried))
            for group, one in _all(found)
            for retried in one.retried
        ],
    )


def _retried_cells(partition: PartitionProgress, retried: RetriedRecord) -> tuple[object, ...]:
    row = partition.range_of(retried)
    return (
        retried.offset,
        None if row is None else row.slots_text,
        retried.key_hash,
        *(retried.attempts, rest_text(retried.rest_ms)),
        printable(retried.reason.encode()),
    )


def _write_diverted(found: Found) -> None:
    write_table(
        ("GROUP", "TOPIC", "PARTITION", "DIVERTED-KEY-HASH", "SLOT", "FROM-OFFSET"),
        [
            (group, one.topic, one.partition, key.key_hash, slot_of_hash(key.key_hash), key.offset)
            for group, one in _all(found)
            for key in one.diverted
        ],
    )


def _write_hot(found: Found) -> None:
    write_table(
        ("GROUP", "TOPIC", "PARTITION", "HOT-SLOTS", "SHARE", "KEY"),
        [
            (
                *(group, one.topic, one.partition),
                f"{hot.key_range.slots.first}-{hot.key_range.slots.end - 1}",
                f"{hot.share:.1%}",
                printable(hot.key),
            )
            for group, one in _all(found)
            for hot in one.hot
        ],
    )


def _known(offset: int) -> int | None:
    return offset if offset >= 0 else None


def time_text(length_ms: int | None) -> str | None:
    """A length of time without a space, for a column."""
    return None if length_ms is None else duration(length_ms).replace(" ", "")


def rest_text(rest_ms: int | None) -> str:
    """A rest for people: `1.5s`, or `for-ever`."""
    return "for-ever" if rest_ms is None else f"{rest_ms / 1000:g}s"


# JSON -------------------------------------------------------------------------------------------


def ranges_document(progress: GroupProgress) -> list[dict[str, Any]]:
    """The partitions as JSON shows them; slots and offsets of ranges include both ends."""
    return [
        {
            "topic": partition.topic,
            "partition": partition.partition,
            "stable_offset": partition.stable_offset,
            "high_watermark": partition.high_watermark,
            "window": partition.window,
            "in_flight": partition.in_flight,
            "stalled_ms": partition.stalled_ms,
            "is_shareable": partition.is_shareable,
            "oldest_open": _oldest_document(partition),
            "why": explain_stable_offset(partition, is_enabled=progress.is_enabled),
            "held_by": _hold_document(find_hold(partition)),
            "ranges": [_range_document(partition, row) for row in partition.ranges],
            "retried": [_retried_document(partition, one) for one in partition.retried],
            "diverted": [
                {
                    "key_hash": one.key_hash,
                    "slot": slot_of_hash(one.key_hash),
                    "from_offset": one.offset,
                }
                for one in partition.diverted
            ],
            "hot": [
                {
                    "first_slot": one.key_range.slots.first,
                    "last_slot": one.key_range.slots.end - 1,
                    "share": one.share,
                    **text_field("key", one.key),
                }
                for one in partition.hot
            ],
        }
        for partition in progress.partitions
    ]


def _oldest_document(partition: PartitionProgress) -> dict[str, Any] | None:
    oldest = partition.oldest
    if oldest is None:
        return None
    return {
        "offset": oldest.offset,
        "slot": oldest.slot,
        **text_field("key", oldest.key),
        "timestamp_ms": oldest.timestamp_ms,
        "age_ms": oldest.age_ms,
    }


def _slots_document(row: GroupRange | None) -> dict[str, Any]:
    return {
        "first_slot": None if row is None else row.slots.first,
        "last_slot": None if row is None else row.slots.end - 1,
    }


def _owner_document(row: GroupRange) -> dict[str, Any]:
    return {"consumer_id": row.owner, "client_id": row.client_id, "epoch": row.epoch}


def _hold_document(hold: Hold | None) -> dict[str, Any] | None:
    if hold is None:
        return None
    return {
        **_slots_document(hold.row),
        **_owner_document(hold.row),
        "since_offset": hold.since_offset,
        "offset": hold.offset,
        "other_ranges": hold.other_ranges,
        "own_done_above": hold.own_done_above,
        "others_done_above": hold.others_done_above,
        "is_retried": hold.retried is not None,
        "is_shown": hold.is_shown,
        "is_moving": hold.handover is not None,
    }


def _range_document(partition: PartitionProgress, row: GroupRange) -> dict[str, Any]:
    return {
        **_slots_document(row),
        **_owner_document(row),
        "watermark": _known(row.watermark),
        "delivered_offset": row.delivered_offset,
        "in_flight": row.in_flight,
        "oldest_open_offset": partition.oldest_open_offset(row),
        "done_ranges": len(row.done),
        "done_offsets": row.done.offsets_count,
        "done": [{"first": first, "last": last} for first, last in row.done],
        "gaps": [{"first": first, "last": last} for first, last in row.gaps],
    }


def _retried_document(partition: PartitionProgress, retried: RetriedRecord) -> dict[str, Any]:
    return {
        "offset": retried.offset,
        "key_hash": retried.key_hash,
        "attempts": retried.attempts,
        "rest_ms": retried.rest_ms,
        "is_exhausted": retried.rest_ms is None,
        "reason": retried.reason,
        **_slots_document(partition.range_of(retried)),
    }
