"""How `anabranch groups describe --ranges` shows shared partitions as tables."""

from anabranch.cli.groups.range_progress import (
    RangeRow,
    RetriedRow,
    SharedPartition,
    rest_text,
    why,
)
from anabranch.cli.output import note, printable, write_blank_line, write_table

Found = dict[str, list[SharedPartition]]


def write_ranges(found: Found) -> None:
    """Partitions, their ranges, records that failed, and a sentence for each partition."""
    _write_partitions(found)
    write_blank_line()
    _write_ranges(found)
    if any(partition.retried for some in found.values() for partition in some):
        write_blank_line()
        _write_retried(found)
    for group, partitions in found.items():
        for partition in partitions:
            note(f"{group}: {why(partition)}")


def _write_partitions(found: Found) -> None:
    write_table(
        (
            *("GROUP", "TOPIC", "PARTITION", "STABLE-OFFSET", "HIGH-WATERMARK", "WINDOW"),
            *("#RANGES", "#RETRIED"),
        ),
        [
            (
                *(group, one.topic, one.partition),
                *(one.stable_offset, one.high_watermark, one.window),
                *(len(one.ranges), len(one.retried)),
            )
            for group, partitions in found.items()
            for one in partitions
        ],
    )


def _write_ranges(found: Found) -> None:
    write_table(
        (
            *("GROUP", "TOPIC", "PARTITION", "SLOTS", "CONSUMER-ID", "CLIENT-ID", "EPOCH"),
            *("WATERMARK", "OLDEST-OPEN", "DONE-RANGES", "DONE-OFFSETS"),
        ),
        [
            (group, one.topic, one.partition, *_range_cells(one, row))
            for group, partitions in found.items()
            for one in partitions
            for row in one.ranges
        ],
    )


def _range_cells(partition: SharedPartition, row: RangeRow) -> tuple[object, ...]:
    return (
        *(row.slots_text, row.owner, row.client_id, row.epoch),
        row.watermark if partition.stable_offset is not None else None,
        partition.oldest_open_offset(row),
        *(len(row.done), row.done.offsets_count),
    )


def _write_retried(found: Found) -> None:
    write_table(
        ("GROUP", "TOPIC", "PARTITION", "OFFSET", "SLOTS", "ATTEMPTS", "REST", "REASON"),
        [
            (group, one.topic, one.partition, *_retried_cells(one, retried))
            for group, partitions in found.items()
            for one in partitions
            for retried in one.retried
        ],
    )


def _retried_cells(partition: SharedPartition, retried: RetriedRow) -> tuple[object, ...]:
    row = partition.range_of(retried)
    return (
        retried.offset,
        None if row is None else row.slots_text,
        *(retried.attempts, rest_text(retried.rest_ms)),
        printable(retried.reason.encode()),
    )
