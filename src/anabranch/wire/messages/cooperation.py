"""Our own tagged fields: what members say to each other through the broker to share partitions.

All are tags of 10000 and above on messages of Kafka, in flexible versions only. The broker answers
one only to who sent one, since some clients stumble over tags that they do not know; and a client
that sent one and gets none back is talking to a broker that did not understand it, must not take
the answer for what it asked, and stops. Byte by byte in docs/reference/wire-extensions.md.

A key range is written as KIP-X has it: the first and the last hash, both included, out of
[0, 2^63 - 1]. Ranges begin and end at slots, that is, at multiples of 2^47.
"""

from anabranch.wire.schema import Bytes, Int8, Int16, Int32, Int64, String, Uuid, at, struct

COOPERATION_VERSION = 1
# In ApiVersions: supported by whoever knows these tags, finalized where they are turned on.
COOPERATION_FEATURE = "cooperative.consumption"


@struct
class KeyRange:
    first_hash: Int64 = at("0+")
    last_hash: Int64 = at("0+")


@struct
class OwnedRange:
    """A range with the epoch at which its owner got it: the fencing token of its records."""

    first_hash: Int64 = at("0+")
    last_hash: Int64 = at("0+")
    epoch: Int32 = at("0+")


# ConsumerGroupHeartbeat ---------------------------------------------------------------------------


@struct
class HeldPartition:
    topic_id: Uuid = at("0+")
    partition: Int32 = at("0+")
    ranges: list[KeyRange] = at("0+")


@struct
class RangeLoad:
    """What a member did for a range since its last report; without a time if it measures none."""

    topic_id: Uuid = at("0+")
    partition: Int32 = at("0+")
    first_hash: Int64 = at("0+")
    last_hash: Int64 = at("0+")
    records: Int64 = at("0+")
    busy_us: Int64 = at("0+")


@struct
class Cooperation:
    """A member that shares partitions; null `held` says "as I last said"."""

    version: Int16 = at("0+", default=COOPERATION_VERSION)
    held: list[HeldPartition] | None = at("0+", default=None)
    loads: list[RangeLoad] = at("0+")


@struct
class AssignedPartition:
    topic_id: Uuid = at("0+")
    partition: Int32 = at("0+")
    ranges: list[OwnedRange] = at("0+")


@struct
class CooperationAnswer:
    """What the member has; null `assigned` says "as I last said"."""

    version: Int16 = at("0+", default=COOPERATION_VERSION)
    sub_code: Int16 = at("0+")
    lease_ms: Int32 = at("0+")
    assigned: list[AssignedPartition] | None = at("0+", default=None)


# Fetch --------------------------------------------------------------------------------------------


@struct
class RangeFetch:
    """Which records of the partition are wanted. Without a group nothing is fenced or withheld."""

    version: Int16 = at("0+", default=COOPERATION_VERSION)
    group_id: String = at("0+")
    member_id: String = at("0+")
    member_epoch: Int32 = at("0+", default=-1)
    ranges: list[KeyRange] = at("0+")


@struct
class RangeCut:
    """The ranges of all who read a partition together, that of the reader among them.

    For readers without a group: the broker sorts the records once for all of them. They share
    nothing with a group, so the topic need not allow that (`range.fetch.enable`).
    """

    version: Int16 = at("0+", default=COOPERATION_VERSION)
    ranges: list[KeyRange] = at("0+")


@struct
class RangeFetchAnswer:
    """Which ranges were applied, and how far they were looked through."""

    version: Int16 = at("0+", default=COOPERATION_VERSION)
    sub_code: Int16 = at("0+")
    covered_offset: Int64 = at("0+", default=-1)
    ranges: list[KeyRange] = at("0+")


# OffsetCommit -------------------------------------------------------------------------------------


@struct
class OffsetSet:
    """Offsets as ranges with both ends included, in the shorter of two forms (see the page)."""

    codec: Int8 = at("0+")
    content: Bytes = at("0+")


@struct
class RangeAck:
    """Records of a range that are done: all below the watermark (-1: none), and the set."""

    first_hash: Int64 = at("0+")
    last_hash: Int64 = at("0+")
    epoch: Int32 = at("0+")
    watermark: Int64 = at("0+", default=-1)
    done: OffsetSet = at("0+")


