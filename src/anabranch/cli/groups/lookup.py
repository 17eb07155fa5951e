"""What is asked about groups: which there are, who is in them, what they committed."""

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

from anabranch.cli.connection import result_of
from anabranch.cli.errors import CliError, kafka_error_of, refusal
from anabranch.cli.options import Connection
from anabranch.cli.output import counted

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

# librdkafka's names for states and types, in Kafka's words; it has none for the last two states.
STATES: Final = {
    "STABLE": "Stable",
    "PREPARING_REBALANCING": "PreparingRebalance",
    "COMPLETING_REBALANCING": "CompletingRebalance",
    "EMPTY": "Empty",
    "DEAD": "Dead",
    "ASSIGNING": "Assigning",
    "RECONCILING": "Reconciling",
}
TYPES: Final = {"CLASSIC": "Classic", "CONSUMER": "Consumer"}
UNKNOWN: Final = "Unknown"
CONSUMER: Final = "Consumer"
_CONSUMERS: Final = "consumer"
# librdkafka's error for a group of another protocol type.
_NOT_CONSUMERS: Final = "_INVALID_ARG"
_REBALANCING: Final = frozenset(
    {"PreparingRebalance", "CompletingRebalance", "Assigning", "Reconciling"}
)

TopicPartitionKey = tuple[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupListing:
    """One line of a list of groups."""

    group: str
    type: str
    protocol: str | None  # None: offsets alone, nobody ever joined
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One consumer of a group."""

    consumer_id: str
    group_instance_id: str | None
    host: str
    client_id: str
    partitions: tuple[TopicPartitionKey, ...]
    # The rest is of members of consumer groups only.
    target: tuple[TopicPartitionKey, ...] | None = None
    epoch: int | None = None
    is_upgraded: bool | None = None  # whether it speaks the consumer protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Movement:
    """A partition, or a key range of one, that is not where it should be; None is nobody."""

    topic: str
    partition: int
    first_slot: int | None = None  # None: the whole partition
    last_slot: int | None = None
    from_consumer_id: str | None
    to_consumer_id: str | None
    state: str
    since_ms: int | None  # None: the broker does not tell


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A group as its coordinator describes it."""

    group: str
    type: str
    protocol: str | None  # None: offsets alone, nobody ever joined
    state: str
    assignor: str | None
    coordinator: tuple[int, str, int] | None  # id, host, port
    members: tuple[Member, ...]
    group_epoch: int | None = None
    target_epoch: int | None = None
    movements: tuple[Movement, ...] = ()

    @property
    def exists(self) -> bool:
        return self.state != "Dead"

    @property
    def is_active(self) -> bool:
        """Whether members would notice when their offsets are changed."""
        return self.state not in ("Empty", "Dead")

    @property
    def is_rebalancing(self) -> bool:
        return self.state in _REBALANCING


@dataclass(frozen=True, slots=True)
class Committed:
    """A committed offset."""

    offset: int
    leader_epoch: int | None


def list_groups(
    admin: "AdminClient", connection: Connection, states: set[str], types: set[str]
) -> tuple[list[GroupListing], list[CliError]]:
    """Groups by name, those in `states` and of `types` (empty: all); failures per broker."""
    asked = {name for name, word in STATES.items() if word in states}
    import confluent_kafka
    from confluent_kafka import ConsumerGroupState, KafkaException

    # The published type stubs lag behind the library here.
    all_types: Any = vars(confluent_kafka)["ConsumerGroupType"]
    try:
        found = result_of(
            cast(Any, admin).list_consumer_groups(
                # A state that librdkafka has no name for cannot be asked for by it.
                states={ConsumerGroupState[name] for name in asked}
                if asked <= set(ConsumerGroupState.__members__)
                else set(),
                types={all_types[name] for name, word in TYPES.items() if word in types},
                request_timeout=connection.timeout_s,
            ),
            connection,
        )
    except KafkaException as exception:
        raise refusal("Cannot list groups", kafka_error_of(exception)) from exception
    listings = [
        GroupListing(
            group=listing.group_id,
            type=TYPES.get(listing.type.name, UNKNOWN),
            protocol=None if listing.is_simple_consumer_group else _CONSUMERS,
            state=STATES.get(listing.state.name, UNKNOWN),
        )
        for listing in found.valid
    ]
    listings = _with_what_brokers_tell(admin, connection, listings)
    # Brokers from before KIP-518 and KIP-848 do not know the filters, and librdkafka leaves the
    # fields out of the answer then.
    kept = [
        listing
        for listing in listings
        if (not states or listing.state in states) and (not types or listing.type in types)
    ]
    failures = [refusal("Cannot list all groups", kafka_error_of(each)) for each in found.errors]
    return sorted(kept, key=lambda listing: listing.group), failures


def _with_what_brokers_tell(
    admin: "AdminClient", connection: Connection, listings: list[GroupListing]
) -> list[GroupListing]:
    """The listings with what librdkafka leaves out.

    It has no names for some states, and keeps groups to itself that are not of consumers, such as
    the one that the workers of Kafka Connect are in.
    """
    from anabranch.cli.groups.consumer_details import list_all

    told = list_all(connection, admin.list_topics(timeout=connection.timeout_s))
    known = {each.group for each in listings}
    others = [
        GroupListing(
            group=one.group_id,
            type=TYPES.get(one.group_type.upper(), UNKNOWN),
            protocol=one.protocol_type,
            state=one.group_state,
        )
        for one in told.values()
        if one.group_id not in known and one.protocol_type not in ("", _CONSUMERS)
    ]
    return [
        dataclasses.replace(each, state=told[each.group].group_state)
        if each.state == UNKNOWN and each.group in told
        else each
        for each in listings
    ] + others


def describe_groups(
    admin: "AdminClient", connection: Connection, names: list[str]
) -> dict[str, Group]:
    """Each group as it is now; one that does not exist is Dead, as Kafka says it."""
    from confluent_kafka import KafkaException

    if not names:
        return {}
    futures = admin.describe_consumer_groups(names, request_timeout=connection.timeout_s)
    groups: dict[str, Group] = {}
    for name in names:
        try:
            groups[name] = _group(result_of(futures[name], connection))
        except KafkaException as exception:
            error = kafka_error_of(exception)
            other = (
                _other_group(admin, connection, name) if error.name() == _NOT_CONSUMERS else None
            )
            if other is not None:
                groups[name] = other
                continue
            if error.name() != "GROUP_ID_NOT_FOUND":
                raise refusal(f"Cannot describe group {name!r}", error) from exception
            groups[name] = Group(
                group=name,
                type=UNKNOWN,
                protocol=None,
                state="Dead",
                assignor=None,
                coordinator=None,
                members=(),
            )
    return groups | _with_details(connection, groups)


def _other_group(admin: "AdminClient", connection: Connection, name: str) -> Group | None:
    """A group that is not of consumers, which librdkafka does not describe."""
    from anabranch.cli.groups.consumer_details import describe_other

    return describe_other(connection, admin.list_topics(timeout=connection.timeout_s), name)


def _with_details(connection: Connection, groups: dict[str, Group]) -> dict[str, Group]:
    """The consumer groups among them, with what librdkafka does not tell."""
    consumer_groups = {name: group for name, group in groups.items() if group.type == CONSUMER}
    if not consumer_groups:
        return {}
    # Only consumer groups pay for this import.
    from anabranch.cli.groups.consumer_details import add_details

    return add_details(connection, consumer_groups)


def _group(description: Any) -> Group:
    node = description.coordinator
    return Group(
        group=description.group_id,
        type=TYPES.get(description.type.name, UNKNOWN),
        protocol=None if description.is_simple_consumer_group else _CONSUMERS,
        state=STATES.get(description.state.name, UNKNOWN),
        assignor=description.partition_assignor or None,
        coordinator=None if node is None else (node.id, node.host, node.port),
        members=tuple(sorted(map(_member, description.members), key=_member_order)),
    )


def _member(description: Any) -> Member:
    target = description.target_assignment
    return Member(
        consumer_id=description.member_id,
        group_instance_id=description.group_instance_id or None,
        host=description.host,
        client_id=description.client_id,
        partitions=_keys(description.assignment),
        target=None if target is None else _keys(target),
    )


def _keys(assignment: Any) -> tuple[TopicPartitionKey, ...]:
    return tuple(sorted((tp.topic, tp.partition) for tp in assignment.topic_partitions))


def _member_order(member: Member) -> tuple[str, str]:
    return (member.client_id, member.consumer_id)


def require_groups(admin: "AdminClient", connection: Connection, groups: dict[str, Group]) -> None:
    """CliError when one of them does not exist, with the nearest name that does."""
    for name, group in groups.items():
        if not group.exists:
            raise unknown_group(admin, connection, name)


def unknown_group(admin: "AdminClient", connection: Connection, name: str) -> CliError:
    """The sentence about a group that does not exist."""
    from difflib import get_close_matches

    listings, _ = list_groups(admin, connection, set(), set())
    near = get_close_matches(name, [listing.group for listing in listings], n=1)
    return CliError(
        f"There is no group {name!r}",
        "nobody has joined it or committed offsets in it",
        f"did you mean {near[0]!r}?" if near else "see `anabranch groups list`",
    )


def still_active(group: Group, what: str) -> CliError:
    """The sentence about a group whose members are in the way of `what`."""
    return CliError(
        f"Group {group.group!r} is {group.state} with {counted(len(group.members), 'member')}",
        f"{what} when it is Empty",
        f"stop the members, see `anabranch groups describe {group.group} --members`",
    )


def committed_offsets(
    admin: "AdminClient", connection: Connection, names: list[str]
) -> dict[str, dict[TopicPartitionKey, Committed]]:
    """What each group has committed."""
    from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException

    # librdkafka takes one group a call; the calls run side by side.
    futures = {
        name: admin.list_consumer_group_offsets(
            [ConsumerGroupTopicPartitions(name)], request_timeout=connection.timeout_s
        )[name]
        for name in names
    }
    found: dict[str, dict[TopicPartitionKey, Committed]] = {}
    for name, future in futures.items():
        try:
            partitions = result_of(future, connection).topic_partitions or []
        except KafkaException as exception:
            raise refusal(
                f"Cannot read the offsets of group {name!r}", kafka_error_of(exception)
            ) from exception
        found[name] = {
            (tp.topic, tp.partition): Committed(tp.offset, tp.leader_epoch)
            for tp in sorted(partitions, key=lambda tp: (tp.topic, tp.partition))
            if tp.offset >= 0
        }
    return found
