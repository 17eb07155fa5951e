"""The broker's settings apart from the log: who it is, where it listens, what it allows.

Defaults are Apache Kafka's, with three exceptions that let `serve` run without a file: `node.id`
has one, `listeners` stays on this machine, and `log.dir` is a folder beside the caller.
"""

from anabranch.config.rules import at_least, distinct
from anabranch.config.setting import (
    ConfigType,
    DynamicMode,
    Importance,
    Rule,
    Scope,
    Setting,
    Value,
)

IDENTITY = "Identity and storage"
NETWORK = "Network"
TOPICS = "Topics"
REQUESTS = "Requests"

INT_MAX = (1 << 31) - 1
MIB = 1024 * 1024


def _broker(
    subject: str,
    name: str,
    kind: ConfigType,
    default: Value,
    rule: Rule | None,
    documentation: str,
    *,
    importance: Importance = Importance.MEDIUM,
    dynamic: DynamicMode = DynamicMode.READ_ONLY,
    aliases: tuple[str, ...] = (),
    ours: bool = False,
) -> Setting:
    return Setting(
        name=name,
        type=kind,
        default=default,
        documentation=documentation,
        scope=Scope.BROKER,
        subject=subject,
        importance=importance,
        dynamic=dynamic,
        rule=rule,
        aliases=aliases,
        ours=ours,
    )


def _cluster_id(value: Value) -> str | None:
    assert isinstance(value, str)
    printable = value.isascii() and value.isprintable() and " " not in value
    return None if printable else "a cluster id is ASCII without spaces"


def _buffer_bytes(value: Value) -> str | None:
    assert isinstance(value, int)
    return None if value == -1 or value > 0 else "Value must be -1 or at least 1"


_IDENTITY_SETTINGS = (
    _broker(
        IDENTITY,
        "node.id",
        ConfigType.INT,
        1,
        at_least(0),
        "The number of this broker, as clients see it.",
        importance=Importance.HIGH,
        aliases=("broker.id",),
    ),
    _broker(
        IDENTITY,
        "cluster.id",
        ConfigType.STRING,
        None,
        Rule(_cluster_id, "ASCII without spaces"),
        "The id of the cluster, as clients see it. Without it the broker makes one up at its "
        "first start and keeps it with its data.",
        ours=True,
    ),
    _broker(
        IDENTITY,
        "broker.rack",
        ConfigType.STRING,
        None,
        None,
        "Where this broker stands; clients that know their own rack compare the two.",
    ),
    _broker(
        IDENTITY,
        "log.dirs",
        ConfigType.LIST,
        None,
        distinct(may_be_empty=False),
        "The folders that hold the data. Without it `log.dir` counts.",
        importance=Importance.HIGH,
    ),
    _broker(
        IDENTITY,
        "log.dir",
        ConfigType.LIST,
        ("./anabranch-data",),
        distinct(may_be_empty=False),
        "The folders that hold the data when `log.dirs` is not set.",
        importance=Importance.HIGH,
    ),
)

