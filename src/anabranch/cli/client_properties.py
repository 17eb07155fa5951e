"""Client properties from a file, turned from Java's names into librdkafka's.

Users have `client.properties` files for Kafka's own tools. Most names are the same in librdkafka;
this table holds those that differ, those that make no sense here, and the two that need a closer
look: the JAAS line and the key stores.
"""

import re
from pathlib import Path
from typing import Final

from anabranch.cli.errors import CliError

_RENAMED: Final = {
    "request.timeout.ms": "socket.timeout.ms",
    "send.buffer.bytes": "socket.send.buffer.bytes",
    "receive.buffer.bytes": "socket.receive.buffer.bytes",
    "metadata.max.age.ms": "topic.metadata.refresh.interval.ms",
    "ssl.truststore.certificates": "ssl.ca.pem",
    "ssl.keystore.certificate.chain": "ssl.certificate.pem",
    "ssl.keystore.key": "ssl.key.pem",
}

# Java's settings without a counterpart; a file shared with Java tools may well hold them.
_IGNORED: Final = frozenset(
    {
        "buffer.memory",
        "client.dns.lookup",
        "default.api.timeout.ms",
        "interceptor.classes",
        "key.deserializer",
        "key.serializer",
        "max.block.ms",
        "metric.reporters",
        "metrics.num.samples",
        "metrics.recording.level",
        "metrics.sample.window.ms",
        "partitioner.class",
        "sasl.client.callback.handler.class",
        "sasl.login.callback.handler.class",
        "sasl.login.class",
        "ssl.enabled.protocols",
        "ssl.keymanager.algorithm",
        "ssl.protocol",
        "ssl.provider",
        "ssl.secure.random.implementation",
        "ssl.truststore.password",
        "ssl.trustmanager.algorithm",
        "value.deserializer",
        "value.serializer",
    }
)

# Taken apart below rather than renamed.
_STORES: Final = frozenset(
    {
        "ssl.truststore.location",
        "ssl.truststore.type",
        "ssl.keystore.location",
        "ssl.keystore.type",
    }
)
_JAAS_VALUE = re.compile(r"""\b(username|password)\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s;"']+))""")


def load_client_properties(path: Path) -> dict[str, str]:
    """The file's settings under librdkafka's names; CliError when it cannot be used."""
    import javaproperties

    try:
        with path.open("rb") as file:
            given: dict[str, str] = javaproperties.load(file)
    except OSError as error:
        raise _unusable(path, error.strerror or str(error), "check the path") from None
    except (javaproperties.InvalidUEscapeError, ValueError) as error:
        raise _unusable(path, str(error), "correct that line") from None
    return translate(given, path)


def translate(given: dict[str, str], path: Path) -> dict[str, str]:
    """Java's names and values as librdkafka's."""
    result: dict[str, str] = {}
    for name, value in given.items():
        if name in _IGNORED or name in _STORES or name == "sasl.jaas.config":
            continue
        if name == "security.protocol":
            value = value.lower()
        elif name == "ssl.endpoint.identification.algorithm":
            value = value or "none"
        result[_RENAMED.get(name, name)] = value
    if "sasl.jaas.config" in given:
        result |= _credentials(given["sasl.jaas.config"], path)
    result |= _trust_store(given, path)
    result |= _key_store(given, path)
    return result


def _credentials(jaas: str, path: Path) -> dict[str, str]:
    found = {
        match[1]: match[2] or match[3] or match[4] or "" for match in _JAAS_VALUE.finditer(jaas)
    }
    if set(found) != {"username", "password"}:
        raise _unusable(
            path,
            "sasl.jaas.config names no username and password",
            'write it as ... required username="name" password="secret";',
        )
    return {"sasl.username": found["username"], "sasl.password": found["password"]}


def _trust_store(given: dict[str, str], path: Path) -> dict[str, str]:
    location = given.get("ssl.truststore.location")
    if location is None:
        return {}
    if given.get("ssl.truststore.type", "JKS").upper() != "PEM":
        raise _unusable(
            path,
            "librdkafka reads trusted certificates only from PEM files",
            f"export {location} with keytool, and set ssl.truststore.type=PEM",
        )
    return {"ssl.ca.location": location}


def _key_store(given: dict[str, str], path: Path) -> dict[str, str]:
    location = given.get("ssl.keystore.location")
    if location is None:
        return {}
    kind = given.get("ssl.keystore.type", "JKS").upper()
    if kind == "PEM":
        return {"ssl.certificate.location": location, "ssl.key.location": location}
    if kind == "PKCS12":
        return {"ssl.keystore.location": location}
    raise _unusable(
        path,
        "librdkafka reads keys only from PEM and PKCS12 files",
        f"convert {location} with keytool, and set ssl.keystore.type=PKCS12",
    )


def _unusable(path: Path, why: str, next_step: str) -> CliError:
    return CliError(f"Cannot use {path}", why, next_step)
