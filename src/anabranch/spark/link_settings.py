"""How to reach brokers: what of the `kafka.*` options concerns connections. Pure.

Names are Kafka's, and librdkafka's where Kafka has none for PEM files. What Python's TLS cannot
read (JKS and PKCS12 stores) and what is not spoken here (Kerberos, OAuth) is refused by its name:
a setting about security that is passed over in silence would be worse than an error.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from anabranch.spark.errors import OptionError

_DEFAULT_PORT = 9092
_CLIENT_ID = "anabranch-spark"
_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")

SECURITY_SETTINGS: Final = frozenset(
    {
        "security.protocol",
        "sasl.mechanism",
        "sasl.jaas.config",
        "sasl.username",
        "sasl.password",
        "ssl.ca.location",
        "ssl.ca.pem",
        "ssl.truststore.type",
        "ssl.truststore.location",
        "ssl.truststore.certificates",
        "ssl.certificate.location",
        "ssl.key.location",
        "ssl.key.password",
        "ssl.keystore.type",
        "ssl.keystore.location",
        "ssl.endpoint.identification.algorithm",
    }
)
"""What `security_of` reads; any other setting that begins with ssl. or sasl. is refused."""

CONNECTION_SETTINGS: Final = SECURITY_SETTINGS | {
    "bootstrap.servers",
    "client.id",
    "request.timeout.ms",
    "default.api.timeout.ms",
    "retry.backoff.ms",
    "retry.backoff.max.ms",
}
"""What `link_settings_of` reads, without the prefix `kafka.`."""


@dataclass(frozen=True, slots=True)
class Security:
    """How a connection is protected; plain data, so that it travels to executors."""

    has_tls: bool = False
    ca_file: str | None = None
    ca_pem: str | None = None
    certificate_file: str | None = None
    key_file: str | None = None
    key_password: str | None = field(default=None, repr=False)
    checks_host_name: bool = True
    sasl_mechanism: str | None = None
    username: str = ""
    password: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class LinkSettings:
    """What a link needs to know; equal settings share one link in a process."""

    servers: tuple[tuple[str, int], ...]
    client_id: str = _CLIENT_ID
    security: Security = Security()
    request_timeout_ms: int = 30_000
    api_timeout_ms: int = 60_000
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 1000


def link_settings_of(kafka: Mapping[str, str]) -> LinkSettings:
    """The settings in options whose prefix `kafka.` was taken off, in lower case."""
    if not kafka.get("bootstrap.servers", "").strip():
        raise OptionError(
            "option 'kafka.bootstrap.servers' must be set: the brokers to begin with, as"
            " host:port,host:port"
        )
    return LinkSettings(
        servers=_servers_of(kafka["bootstrap.servers"]),
        client_id=kafka.get("client.id", _CLIENT_ID),
        security=security_of(kafka),
        request_timeout_ms=positive_int(kafka, "request.timeout.ms", 30_000),
        api_timeout_ms=positive_int(kafka, "default.api.timeout.ms", 60_000),
        retry_backoff_ms=positive_int(kafka, "retry.backoff.ms", 100),
        retry_backoff_max_ms=positive_int(kafka, "retry.backoff.max.ms", 1000),
    )


def positive_int(kafka: Mapping[str, str], name: str, default: int) -> int:
    """A setting that is a number above 0."""
    text = kafka.get(name)
    if text is None:
        return default
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number <= 0:
        raise OptionError(f"option 'kafka.{name}' must be a number greater than 0, not {text!r}")
    return number


def _servers_of(text: str) -> tuple[tuple[str, int], ...]:
    servers = []
    for one in filter(None, (part.strip() for part in text.split(","))):
        host, separator, port = one.rpartition(":")
        if not separator or host.endswith(":"):
            host, port = one, str(_DEFAULT_PORT)
        if not port.isdigit() or not 0 < int(port) < 65_536:
            raise OptionError(f"option 'kafka.bootstrap.servers': {one!r} is not host:port")
        servers.append((host.strip("[]"), int(port)))
    return tuple(servers)


def security_of(kafka: Mapping[str, str]) -> Security:
    """How connections are protected; OptionError names what is not supported."""
    for name in kafka:
        if name.startswith(("ssl.", "sasl.")) and name not in SECURITY_SETTINGS:
            raise OptionError(
                f"option 'kafka.{name}' is not supported: this source speaks TLS with PEM files"
                " (kafka.ssl.ca.location, kafka.ssl.certificate.location, kafka.ssl.key.location)"
                f" and SASL {', '.join(_MECHANISMS)}"
            )
    protocol = kafka.get("security.protocol", "PLAINTEXT").upper()
    if protocol not in _PROTOCOLS:
        raise OptionError(
            f"option 'kafka.security.protocol' is one of {', '.join(_PROTOCOLS)}, not {protocol!r}"
        )
    has_tls, has_sasl = protocol.endswith("SSL"), protocol.startswith("SASL")
    for prefix, is_used, wanted in (("ssl.", has_tls, "SSL"), ("sasl.", has_sasl, "SASL_SSL")):
        unused = sorted(name for name in kafka if name.startswith(prefix))
        if unused and not is_used:
            raise OptionError(
                f"option 'kafka.{unused[0]}' has no effect with kafka.security.protocol={protocol};"
                f" set kafka.security.protocol={wanted}"
            )
    ca_file, ca_pem, certificate_file, key_file = _pem_of(kafka)
    mechanism, username, password = _sasl_of(kafka) if has_sasl else (None, "", "")
    return Security(
        has_tls=has_tls,
        ca_file=ca_file,
        ca_pem=ca_pem,
        certificate_file=certificate_file,
        key_file=key_file,
        key_password=kafka.get("ssl.key.password"),
        checks_host_name=_checks_host_name(kafka),
        sasl_mechanism=mechanism,
        username=username,
        password=password,
    )


def _pem_of(
    kafka: Mapping[str, str],
) -> tuple[str | None, str | None, str | None, str | None]:
    """Files of authorities, authorities as text, files of the certificate and of its key."""
    for store in ("truststore", "keystore"):
        kind = kafka.get(f"ssl.{store}.type", "PEM" if f"ssl.{store}.location" not in kafka else "")
        if kind.upper() != "PEM":
            raise OptionError(
                f"option 'kafka.ssl.{store}.type' must be PEM, not {kind or 'JKS'}: Python reads"
                f" PEM files only; export the store with keytool and openssl, and set"
                f" kafka.ssl.{store}.type=PEM with kafka.ssl.{store}.location naming the PEM file"
            )
    ca_file = kafka.get("ssl.ca.location") or kafka.get("ssl.truststore.location")
    ca_pem = kafka.get("ssl.ca.pem") or kafka.get("ssl.truststore.certificates")
    certificate_file = kafka.get("ssl.certificate.location") or kafka.get("ssl.keystore.location")
    key_file = kafka.get("ssl.key.location")
    if key_file and not certificate_file:
        raise OptionError("option 'kafka.ssl.key.location' needs kafka.ssl.certificate.location")
    return ca_file, ca_pem, certificate_file, key_file


def _checks_host_name(kafka: Mapping[str, str]) -> bool:
    name = "ssl.endpoint.identification.algorithm"
    algorithm = kafka.get(name, "https").strip().lower()
    if algorithm not in ("https", "", "none"):
        raise OptionError(f"option 'kafka.{name}' is https or empty, not {algorithm!r}")
    return algorithm == "https"


_JAAS_ENTRY = re.compile(r"""(username|password)\s*=\s*("([^"\\]|\\.)*"|'([^'\\]|\\.)*')""")
_JAAS_MODULES = {"PlainLoginModule": ("PLAIN",), "ScramLoginModule": _MECHANISMS[1:]}


