"""Storing progress: what is done goes to the coordinator, a commit after the other."""

import asyncio
import logging
from collections.abc import Iterable

from anabranch.client.acks import Ack, Progress, confirm, gather, requests, take_back
from anabranch.client.cluster import is_worth_retrying
from anabranch.client.core import Core, log
from anabranch.client.errors import (
    BrokerError,
    CommitFailedError,
    ConsumerError,
    CooperationNotSupportedError,
    FencedError,
    IndividualCommitNotAllowedError,
    broker_error,
)
from anabranch.client.hand_over import HandOver
from anabranch.client.membership import Membership
from anabranch.client.range_work import Failure, Place, RangeWork
from anabranch.client.records import KeyRange
from anabranch.client.timing import Attempts
from anabranch.model.errors import ErrorCode
from anabranch.wire.messages.cooperation import (
    FailedRecord,
    IndividualCommit,
    RangeAck,
    RangeOutcome,
)
from anabranch.wire.messages.offset_commit import (
    OFFSET_COMMIT,
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)

_TAGS_VERSION = 8
NOT_OURS = {
    ErrorCode.FENCED_MEMBER_EPOCH,
    ErrorCode.STALE_MEMBER_EPOCH,
    ErrorCode.UNKNOWN_MEMBER_ID,
}


