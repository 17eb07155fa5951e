"""The reference page of all settings, rendered from the table.

`python -m anabranch.config.reference_page > docs/reference/configuration.md` writes it; a test
keeps the committed page up to date.
"""

import sys
from collections.abc import Iterable

from anabranch.config.definitions import BROKER_SETTINGS, GROUP_SETTINGS, TOPIC_SETTINGS
from anabranch.config.load import environment_name
from anabranch.config.serve_flags import SERVE_FLAGS
from anabranch.config.setting import ConfigType, Setting, render

_LONG_MAX = str((1 << 63) - 1)

_HEAD = f"""\
# Configuration

<!-- Rendered from the table of settings; change that and run
     python -m anabranch.config.reference_page > docs/reference/configuration.md -->

Settings have Apache Kafka's names and meanings, so a `server.properties` written for Kafka works
as it is, as long as its listeners for clients are `PLAINTEXT`. Settings of Kafka that have no
effect here are named in one line each at the start. A name that neither knows is warned about,
with the nearest name that exists.

## Where values come from

Each of these overrules the ones before it:

1. the defaults on this page;
2. a properties file: `anabranch serve server.properties`;
3. the environment, in the spelling of Kafka's official image: `KAFKA_` and the name in upper
   case, with `_` for `.`, `__` for `_` and `___` for `-`. So `num.partitions` is
   `{environment_name("num.partitions")}`, and `log.retention.ms` is
   `{environment_name("log.retention.ms")}`. The image's `CLUSTER_ID` gives `cluster.id`.
   Variables of Kafka's scripts (`KAFKA_HEAP_OPTS`, `KAFKA_OPTS`, `KAFKA_LOG4J_OPTS` and their
   like) and those that Kubernetes makes for a service called `kafka` are not settings and are
   passed over;
4. overrides: `anabranch serve --override num.partitions=3`, as often as needed;
5. flags of `anabranch serve` that stand for one setting, named under **Flag** below. A flag with a
   value outside of the bounds of its setting moves the bound, unless that is set too.

An empty value takes back a setting that has no default; an empty variable leaves it alone.

While the broker runs, clients can alter some settings (`kafka-configs --alter`, or
IncrementalAlterConfigs in any client). The own value of a topic or group counts first, then what
was altered for this broker, then what was altered for all brokers, then the five above.
**Changes** below says what can be altered: `cluster-wide` settings for one broker or for all,
`read-only` ones only where the broker is started.

## What a flush survives

A record is in the operating system's page cache when it is acknowledged, and on the disk after an
fsync. A crash or `kill -9` of the broker loses neither. A crash of the operating system or a loss
of power loses what was not fsynced, and with one broker there is no replica to fetch it from.

| Choice | Broker crash | OS crash, power loss | Cost |
|---|---|---|---|
| none (the default, as in Kafka) | every acknowledged record is kept | records are lost that the \
system had not yet written | none: 103-112 µs at the median for a produce request of one record |
| `flush.ms`, with `log.flush.scheduler.interval.ms` as short | kept | at most the records of \
that time are lost | one fsync per partition and interval, off the request path |
| `flush.messages` | kept | at most that many records per partition are lost | one fsync per that \
many records; at 1, one per request: 404-458 µs at the median |
| `flush.on.acks.all=true` | kept | every record acknowledged with `acks=all` is kept; `acks=1` \
as without it | one fsync shared by the requests that wait for it: 372-427 µs at the median |

The times are from three runs each of `bench/driver.c` (`acks=all`, one record of 100 bytes at a
time) on one machine: 2 virtual cores, ext4 on a virtual disk. With the usual batches of producers
the rate there was 3.3-3.8 million records of 100 bytes per second without fsync, 3.2-3.5 million
with the shared one and 2.8-3.4 million with one per request. On a disk that confirms a flush it has
not done, none of these helps.
"""

_TOPIC_HEAD = """
## Topic settings

A topic gets them at its creation (`--config` of `kafka-topics`) or later (`kafka-configs --alter`).
One that it does not set comes from the first of those named under **Broker setting** that is set.
"""

_GROUP_HEAD = """
## Group settings

What a group under the consumer protocol sets for itself, while the broker runs:

```
kafka-configs --bootstrap-server localhost:9092 --alter --entity-type groups --entity-name orders \\
    --add-config consumer.session.timeout.ms=50000
```

The group need not exist yet, and its configs outlive it. One that it does not set comes from the
broker's, named under **Broker setting**. A value outside of the broker's bounds is refused; one
that was inside when it was set counts as the nearest bound.
"""


def render_page() -> str:
    """The whole page."""
    parts = [
        _HEAD,
        "\n## Broker settings\n",
        *_sections(BROKER_SETTINGS.values()),
        _TOPIC_HEAD,
        *_sections(TOPIC_SETTINGS.values()),
        _GROUP_HEAD,
        *_sections(GROUP_SETTINGS.values()),
    ]
    return "".join(parts)


def _sections(settings: Iterable[Setting]) -> list[str]:
    by_subject: dict[str, list[Setting]] = {}
    for setting in settings:
        if not setting.internal:
            by_subject.setdefault(setting.subject, []).append(setting)
    return [
        f"\n### {subject}\n" + "".join(_entry(setting) for setting in lines)
        for subject, lines in by_subject.items()
    ]


def _entry(setting: Setting) -> str:
    facts = [f"**Type** {setting.type.name.lower()}", f"**Default** {_default(setting)}"]
    if setting.rule is not None:
        facts.append(f"**Valid** {setting.rule.text}")
    elif setting.type is ConfigType.BOOLEAN:
        facts.append("**Valid** `true`, `false`")
    if setting.synonyms:
        names = ", ".join(f"`{synonym.name}`" for synonym in setting.synonyms)
        facts.append(f"**Broker setting** {names}")
    if setting.scope.value == "broker":
        facts.append(f"**Changes** {setting.dynamic.value}")
    facts.append(f"**Importance** {setting.importance.value}")
    if setting.aliases:
        facts.append("**Also called** " + ", ".join(f"`{alias}`" for alias in setting.aliases))
    flags = [f"`{flag}`" for flag, name in SERVE_FLAGS.items() if name == setting.name]
    if flags:
        facts.append("**Flag** " + ", ".join(flags))
    if setting.ours:
        facts.append("not in Apache Kafka")
    return f"\n#### `{setting.name}`\n\n{setting.documentation}\n\n{' · '.join(facts)}\n"


def _default(setting: Setting) -> str:
    text = render(setting.default)
    if text is None:
        return "none"
    if text == _LONG_MAX:
        return f"`{text}` (no limit)"
    return f"`{text}`" if text else "empty"


if __name__ == "__main__":
    sys.stdout.write(render_page())