_NETWORK_SETTINGS = (
    _broker(
        NETWORK,
        "listeners",
        ConfigType.LIST,
        ("PLAINTEXT://localhost:9092",),
        distinct(may_be_empty=False),
        "Where the broker listens, as `NAME://host:port` for each listener. An empty host or "
        "`0.0.0.0` means every interface; port 0 takes a free one. When only "
        "`advertised.listeners` is set, its names and ports are opened on every interface.",
        importance=Importance.HIGH,
    ),
    _broker(
        NETWORK,
        "advertised.listeners",
        ConfigType.LIST,
        None,
        distinct(may_be_empty=False),
        "What clients are told to connect to, where that differs from `listeners`: behind NAT, "
        "in a container, through a proxy. Without it, `listeners`, with this machine's host name "
        "in place of every interface.",
        importance=Importance.HIGH,
    ),
    _broker(
        NETWORK,
        "listener.security.protocol.map",
        ConfigType.STRING,
        "PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL",
        None,
        "Which security protocol each listener name stands for, as `NAME:PROTOCOL` pairs. This "
        "broker serves `PLAINTEXT`; a listener with another protocol stops the start.",
        importance=Importance.LOW,
    ),
    _broker(
        NETWORK,
        "controller.listener.names",
        ConfigType.LIST,
        (),
        distinct(may_be_empty=True),
        "Listeners that Kafka keeps for its controllers. This broker is its own controller and "
        "does not open them, so a `server.properties` of Kafka works as it is.",
        importance=Importance.LOW,
    ),
    _broker(
        NETWORK,
        "socket.send.buffer.bytes",
        ConfigType.INT,
        100 * 1024,
        Rule(_buffer_bytes, "at least 1, or -1 for the system's"),
        "The send buffer (`SO_SNDBUF`) of each connection; -1 leaves it to the system.",
        importance=Importance.HIGH,
    ),
    _broker(
        NETWORK,
        "socket.receive.buffer.bytes",
        ConfigType.INT,
        100 * 1024,
        Rule(_buffer_bytes, "at least 1, or -1 for the system's"),
        "The receive buffer (`SO_RCVBUF`) of each connection; -1 leaves it to the system.",
        importance=Importance.HIGH,
    ),
    _broker(
        NETWORK,
        "socket.listen.backlog.size",
        ConfigType.INT,
        50,
        at_least(1),
        "How many connections may wait to be accepted; Linux also caps it at `somaxconn`.",
    ),
    _broker(
        NETWORK,
        "max.connections",
        ConfigType.INT,
        INT_MAX,
        at_least(0),
        "How many connections the broker holds at once; further ones are closed on arrival.",
        dynamic=DynamicMode.CLUSTER_WIDE,
    ),
    _broker(
        NETWORK,
        "max.connections.per.ip",
        ConfigType.INT,
        INT_MAX,
        at_least(0),
        "How many connections one address may hold at once; further ones are closed on arrival.",
        dynamic=DynamicMode.CLUSTER_WIDE,
    ),
    _broker(
        NETWORK,
        "connections.max.idle.ms",
        ConfigType.LONG,
        600_000,
        None,
        "How long a connection may be silent before the broker closes it; a negative value never "
        "closes one.",
    ),
)

_REQUEST_SETTINGS = (
    _broker(
        REQUESTS,
        "socket.request.max.bytes",
        ConfigType.INT,
        100 * MIB,
        at_least(1),
        "The largest request that is read; the connection of a larger one is closed.",
        importance=Importance.HIGH,
    ),
    _broker(
        REQUESTS,
        "queued.max.request.bytes",
        ConfigType.LONG,
        -1,
        None,
        "How many bytes of requests may wait for their answer in the whole broker before it "
        "stops reading more; zero or less sets no such limit.",
    ),
    _broker(
        REQUESTS,
        "fetch.max.bytes",
        ConfigType.INT,
        55 * MIB,
        at_least(1024),
        "The most that one fetch response carries, whatever the client asked for; a first batch "
        "that is larger is still sent, so that consumers cannot get stuck.",
    ),
    _broker(
        REQUESTS,
        "max.incremental.fetch.session.cache.slots",
        ConfigType.INT,
        1000,
        at_least(0),
        "How many incremental fetch sessions are remembered; a consumer without one sends its "
        "full list of partitions with every fetch.",
    ),
    _broker(
        REQUESTS,
        "producer.id.expiration.ms",
        ConfigType.INT,
        86_400_000,
        at_least(1),
        "How long after its last write an idempotent producer is remembered for telling its "
        "duplicates.",
        importance=Importance.LOW,
        dynamic=DynamicMode.CLUSTER_WIDE,
    ),
)

_TOPIC_CREATION_SETTINGS = (
    _broker(
        TOPICS,
        "num.partitions",
        ConfigType.INT,
        1,
        at_least(1),
        "How many partitions a topic gets when its creator does not say.",
    ),
    _broker(
        TOPICS,
        "default.replication.factor",
        ConfigType.INT,
        1,
        at_least(1),
        "How many replicas a topic gets when its creator does not say; there is one broker, so "
        "more than 1 makes such creations fail.",
    ),
    _broker(
        TOPICS,
        "auto.create.topics.enable",
        ConfigType.BOOLEAN,
        True,
        None,
        "Whether a topic comes into being when a client first asks for it.",
        importance=Importance.HIGH,
    ),
    _broker(
        TOPICS,
        "delete.topic.enable",
        ConfigType.BOOLEAN,
        True,
        None,
        "Whether topics can be deleted; if not, such requests are refused.",
        importance=Importance.HIGH,
    ),
)

BROKER_SETTING_LINES: tuple[Setting, ...] = (
    *_IDENTITY_SETTINGS,
    *_NETWORK_SETTINGS,
    *_REQUEST_SETTINGS,
    *_TOPIC_CREATION_SETTINGS,
)
