"""The records of `__individual_commit_offsets`: what groups did record by record.

ProgressSnapshot (type 0) is all that a group has done of a partition. ProgressDelta (type 1) is
what came to it: its key has a number from 1 to 63, which is its sequence modulo 64, so that after
the next snapshot the same keys are written again and compaction removes what the snapshot has.
Whoever reads takes a delta only if its sequence follows what was read before.

PendingAcks (type 2) is all that a member of a group has acknowledged of a partition in the
transaction of a producer. It is written anew whenever that grows, and deleted when the transaction
ends; if it is committed, what it says is in a delta or snapshot of the same batch.

Slots are numbers out of [0, 65536]; the end is not included. Offsets that are done above a
watermark are an `OffsetSet`, as on the wire. All values are version 0 and flexible: what may come
later comes as tags.
"""

from anabranch.wire.journal.record_type import record_type
from anabranch.wire.messages.cooperation import OffsetSet
from anabranch.wire.schema import Int16, Int32, Int64, String, Uuid, at, struct


@struct
class ProgressKey:
    group_id: String = at("0")
    topic_id: Uuid = at("0")
    partition: Int32 = at("0")


@struct
class ProgressDeltaKey:
    group_id: String = at("0")
    topic_id: Uuid = at("0")
    partition: Int32 = at("0")
    number: Int32 = at("0")


@struct
class DoneSlots:
    """Records of some slots: those below the watermark, and those in the set."""

    first_slot: Int32 = at("0+")
    end_slot: Int32 = at("0+")
    watermark: Int64 = at("0+")
    done: OffsetSet = at("0+")


@struct
class FailedRecord:
    """A record that failed so often, and when it may be tried again."""

    offset: Int64 = at("0+")
    slot: Int32 = at("0+")
    attempts: Int32 = at("0+")
    not_before_ms: Int64 = at("0+")
    reason: String = at("0+")
    key_hash: Int64 = at("0+", tag=0, default=-1)


@struct
class DivertedKey:
    """A key, by its hash, whose records go to the dead-letter topic from an offset on."""

    key_hash: Int64 = at("0+")
    offset: Int64 = at("0+")


@struct
class ProgressValue:
    """Of a snapshot the slots are all there are; of a delta they are those that were done.

    Only deltas have records whose attempts are forgotten, and keys that are not diverted any more.
    """

    sequence: Int64 = at("0+")
    leader_epoch: Int32 = at("0+")
    slots: list[DoneSlots] = at("0+")
    failed: list[FailedRecord] = at("0+")
    diverted: list[DivertedKey] = at("0+", tag=0)
    forgiven_offsets: list[Int64] = at("0+", tag=1)
    released_hashes: list[Int64] = at("0+", tag=2)


@struct
class PendingAcksKey:
    group_id: String = at("0")
    topic_id: Uuid = at("0")
    partition: Int32 = at("0")
    producer_id: Int64 = at("0")
    member_id: String = at("0")


@struct
class PendingAcksValue:
    producer_epoch: Int16 = at("0+")
    leader_epoch: Int32 = at("0+")
    slots: list[DoneSlots] = at("0+")


PROGRESS_SNAPSHOT = record_type(
    0,
    "ProgressSnapshot",
    key=ProgressKey,
    value=ProgressValue,
    versions="0",
    flexible="0+",
)
PROGRESS_DELTA = record_type(
    1,
    "ProgressDelta",
    key=ProgressDeltaKey,
    value=ProgressValue,
    versions="0",
    flexible="0+",
)
PENDING_ACKS = record_type(
    2,
    "PendingAcks",
    key=PendingAcksKey,
    value=PendingAcksValue,
    versions="0",
    flexible="0+",
)
