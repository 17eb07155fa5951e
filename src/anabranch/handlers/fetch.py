"""Fetch (1), versions 4-18: read record batches, waiting for them if asked to.

Version notes: 5 log start offset; 7 sessions (KIP-227); 9 leader epochs (KIP-320); 12 flexible,
and a client may say which epoch its last record had (KIP-595); 13 topic ids; 16 leader hints
(KIP-951), of which one node has none to give.

Records leave as views of the mapped segment. Batches that straddle the asked offset are sent
whole, as Kafka does; clients drop what lies before their position.

A branch of a branch topic is read through `broker.branches`, which may have to sort records first:
the fetch waits for that whatever its `max_wait_ms`, because an empty answer while there are
records to find would be asked again at once. Where the search went beyond the last record found,
a filler batch at the end moves the client's position; one that waits in vain gets it when its
time is up.

A fetch of committed records ends at the last stable offset and waits until that moves: appends of
transactions that are open do not answer it. It lists the aborted transactions whose records it
may hold, also for branches, which have all markers.
"""

import asyncio
from collections.abc import Iterable

from anabranch.broker.branch_reader import SplitJob
from anabranch.broker.broker import Broker
from anabranch.broker.deferred import Deferred
from anabranch.broker.fetch_sessions import (
    EPOCH_FINAL,
    EPOCH_INITIAL,
    FetchedPartition,
    FetchSession,
    SessionKey,
)
from anabranch.broker.partition import Partition
from anabranch.broker.purgatory import ParkedCommittedFetch, ParkedFetch
from anabranch.handlers.branch_fetch import BranchReads
from anabranch.handlers.range_fetch import (
    RangeFetchError,
    done_of,
    range_answer,
    range_partition,
    readable_end,
)
from anabranch.handlers.route import RequestContext, route
from anabranch.log.partition_log import PartitionLog
from anabranch.log.transactions import aborted_in_records
from anabranch.model.errors import ErrorCode, KafkaError
from anabranch.model.sub_codes import SubCode
from anabranch.wire.messages.cooperation import RangeFetchAnswer
from anabranch.wire.messages.fetch import (
    FETCH,
    AbortedTransaction,
    FetchableTopicResponse,
    FetchEpochEndOffset,
    FetchRequest,
    FetchResponse,
    PartitionData,
)

_FIRST_WITH_SESSIONS = 7
_FIRST_WITH_DIVERGENCE = 12
_FIRST_WITH_TOPIC_IDS = 13
_READ_UNCOMMITTED, _READ_COMMITTED = 0, 1
_NO_RECORDS = memoryview(b"")


