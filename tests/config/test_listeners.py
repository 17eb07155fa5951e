"""Listeners: what is opened, what clients are told, and the mistakes people make."""

import pytest

from anabranch.config.listeners import Listener, resolve_listeners
from anabranch.config.load import ConfigError, load_settings


def listeners(*overrides: str) -> tuple[Listener, ...]:
    settings = load_settings(environ={}, overrides=overrides)
    return resolve_listeners(settings, hostname=lambda: "this-host")


def only(*overrides: str) -> Listener:
    (listener,) = listeners(*overrides)
    return listener


def test_the_default_stays_on_this_machine() -> None:
    """A broker without authentication must be asked before it opens itself to a network."""
    listener = only()
    assert (listener.name, listener.protocol) == ("PLAINTEXT", "PLAINTEXT")
    assert (listener.host, listener.port) == ("localhost", 9092)
    assert (listener.advertised_host, listener.advertised_port) == ("localhost", 9092)


@pytest.mark.parametrize("host", ["", "0.0.0.0", "[::]"])
def test_every_interface_is_advertised_as_the_host_name(host: str) -> None:
    """Clients cannot connect to 0.0.0.0, so they are told the name of the machine."""
    listener = only(f"listeners=PLAINTEXT://{host}:9092")
    assert listener.host == host.strip("[]")
    assert listener.advertised_host == "this-host"


def test_the_host_name_is_this_machines() -> None:
    """Without a stand-in the name comes from the system."""
    settings = load_settings(environ={}, overrides=["listeners=PLAINTEXT://:9092"])
    (listener,) = resolve_listeners(settings)
    assert listener.advertised_host


def test_an_advertised_address_is_told_as_it_is() -> None:
    """Host and port may both differ from those that are bound."""
    listener = only(
        "listeners=PLAINTEXT://0.0.0.0:9092", "advertised.listeners=PLAINTEXT://example.org:19092"
    )
    assert (listener.host, listener.port) == ("0.0.0.0", 9092)
    assert (listener.advertised_host, listener.advertised_port) == ("example.org", 19092)


def test_advertised_alone_opens_every_interface() -> None:
    """As the official image does it, so that one variable is enough in a container."""
    listener = only("advertised.listeners=PLAINTEXT://example.org:9094")
    assert (listener.host, listener.port) == ("", 9094)
    assert listener.advertised_host == "example.org"


def test_port_zero_becomes_the_bound_port() -> None:
    """Tests let the system choose a port, and clients are told the one it chose."""
    listener = only("listeners=PLAINTEXT://127.0.0.1:0").bound_to(54321)
    assert (listener.port, listener.advertised_port) == (54321, 54321)
    fixed = only("listeners=PLAINTEXT://:0", "advertised.listeners=PLAINTEXT://h:7").bound_to(5)
    assert (fixed.port, fixed.advertised_port) == (5, 7)


def test_several_listeners_with_names_of_their_own() -> None:
    """Names are mapped to protocols, case does not matter, port 0 may be there twice."""
    inside, outside = listeners(
        "listeners=inside://127.0.0.1:0,OUTSIDE://:0",
        "advertised.listeners=OUTSIDE://example.org:9092",
        "listener.security.protocol.map=INSIDE:PLAINTEXT, OUTSIDE:plaintext",
    )
    assert (inside.name, inside.advertised_host) == ("INSIDE", None)
    assert (outside.name, outside.advertised_host) == ("OUTSIDE", "example.org")


def test_one_port_may_serve_ipv4_and_ipv6() -> None:
    """Kafka's one exception to a port per listener."""
    four, six = listeners(
        "listeners=A://127.0.0.1:9092,B://[::1]:9092",
        "listener.security.protocol.map=A:PLAINTEXT,B:PLAINTEXT",
    )
    assert (four.host, six.host) == ("127.0.0.1", "::1")


def test_controller_listeners_are_not_opened() -> None:
    """They belong to a part of Kafka that this broker does not have."""
    listener = only(
        "listeners=PLAINTEXT://:9092,CONTROLLER://:9093", "controller.listener.names=CONTROLLER"
    )
    assert listener.port == 9092


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["listeners=localhost:9092"], "has no name and '://'"),
        (["listeners=://localhost:9092"], "has no name and '://'"),
        (["listeners=PLAINTEXT://localhost"], "has no port"),
        (["listeners=PLAINTEXT://localhost:"], "has no port"),
        (["listeners=PLAINTEXT://[::1]"], "has no port"),
        (["listeners=PLAINTEXT://[::1:9092"], "has no ']'"),
        (["listeners=PLAINTEXT://::1:9092"], "Put an IPv6 address in brackets"),
        (["listeners=PLAINTEXT://localhost:kafka"], "'kafka' is not a port"),
        (["listeners=PLAINTEXT://localhost:65536"], "'65536' is not a port"),
        ([f"listeners=PLAINTEXT://localhost:{'9' * 5000}"], "is not a port"),
        (["listeners=PLAINTEXT://localhost:-1"], "'-1' is not a port"),
        (["listeners=PLAINTEXT://local host:9092"], "'local host' is not a host"),
        (["listeners=PLAINTEXT://http://localhost:9092"], "several colons"),
        (["listeners="], "the list must not be empty"),
        (["listeners=PLAINTEXT://:1,PLAINTEXT://:2"], "the name PLAINTEXT is taken"),
        (["listeners=PLAINTEXT://:1,plaintext://:2"], "the name PLAINTEXT is taken"),
        (
            [
                "listeners=A://:9092,B://127.0.0.1:9092",
                "listener.security.protocol.map=A:PLAINTEXT,B:PLAINTEXT",
            ],
            "on the same port",
        ),
        (["listeners=SSL://:9092"], "SSL, which this broker does not serve"),
        (["listeners=SASL_PLAINTEXT://:9092"], "this broker does not serve"),
        (["listeners=HTTP://:9092"], "Add HTTP:PLAINTEXT"),
        (["listener.security.protocol.map=PLAINTEXT"], "is not a pair"),
        (["advertised.listeners=PLAINTEXT://0.0.0.0:9092"], "no client can connect to"),
        (
            ["listeners=PLAINTEXT://:9092", "advertised.listeners=OTHER://h:9092"],
            "listeners has no OTHER",
        ),
        (
            ["listeners=CONTROLLER://:9093", "controller.listener.names=CONTROLLER"],
            "only controller listeners",
        ),
        (
            [
                "listeners=PLAINTEXT://:9092,CONTROLLER://:9093",
                "advertised.listeners=CONTROLLER://h:9093",
                "controller.listener.names=CONTROLLER",
            ],
            "no listener for clients",
        ),
    ],
)
def test_a_mistake_has_its_own_sentence(overrides: list[str], sentence: str) -> None:
    """Loading refuses listeners that make no sense, naming the setting and the next step."""
    with pytest.raises(ConfigError) as caught:
        load_settings(environ={}, overrides=overrides)
    assert sentence in str(caught.value)
    assert str(caught.value).startswith("--override: ")
