"""How much is kept of what a group does record by record, and what beyond that is refused.

Rules
- What a group keeps of a partition is limited, in ranges and in offsets between the stable offset
  and the last one that is done. Beyond a limit ranges that come on top are refused, while
  watermarks, and whatever closes gaps, are taken: that is what gets it below the limit again.
"""

from anabranch.coordinator.cooperative.acks import AckOutcome, SubCode
from anabranch.coordinator.cooperative.commands import NO_OFFSET
from anabranch.coordinator.cooperative.progress import PartitionProgress
from anabranch.coordinator.cooperative.settings import CooperativeSettings
from anabranch.model.errors import ErrorCode
from anabranch.model.units import SlotRange


def is_over(
    before: PartitionProgress, after: PartitionProgress, settings: CooperativeSettings
) -> bool:
    """Whether ranges came on top that are too many, or too far from the stable offset."""
    if after.ranges_count <= before.ranges_count:
        return False
    if after.ranges_count > settings.max_ranges:
        return True
    end_offset = after.last_done_offset
    # Slots that nobody has spoken of hold nobody back.
    begun = (one.watermark for one in after.intervals if one.watermark != NO_OFFSET)
    return end_offset - min(begun, default=end_offset) > settings.max_window_offsets


def limited(slots: SlotRange) -> AckOutcome:
    """What is said of an acknowledgement that is beyond a limit."""
    return AckOutcome(
        slots, ErrorCode.THROTTLING_QUOTA_EXCEEDED, SubCode.MAX_INDIVIDUAL_COMMIT_REACHED
    )
