"""What a task does: fetch the records of its split, and turn them into Arrow batches.

Rules
- The next fetch is sent before Spark gets the rows of the last one: the broker works meanwhile.
- Our broker is asked for the split's key range, and says so in its answer, with how far it looked;
  where that is missing (a plain Kafka broker, a branch topic), the decoder leaves out the others,
  with the same result. Who reads beside this split is named too, so that the broker sorts the
  records once for all of them.
- What may pass by itself is tried again. The time that `kafkaConsumer.pollTimeoutMs` allows begins
  anew with every step forward, so a task fails only when nothing moves for so long.
- A split ends at its end offset and nowhere else. Offsets that are gone are an error, or passed
  over with a warning, as `failOnDataLoss` says. So is a topic that brokers know nothing of for
  some seconds: one that is moving to another broker is known again by then.
"""

import logging
import time
from collections.abc import Iterator
from typing import Any

from anabranch.branch.slots import SlotRule
from anabranch.model.errors import ErrorCode
from anabranch.model.sub_codes import SubCode
from anabranch.model.units import ALL_SLOTS, SlotRange, hashes_of
from anabranch.spark.decode import Wanted, decode
from anabranch.spark.errors import (
    BrokerRefusal,
    DataLossError,
    LinkError,
    LinkTimeoutError,
    is_worth_retrying,
)
from anabranch.spark.link import Link, link_of
from anabranch.spark.link_connection import Connection, Ticket
from anabranch.spark.options import SourceOptions
from anabranch.spark.splits import Split
from anabranch.wire.messages.cooperation import KeyRange, RangeCut, RangeFetch
from anabranch.wire.messages.fetch import (
    FETCH,
    FetchPartition,
    FetchRequest,
    FetchTopic,
    PartitionData,
)

log = logging.getLogger("anabranch.spark")

POLL_TIMEOUT_OPTION = "kafkaConsumer.pollTimeoutMs"
_TAGS_VERSION = 12
_NO_ID = bytes(16)
_GONE_MS = 5_000
"""A topic that was there, and is not for so long, was deleted."""

# Topics whose broker does not filter, as this process has found.
_unfiltered: set[tuple[str, bytes]] = set()


def key_range(slots: SlotRange) -> KeyRange:
    first_hash, last_hash = hashes_of(slots)
    return KeyRange(first_hash=first_hash, last_hash=last_hash)


def read_split(
    options: SourceOptions, split: Split, rule: SlotRule, columns: tuple[str, ...]
) -> Iterator[Any]:
    """The records of a split as Arrow batches, in the order of their offsets."""
    return _Reading(options, split, rule, columns).batches()


