"""What has settings, what they are, and changing them: on this broker or Apache Kafka.

Brokers are asked by our own codecs where the way to them allows that, because librdkafka leaves out
types, documentation and what was altered for all brokers. Through TLS or SASL it is librdkafka that
asks, and what it does not tell comes from our own table of settings.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from anabranch.cli.configs.words import (
    BROKER_SOURCES,
    DEFAULT_SOURCE,
    GROUP_SOURCE,
    HIDDEN,
    SOURCES,
    TOPIC_SOURCE,
)
from anabranch.cli.connection import open_admin, result_of
from anabranch.cli.errors import CliError, kafka_error_of, refusal
from anabranch.cli.groups.consumer_details import can_ask
from anabranch.cli.groups.lookup import list_groups
from anabranch.cli.options import Connection
from anabranch.cli.progress import no_progress
from anabranch.cli.raw_client import RawClient, first_client
from anabranch.config.branch_settings import COMMIT_SOURCE_CONFIG, FIXED_CONFIGS
from anabranch.config.definitions import TABLES
from anabranch.config.setting import ConfigType, Scope, render
from anabranch.model.errors import ErrorCode
from anabranch.wire.messages.describe_configs import (
    DESCRIBE_CONFIGS,
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from anabranch.wire.messages.incremental_alter_configs import (
    INCREMENTAL_ALTER_CONFIGS,
    OPERATION_DELETE,
    OPERATION_SET,
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
)
from anabranch.wire.messages.list_config_resources import (
    LIST_CONFIG_RESOURCES,
    ListConfigResourcesRequest,
)

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient, ClusterMetadata

_TYPE_NAMES: Final = {int(kind): kind.name for kind in ConfigType}
_WIRE_TYPES: Final = {Scope.TOPIC: 2, Scope.BROKER: 4, Scope.GROUP: 32}
_SCOPES: Final = {number: scope for scope, number in _WIRE_TYPES.items()}
_RESOURCES_MAX: Final = 200
# By which source a setting was made for the resource itself.
_OWN_SOURCES: Final = {
    Scope.TOPIC: frozenset({TOPIC_SOURCE}),
    Scope.GROUP: frozenset({GROUP_SOURCE}),
    Scope.BROKER: frozenset(BROKER_SOURCES),
}


@dataclass(frozen=True, slots=True)
class Resource:
    """What has settings; a broker without a name stands for all of them."""

    scope: Scope
    name: str

    def __str__(self) -> str:
        if self.scope is Scope.BROKER and not self.name:
            return "all brokers"
        return f"{self.scope.value} {self.name!r}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One setting of a resource; secrets have no value here."""

    name: str
    value: str | None
    source: str
    default: str | None
    type: str | None
    is_read_only: bool
    is_sensitive: bool
    documentation: str | None

    @property
    def shown_value(self) -> str | None:
        return HIDDEN if self.is_sensitive else self.value


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Who can be asked."""

    connection: Connection
    admin: "AdminClient"
    metadata: "ClusterMetadata"


def open_cluster(connection: Connection) -> Cluster:
    """The cluster, once it has answered."""
    admin, metadata = open_admin(connection)
    return Cluster(connection=connection, admin=admin, metadata=metadata)


def find_resources(cluster: Cluster, types: Iterable[str]) -> list[Resource]:
    """All that may have settings of their own."""
    found: list[Resource] = []
    if Scope.BROKER.value in types:
        brokers = sorted(cluster.metadata.brokers)
        found += [Resource(Scope.BROKER, str(broker)) for broker in brokers]
    if Scope.TOPIC.value in types:
        found += [Resource(Scope.TOPIC, topic) for topic in sorted(cluster.metadata.topics)]
    if Scope.GROUP.value in types:
        found += [Resource(Scope.GROUP, group) for group in sorted(_groups(cluster))]
    return found


def _groups(cluster: Cluster) -> set[str]:
    """Groups that exist, and those that have settings before anybody joined them."""
    listings, _ = list_groups(cluster.admin, cluster.connection, set(), set())
    return {listing.group for listing in listings} | configured_groups(cluster)


def configured_groups(cluster: Cluster) -> set[str]:
    """Groups that have settings of their own, where the broker can tell."""
    if not can_ask(cluster.connection):
        return set()
    request = ListConfigResourcesRequest(resource_types=[_WIRE_TYPES[Scope.GROUP]])
    with first_client(cluster.connection) as client:
        answer = client.send(LIST_CONFIG_RESOURCES, request, least_version=1)
    if answer is None or answer.error_code:
        return set()
    return {one.resource_name for one in answer.config_resources}


def describe(cluster: Cluster, resource: Resource) -> dict[str, Entry]:
    """The settings of a resource by name; CliError when the broker refuses."""
    return describe_all(cluster, [resource])[resource]


def describe_all(
    cluster: Cluster, resources: Sequence[Resource], on_answer: Callable[[int], None] = no_progress
) -> dict[Resource, dict[str, Entry]]:
    """The same of many, in few requests; `on_answer` is told of how many each answer is."""
    found: dict[Resource, dict[str, Entry]] = {}
    ask = _described_by_codec if can_ask(cluster.connection) else _described_by_librdkafka
    for batch in _batches(resources):
        for resource, entries in ask(cluster, batch).items():
            in_order = sorted(entries, key=lambda entry: entry.name)
            found[resource] = {entry.name: entry for entry in in_order}
        on_answer(len(batch))
    return found


def _batches(resources: Sequence[Resource]) -> Iterator[list[Resource]]:
    """A broker is asked about itself alone, about everything else any of them."""
    others = [one for one in resources if one.scope is not Scope.BROKER]
    yield from ([one] for one in resources if one.scope is Scope.BROKER)
    for start in range(0, len(others), _RESOURCES_MAX):
        yield others[start : start + _RESOURCES_MAX]


def own_entries(resource: Resource, entries: Mapping[str, Entry]) -> list[Entry]:
    """What was set for the resource itself; a branch topic also shows what its source has."""
    own = [one for one in entries.values() if one.source in _OWN_SOURCES[resource.scope]]
    if resource.scope is not Scope.TOPIC or FIXED_CONFIGS.isdisjoint(entries):
        return own
    return [one for one in own if one.name in FIXED_CONFIGS or one.name == COMMIT_SOURCE_CONFIG]


def alter(
    cluster: Cluster, resource: Resource, changes: Mapping[str, str | None], *, is_dry_run: bool
) -> None:
    """Set what has a value and unset the rest; CliError when the broker refuses."""
    if can_ask(cluster.connection):
        _alter_by_codec(cluster, resource, changes, is_dry_run=is_dry_run)
    else:
        _alter_by_librdkafka(cluster, resource, changes, is_dry_run=is_dry_run)


def _failure_to_read(resource: Resource) -> str:
    return f"Cannot read the settings of {resource}"


# By our own codecs ------------------------------------------------------------------------------


def _client(cluster: Cluster, resource: Resource) -> RawClient:
    """A way to the broker that can answer: a broker for itself, any other one for the rest."""
    brokers = cluster.metadata.brokers
    node = next(iter(brokers.values()))
    if resource.scope is Scope.BROKER and resource.name:
        node = brokers[int(resource.name)]
    assert node.host is not None and node.port is not None, "it has told where it is"
    return RawClient(node.host, node.port, cluster.connection.timeout_s)


def _described_by_codec(cluster: Cluster, resources: list[Resource]) -> dict[Resource, list[Entry]]:
    request = DescribeConfigsRequest(
        resources=[
            DescribeConfigsResource(
                resource_type=_WIRE_TYPES[resource.scope], resource_name=resource.name
            )
            for resource in resources
        ],
        include_synonyms=True,
        include_documentation=True,
    )
    with _client(cluster, resources[0]) as client:
        answer = client.send(DESCRIBE_CONFIGS, request)
    if answer is None:
        raise _too_old(_failure_to_read(resources[0]))
    found: dict[Resource, list[Entry]] = {}
    for result in answer.results:
        resource = Resource(_SCOPES[result.resource_type], result.resource_name)
        if result.error_code:
            raise _refused(_failure_to_read(resource), result.error_code, result.error_message)
        found[resource] = [_entry(resource, config) for config in result.configs]
    return found


def _entry(resource: Resource, config: Any) -> Entry:
    defaults = {
        one.name: one.value for one in config.synonyms if SOURCES.get(one.source) == DEFAULT_SOURCE
    }
    source = SOURCES.get(config.config_source, "UNKNOWN")
    if source == DEFAULT_SOURCE:
        defaults[config.name] = config.value
    return Entry(
        name=config.name,
        value=None if config.is_sensitive else config.value,
        source=source,
        default=None if config.is_sensitive else _default(resource, config.name, defaults),
        type=_type_name(config.config_type) or _own_type(resource, config.name),
        is_read_only=config.read_only,
        is_sensitive=config.is_sensitive,
        documentation=config.documentation or _own_documentation(resource, config.name),
    )


def _type_name(number: int) -> str | None:
    return _TYPE_NAMES.get(number)


def _alter_by_codec(
    cluster: Cluster, resource: Resource, changes: Mapping[str, str | None], *, is_dry_run: bool
) -> None:
    request = IncrementalAlterConfigsRequest(
        resources=[
            IncrementalAlterConfigsResource(
                resource_type=_WIRE_TYPES[resource.scope],
                resource_name=resource.name,
                configs=[
                    IncrementalAlterableConfig(
                        name=name,
                        config_operation=OPERATION_DELETE if value is None else OPERATION_SET,
                        value=value,
                    )
                    for name, value in changes.items()
                ],
            )
        ],
        validate_only=is_dry_run,
    )
    what = f"The settings of {resource} were not changed"
    with _client(cluster, resource) as client:
        answer = client.send(INCREMENTAL_ALTER_CONFIGS, request)
    if answer is None:
        raise _too_old(what)
    (result,) = answer.responses
    if result.error_code:
        raise _refused(what, result.error_code, result.error_message)


def _too_old(what: str) -> CliError:
    return CliError(what, "the broker does not know this request", "use a newer broker")


def _refused(what: str, code: int, message: str | None) -> CliError:
    """This broker's last sentence is what to do, if it has several; Kafka has one."""
    try:
        name = ErrorCode(code).name
    except ValueError:
        name = f"error {code}"
    why, dot, next_step = (message or f"the broker says {name}").rstrip(". ").rpartition(". ")
    if not dot:
        why, next_step = next_step, "see `anabranch configs explain` for names and values"
    return CliError(what, _lowered(why), _lowered(next_step))


