"""Why the stable offset of a shared partition is where it is, in one sentence."""

from collections.abc import Mapping

from anabranch.console.oldest_records import OldestRecord
from anabranch.console.sharing import SharedPartition, SharedRange, slots_text
from anabranch.console.strips import key_text, owner_text
from anabranch.console.words import duration, number


def stable_reason(
    partition: SharedPartition,
    oldest: OldestRecord | None,
    numbers: Mapping[str, int],
    now_ms: int,
) -> str:
    """What comes first will not go away by itself: failures, nobody, a hand-over, then work."""
    stable = partition.stable_offset
    if stable is None:
        return "Nothing was committed yet."
    if stable >= partition.high_watermark:
        return "Everything is done."
    slot = oldest.slot if oldest is not None else _lowest(partition).slots.first
    row = partition.range_of_slot(slot) or _lowest(partition)
    record = _record(oldest, stable, now_ms)
    failed = next(
        (one for one in partition.failed if oldest is not None and one.offset == oldest.offset),
        None,
    )
    owner = owner_text(row.owner, row.client_id, numbers)
    if failed is not None and failed.rest_ms is None:
        return (
            f"It waits for {record}, which failed {_times(failed.attempts)} and is not tried again "
            "until somebody decides: anabranch groups release, skip or dlq."
        )
    if failed is not None:
        rest = f"rests for {duration(failed.rest_ms)}" if failed.rest_ms else "is due again"
        return f"It waits for {record}, which failed {_times(failed.attempts)} and {rest}."
    if row.owner is None:
        return f"Nobody owns slots {slots_text(row.slots)}, which wait for {record}."
    if row.moving_since_ms is not None:
        heir = owner_text(row.heir, "", numbers)
        return f"{owner} is to hand slots {slots_text(row.slots)} over to {heir}, and has {record}."
    if oldest is None:
        return f"{owner} has yet to confirm slots {slots_text(row.slots)}."
    if row.delivered_offset is not None and oldest.offset >= row.delivered_offset:
        return f"{owner} was not shown {record} yet."
    return f"{owner} works on {record}."


def _lowest(partition: SharedPartition) -> SharedRange:
    """The range that is the furthest behind; one without an owner before any other."""
    return min(
        partition.ranges,
        key=lambda one: (
            one.watermark if one.watermark is not None else -1,
            one.owner is not None,
            one.slots,
        ),
    )


def _record(oldest: OldestRecord | None, stable_offset: int, now_ms: int) -> str:
    if oldest is None:
        return f"what follows offset {number(stable_offset)}"
    details = []
    if oldest.key is not None:
        details.append(f"key {key_text(oldest.key)}")
    if oldest.timestamp_ms >= 0:
        details.append(f"{duration(max(now_ms - oldest.timestamp_ms, 0))} old")
    return f"record {number(oldest.offset)}" + (f" ({', '.join(details)})" if details else "")


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
