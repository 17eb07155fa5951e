"""The `kafka.*` options of the source: which count, which are ignored, which are refused. Pure."""

import difflib
from collections.abc import Iterable, Mapping
from typing import Final

from anabranch.spark.errors import OptionError
from anabranch.spark.link_settings import CONNECTION_SETTINGS

PREFIX: Final = "kafka."

READ_SETTINGS: Final = CONNECTION_SETTINGS | {
    "group.id",
    "isolation.level",
    "fetch.max.wait.ms",
    "max.partition.fetch.bytes",
}
"""Settings of a reader that count here."""

# Settings of Kafka's consumer that change nothing about what is read: timings of a membership that
# a Spark query does not have, and sizes of buffers that there are none of.
_WITHOUT_EFFECT: Final = frozenset(
    {
        "allow.auto.create.topics",
        "auto.commit.interval.ms",
        "check.crcs",
        "client.dns.lookup",
        "client.rack",
        "connections.max.idle.ms",
        "enable.metrics.push",
        "exclude.internal.topics",
        "fetch.max.bytes",
        "fetch.min.bytes",
        "group.instance.id",
        "group.protocol",
        "group.remote.assignor",
        "heartbeat.interval.ms",
        "max.poll.interval.ms",
        "max.poll.records",
        "metadata.max.age.ms",
        "metric.reporters",
        "metrics.num.samples",
        "metrics.recording.level",
        "metrics.sample.window.ms",
        "partition.assignment.strategy",
        "receive.buffer.bytes",
        "reconnect.backoff.max.ms",
        "reconnect.backoff.ms",
        "retries",
        "send.buffer.bytes",
        "session.timeout.ms",
        "socket.connection.setup.timeout.max.ms",
        "socket.connection.setup.timeout.ms",
    }
)

_REFUSED: Final = {
    "auto.offset.reset": "set 'startingOffsets' instead, which counts for a new query; a query that"
    " is restarted goes on where its checkpoint is",
    "key.deserializer": "keys come as binary; cast the column",
    "value.deserializer": "values come as binary; cast the column",
    "key.serializer": "keys come as binary; cast the column",
    "value.serializer": "values come as binary; cast the column",
    "enable.auto.commit": "the query's checkpoint has the offsets; 'commitGroupOffsets' also shows"
    " them to the group named by 'kafka.group.id'",
    "interceptor.classes": "there is no Java client whose records could be intercepted",
}


def near_miss(name: str, known: Iterable[str]) -> str:
    """ "; did you mean x?" if there is an x that is nearly this name."""
    by_lower = {one.lower(): one for one in known}
    found = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.75)
    return f"; did you mean '{by_lower[found[0]]}'?" if found else ""


def split_kafka(options: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Options in lower case: those of the source, and those for Kafka without their prefix."""
    lower = {name.lower(): value for name, value in options.items()}
    kafka = {
        name.removeprefix(PREFIX): value for name, value in lower.items() if name.startswith(PREFIX)
    }
    own = {name: value for name, value in lower.items() if not name.startswith(PREFIX)}
    return own, kafka


def check_kafka(kafka: Mapping[str, str], counting: Iterable[str] = READ_SETTINGS) -> list[str]:
    """Refuse what cannot be; returns those that have no effect, to be warned about."""
    known = set(counting)
    ignored: list[str] = []
    for name in sorted(kafka):
        if name in _REFUSED:
            raise OptionError(f"option 'kafka.{name}' is not supported: {_REFUSED[name]}")
        if name in known or name.startswith(("ssl.", "sasl.")):
            continue  # of the latter those are refused that are not known, where they are read
        if name in _WITHOUT_EFFECT:
            ignored.append(PREFIX + name)
            continue
        hint = near_miss(PREFIX + name, (PREFIX + one for one in known | _WITHOUT_EFFECT))
        raise OptionError(f"option 'kafka.{name}' is unknown{hint}")
    return ignored
