"""Where the broker listens and what clients are told to connect to.

`listeners` and `advertised.listeners` are the settings people get wrong most often, so every
mistake has its own sentence.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from anabranch.config.settings import ConfigError, Settings

_EVERY_INTERFACE = ("", "0.0.0.0", "::")
_EXAMPLE = "Write it as PLAINTEXT://localhost:9092."


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One entry of `listeners` or `advertised.listeners`. An empty host means every interface."""

    name: str
    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.name}://{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Listener:
    """A socket to open, and where clients that use it are told to find the broker."""

    name: str
    protocol: str
    host: str
    port: int
    advertised_host: str | None
    """None when `advertised.listeners` leaves this listener out."""
    advertised_port: int

    def bound_to(self, port: int) -> "Listener":
        """The listener once its socket is open: port 0 has become a real one."""
        return replace(self, port=port, advertised_port=self.advertised_port or port)


def resolve_listeners(
    settings: Settings, *, hostname: Callable[[], str] | None = None
) -> tuple[Listener, ...]:
    """The listeners to open; raises `ConfigError` when they make no sense."""
    advertised: dict[str, Endpoint] | None = None
    if settings.value("advertised.listeners") is not None:
        endpoints = parse_endpoints(settings, "advertised.listeners")
        advertised = {endpoint.name: endpoint for endpoint in endpoints}
    if advertised is not None and not settings.is_set("listeners"):
        bound = tuple(replace(endpoint, host="") for endpoint in advertised.values())
    else:
        bound = parse_endpoints(settings, "listeners")

    controllers = {name.upper() for name in settings.get_list("controller.listener.names")}
    bound = tuple(endpoint for endpoint in bound if endpoint.name not in controllers)
    if not bound:
        raise ConfigError(
            f"{_place(settings)} only controller listeners, so no client could connect. Add one "
            f"for clients. {_EXAMPLE}"
        )
    _check_ports(settings, bound)
    if advertised is not None:
        _check_advertised(settings, advertised, bound, controllers)

    protocols = _protocol_map(settings)
    return tuple(
        Listener(
            name=endpoint.name,
            protocol=_protocol_of(settings, endpoint, protocols),
            host=endpoint.host,
            port=endpoint.port,
            advertised_host=_reachable_host(shown, hostname) if shown else None,
            advertised_port=shown.port if shown else 0,
        )
        for endpoint in bound
        for shown in (endpoint if advertised is None else advertised.get(endpoint.name),)
    )


def _place(settings: Settings) -> str:
    """The setting that the listeners to open were taken from, as a sentence begins."""
    key = "listeners"
    if not settings.is_set(key) and settings.is_set("advertised.listeners"):
        key = "advertised.listeners"
    return f"{settings.source(key)}: {key} has"


def parse_endpoints(settings: Settings, key: str) -> tuple[Endpoint, ...]:
    """The entries of one of the two settings; names are upper case, as Kafka makes them."""
    endpoints: dict[str, Endpoint] = {}
    for entry in settings.get_list(key):
        where = f"{settings.source(key)}: {key} has {entry!r}"
        endpoint = _parse_endpoint(entry, where)
        if endpoint.name in endpoints:
            raise ConfigError(
                f"{where}, but the name {endpoint.name} is taken by {endpoints[endpoint.name]}. "
                "Give each listener its own name and map it to a protocol with "
                "listener.security.protocol.map."
            )
        endpoints[endpoint.name] = endpoint
    return tuple(endpoints.values())