class Committer:
    """Stores progress, on request and regularly."""

    def __init__(self, core: Core, membership: Membership | None, hand_over: HandOver) -> None:
        self._core = core
        self._membership = membership
        self._hand_over = hand_over
        self._turn = asyncio.Lock()
        self._soon = asyncio.Event()
        core.on_ranges_full = self._soon.set

    async def run(self) -> None:
        """Store progress regularly, and early when there is much of it."""
        interval_ms = self._core.settings.auto_commit_interval_ms
        while True:
            try:
                async with asyncio.timeout(interval_ms / 1000 if interval_ms else None):
                    await self._soon.wait()
            except TimeoutError:
                pass
            self._soon.clear()
            try:
                await self.commit()
            except (CommitFailedError, FencedError) as error:
                log.warning("%s", error)

    async def commit(
        self, works: Iterable[RangeWork] | None = None, timeout_s: float | None = None
    ) -> None:
        """Store what is done; CommitFailedError when it cannot be within the time."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + (timeout_s or self._core.settings.request_timeout_s)
        attempts = Attempts(self._core.settings.retry_backoff, self._hand_over.random_share)
        async with self._turn:
            while True:
                try:
                    await self._commit_once(works)
                    return
                except ConsumerError as error:
                    if not self._may_retry(error):
                        raise
                    delay_s = attempts.failed()
                    if loop.time() + delay_s > deadline:
                        raise CommitFailedError(
                            f"progress was not stored within the time: {error}"
                        ) from error
                await asyncio.sleep(delay_s)

    def _may_retry(self, error: ConsumerError) -> bool:
        code = getattr(error, "code", None)
        if code in (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE):
            self._core.cluster.forget_coordinator()
        if code == ErrorCode.STALE_MEMBER_EPOCH and self._membership is not None:
            self._membership.beat_soon()  # the next heartbeat brings the epoch
            return True
        if isinstance(error, FencedError) and self._membership is not None:
            self._membership.beat_soon()
        return is_worth_retrying(error)

    async def _commit_once(self, works: Iterable[RangeWork] | None) -> None:
        core = self._core
        with core.lock:
            chosen = list(core.workload) if works is None else list(works)
            open_told = {id(work): told for work in chosen if (told := gather(work)) is not None}
        core.note_committed()
        try:
            for batch in requests(
                list(open_told.values()),
                max_ranges=core.settings.max_num_ranges_to_commit,
                max_bytes=core.settings.commit_max_bytes,
            ):
                failed = await self._send(batch, open_told)
                if failed:
                    self._hand_over.refresh_rests(failed)
        finally:
            with core.lock:
                for told in open_told.values():
                    take_back(told)

    async def _send(self, batch: list[Ack], open_told: dict[int, Progress]) -> set[Place]:
        """Send a request; what it tells to the end leaves `open_told`. Returns where records
        failed."""
        request = self._request(batch)
        answer: OffsetCommitResponse = await self._core.cluster.ask_coordinator(
            OFFSET_COMMIT, request, least_version=_TAGS_VERSION
        )
        found = {
            (topic.topic_id if any(topic.topic_id) else topic.name, one.partition_index): one
            for topic in answer.topics
            for one in topic.partitions
        }
        places: set[Place] = set()
        for ack in batch:
            place: Place = ack.work.unit[:2]
            partition = found.get(place) or found.get((ack.work.place.topic, place[1]))
            if partition is None:
                raise broker_error(ErrorCode.UNKNOWN_SERVER_ERROR, "OffsetCommit", "no answer")
            individual = partition.individual
            sub_code = individual.sub_code if individual is not None else 0
            if partition.error_code:
                raise broker_error(
                    partition.error_code, f"committing {ack.work.place}", None, sub_code
                )
            if individual is None:
                raise CooperationNotSupportedError(
                    "OffsetCommit", self._core.cluster.coordinator_place
                )
            # The outcomes of acknowledgements come first, then one for each failure.
            failures = [
                one for some in batch if some.work.unit[:2] == place for one in some.failures
            ]
            first = max(len(individual.outcomes) - len(failures), 0)
            if failures and place not in places:
                places.add(place)
                self._take_counted(place, failures, individual.outcomes[first:])
            outcomes = individual.outcomes[:first]
            self._take_answer(ack, individual.stable_offset, outcomes, open_told)
        return places

    def _take_counted(
        self, place: Place, failures: list[Failure], outcomes: list[RangeOutcome]
    ) -> None:
        """Remember which failures the broker has counted: it knows of those records."""
        judged = zip(failures, outcomes, strict=False)
        offsets = [one.offset for one, outcome in judged if not outcome.error_code]
        with self._core.lock:
            self._core.workload.counted(place, offsets)

    def _take_answer(
        self,
        ack: Ack,
        stable_offset: int,
        outcomes: list[RangeOutcome],
        open_told: dict[int, Progress],
    ) -> None:
        work = ack.work
        if stable_offset >= 0:
            self._core.stable_offsets[work.unit[:2]] = stable_offset
        told = open_told.get(id(work))
        error = error_of(ack, outcomes)
        if told is None:
            return
        if error is None:
            if ack.is_last:
                del open_told[id(work)]
                with self._core.lock:
                    confirm(told, stable_offset)
            return
        is_ours = error.code not in NOT_OURS
        # What a transaction has to end for is told again, and then taken.
        is_news = is_ours and error.code != ErrorCode.CONCURRENT_TRANSACTIONS
        log.log(logging.WARNING if is_news else logging.INFO, "%s: %s", work, error)
        if isinstance(error, IndividualCommitNotAllowedError):
            raise error
        if not is_ours:
            # Somebody else will do it again; the next heartbeat says who has what.
            del open_told[id(work)]
            if self._membership is not None:
                self._membership.beat_soon()
        elif error.code == ErrorCode.FENCED_LEADER_EPOCH:
            del open_told[id(work)]
            self._hand_over.reload(told.works)

    def _request(self, batch: list[Ack]) -> OffsetCommitRequest:
        membership = self._membership
        topics: dict[bytes, OffsetCommitRequestTopic] = {}
        partitions: dict[Place, OffsetCommitRequestPartition] = {}
        for ack in batch:
            place: Place = ack.work.unit[:2]
            topic = topics.setdefault(
                place[0],
                OffsetCommitRequestTopic(name=ack.work.place.topic, topic_id=place[0]),
            )
            partition = partitions.get(place)
            if partition is None:
                individual = IndividualCommit(leader_epoch=ack.work.leader_epoch)
                partition = OffsetCommitRequestPartition(
                    partition_index=place[1], committed_offset=-1, individual=individual
                )
                partitions[place] = partition
                topic.partitions.append(partition)
            if partition.individual is not None:
                tell(partition.individual, ack)
                limit_epoch(partition.individual, ack.work.leader_epoch)
        return OffsetCommitRequest(
            group_id=self._core.settings.group_id or "",
            generation_id_or_member_epoch=membership.epoch if membership is not None else -1,
            member_id=membership.member_id if membership is not None else "",
            group_instance_id=self._core.settings.group_instance_id,
            topics=list(topics.values()),
        )


def tell(individual: IndividualCommit, ack: Ack) -> None:
    first_hash, last_hash = ack.key_range
    individual.acks.append(
        RangeAck(
            first_hash=first_hash,
            last_hash=last_hash,
            epoch=ack.work.token.epoch,
            watermark=ack.watermark,
            done=ack.done,
        )
    )
    individual.failures.extend(
        FailedRecord(
            offset=one.offset,
            key_hash=one.key_hash,
            retry_after_ms=one.retry_after_ms,
            reason=one.reason,
        )
        for one in ack.failures
    )


def limit_epoch(individual: IndividualCommit, leader_epoch: int) -> None:
    """Ranges that were read by different leader epochs are judged by the oldest."""
    if leader_epoch >= 0 and not 0 <= individual.leader_epoch < leader_epoch:
        individual.leader_epoch = leader_epoch


def error_of(ack: Ack, outcomes: list[RangeOutcome]) -> BrokerError | None:
    """What became of one acknowledgement: the worst of its parts."""
    mine: KeyRange = ack.key_range
    for one in outcomes:
        meets = one.first_hash <= mine.last_hash and mine.first_hash <= one.last_hash
        if meets and one.error_code:
            return broker_error(one.error_code, f"committing {ack.work.place}", None, one.sub_code)
    return None
