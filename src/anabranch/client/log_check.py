"""Whether a log still has what was read of it (KIP-320).

A broker that died may have lost the end of a log, and others may have written other records there
by the time a member comes back: it would read on behind them, and its next commit would say that
they are done. The leader epoch is another one after every such loss. So when a partition has a new
one nothing more is fetched of it until the broker said where the epochs ended by which its ranges
were read: whoever has read further than that starts over with what the group knows.
"""

from anabranch.client.cluster import CONTROL_LANE
from anabranch.client.core import Core, log
from anabranch.client.errors import broker_error
from anabranch.client.hand_over import HandOver
from anabranch.client.range_work import Place, RangeState, RangeWork
from anabranch.model.errors import ErrorCode
from anabranch.wire.messages.offset_for_leader_epoch import (
    OFFSET_FOR_LEADER_EPOCH,
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)


def knows_beyond(work: RangeWork, end_offset: int) -> bool:
    """Whether a range was read, or is known to be done or to have failed, beyond an offset."""
    return (
        work.position > end_offset
        or any(done.end_offset > end_offset for done in work.done_before)
        or any(offset >= end_offset for offset in (*work.rests, *work.exhausted))
        or any(offset >= end_offset for offset in work.diverted.values())
    )


class LogCheck:
    """Looks at the logs of partitions that have a new leader epoch."""

    def __init__(self, core: Core, hand_over: HandOver) -> None:
        self._core = core
        self._hand_over = hand_over

    def is_due(self, place: Place) -> bool:
        """Whether ranges of a partition were read by an earlier leader epoch. Under the lock."""
        leader = self._core.cluster.leader_of(*place)
        return leader is not None and any(self._read_before(place, leader.epoch))

    def _read_before(self, place: Place, epoch: int) -> list[RangeWork]:
        return [
            work
            for work in self._core.workload.of_place(place)
            if work.state is not RangeState.LOADING and 0 <= work.leader_epoch < epoch
        ]

    async def look(self, place: Place) -> None:
        """Have ranges start over that have read what is not there any more."""
        leader = self._core.cluster.leader_of(*place)
        if leader is None:
            return
        with self._core.lock:
            epochs = {work.leader_epoch for work in self._read_before(place, leader.epoch)}
        for epoch in sorted(epochs):
            end_offset = await self._end_of(place, epoch, leader.node_id, leader.epoch)
            with self._core.lock:
                astray = []
                for work in self._read_before(place, leader.epoch):
                    if work.leader_epoch != epoch:
                        continue
                    if knows_beyond(work, end_offset):
                        astray.append(work)
                    else:
                        work.leader_epoch = leader.epoch
            if astray:
                log.warning(
                    "%s has lost its records from %d on; starting over",
                    self._core.cluster.place_of(*place),
                    end_offset,
                )
                self._hand_over.reload(astray)

    async def _end_of(self, place: Place, epoch: int, node_id: int, current_epoch: int) -> int:
        """Where a leader epoch ended in the log; -1 when the broker does not know it."""
        topic_id, partition = place
        named = self._core.cluster.place_of(topic_id, partition)
        if named is None:
            raise broker_error(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "looking at a log")
        asked = OffsetForLeaderPartition(
            partition=partition, current_leader_epoch=current_epoch, leader_epoch=epoch
        )
        request = OffsetForLeaderEpochRequest(
            topics=[OffsetForLeaderTopic(topic=named.topic, partitions=[asked])]
        )
        answer = await self._core.cluster.ask_node(
            node_id, CONTROL_LANE, OFFSET_FOR_LEADER_EPOCH, request
        )
        found: EpochEndOffset = answer.topics[0].partitions[0]
        if found.error_code:
            raise broker_error(found.error_code, f"looking at the log of {named}")
        return found.end_offset
