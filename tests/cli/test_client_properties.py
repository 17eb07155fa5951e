"""Client properties files of Kafka's own tools, as librdkafka understands them."""

from collections.abc import Callable
from pathlib import Path

import pytest

from anabranch.cli.client_properties import load_client_properties
from anabranch.cli.connection import Troubles, client_config
from anabranch.cli.errors import CliError
from anabranch.cli.options import Connection


@pytest.fixture
def load(tmp_path: Path) -> Callable[[str], dict[str, str]]:
    def load_text(text: str) -> dict[str, str]:
        path = tmp_path / "client.properties"
        path.write_text(text, encoding="latin-1")
        return load_client_properties(path)

    return load_text


def test_sasl(load: Callable) -> None:
    """The JAAS line becomes user name and password, the protocol's name is lowered."""
    assert load(
        "security.protocol=SASL_PLAINTEXT\n"
        "sasl.mechanism = SCRAM-SHA-256\n"
        "# a comment\n"
        "sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required \\\n"
        '  username="alice" password="se=cr;et";\n'
    ) == {
        "security.protocol": "sasl_plaintext",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.username": "alice",
        "sasl.password": "se=cr;et",
    }


def test_stores(load: Callable) -> None:
    """PEM and PKCS12 stores get librdkafka's names."""
    assert load(
        "ssl.truststore.type=PEM\nssl.truststore.location=/ca.pem\nssl.truststore.password=x\n"
        "ssl.keystore.type=PKCS12\nssl.keystore.location=/k.p12\nssl.keystore.password=y\n"
        "ssl.endpoint.identification.algorithm=\n"
    ) == {
        "ssl.ca.location": "/ca.pem",
        "ssl.keystore.location": "/k.p12",
        "ssl.keystore.password": "y",
        "ssl.endpoint.identification.algorithm": "none",
    }
    assert load("ssl.keystore.type=PEM\nssl.keystore.location=/k.pem\n") == {
        "ssl.certificate.location": "/k.pem",
        "ssl.key.location": "/k.pem",
    }


def test_renamed_and_ignored(load: Callable) -> None:
    """What librdkafka calls otherwise is renamed, what only Java knows is left out."""
    assert load(
        "request.timeout.ms=5000\nkey.serializer=X\ndefault.api.timeout.ms=1\nclient.id=me\n"
    ) == {"socket.timeout.ms": "5000", "client.id": "me"}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("ssl.truststore.location=/trust.jks\n", "only from PEM files"),
        ("ssl.keystore.location=/key.jks\n", "only from PEM and PKCS12"),
        ("sasl.jaas.config=Module required;\n", "names no username and password"),
        ("a=\\u12\n", "correct that line"),
    ],
)
def test_what_cannot_be_used_is_told(load: Callable, text: str, why: str) -> None:
    """A store or line that librdkafka cannot use is refused with the way out."""
    with pytest.raises(CliError, match="Cannot use ") as caught:
        load(text)
    assert why in str(caught.value)


def test_a_refused_property_is_named(run: Callable, tmp_path: Path) -> None:
    """A property that librdkafka does not know ends in a sentence with its name."""
    path = tmp_path / "client.properties"
    path.write_text("no.such.property=1\n")
    result = run("topics", "list", "--command-config", path)
    assert result.code == 1
    assert result.err == (
        "error: Cannot set up the Kafka client - no such configuration property:"
        ' "no.such.property" - correct it in the --command-config file\n'
    )


@pytest.mark.parametrize(
    ("flag", "in_file", "server"),
    [
        ("flag:1", "file:1", "flag:1"),
        (None, "file:1", "file:1"),
        (None, None, "localhost:9092"),
    ],
)
def test_which_server_counts(
    tmp_path: Path, flag: str | None, in_file: str | None, server: str
) -> None:
    """The flag counts before the file, the file before the default."""
    path = tmp_path / "client.properties"
    path.write_text(f"bootstrap.servers={in_file}\n" if in_file else "")
    connection = Connection(bootstrap_server=flag, command_config=path, timeout_s=1, is_debug=False)
    assert client_config(connection, Troubles())["bootstrap.servers"] == server
