"""Checks of brokers: can they be reached, do they tell the right address, are they set up well?"""

import http.client
import ipaddress
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, Final

from anabranch.cli.connection import Troubles, client_config
from anabranch.cli.doctor.findings import Finding, ok, problem, skipped, warning
from anabranch.cli.errors import CliError
from anabranch.cli.groups.consumer_details import can_ask
from anabranch.cli.options import Connection
from anabranch.cli.raw_client import RawClient, bootstrap_places
from anabranch.wire.messages.consumer_group_heartbeat import CONSUMER_GROUP_HEARTBEAT
from anabranch.wire.messages.fetch import FETCH

if TYPE_CHECKING:
    from anabranch.cli.configs.resources import Cluster, Entry

_CLOCK_WARNING_S: Final = 2.0
_CLOCK_PROBLEM_S: Final = 60.0
_FETCH_WITH_BATCHES: Final = 4  # Kafka 0.11: record batches, transactions, headers
_PROBE_S: Final = 2.0
_SESSION_BOUNDS: Final = ("group.min.session.timeout.ms", "group.max.session.timeout.ms")
_GROUP_BOUNDS: Final = (
    "group.consumer.min.session.timeout.ms",
    "group.consumer.max.session.timeout.ms",
)
_GROUP_SESSION: Final = "consumer.session.timeout.ms"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a broker says that it is."""

    broker: int
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def check_reachable(cluster: "Cluster") -> Finding:
    count = len(cluster.metadata.brokers)
    return ok("reachable", f"{count} broker answers" if count == 1 else f"{count} brokers answer")


def places_of(cluster: "Cluster") -> list[Place]:
    brokers: Any = cluster.metadata.brokers
    return [Place(one.id, one.host, one.port) for _, one in sorted(brokers.items())]


# Advertised addresses ---------------------------------------------------------------------------


def check_advertised(connection: Connection, places: list[Place]) -> Iterator[Finding]:
    """The classic trap: the first connection works, and the address that it tells does not."""
    asked = bootstrap_places(connection)
    for place in places:
        yield _advertised(place, asked)


def _advertised(place: Place, asked: list[tuple[str, int]]) -> Finding:
    check, subject = "advertised-listeners", f"broker {place.broker}"
    advice = "set advertised.listeners of the broker to a name that its clients can reach"
    if place.host in ("0.0.0.0", "::", ""):
        return problem(
            check,
            subject,
            f"it tells clients to come to {place}",
            why="that is no address of any machine",
            next_step=advice,
        )
    came_by = ", ".join(f"{host}:{port}" for host, port in asked)
    if is_loopback(place.host) and not any(is_loopback(host) for host, _ in asked):
        return problem(
            check,
            subject,
            f"it tells clients to come to {place}",
            why=f"from another machine that is the client itself, and we came by {came_by}",
            next_step=advice,
        )
    try:
        socket.create_connection((place.host, place.port), _PROBE_S).close()
    except socket.gaierror:
        return problem(
            check,
            subject,
            f"it tells clients to come to {place}",
            why=f"the name {place.host!r} cannot be resolved from here",
            next_step=f"{advice}, or make the name known here",
        )
    except OSError as error:
        return problem(
            check,
            subject,
            f"it tells clients to come to {place}",
            why=f"nobody can be reached there from here ({error.strerror or error})",
            next_step=advice,
        )
    return ok(check, f"{place} can be reached from here", subject)


def is_loopback(host: str) -> bool:
    """Whether a host is the machine itself, whoever asks."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


# Versions ---------------------------------------------------------------------------------------


def check_versions(connection: Connection, places: list[Place]) -> Iterator[Finding]:
    check = "api-versions"
    if not can_ask(connection):
        yield skipped(check, "it is asked without TLS and SASL only")
        return
    for place in places:
        try:
            with RawClient(place.host, place.port, connection.timeout_s) as client:
                served = client.served
        except CliError as error:
            yield skipped(check, f"broker {place.broker} does not answer: {error.why}")
            continue
        yield judge_versions(f"broker {place.broker}", served)


def judge_versions(subject: str, served: dict[int, tuple[int, int]]) -> Finding:
    check = "api-versions"
    if served.get(FETCH.key, (0, -1))[1] < _FETCH_WITH_BATCHES:
        return problem(
            check,
            subject,
            "it is older than Kafka 0.11",
            why="clients of today do not speak with it",
            next_step="update it",
        )
    if CONSUMER_GROUP_HEARTBEAT.key not in served:
        return warning(
            check,
            subject,
            "it has no consumer groups of KIP-848",
            why="groups stop for every rebalance there, and group.protocol=consumer fails",
            next_step="update it, or add consumer to group.coordinator.rebalance.protocols",
        )
    return ok(check, f"{len(served)} APIs, with consumer groups of KIP-848", subject)


# Clocks -----------------------------------------------------------------------------------------