class _Fetch:
    """One fetch: read now, or later again if it has to wait."""

    __slots__ = (
        "branches",
        "broker",
        "can_diverge",
        "is_incremental",
        "max_bytes",
        "may_wait",
        "read_committed",
        "session",
        "wanted",
    )

    def __init__(
        self,
        broker: Broker,
        version: int,
        request: FetchRequest,
        wanted: Iterable[FetchedPartition],
        session: FetchSession | None,
        is_incremental: bool,
    ) -> None:
        self.broker = broker
        # A session may have been opened by a newer version than this fetch has.
        self.can_diverge = version >= _FIRST_WITH_DIVERGENCE
        self.wanted = list(wanted)
        self.session = session
        self.is_incremental = is_incremental
        self.max_bytes = min(request.max_bytes, broker.fetch_max_bytes)
        self.read_committed = request.isolation_level == _READ_COMMITTED
        self.may_wait = request.max_wait_ms > 0
        # Only where branches, or key ranges, are read.
        self.branches: BranchReads | None = None

    @property
    def job(self) -> SplitJob | None:
        """What must be sorted before more can be read."""
        return self.branches.job if self.branches is not None else None

    def read(self, *, is_last: bool = True) -> tuple[FetchResponse, int, bool]:
        """Read all partitions: the response, its bytes of records, and whether it cannot wait.

        What went wrong with a partition is told at once. `is_last` is whether the answer leaves
        however little is in it.
        """
        if self.branches is not None:
            self.branches.job = None
        topics: dict[str | bytes, list[PartitionData]] = {}
        size_bytes, is_urgent = 0, False
        for wanted in self.wanted:
            data, found_bytes = self._read_partition(wanted, size_bytes, is_last)
            size_bytes += found_bytes
            # Bytes that do not count are a filler, sent because the search was long.
            is_urgent = (
                is_urgent
                or data.error_code != 0
                or data.diverging_epoch is not None
                or (not found_bytes and len(data.records or b"") > 0)
            )
            if self.session is None or self._has_news(wanted, data):
                topics.setdefault(wanted.topic, []).append(data)
        response = FetchResponse(
            session_id=self.session.session_id if self.session else 0,
            responses=[
                FetchableTopicResponse(topic_id=topic, partitions=partitions)
                if isinstance(topic, bytes)
                else FetchableTopicResponse(topic=topic, partitions=partitions)
                for topic, partitions in topics.items()
            ],
        )
        return response, size_bytes, is_urgent

    def _read_partition(
        self, wanted: FetchedPartition, size_so_far_bytes: int, is_last: bool
    ) -> tuple[PartitionData, int]:
        """What a partition has, and how many bytes of it a fetch that waits may count."""
        try:
            partition = find_partition(self.broker, wanted)
            log = partition.log
            self.broker.check_leader_epoch(log, wanted.current_leader_epoch)
            end = log.last_stable_offset if self.read_committed else log.high_watermark
            diverging_epoch = None
            records: bytes | memoryview = _NO_RECORDS
            found_bytes = 0
            if wanted.last_fetched_epoch >= 0 and self.can_diverge:
                diverging_epoch = _divergence(log, wanted)
            if diverging_epoch is None:
                room = max(0, min(wanted.max_bytes, self.max_bytes - size_so_far_bytes))
                is_first = size_so_far_bytes == 0
                if partition.branch is not None:
                    if self.branches is None:
                        self.branches = BranchReads(self.broker.branches, may_linger=self.may_wait)
                    records, found_bytes = self.branches.read(
                        partition,
                        wanted,
                        room,
                        readable_end(self.broker, wanted, end),
                        done=done_of(self.broker, wanted),
                        is_first=is_first,
                        is_last=is_last,
                    )
                else:
                    records = log.read(wanted.fetch_offset, room, min_one_batch=is_first, upto=end)
                    found_bytes = len(records)
        except KafkaError as error:
            return _failed(wanted, error, self.read_committed), 0
        return PartitionData(
            partition_index=wanted.index,
            high_watermark=log.high_watermark,
            last_stable_offset=log.last_stable_offset,
            log_start_offset=log.log_start_offset,
            diverging_epoch=diverging_epoch,
            aborted_transactions=(
                _aborted(log, wanted.fetch_offset, records)
                if self.read_committed and not diverging_epoch
                else None
            ),
            records=records,
            range_fetch=self._range_answer(wanted),
        ), found_bytes

    def _range_answer(self, wanted: FetchedPartition) -> RangeFetchAnswer | None:
        if wanted.range_fetch is None or self.branches is None:
            return None
        return range_answer(wanted.range_fetch, self.branches.covered_offset(wanted))

    def _has_news(self, wanted: FetchedPartition, data: PartitionData) -> bool:
        """Whether an incremental answer has to name the partition."""
        return (
            not self.is_incremental
            or data.error_code != 0
            or data.diverging_epoch is not None
            or len(data.records or b"") > 0
            or data.high_watermark != wanted.high_watermark
            or data.log_start_offset != wanted.log_start_offset
        )

    def remember(self, response: FetchResponse) -> None:
        """Note in the session what the client is about to be told.

        Partitions that got records move to the end, so that none is starved when the response is
        too small for all of them.
        """
        if self.branches is not None:
            self._note_deliveries(self.branches)
        if self.session is None:
            return
        partitions = self.session.partitions
        for topic in response.responses:
            name = topic.topic_id if self.session.uses_topic_ids else topic.topic
            for data in topic.partitions:
                wanted = partitions.get((name, data.partition_index))
                if wanted is None:
                    continue
                wanted.high_watermark = data.high_watermark
                wanted.log_start_offset = data.log_start_offset
                if data.records:
                    del partitions[name, data.partition_index]
                    partitions[name, data.partition_index] = wanted

    def _note_deliveries(self, branches: BranchReads) -> None:
        """Remember how far members were shown records: they cannot acknowledge others."""
        for wanted in self.wanted:
            asked = wanted.range_fetch
            topic_id = self.broker.topics.id_of(wanted.topic)
            if asked is None or not asked.group_id or topic_id is None:
                continue
            if branches.has_read(wanted):
                self.broker.deliveries.note(
                    asked.group_id,
                    topic_id,
                    wanted.index,
                    asked.member_id,
                    asked.member_epoch,
                    branches.covered_offset(wanted),
                    branches.reached_offset(wanted),
                    is_committed=self.read_committed,
                )