def _lowered(sentence: str) -> str:
    if sentence[:1].isupper() and sentence[1:2].islower():
        return sentence[0].lower() + sentence[1:]
    return sentence


# By librdkafka ----------------------------------------------------------------------------------


def _config_resource(resource: Resource, what: str, **given: Any) -> Any:
    from confluent_kafka.admin import ConfigResource, ResourceType

    if not resource.name:
        raise CliError(
            what,
            "librdkafka cannot ask about all brokers at once through TLS or SASL",
            "name one with --broker",
        )
    return ConfigResource(ResourceType[resource.scope.name], resource.name, **given)


def _described_by_librdkafka(
    cluster: Cluster, resources: list[Resource]
) -> dict[Resource, list[Entry]]:
    from confluent_kafka import KafkaException

    asked = {_config_resource(one, _failure_to_read(one)): one for one in resources}
    futures = cluster.admin.describe_configs(
        list(asked), request_timeout=cluster.connection.timeout_s
    )
    found: dict[Resource, list[Entry]] = {}
    for key, future in futures.items():
        resource = asked[key]
        try:
            entries = result_of(future, cluster.connection).values()
        except KafkaException as exception:
            raise refusal(_failure_to_read(resource), kafka_error_of(exception)) from exception
        found[resource] = [_entry_of_librdkafka(resource, entry) for entry in entries]
    return found


