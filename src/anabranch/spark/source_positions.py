"""Where logs begin and end, and where a query does: what the driver asks brokers for.

Every question begins with what topics there are now, so that a partition that was added is found,
and one that is gone is not asked for until time is up.
"""

import logging
import re
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from anabranch.branch.slots import DEFAULT_RULE, SlotRule
from anabranch.model.errors import ErrorCode
from anabranch.spark.errors import BrokerRefusal, DataLossError, LinkError, OptionError
from anabranch.spark.link import Link, Place, TopicView, link_of
from anabranch.spark.options import (
    EARLIEST_OFFSET,
    LATEST_OFFSET,
    Limit,
    SourceOptions,
    Subscription,
)
from anabranch.wire.messages.describe_configs import (
    DESCRIBE_CONFIGS,
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from anabranch.wire.messages.list_offsets import EARLIEST, LATEST
from anabranch.wire.messages.offset_commit import (
    OFFSET_COMMIT,
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from anabranch.wire.messages.offset_fetch import (
    OFFSET_FETCH,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)

T = TypeVar("T")
Offsets = dict[Place, int]

log = logging.getLogger("anabranch.spark")

_BY_NAME_COMMIT_VERSION = 9
_BY_NAME_OFFSETS_VERSIONS = (8, 9)
_TOPIC_RESOURCE = 2
_WAIT_MIN_MS = 10
_COMMIT_MAX_MS = 5000
_NULL_KEY_CONFIG = "branch.null.key"
_ORDERING_HEADER_CONFIG = "branch.ordering.key.header"


class Positions:
    """The driver's view of what a query reads; lives as long as the driver's process."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._topics: dict[str, TopicView] = {}
        self._asked_at = 0.0
        self._committed: Offsets = {}
        self._told: set[str] = set()
        self._rules: dict[str, SlotRule] = {}
        for warning in options.warnings:
            self.tell(warning)

    @property
    def link(self) -> Link:
        return link_of(self._options.link, "driver")

    def tell(self, warning: str) -> None:
        """Say something once."""
        if warning not in self._told:
            self._told.add(warning)
            log.warning("%s", warning)

    def lost(self, what: str) -> None:
        """Records are gone, or may be: an error, or a warning, as the option says."""
        if self._options.fail_on_data_loss:
            raise DataLossError(
                f"{what}. Some data may have been lost: they were deleted before they were read, or"
                " the topic was deleted or made again. To go on without them, set option"
                " 'failOnDataLoss' to false."
            )
        self.tell(f"{what}. Going on, because option 'failOnDataLoss' is false.")

    def _ask(self, what: str, work: Callable[[], T]) -> T:
        return self.link.retrying(what, work)

    # Topics ---------------------------------------------------------------------------------------

    def places(self) -> list[Place]:
        """The partitions that there are to read now."""
        ttl_s = self._options.metadata_ttl_ms / 1000
        if not self._topics or ttl_s <= 0 or time.monotonic() - self._asked_at > ttl_s:
            self._topics = self._ask("asking for topics", self._matching_topics)
            self._asked_at = time.monotonic()
        subscription = self._options.subscription
        if subscription.option != "assign":
            return sorted(
                (topic.name, partition)
                for topic in self._topics.values()
                for partition in topic.leaders
            )
        return [
            (topic, partition)
            for topic, partition in subscription.places
            if topic in self._topics and partition in self._topics[topic].leaders
        ]

    def _matching_topics(self) -> dict[str, TopicView]:
        subscription = self._options.subscription
        if subscription.pattern is None:
            names = subscription.topics or {topic for topic, _ in subscription.places}
            return self.link.topics(names)
        wanted = re.compile(subscription.pattern)
        return {
            name: topic
            for name, topic in self.link.topics(None).items()
            if wanted.fullmatch(name) and not topic.is_internal
        }

    def must_exist(self) -> list[Place]:
        """The partitions to read, all that were named among them; OptionError otherwise."""
        return self.check_named(self.places())

    def check_named(self, places: list[Place]) -> list[Place]:
        """Refuse to read what is there when not all that was named is."""
        subscription = self._options.subscription
        missing = sorted(set(subscription.topics) - set(self._topics))
        missing += [
            f"{topic}-{number}"
            for topic, number in subscription.places
            if (topic, number) not in places
        ]
        if missing:
            raise OptionError(
                f"option '{subscription.option}' names what does not exist: {', '.join(missing)}."
                " Create it first; a query does not make topics"
            )
        return places

    def topic_id(self, name: str) -> bytes:
        topic = self._topics.get(name)
        return topic.topic_id if topic is not None else bytes(16)

    def rule(self, topic: str) -> SlotRule:
        """By what the records of a topic keep their order; a plain Kafka broker has one rule."""
        rule = self._rules.get(topic)
        if rule is None:
            rule = self._rules[topic] = self._ask("asking for settings", lambda: self._rule(topic))
        return rule

    def _rule(self, topic: str) -> SlotRule:
        resource = DescribeConfigsResource(
            resource_type=_TOPIC_RESOURCE,
            resource_name=topic,
            configuration_keys=[_NULL_KEY_CONFIG, _ORDERING_HEADER_CONFIG],
        )
        try:
            answer = self.link.ask_any(
                DESCRIBE_CONFIGS, DescribeConfigsRequest(resources=[resource])
            )
        except BrokerRefusal:
            return DEFAULT_RULE
        (found,) = answer.results
        configs = {one.name: one.value for one in found.configs}
        header = configs.get(_ORDERING_HEADER_CONFIG) or None
        return SlotRule(
            is_null_key_ordered=configs.get(_NULL_KEY_CONFIG) == "ordered",
            ordering_header=header.encode() if header is not None else None,
        )

    def filters(self, place: Place) -> bool:
        """Whether the broker that leads a partition says that it can be asked for key ranges."""
        try:
            return self.link.knows_key_ranges(self.link.leader_of(place))
        except LinkError:
            return True  # whoever reads will find out

    # Logs -----------------------------------------------------------------------------------------

    def ends(self, places: Iterable[Place]) -> Offsets:
        """Up to where may be read: with committed records only, up to the last stable offset."""
        return self._listed("ends", places, LATEST)

    def beginnings(self, places: Iterable[Place]) -> Offsets:
        return self._listed("beginnings", places, EARLIEST)

    def _listed(self, what: str, places: Iterable[Place], timestamp: int) -> Offsets:
        asked = dict.fromkeys(places, timestamp)
        if not asked:
            return {}
        isolation = self._options.isolation_level
        found = self._ask(
            f"asking for the {what} of logs", lambda: self.link.list_offsets(asked, isolation)
        )
        return {place: found[place] for place in asked}

    def wait(self, ends: Mapping[Place, int], max_wait_ms: int) -> None:
        """Wait until more can be read than up to these ends; whatever fails ends the wait."""
        least_s = min(max_wait_ms, _WAIT_MIN_MS) / 1000
        began_at = time.monotonic()
        try:
            if ends:
                self.link.wait_for_records(ends, max_wait_ms, self._options.isolation_level)
        except LinkError:
            # What is asked next finds out whether it was serious.
            self.link.forget()
        # A broker that answers at once, with nothing or a refusal, must not be asked in a circle.
        time.sleep(max(0.0, least_s - (time.monotonic() - began_at)))

    # Where a query begins and ends ----------------------------------------------------------------

    def resolve(self, limit: Limit, places: list[Place]) -> Offsets:
        """The offset of each partition at which reading begins or ends."""
        if limit.everywhere == "earliest":
            return self.beginnings(places)
        if limit.everywhere == "latest":
            return self.ends(places)
        if limit.everywhere == "group":
            return self._of_group(places)
        if limit.offsets:
            return self._of_offsets(limit, places)
        return self._of_timestamps(limit, places)

    def _of_offsets(self, limit: Limit, places: list[Place]) -> Offsets:
        named = dict(limit.offsets)
        _must_name_all(limit, set(named), set(places))
        earliest = [place for place in places if named[place] == EARLIEST_OFFSET]
        latest = [place for place in places if named[place] == LATEST_OFFSET]
        return {**named, **self.beginnings(earliest), **self.ends(latest)}

    def _of_timestamps(self, limit: Limit, places: list[Place]) -> Offsets:
        times = dict(limit.timestamps_ms)
        if limit.timestamp_ms is not None:
            times = dict.fromkeys(places, limit.timestamp_ms)
        _must_name_all(limit, set(times), set(places))
        isolation = self._options.isolation_level
        found: Offsets = {}
        if times:
            found = self._ask("looking up times", lambda: self.link.list_offsets(times, isolation))
        unmatched = [place for place in places if found[place] < 0]
        is_start = limit.option.startswith("starting")
        if unmatched and is_start and not self._options.takes_latest_on_no_match:
            place = unmatched[0]
            raise OptionError(
                f"option '{limit.option}': {place[0]}-{place[1]} has no record at or after"
                f" {times[place]}. To begin at its end, set option"
                " 'startingOffsetsByTimestampStrategy' to latest"
            )
        return {**found, **self.ends(unmatched)}

    # Groups ---------------------------------------------------------------------------------------

    def _of_group(self, places: list[Place]) -> Offsets:
        """What the group has committed; where it has nothing, the beginning: nothing is skipped."""
        found = self._ask("asking for the group's offsets", lambda: self._committed_of(places))
        missing = [place for place in places if place not in found]
        return {**found, **self.beginnings(missing)}

    def _committed_of(self, places: list[Place]) -> Offsets:
        group_id = self._options.group_id or ""
        by_topic: dict[str, list[int]] = {}
        for topic, partition in places:
            by_topic.setdefault(topic, []).append(partition)
        group = OffsetFetchRequestGroup(
            group_id=group_id,
            topics=[
                OffsetFetchRequestTopics(name=name, partition_indexes=indexes)
                for name, indexes in by_topic.items()
            ],
        )
        least, most = _BY_NAME_OFFSETS_VERSIONS
        answer = self.link.ask_coordinator(
            group_id,
            OFFSET_FETCH,
            OffsetFetchRequest(groups=[group], require_stable=True),
            least_version=least,
            most_version=most,
        )
        (found,) = answer.groups
        if found.error_code:
            raise BrokerRefusal(found.error_code, f"asking for the offsets of group {group_id}")
        committed: Offsets = {}
        for topic in found.topics:
            for one in topic.partitions:
                if one.error_code:
                    raise BrokerRefusal(one.error_code, f"asking for the offsets of {group_id}")
                if one.committed_offset >= 0:
                    committed[topic.name, one.partition_index] = one.committed_offset
        return committed

    def commit_group(self, offsets: Mapping[Place, int]) -> None:
        """Show a group how far the query is. What fails is tried again with the next batch.

        The checkpoint says where a query goes on, never the group: so nothing here ends a query.
        """
        news = {
            place: offset
            for place, offset in offsets.items()
            if self._committed.get(place) != offset
        }
        if not self._options.commits_group or not news:
            return
        group_id = self._options.group_id or ""
        limit_ms = min(self._options.link.api_timeout_ms, _COMMIT_MAX_MS)
        try:
            # A connection that was idle since the last batch may be closed.
            self.link.retrying(
                "committing", lambda: self._commit(group_id, news), limit_ms=limit_ms
            )
        except LinkError as error:
            self.tell(
                f"cannot commit to group '{group_id}' (option 'kafka.group.id'): {error}. The query"
                " goes on without; its checkpoint has its progress"
            )
            return
        self._committed.update(news)

    def _commit(self, group_id: str, offsets: Mapping[Place, int]) -> None:
        by_topic: dict[str, list[OffsetCommitRequestPartition]] = {}
        for (topic, partition), offset in offsets.items():
            by_topic.setdefault(topic, []).append(
                OffsetCommitRequestPartition(
                    partition_index=partition, committed_offset=offset, committed_metadata=""
                )
            )
        request = OffsetCommitRequest(
            group_id=group_id,
            topics=[
                OffsetCommitRequestTopic(name=name, partitions=partitions)
                for name, partitions in by_topic.items()
            ],
        )
        answer = self.link.ask_coordinator(
            group_id, OFFSET_COMMIT, request, most_version=_BY_NAME_COMMIT_VERSION
        )
        for topic in answer.topics:
            for one in topic.partitions:
                if one.error_code:
                    hint = None
                    if one.error_code in (
                        ErrorCode.UNKNOWN_MEMBER_ID,
                        ErrorCode.ILLEGAL_GENERATION,
                    ):
                        hint = "the group has members of its own; use a group that nobody is in"
                    raise BrokerRefusal(one.error_code, f"committing {topic.name}", hint)


def _must_name_all(limit: Limit, named: set[Place], places: set[Place]) -> None:
    if named == places:
        return
    odd = sorted(named ^ places)[0]
    why = "is not named" if odd in places else "is not read by this query, or does not exist"
    raise OptionError(
        f"option '{limit.option}' must name every partition that is read, and no other:"
        f" {odd[0]}-{odd[1]} {why}. -1 stands for latest, -2 for earliest (of offsets)"
    )


def describe(subscription: Subscription) -> str:
    """What a query reads, for errors."""
    if subscription.pattern is not None:
        return f"subscribePattern={subscription.pattern}"
    if subscription.topics:
        return f"subscribe={','.join(subscription.topics)}"
    return "assign=" + ",".join(f"{topic}-{number}" for topic, number in subscription.places)