def _aborted(
    log: PartitionLog, offset: int, records: bytes | memoryview
) -> list[AbortedTransaction]:
    """The transactions whose records the client has to leave out."""
    return [
        AbortedTransaction(producer_id=one.producer_id, first_offset=one.first_offset)
        for one in aborted_in_records(log.transactions, offset, records)
    ]


def _failed(wanted: FetchedPartition, error: KafkaError, read_committed: bool) -> PartitionData:
    refused = None
    if wanted.range_fetch is not None:
        sub_code = error.sub_code if isinstance(error, RangeFetchError) else SubCode.NONE
        refused = RangeFetchAnswer(sub_code=sub_code)
    return PartitionData(
        partition_index=wanted.index,
        range_fetch=refused,
        error_code=error.code,
        high_watermark=-1,
        records=b"",
        aborted_transactions=[] if read_committed else None,
    )


def _divergence(log: PartitionLog, wanted: FetchedPartition) -> FetchEpochEndOffset | None:
    """Where this log and what the client read of it part, if they do (KIP-595)."""
    epoch, end_offset = log.offset_for_leader_epoch(wanted.last_fetched_epoch)
    if epoch < 0 or end_offset < 0 or wanted.fetch_offset < log.log_start_offset:
        raise KafkaError(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"There is no offset {wanted.fetch_offset} after epoch {wanted.last_fetched_epoch}.",
        )
    if epoch < wanted.last_fetched_epoch or end_offset < wanted.fetch_offset:
        return FetchEpochEndOffset(epoch=epoch, end_offset=end_offset)
    return None


def find_partition(broker: Broker, wanted: FetchedPartition) -> Partition:
    """The partition that a client named by topic name or id, or the part of it that it wants."""
    name = wanted.topic
    if isinstance(name, bytes):
        topic = broker.topics.get_by_id(name)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, "There is no topic with this id.")
        name = topic.name
    partition = broker.topics.partition(name, wanted.index)
    if wanted.range_fetch is not None:
        topic = broker.topics.must_get(name)
        return range_partition(broker, topic, partition, wanted.range_fetch, wanted.range_cut)
    return partition


def handle(
    broker: Broker, context: RequestContext, request: FetchRequest
) -> FetchResponse | Deferred[FetchResponse]:
    if request.isolation_level not in (_READ_UNCOMMITTED, _READ_COMMITTED):
        return _invalid_request(context, request)
    try:
        fetch = _begin(broker, context, request)
    except KafkaError as error:
        return FetchResponse(error_code=error.code)
    # A response that may not hold what the client waits for would be waited for in vain.
    min_bytes = min(request.min_bytes, fetch.max_bytes)
    response, size_bytes, is_urgent = fetch.read(is_last=request.max_wait_ms <= 0)
    if size_bytes >= min_bytes or is_urgent or not fetch.wanted:
        fetch.remember(response)
        return response
    if fetch.job is None and request.max_wait_ms <= 0:
        fetch.remember(response)
        return response
    return _Waiting(broker, fetch, min_bytes, request.max_wait_ms).begin(size_bytes)


def _invalid_request(context: RequestContext, request: FetchRequest) -> FetchResponse:
    """A refusal of everything; clients that use names look for it at each partition."""
    code = ErrorCode.INVALID_REQUEST
    response = FetchResponse(error_code=code, session_id=request.session_id)
    if context.version < _FIRST_WITH_TOPIC_IDS:
        for topic in request.topics:
            refused = [
                PartitionData(
                    partition_index=asked.partition,
                    error_code=code,
                    high_watermark=-1,
                    aborted_transactions=[],
                    records=b"",
                )
                for asked in topic.partitions
            ]
            response.responses.append(FetchableTopicResponse(topic=topic.topic, partitions=refused))
    return response


