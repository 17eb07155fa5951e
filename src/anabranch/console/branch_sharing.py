"""How a group shares partitions by way of branch topics: owners and commits branch by branch."""

from collections.abc import Mapping
from dataclasses import dataclass

from anabranch.branch.layout import Branch
from anabranch.branch.slots import slots_of_branch
from anabranch.broker.broker import Broker
from anabranch.broker.survey_values import GroupSummary
from anabranch.broker.topics import Topic
from anabranch.console.sharing import slots_text
from anabranch.console.strips import Piece, make_piece, owner_letter, owner_text, share_text
from anabranch.console.words import number
from anabranch.coordinator.group.consumer_state import ConsumerGroup
from anabranch.coordinator.group.subscription import group_topics
from anabranch.model.units import SlotRange


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchRow:
    """One branch: a range of the keys of a partition of the source."""

    topic: str
    index: int
    source: str
    partition: int
    slots: SlotRange
    owner: str | None
    client_id: str
    committed_offset: int | None
    # The first record of it that is not done, and how many are not, when it was last looked at.
    first_open_offset: int | None
    unprocessed: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchedPartition:
    """A partition of a source as a group reads it on a branch topic."""

    topic: str
    source: str
    partition: int
    # What one plain consumer would have committed; None before the first commit.
    stable_offset: int | None
    high_watermark: int
    unprocessed: int | None
    branches: tuple[BranchRow, ...]

    @property
    def name(self) -> str:
        return f"{self.source}-{self.partition}"

    @property
    def committed(self) -> int:
        return sum(one.committed_offset is not None for one in self.branches)


def branch_topics(broker: Broker, group_id: str) -> list[Topic]:
    """The branch topics that a group has committed on or wants to read, by name."""
    names = {name for name, _ in broker.groups.offsets(group_id)}
    group = broker.groups.group(group_id)
    if isinstance(group, ConsumerGroup):
        names |= group.subscribed_topics
    elif group is not None:
        names |= group_topics(group) or frozenset()
    found = (broker.topics.get(name) for name in sorted(names))
    return [topic for topic in found if topic is not None and topic.source is not None]


def read_branched(
    broker: Broker, summary: GroupSummary, topic: Topic, partition: int, clients: Mapping[str, str]
) -> BranchedPartition:
    """One partition of a branch topic's source."""
    assert topic.source is not None and topic.layout is not None
    looked = broker.groups.branch_progress.last_of(summary.group_id, topic.topic_id).get(partition)
    progress = looked.progress if looked is not None else None
    lags = {one.partition: one for one in summary.partitions if one.topic == topic.name}
    rows = []
    for number_ in range(topic.layout.ranges):
        index = topic.layout.index_of(Branch(partition, number_))
        lag = lags.get(index)
        owner = lag.member_id if lag is not None else None
        rows.append(
            BranchRow(
                topic=topic.name,
                index=index,
                source=topic.source.name,
                partition=partition,
                slots=slots_of_branch(number_, topic.layout.ranges),
                owner=owner,
                client_id=clients.get(owner or "", ""),
                committed_offset=lag.committed_offset if lag is not None else None,
                first_open_offset=progress.firsts[number_] if progress is not None else None,
                unprocessed=progress.unprocessed[number_] if progress is not None else None,
            )
        )
    return BranchedPartition(
        topic=topic.name,
        source=topic.source.name,
        partition=partition,
        stable_offset=progress.stable_offset if progress is not None else None,
        high_watermark=topic.source.partitions[partition].log.high_watermark,
        unprocessed=progress.unprocessed_records if progress is not None else None,
        branches=tuple(rows),
    )


def branch_pieces(found: BranchedPartition, numbers: Mapping[str, int]) -> list[Piece]:
    """The strip: one piece for each branch, also where neighbours have one owner."""
    return [
        make_piece(
            one.slots,
            one.owner,
            numbers.get(one.owner) if one.owner is not None else None,
            owner_letter(one.owner, numbers),
            f"Branch {one.index}, {owner_text(one.owner, one.client_id, numbers)}: slots "
            f"{slots_text(one.slots)}, {share_text(one.slots)} of the keys, committed "
            f"{number(one.committed_offset)}",
        )
        for one in found.branches
    ]