def _entry_of_librdkafka(resource: Resource, entry: Any) -> Entry:
    source = SOURCES.get(entry.source, "UNKNOWN")
    defaults = {entry.name: entry.value} if source == DEFAULT_SOURCE else {}
    return Entry(
        name=entry.name,
        value=None if entry.is_sensitive else entry.value,
        source=source,
        default=None if entry.is_sensitive else _default(resource, entry.name, defaults),
        type=_own_type(resource, entry.name),
        is_read_only=entry.is_read_only,
        is_sensitive=entry.is_sensitive,
        documentation=_own_documentation(resource, entry.name),
    )


def _alter_by_librdkafka(
    cluster: Cluster, resource: Resource, changes: Mapping[str, str | None], *, is_dry_run: bool
) -> None:
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AlterConfigOpType, ConfigEntry

    what = f"The settings of {resource} were not changed"
    asked = _config_resource(
        resource,
        what,
        incremental_configs=[
            ConfigEntry(
                name,
                value,
                incremental_operation=(
                    AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET
                ),
            )
            for name, value in changes.items()
        ],
    )
    (future,) = cluster.admin.incremental_alter_configs(
        [asked], validate_only=is_dry_run, request_timeout=cluster.connection.timeout_s
    ).values()
    try:
        result_of(future, cluster.connection)
    except KafkaException as exception:
        raise refusal(what, kafka_error_of(exception)) from exception


# What our own table knows -----------------------------------------------------------------------


def _default(resource: Resource, name: str, told: Mapping[str, str | None]) -> str | None:
    """The default in the unit of this setting, which a synonym such as hours may not have."""
    setting = TABLES[resource.scope].get(name)
    if name in told:
        return told[name]
    return next(iter(told.values()), None) if setting is None else render(setting.default)


def _own_type(resource: Resource, name: str) -> str | None:
    setting = TABLES[resource.scope].get(name)
    return None if setting is None else setting.type.name


def _own_documentation(resource: Resource, name: str) -> str | None:
    setting = TABLES[resource.scope].get(name)
    return None if setting is None else setting.documentation