@struct
class FailedRecord:
    """A record that could not be processed, and when to try it again; -1 asks for no more tries.

    -2 says that it was not tried, because its key is diverted.
    """

    offset: Int64 = at("0+")
    key_hash: Int64 = at("0+")
    retry_after_ms: Int32 = at("0+")
    reason: String = at("0+")


@struct
class IndividualCommit:
    version: Int16 = at("0+", default=COOPERATION_VERSION)
    leader_epoch: Int32 = at("0+", default=-1)
    acks: list[RangeAck] = at("0+")
    failures: list[FailedRecord] = at("0+")


@struct
class RangeOutcome:
    first_hash: Int64 = at("0+")
    last_hash: Int64 = at("0+")
    error_code: Int16 = at("0+")
    sub_code: Int16 = at("0+")


@struct
class IndividualCommitAnswer:
    version: Int16 = at("0+", default=COOPERATION_VERSION)
    sub_code: Int16 = at("0+")
    stable_offset: Int64 = at("0+", default=-1)
    outcomes: list[RangeOutcome] = at("0+")


@struct
class RecordDecision:
    """What shall become of a record that is not tried again, or of a key that is diverted.

    Action 0 releases: a record is tried again from its first attempt. 1 skips: the record counts as
    done. 2 sends the record to the dead-letter topic, after which it counts as done. With offset -1
    the hash says which key is meant: all its records that wait, and action 0 says that it is not
    diverted any more.
    """

    offset: Int64 = at("0+", default=-1)
    key_hash: Int64 = at("0+", default=-1)
    action: Int8 = at("0+")


@struct
class Decisions:
    """Decisions of somebody who looks after the group; they need no member and fence nobody."""

    version: Int16 = at("0+", default=COOPERATION_VERSION)
    decisions: list[RecordDecision] = at("0+")


@struct
class DecisionOutcome:
    error_code: Int16 = at("0+")
    error_message: String | None = at("0+", default=None)


@struct
class DecisionsAnswer:
    """What became of each decision, in their order."""

    version: Int16 = at("0+", default=COOPERATION_VERSION)
    stable_offset: Int64 = at("0+", default=-1)
    outcomes: list[DecisionOutcome] = at("0+")


# OffsetFetch --------------------------------------------------------------------------------------


@struct
class RangeProgress:
    """A range that is equally far: done below the watermark, and in the set.

    The owner was shown its records below the delivered offset, as far as this broker knows.
    """

    first_hash: Int64 = at("0+")
    last_hash: Int64 = at("0+")
    watermark: Int64 = at("0+")
    done: OffsetSet = at("0+")
    owner: String | None = at("0+", default=None)
    epoch: Int32 = at("0+", default=-1)
    delivered_offset: Int64 = at("0+", default=-1)


@struct
class RetriedRecord:
    """A record that failed; `not_before_ms` is how long it still rests."""

    offset: Int64 = at("0+")
    key_hash: Int64 = at("0+", default=-1)
    attempts: Int32 = at("0+")
    not_before_ms: Int64 = at("0+")
    reason: String = at("0+")


@struct
class DivertedKey:
    """A key whose records go to the dead-letter topic, from an offset on, until it is released."""

    key_hash: Int64 = at("0+")
    offset: Int64 = at("0+")


@struct
class HotRange:
    """A slot that is more work than a fair share, and the key that is most of it if it is known."""

    first_hash: Int64 = at("0+")
    last_hash: Int64 = at("0+")
    share_permille: Int32 = at("0+")
    key: Bytes | None = at("0+", default=None)


@struct
class IndividualProgress:
    """How far a group is with a partition.

    `stalled_ms` is how long the stable offset has stood still although records beyond it were
    shown to members; -1 when it has not.
    """

    version: Int16 = at("0+", default=COOPERATION_VERSION)
    stable_offset: Int64 = at("0+", default=-1)
    stalled_ms: Int64 = at("0+", default=-1)
    ranges: list[RangeProgress] = at("0+")
    retried: list[RetriedRecord] = at("0+")
    diverted: list[DivertedKey] = at("0+")
    hot: list[HotRange] = at("0+")
