"""Apache Kafka's settings that this broker knows and does not use.

A `server.properties` written for Kafka names many of them. Each gets one line of information at
the start instead of a warning, so that warnings keep meaning a mistake. The table of settings is
asked first: a family here may hold a name that the table has.
"""

_PREFIXES = (
    "alter.log.dirs.replication.",
    "client.quota.",
    "controlled.shutdown.",
    "controller.",
    "delegation.token.",
    "errors.deadletterqueue.",
    "group.share.",
    "group.streams.",
    "inter.broker.",
    "internal.metadata.",
    "kafka.metrics.",
    "leader.imbalance.",
    "leader.replication.",
    "listener.name.",
    "log.remote.",
    "metadata.",
    "metrics.",
    "offsets.",
    "quota.",
    "remote.",
    "replica.",
    "replication.quota.",
    "sasl.",
    "security.",
    "share.",
    "ssl.",
    "telemetry.",
    "zookeeper.",
)

_NAMES = frozenset(
    (
        "add.partitions.to.txn.retry.backoff.max.ms",
        "add.partitions.to.txn.retry.backoff.ms",
        "alter.config.policy.class.name",
        "auto.include.jmx.reporter",
        "auto.leader.rebalance.enable",
        "background.threads",
        "broker.heartbeat.interval.ms",
        "broker.id.generation.enable",
        "broker.session.timeout.ms",
        "config.providers",
        "connection.failed.authentication.delay.ms",
        "connections.max.reauth.ms",
        "cordoned.log.dirs",
        "create.topic.policy.class.name",
        "delete.records.purgatory.purge.interval.requests",
        "early.start.listeners",
        "fetch.purgatory.purge.interval.requests",
        "follower.fetch.last.tiered.offset.enable",
        "follower.replication.throttled.rate",
        "group.consumer.assignor.offload.enable",
        "group.coordinator.append.linger.ms",
        "group.coordinator.background.threads",
        "group.coordinator.cached.buffer.max.bytes",
        "group.coordinator.new.enable",
        "group.coordinator.threads",
        "initial.broker.registration.timeout.ms",
        "log.cleaner.dedupe.buffer.size",
        "log.cleaner.io.buffer.load.factor",
        "log.cleaner.io.buffer.size",
        "log.cleaner.io.max.bytes.per.second",
        "log.cleaner.threads",
        "log.dir.failure.timeout.ms",
        "log.flush.start.offset.checkpoint.interval.ms",
        "log.initial.task.delay.ms",
        "log.message.downconversion.enable",
        "log.message.format.version",
        "max.connection.creation.rate",
        "max.connections.per.ip.overrides",
        "max.request.partition.size.limit",
        "metric.reporters",
        "num.io.threads",
        "num.network.threads",
        "num.recovery.threads.per.data.dir",
        "num.replica.alter.log.dirs.threads",
        "num.replica.fetchers",
        "offset.metadata.max.bytes",
        "password.encoder.secret",
        "principal.builder.class",
        "process.roles",
        "producer.id.expiration.check.interval.ms",
        "producer.purgatory.purge.interval.requests",
        "queued.max.requests",
        "request.timeout.ms",
        "reserved.broker.max.id",
        "server.max.startup.time.ms",
        "socket.connection.setup.timeout.max.ms",
        "socket.connection.setup.timeout.ms",
        "transaction.abort.timed.out.transaction.cleanup.interval.ms",
        "transaction.state.log.load.buffer.size",
        "transaction.state.log.min.isr",
        "transaction.state.log.replication.factor",
        "unclean.leader.election.interval.ms",
        "unstable.api.versions.enable",
        "unstable.feature.versions.enable",
    )
)

UNPROTECTED = frozenset(("authorizer.class.name",))
"""Settings that promise a protection which this broker does not give. To pass over one of them
with a line of information would let somebody believe in it."""


def is_ignored(name: str) -> bool:
    """Whether Kafka has a setting of this name, or a family of them, that is not used here."""
    return name in _NAMES or name in UNPROTECTED or name.startswith(_PREFIXES)