def _sasl_of(kafka: Mapping[str, str]) -> tuple[str, str, str]:
    """Mechanism, user name and password, which may stand in a JAAS entry as Java has it."""
    mechanism = kafka.get("sasl.mechanism", "GSSAPI").upper()
    if mechanism not in _MECHANISMS:
        raise OptionError(
            f"option 'kafka.sasl.mechanism' is one of {', '.join(_MECHANISMS)}, not {mechanism}:"
            " this source speaks no Kerberos and no OAuth"
        )
    jaas = kafka.get("sasl.jaas.config")
    username, password = kafka.get("sasl.username"), kafka.get("sasl.password")
    if jaas is not None:
        module = next((name for name in _JAAS_MODULES if name in jaas), None)
        if module is None or mechanism not in _JAAS_MODULES[module]:
            raise OptionError(
                "option 'kafka.sasl.jaas.config' must have the login module of"
                f" kafka.sasl.mechanism={mechanism}: PlainLoginModule or ScramLoginModule"
            )
        entries = {
            found[1]: re.sub(r"\\(.)", r"\1", found[2][1:-1])
            for found in _JAAS_ENTRY.finditer(jaas)
        }
        username, password = entries.get("username"), entries.get("password")
    if username is None or password is None:
        raise OptionError(
            "SASL needs a user name and a password: set kafka.sasl.username and"
            " kafka.sasl.password, or both in kafka.sasl.jaas.config"
        )
    return mechanism, username, password
