"""The way to a broker, through librdkafka.

librdkafka retries silently for as long as it is let. A command-line user wants the opposite: one
sentence, soon, that says why the broker cannot be reached. So its log is off, its error events are
collected in a `Troubles`, and calls that block inside the library run in a thread while this one
keeps time, serves events and stays open to Ctrl-C.
"""

import re
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

from anabranch.cli.client_properties import load_client_properties
from anabranch.cli.errors import CliError, kafka_error_of, reason_of
from anabranch.cli.options import BOOTSTRAP_SERVER_DEFAULT, Connection

if TYPE_CHECKING:
    from concurrent.futures import Future

    from confluent_kafka import KafkaError
    from confluent_kafka.admin import AdminClient, ClusterMetadata

_POLL_S: Final = 0.05
# A host such as `localhost` has several addresses, tried one after the other, and a broker may be
# just starting: a refusal counts only when it lasts.
_REFUSED_GRACE_S: Final = 1.5
_LASTING: Final = frozenset({"_TRANSPORT", "_RESOLVE", "_AUTHENTICATION", "_SSL", "_BAD_MSG"})
_ATTEMPT_DETAILS = re.compile(r"\s*\((?:after \d+ms in state \w+|retrying)[^)]*\)")
_BROKER_PREFIX = re.compile(r"^(?:\[thrd:[^\]]*\]: )?(?:[\w+]+://)?[^\s/]+/(?:bootstrap|\d+): ")

T = TypeVar("T")


class Troubles:
    """What went wrong on the way to the broker, as librdkafka's error events tell it."""

    def __init__(self) -> None:
        self.last_error: KafkaError | None = None
        self.first_seen_s: float | None = None

    def note(self, error: "KafkaError") -> None:
        """Take one error event (librdkafka's error_cb)."""
        if error.name() in _LASTING:
            self.last_error = error
            if self.first_seen_s is None:
                self.first_seen_s = time.monotonic()

    def forget(self) -> None:
        """The broker answered after all."""
        self.last_error = None
        self.first_seen_s = None

    def is_lasting(self) -> bool:
        """Whether the connection has failed for longer than a passing failure would."""
        return self.lasts_longer_than(_REFUSED_GRACE_S)

    def lasts_longer_than(self, duration_s: float) -> bool:
        return self.first_seen_s is not None and time.monotonic() - self.first_seen_s > duration_s


def client_config(connection: Connection, troubles: Troubles) -> dict[str, Any]:
    """librdkafka's configuration for this command line."""
    properties: dict[str, Any] = {}
    if connection.command_config is not None:
        properties |= load_client_properties(connection.command_config)
    if connection.bootstrap_server is not None:
        properties["bootstrap.servers"] = connection.bootstrap_server
    properties.setdefault("bootstrap.servers", BOOTSTRAP_SERVER_DEFAULT)
    properties.setdefault("client.id", "anabranch-cli")
    properties["error_cb"] = troubles.note
    if not connection.is_debug:
        properties["log_level"] = 0
    return properties


def create_client(factory: Callable[[dict[str, Any]], T], config: dict[str, Any]) -> T:
    """A librdkafka client; a property that it refuses is a CliError."""
    from confluent_kafka import KafkaException

    try:
        return factory(config)
    except KafkaException as exception:
        raise CliError(
            "Cannot set up the Kafka client",
            reason_of(kafka_error_of(exception)),
            "correct it in the --command-config file",
        ) from exception


def open_admin(connection: Connection) -> "tuple[AdminClient, ClusterMetadata]":
    """An admin client of a broker that has answered, and what it says the cluster has."""
    from confluent_kafka.admin import AdminClient

    troubles = Troubles()
    config = client_config(connection, troubles)
    config["socket.timeout.ms"] = max(10, int(connection.timeout_s * 1000))
    admin: AdminClient = create_client(AdminClient, config)
    return admin, fetch_metadata(admin, connection, config["bootstrap.servers"], troubles)


def fetch_metadata(
    client: Any, connection: Connection, bootstrap_servers: str, troubles: Troubles
) -> "ClusterMetadata":
    """All topics of the cluster, through any kind of client; CliError when nobody answers."""
    from confluent_kafka import KafkaException

    answers: list[ClusterMetadata | KafkaException] = []

    def ask() -> None:
        try:
            answers.append(client.list_topics(timeout=connection.timeout_s))
        except KafkaException as exception:
            answers.append(exception)

    asking = threading.Thread(target=ask, name="metadata", daemon=True)
    asking.start()
    deadline_s = time.monotonic() + connection.timeout_s
    while asking.is_alive():
        client.poll(_POLL_S)
        if time.monotonic() > deadline_s or troubles.is_lasting():
            break
    if not answers or isinstance(answers[0], KafkaException):
        raise unreachable(bootstrap_servers, connection, troubles)
    troubles.forget()
    return answers[0]


def result_of(future: "Future[T]", connection: Connection) -> T:
    """A future's result; the wait is a little longer than the library's own, which explains."""
    return future.result(timeout=connection.timeout_s + 5)


def unreachable(bootstrap_servers: str, connection: Connection, troubles: Troubles) -> CliError:
    """The sentence about a broker that cannot be reached."""
    error = troubles.last_error
    next_step = "start one with `anabranch serve`, or point --bootstrap-server at a running one"
    if error is None:
        why = f"no answer within {connection.timeout_s:g} s"
    elif error.name() == "_RESOLVE":
        why = "the host name cannot be resolved"
        next_step = "correct --bootstrap-server"
    elif error.name() == "_AUTHENTICATION":
        why = _trimmed(error)
        next_step = "check the credentials in --command-config"
    elif error.name() == "_SSL":
        why = _trimmed(error)
        next_step = "check the ssl.* settings in --command-config"
    elif error.name() == "_BAD_MSG" or "Invalid response size" in error.str():
        why = "what answers there does not speak Kafka's protocol without TLS"
        next_step = "correct --bootstrap-server, or set security.protocol in --command-config"
    elif "refused" in error.str():
        why = "the connection was refused, nothing listens there"
    else:
        why = _trimmed(error)
    return CliError(f"Cannot reach a broker at {bootstrap_servers}", why, next_step)


def _trimmed(error: "KafkaError") -> str:
    """librdkafka's text without broker names and attempt details."""
    return _BROKER_PREFIX.sub("", _ATTEMPT_DETAILS.sub("", error.str())).strip().rstrip(".:")