def check_clock(
    connection: Connection, places: list[Place], configs: "dict[str, Entry]", newest_ms: int | None
) -> Finding:
    """By the date that its HTTP listener tells, or else by the newest record of the broker's own.

    The second shows only a clock that is ahead.
    """
    for host, port in _http_places(places, configs):
        told_s = _http_date_s(host, port)
        if told_s is not None:
            return judge_clock(told_s - time.time(), precision_s=1.0)
    if newest_ms is not None and newest_ms / 1000 - time.time() > _CLOCK_WARNING_S:
        return judge_clock(newest_ms / 1000 - time.time(), precision_s=0.0)
    if newest_ms is not None:
        return ok("clock", "no record of the broker is from the future")
    return skipped("clock", "the broker tells its time nowhere", "set console.listeners")


def judge_clock(ahead_s: float, *, precision_s: float) -> Finding:
    """`precision_s`: what was told may be so much older than the moment of its telling."""
    off_s = ahead_s if ahead_s > 0 else min(0.0, ahead_s + precision_s)
    word = "ahead of" if off_s > 0 else "behind"
    what = f"the broker's clock is {abs(off_s):.1f} s {word} this one"
    if abs(off_s) < _CLOCK_WARNING_S:
        return ok(
            "clock", f"the broker's clock and this one differ by less than {_CLOCK_WARNING_S:g} s"
        )
    tell = problem if abs(off_s) >= _CLOCK_PROBLEM_S else warning
    return tell(
        "clock",
        None,
        what,
        why="retention, --from with a time and ages of records go by the clocks of both",
        next_step="have both machines keep time with NTP (chrony, systemd-timesyncd)",
    )


def _http_places(places: list[Place], configs: "dict[str, Entry]") -> Iterator[tuple[str, int]]:
    entry = configs.get("console.listeners")
    if entry is None or not entry.value:
        return
    for address in entry.value.split(","):
        host, _, port = address.rpartition(":")
        if not port.isdecimal() or port == "0":
            continue
        for place in places[:1]:
            # On every interface, or on the broker's own machine, which then is this one.
            bare = host.strip("[]")
            if not bare or bare == "0.0.0.0" or not is_loopback(bare) or is_loopback(place.host):
                yield (place.host if bare in ("", "0.0.0.0", "::") else bare), int(port)


def _http_date_s(host: str, port: int) -> float | None:
    connection = http.client.HTTPConnection(host, port, timeout=_PROBE_S)
    try:
        connection.request("GET", "/health")
        date = connection.getresponse().getheader("Date")
        return None if date is None else parsedate_to_datetime(date).timestamp()
    except (OSError, http.client.HTTPException, ValueError):
        return None
    finally:
        connection.close()


# Settings ---------------------------------------------------------------------------------------


def check_auto_create(configs: "dict[str, Entry]") -> Finding:
    entry = configs.get("auto.create.topics.enable")
    if entry is None or entry.value != "true":
        return ok("auto-create", "topics are made on purpose only")
    return warning(
        "auto-create",
        None,
        "auto.create.topics.enable is true",
        why="a typo in a topic's name makes a topic, with the default number of partitions",
        next_step="set auto.create.topics.enable=false where it is not a machine for development",
    )


def check_client_session(connection: Connection, configs: "dict[str, Entry]") -> Finding:
    """The session timeout of --command-config, which may be a consumer's own file."""
    check = "session-timeout"
    given = client_config(connection, Troubles()).get("session.timeout.ms")
    low, high = (_number(configs, name) for name in _SESSION_BOUNDS)
    if given is None or low is None or high is None:
        return ok(check, f"consumers may have {low} to {high} ms")
    if low <= int(given) <= high:
        return ok(check, f"{given} ms is within {low} to {high}", str(connection.command_config))
    return problem(
        check,
        str(connection.command_config),
        f"session.timeout.ms={given} is outside of what the broker takes",
        why=f"it takes {low} to {high}, and refuses the consumer with INVALID_SESSION_TIMEOUT",
        next_step="change it in the file, or group.max.session.timeout.ms of the broker",
    )


def check_group_session(
    group: str, own: "dict[str, Entry]", configs: "dict[str, Entry]"
) -> Finding | None:
    """A group whose own session timeout the broker does not keep to."""
    entry = own.get(_GROUP_SESSION)
    low, high = (_number(configs, name) for name in _GROUP_BOUNDS)
    if entry is None or entry.value is None or low is None or high is None:
        return None
    if low <= int(entry.value) <= high:
        return None
    return problem(
        "session-timeout",
        group,
        f"its {_GROUP_SESSION}={entry.value} is outside of what the broker takes",
        why=f"the broker keeps to {low} to {high}",
        next_step=f"run `anabranch configs alter --group {group} --set {_GROUP_SESSION}=MS`, or"
        " change the broker's bounds",
    )


def _number(configs: "dict[str, Entry]", name: str) -> int | None:
    entry = configs.get(name)
    return None if entry is None or entry.value is None else int(entry.value)