class _Waiting:
    """A fetch that is answered later: when there is enough, or when its time is up."""

    __slots__ = ("_broker", "_deferred", "_ends_s", "_fetch", "_min_bytes")

    def __init__(self, broker: Broker, fetch: _Fetch, min_bytes: int, max_wait_ms: int) -> None:
        self._broker = broker
        self._fetch = fetch
        self._min_bytes = min_bytes
        self._ends_s = asyncio.get_running_loop().time() + max_wait_ms / 1000
        self._deferred: Deferred[FetchResponse] = Deferred()

    def begin(self, size_bytes: int) -> Deferred[FetchResponse]:
        self._wait(size_bytes)
        return self._deferred

    def _wait(self, size_bytes: int) -> None:
        job = self._fetch.job
        if job is not None:
            job.waiters.append(lambda: self._sorted(job))
            return
        partitions = [find_partition(self._broker, wanted) for wanted in self._fetch.wanted]
        missing_bytes = self._min_bytes - size_bytes
        branches = self._fetch.branches
        lingering = branches.lingering if branches is not None else {}
        kind = ParkedCommittedFetch if self._fetch.read_committed else ParkedFetch
        parked = kind(partitions, missing_bytes, self._woken, self._deferred.fail, lingering)
        self._deferred.on_cancel = parked.leave
        parked.park(max(0, round((self._ends_s - asyncio.get_running_loop().time()) * 1000)))
        for partition in lingering:
            self._broker.branches.look_soon(partition)

    def _sorted(self, job: SplitJob) -> None:
        if self._deferred.is_done:
            return
        try:
            if self._fetch.branches is not None:
                self._fetch.branches.take(job)
            self._read(is_last=self._is_late())
        except Exception as error:
            self._deferred.fail(error)

    def _woken(self, is_satisfied: bool) -> None:
        # What woke a branch's fetch may have been seen by its last read already, and what woke a
        # reader of committed records may be of a transaction that is open.
        may_be_little = self._fetch.branches is not None or self._fetch.read_committed
        self._read(is_last=not (is_satisfied and may_be_little) or self._is_late())

    def _is_late(self) -> bool:
        return asyncio.get_running_loop().time() >= self._ends_s

    def _read(self, *, is_last: bool) -> None:
        if self._fetch.branches is not None:
            self._fetch.branches.stop_lingering()
        response, size_bytes, is_urgent = self._fetch.read(is_last=is_last)
        is_enough = size_bytes >= self._min_bytes or is_urgent
        if is_enough or (is_last and self._fetch.job is None):
            self._fetch.remember(response)
            self._deferred.complete(response)
        else:
            self._wait(size_bytes)


# Sessions -------------------------------------------------------------------------------------


def _begin(broker: Broker, context: RequestContext, request: FetchRequest) -> _Fetch:
    """Work out what is fetched, opening, using or closing a session as the request says."""
    uses_ids = context.version >= _FIRST_WITH_TOPIC_IDS
    asked = _asked(request, uses_ids)
    if context.version < _FIRST_WITH_SESSIONS:
        return _Fetch(broker, context.version, request, asked.values(), None, False)
    sessions = broker.fetch_sessions
    if request.session_epoch in (EPOCH_INITIAL, EPOCH_FINAL):
        if request.session_id:
            sessions.close(request.session_id)
        session = None
        if request.session_epoch == EPOCH_INITIAL:
            session = sessions.open(asked, uses_ids, broker.now_ms())
        return _Fetch(broker, context.version, request, asked.values(), session, False)
    session = sessions.use(request.session_id, request.session_epoch, uses_ids, broker.now_ms())
    for key, wanted in asked.items():
        known = session.partitions.get(key)
        if known is None:
            session.partitions[key] = wanted
        else:
            known.fetch_offset = wanted.fetch_offset
            known.max_bytes = wanted.max_bytes
            known.current_leader_epoch = wanted.current_leader_epoch
            known.last_fetched_epoch = wanted.last_fetched_epoch
            known.range_fetch = wanted.range_fetch
            known.range_cut = wanted.range_cut
    for forgotten in request.forgotten_topics_data:
        topic = forgotten.topic_id if uses_ids else forgotten.topic
        for index in forgotten.partitions:
            session.partitions.pop((topic, index), None)
    return _Fetch(broker, context.version, request, session.partitions.values(), session, True)


def _asked(request: FetchRequest, uses_ids: bool) -> dict[SessionKey, FetchedPartition]:
    asked: dict[SessionKey, FetchedPartition] = {}
    for topic in request.topics:
        name: str | bytes = topic.topic_id if uses_ids else topic.topic
        for partition in topic.partitions:
            asked[name, partition.partition] = FetchedPartition(
                topic=name,
                index=partition.partition,
                fetch_offset=partition.fetch_offset,
                max_bytes=partition.partition_max_bytes,
                current_leader_epoch=partition.current_leader_epoch,
                last_fetched_epoch=partition.last_fetched_epoch,
                range_fetch=partition.range_fetch,
                range_cut=partition.range_cut,
            )
    return asked


ROUTE = route(FETCH, "4-18", handle)