class _Reading:
    """One split on its way."""

    def __init__(
        self, options: SourceOptions, split: Split, rule: SlotRule, columns: tuple[str, ...]
    ) -> None:
        self._options = options
        self._split = split
        self._rule = rule
        self._columns = columns
        self._position = split.start_offset
        self._is_cut = split.slots != ALL_SLOTS
        self._sent: tuple[Connection, Ticket, bool] | None = None
        self._failures = 0
        self._moved_at = time.monotonic()
        self._missing_at: float | None = None

    @property
    def _link(self) -> Link:
        return link_of(self._options.link, "task")

    @property
    def _what(self) -> str:
        split = self._split
        return f"{split.topic}-{split.partition} at offset {self._position}"

    def batches(self) -> Iterator[Any]:
        while self._position < self._split.end_offset:
            try:
                found = self._next_batches()
                if self._position < self._split.end_offset:
                    self._send()
            except LinkError as error:
                self._rest(error)
                continue
            yield from found

    def _next_batches(self) -> list[Any]:
        """Rows of one answer; the position is after them then."""
        if self._sent is None:
            self._send()
        if self._sent is None:
            return []  # there is nothing to wait for
        (connection, ticket, is_ranged), self._sent = self._sent, None
        answer = connection.receive(ticket, extra_s=self._options.fetch_wait_ms / 1000)
        if answer.error_code:
            raise BrokerRefusal(answer.error_code, f"fetching {self._what}")
        if not answer.responses or not answer.responses[0].partitions:
            raise BrokerRefusal(
                ErrorCode.UNKNOWN_SERVER_ERROR, f"fetching {self._what}", "the answer is empty"
            )
        data = answer.responses[0].partitions[0]
        if data.error_code:
            return self._take_refusal(data)
        is_filtered = is_ranged and self._is_applied(data)
        before = self._position
        batches, reached = decode(data.records or b"", self._wanted(data, is_filtered))
        if is_filtered and data.range_fetch is not None:
            reached = min(max(data.range_fetch.covered_offset, before), self._split.end_offset)
        self._position = reached
        if reached > before:
            self._failures, self._moved_at = 0, time.monotonic()
        else:
            self._check_patience("there are no records")
        return batches

    def _wanted(self, data: PartitionData, is_filtered: bool) -> Wanted:
        split = self._split
        aborted = tuple(
            (one.producer_id, one.first_offset) for one in data.aborted_transactions or ()
        )
        return Wanted(
            topic=split.topic,
            partition=split.partition,
            start_offset=self._position,
            end_offset=split.end_offset,
            slots=split.slots if self._is_cut and not is_filtered else None,
            aborted=aborted if self._options.is_committed_only else (),
            columns=self._columns,
            rule=self._rule,
        )

    # Asking ---------------------------------------------------------------------------------------

    def _send(self) -> None:
        split = self._split
        topic = self._link.topic(split.topic)
        if topic is None:
            self._miss()
            return
        self._missing_at = None
        if split.topic_id not in (_NO_ID, topic.topic_id):
            self._lose("the topic was deleted and made again", split.end_offset)
            return
        node_id = self._link.leader_of(split.place)
        connection = self._link.connection_to(node_id)
        # Who does not announce key ranges would send everything, without a word.
        is_ranged = (
            self._is_cut
            and (split.topic, split.topic_id) not in _unfiltered
            and self._link.knows_key_ranges(node_id)
        )
        partition = FetchPartition(
            partition=split.partition,
            fetch_offset=self._position,
            partition_max_bytes=self._options.fetch_bytes,
            range_fetch=RangeFetch(ranges=[key_range(split.slots)]) if is_ranged else None,
            range_cut=RangeCut(ranges=[*map(key_range, split.cut)]) if is_ranged else None,
        )
        request = FetchRequest(
            max_wait_ms=self._options.fetch_wait_ms,
            min_bytes=1,
            max_bytes=max(self._options.fetch_bytes, 1),
            isolation_level=self._options.isolation_level,
            topics=[FetchTopic(topic=split.topic, topic_id=split.topic_id, partitions=[partition])],
        )
        by_name = _TAGS_VERSION if split.topic_id == _NO_ID else 1 << 15
        ticket = connection.send(
            FETCH,
            request,
            least_version=_TAGS_VERSION if is_ranged else 4,
            most_version=by_name,
        )
        self._sent = connection, ticket, is_ranged

    def _is_applied(self, data: PartitionData) -> bool:
        answer = data.range_fetch
        if answer is not None and answer.ranges == [key_range(self._split.slots)]:
            return True
        self._note_unfiltered("the broker passed over the key range")
        return False

    def _note_unfiltered(self, why: str) -> None:
        key = (self._split.topic, self._split.topic_id)
        if key not in _unfiltered:
            _unfiltered.add(key)
            log.warning(
                "topic %s is filtered by key range in the tasks, each of which reads all of its"
                " partition: %s",
                self._split.topic,
                why,
            )

    # What went wrong ------------------------------------------------------------------------------

    def _take_refusal(self, data: PartitionData) -> list[Any]:
        sub_code = data.range_fetch.sub_code if data.range_fetch is not None else 0
        if sub_code == SubCode.TOPIC_RANGE_FETCH_NOT_ALLOWED:
            self._note_unfiltered("the broker does not serve key ranges of this topic")
            return []
        if data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            self._take_out_of_range(data)
            return []
        if data.error_code == ErrorCode.UNKNOWN_TOPIC_ID:
            # Metadata tells whether it is another topic by now, or only unknown for a moment.
            raise BrokerRefusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"fetching {self._what}")
        raise BrokerRefusal(data.error_code, f"fetching {self._what}", sub_code=sub_code)

    def _take_out_of_range(self, data: PartitionData) -> None:
        split = self._split
        beginning = self._beginning(data)
        if beginning <= self._position:
            what, reached = "the log ends before it", split.end_offset
        else:
            what, reached = f"the log begins at {beginning}", min(beginning, split.end_offset)
        self._lose(what, reached)

    def _miss(self) -> None:
        """The topic is not there: for a moment, or for good."""
        now = time.monotonic()
        if self._missing_at is None:
            self._missing_at = now
        if (now - self._missing_at) * 1000 >= min(_GONE_MS, self._options.poll_timeout_ms):
            self._lose("the topic was deleted", self._split.end_offset)
            return
        raise BrokerRefusal(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"fetching {self._what}", "there is no such topic"
        )

    def _lose(self, what: str, reached: int) -> None:
        """Records are gone: an error, or a warning, as the option says."""
        if self._options.fail_on_data_loss:
            raise DataLossError(
                f"{self._what} is gone: {what}. The records up to {reached} were deleted before"
                " they were read. To go on without them, set option 'failOnDataLoss' to false"
            )
        log.warning("%s is gone: %s; going on at %d", self._what, what, reached)
        self._position = reached
        self._failures, self._moved_at = 0, time.monotonic()

    def _beginning(self, data: PartitionData) -> int:
        if data.log_start_offset >= 0:
            return int(data.log_start_offset)
        place = self._split.place
        return self._link.list_offsets({place: -2}, self._options.isolation_level)[place]

    def _rest(self, error: LinkError) -> None:
        """After a failure: forget what may be out of date, and wait."""
        if not is_worth_retrying(error):
            raise error
        self._sent = None
        self._link.forget()
        self._check_patience(str(error), error)
        # A connection that was idle since the last task may be closed: that needs no rest.
        if self._failures:
            time.sleep(self._link.backoff_s(self._failures))
        self._failures += 1

    def _check_patience(self, why: str, error: LinkError | None = None) -> None:
        limit_ms = self._options.poll_timeout_ms
        if (time.monotonic() - self._moved_at) * 1000 > limit_ms:
            raise LinkTimeoutError(
                f"{self._what} could not be read for {limit_ms} ms, as long as option"
                f" '{POLL_TIMEOUT_OPTION}' allows: {why}"
            ) from error