def _parse_endpoint(entry: str, where: str) -> Endpoint:
    name, separator, address = entry.partition("://")
    if not separator or not name:
        raise ConfigError(f"{where}, which has no name and '://' before the host. {_EXAMPLE}")
    if address.startswith("["):
        host, bracket, port_text = address[1:].partition("]")
        if not bracket:
            raise ConfigError(f"{where}, which has no ']' after the IPv6 address. {_EXAMPLE}")
        colon, port_text = port_text[:1], port_text[1:]
    else:
        host, colon, port_text = address.rpartition(":")
        if ":" in host:
            raise ConfigError(
                f"{where}, which has several colons. Put an IPv6 address in brackets, as in "
                "PLAINTEXT://[::1]:9092."
            )
    if colon != ":" or not port_text:
        raise ConfigError(f"{where}, which has no port. {_EXAMPLE}")
    is_number = port_text.isascii() and port_text.isdigit() and len(port_text) <= 5
    if not is_number or int(port_text) > 65535:
        raise ConfigError(
            f"{where}, where {port_text!r} is not a port. Use a number from 1 to 65535, or 0 for "
            "any free port."
        )
    if any(character in host for character in " /@?#"):
        raise ConfigError(f"{where}, where {host!r} is not a host. {_EXAMPLE}")
    return Endpoint(name.upper(), host, int(port_text))


def _check_ports(settings: Settings, endpoints: Iterable[Endpoint]) -> None:
    """Two listeners on one port work only as an IPv4 and an IPv6 address, as in Kafka."""
    by_port: dict[int, Endpoint] = {}
    for endpoint in endpoints:
        other = by_port.setdefault(endpoint.port, endpoint)
        if other is endpoint or endpoint.port == 0:
            continue
        if {_ip_version(endpoint.host), _ip_version(other.host)} != {4, 6}:
            raise ConfigError(
                f"{_place(settings)} {other} and {endpoint} on the same port. Give each its own "
                "port, or make one an IPv4 address and the other an IPv6 address."
            )


def _ip_version(host: str) -> int:
    from ipaddress import ip_address  # only listeners that share a port pay for this import

    try:
        return ip_address(host).version
    except ValueError:
        return 0


def _check_advertised(
    settings: Settings,
    advertised: dict[str, Endpoint],
    bound: tuple[Endpoint, ...],
    controllers: set[str],
) -> None:
    where = f"{settings.source('advertised.listeners')}: advertised.listeners has"
    names = {endpoint.name for endpoint in bound}
    for endpoint in advertised.values():
        if endpoint.name in controllers:
            continue
        if endpoint.name not in names:
            raise ConfigError(
                f"{where} {endpoint}, but listeners has no {endpoint.name}. "
                f"Use one of {', '.join(sorted(names))}, or add it to listeners."
            )
        if endpoint.host in ("0.0.0.0", "::"):
            raise ConfigError(
                f"{where} {endpoint}, which no client can connect to. Give the host name or "
                "address under which clients reach this machine."
            )
    if not names & advertised.keys():
        raise ConfigError(
            f"{where} no listener for clients. Add one of {', '.join(sorted(names))}."
        )


def _protocol_map(settings: Settings) -> dict[str, str]:
    key = "listener.security.protocol.map"
    protocols: dict[str, str] = {}
    for pair in settings.get_str(key).split(","):
        name, colon, protocol = (part.strip().upper() for part in pair.partition(":"))
        if not name and not protocol:
            continue
        if not colon or not name or not protocol:
            raise ConfigError(
                f"{settings.source(key)}: {key} has {pair.strip()!r}, which is not a pair. "
                "Write it as NAME:PLAINTEXT."
            )
        protocols[name] = protocol
    return protocols


def _protocol_of(settings: Settings, endpoint: Endpoint, protocols: dict[str, str]) -> str:
    where = f"{_place(settings)} {endpoint}"
    protocol = protocols.get(endpoint.name)
    if protocol is None:
        raise ConfigError(
            f"{where}, but {endpoint.name} is no security protocol and "
            f"listener.security.protocol.map does not name it. Add {endpoint.name}:PLAINTEXT "
            "there, or call the listener PLAINTEXT."
        )
    if protocol != "PLAINTEXT":
        raise ConfigError(
            f"{where} with the security protocol {protocol}, which this broker does not serve. "
            "Use PLAINTEXT on a network you trust."
        )
    return protocol


def _reachable_host(endpoint: Endpoint, hostname: Callable[[], str] | None) -> str:
    if endpoint.host not in _EVERY_INTERFACE:
        return endpoint.host
    if hostname is not None:
        return hostname()
    import socket  # a configuration that names its hosts does without it

    return socket.gethostname()
