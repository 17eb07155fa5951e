"""Connections with TLS and SASL: that they work, and what a refusal says."""

import base64
import contextlib
import hashlib
import hmac
import shutil
import socket
import ssl
import struct
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from anabranch.spark.errors import BrokerRefusal, LinkBrokenError, LinkProtocolError
from anabranch.spark.link import Link
from anabranch.spark.link_connection import Connection
from anabranch.spark.link_sasl import (
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
    SaslAuthenticateResponse,
    SaslHandshakeResponse,
    scram_final,
    scram_first,
)
from anabranch.spark.link_settings import LinkSettings, link_settings_of
from anabranch.wire.header import read_request_header, skip_header_tags
from anabranch.wire.messages.api_versions import API_VERSIONS, ApiVersion, ApiVersionsResponse
from anabranch.wire.messages.metadata import METADATA, MetadataRequest
from support.broker_process import BrokerProcess

_SIZE = struct.Struct(">i")
_APIS = {api.key: api for api in (API_VERSIONS, SASL_HANDSHAKE, SASL_AUTHENTICATE)}


def test_scram_by_the_standards_example() -> None:
    """The exchange that RFC 7677 gives as an example."""
    nonce = "rOprNGfwEbeRWgbNEkqO"
    first = scram_first("user", nonce)
    challenge = (
        b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    )
    final, signature = scram_final("pencil", nonce, first, challenge, "sha256")
    assert first == b"n=user,r=rOprNGfwEbeRWgbNEkqO"
    assert final.endswith(b",p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=")
    assert signature == "6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    assert scram_first("a=b,c", "n") == b"n=a=3Db=2Cc,r=n"
    for nonsense in (b"", b"r=other,s=QQ==,i=4096", challenge.replace(b"4096", b"x")):
        with pytest.raises(LinkProtocolError, match="SCRAM challenge"):
            scram_final("pencil", nonce, first, nonsense, "sha256")


# A broker that asks who is there ------------------------------------------------------------------


class Guard:
    """Answers what a client sends until it is let in, with one user whose password is "secret"."""

    def __init__(self, mechanism: str, hash_name: str = "") -> None:
        self.mechanism = mechanism
        self._hash = hash_name
        self._challenge = b""
        self._first = b""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._listener.close()
        self._thread.join(10)

    def _serve(self) -> None:
        with contextlib.suppress(OSError, struct.error):
            connection, _ = self._listener.accept()
            with connection:
                while True:
                    (size,) = _SIZE.unpack(connection.recv(4, socket.MSG_WAITALL))
                    self._answer(connection, connection.recv(size, socket.MSG_WAITALL))

    def _answer(self, connection: socket.socket, frame: bytes) -> None:
        view = memoryview(frame)
        key, version, correlation_id, _, position = read_request_header(view)
        api = _APIS[key]
        if api.is_flexible(version):
            position = skip_header_tags(view, position)
        request, _ = api.decode_request(version)(view, position)
        parts = api.encode_response(version)(self._response(api, request))
        tags = b"\0" if api.has_tagged_response_header(version) else b""
        body = correlation_id.to_bytes(4, "big") + tags + b"".join(map(bytes, parts))
        connection.sendall(_SIZE.pack(len(body)) + body)

    def _response(self, api: Any, request: Any) -> Any:
        if api is API_VERSIONS:
            ranges = [(17, 0, 1), (18, 0, 3), (36, 0, 2)]
            return ApiVersionsResponse(
                api_keys=[ApiVersion(api_key=k, min_version=a, max_version=b) for k, a, b in ranges]
            )
        if api is SASL_HANDSHAKE:
            code = 0 if request.mechanism == self.mechanism else 33
            return SaslHandshakeResponse(error_code=code, mechanisms=[self.mechanism])
        try:
            answer = self._step(bytes(request.auth_bytes))
        except ValueError as error:
            return SaslAuthenticateResponse(error_code=58, error_message=str(error))
        return SaslAuthenticateResponse(auth_bytes=answer)

    def _step(self, token: bytes) -> bytes:
        if self.mechanism == "PLAIN":
            if token != b"\0user\0secret":
                raise ValueError("wrong password")
            return b""
        if not self._challenge:
            self._first = token.removeprefix(b"n,,")
            nonce = self._first.split(b"r=")[1]
            self._challenge = b"r=%sserver,s=c2FsdA==,i=4096" % nonce
            return self._challenge
        bare, _, proof = token.rpartition(b",p=")
        signed = b",".join([self._first, self._challenge, bare])
        salted = hashlib.pbkdf2_hmac(self._hash, b"secret", b"salt", 4096)
        client_key = hmac.digest(salted, b"Client Key", self._hash)
        stored = hashlib.new(self._hash, client_key).digest()
        expected = bytes(
            a ^ b for a, b in zip(client_key, hmac.digest(stored, signed, self._hash), strict=True)
        )
        if base64.b64decode(proof) != expected:
            raise ValueError("wrong password")
        server_key = hmac.digest(salted, b"Server Key", self._hash)
        return b"v=" + base64.b64encode(hmac.digest(server_key, signed, self._hash))


@pytest.fixture
def guarded() -> Iterator[Callable[..., Guard]]:
    made: list[Guard] = []

    def make(*arguments: str) -> Guard:
        made.append(Guard(*arguments))
        return made[-1]

    yield make
    for one in made:
        one.close()


def sasl_settings(port: int, mechanism: str, password: str = "secret") -> LinkSettings:
    return link_settings_of(
        {
            "bootstrap.servers": f"127.0.0.1:{port}",
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": mechanism,
            "sasl.username": "user",
            "sasl.password": password,
        }
    )


MECHANISMS = [("PLAIN", ""), ("SCRAM-SHA-256", "sha256"), ("SCRAM-SHA-512", "sha512")]


@pytest.mark.parametrize(("mechanism", "hash_name"), MECHANISMS)
def test_sasl(guarded: Callable[..., Guard], mechanism: str, hash_name: str) -> None:
    """Who knows the password is let in; who does not is told so, once, without trying again."""
    port = guarded(mechanism, hash_name).port
    Connection("127.0.0.1", port, sasl_settings(port, mechanism)).close()
    port = guarded(mechanism, hash_name).port
    link = Link(sasl_settings(port, mechanism, "guess"))
    with pytest.raises(BrokerRefusal, match="wrong password"):
        link.retrying("asking", lambda: link.topics(["x"]))


def test_another_mechanism(guarded: Callable[..., Guard]) -> None:
    """The refusal names what the broker offers, and the option."""
    port = guarded("SCRAM-SHA-512", "sha512").port
    with pytest.raises(BrokerRefusal, match=r"offers SCRAM-SHA-512.*kafka\.sasl\.mechanism"):
        Connection("127.0.0.1", port, sasl_settings(port, "PLAIN"))


# TLS ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    if shutil.which("openssl") is None:
        pytest.skip("no openssl in PATH to make a certificate with")
    folder = tmp_path_factory.mktemp("tls")
    key, chain = folder / "key.pem", folder / "chain.pem"
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost"
    names = ["-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(chain)]
    subprocess.run([*command.split(), *names], check=True, capture_output=True)
    return chain, key


@pytest.fixture
def tls_port(shared_broker: BrokerProcess, certificate: tuple[Path, Path]) -> Iterator[int]:
    """A port where a broker speaks TLS, by way of a proxy."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                plain, _ = listener.accept()
                with (
                    contextlib.suppress(OSError),
                    context.wrap_socket(plain, server_side=True) as front,
                    socket.create_connection(("127.0.0.1", shared_broker.port)) as back,
                ):
                    while request := front.recv(65536):
                        back.sendall(request)
                        front.sendall(back.recv(65536))

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield listener.getsockname()[1]
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join(10)


def tls_settings(port: int, **ssl_options: str) -> LinkSettings:
    given = {f"ssl.{name.replace('_', '.')}": value for name, value in ssl_options.items()}
    return link_settings_of(
        {"bootstrap.servers": f"localhost:{port}", "security.protocol": "SSL", **given}
    )


def test_tls(tls_port: int, certificate: tuple[Path, Path]) -> None:
    """A broker whose certificate is trusted is talked to, by its name."""
    settings = tls_settings(tls_port, ca_location=str(certificate[0]))
    connection = Connection("localhost", tls_port, settings)
    try:
        answer = connection.ask(METADATA, MetadataRequest(topics=[]))
        assert len(answer.brokers) == 1
    finally:
        connection.close()
    text = tls_settings(tls_port, truststore_certificates=certificate[0].read_text())
    Connection("localhost", tls_port, text).close()


def test_tls_refusals(tls_port: int, certificate: tuple[Path, Path], tmp_path: Path) -> None:
    """One that is not trusted, or has another name, or a file that is none: errors that say so."""
    with pytest.raises(LinkProtocolError, match=r"TLS with localhost.*kafka\.ssl\.ca\.location"):
        Connection("localhost", tls_port, tls_settings(tls_port))
    trusted = tls_settings(tls_port, ca_location=str(certificate[0]))
    with pytest.raises(LinkProtocolError, match=r"TLS with 127\.0\.0\.1"):
        Connection("127.0.0.1", tls_port, trusted)
    lenient = tls_settings(
        tls_port, ca_location=str(certificate[0]), endpoint_identification_algorithm=""
    )
    Connection("127.0.0.1", tls_port, lenient).close()
    with pytest.raises(LinkProtocolError, match=r"cannot read .*nowhere\.pem as PEM"):
        Connection("localhost", tls_port, tls_settings(tls_port, ca_location="/nowhere.pem"))


def test_nobody_there() -> None:
    """A port where nobody listens, or not a broker, ends in words and not in a hang."""
    settings = link_settings_of({"bootstrap.servers": "127.0.0.1:1", "request.timeout.ms": "500"})
    with pytest.raises(LinkBrokenError, match=r"cannot connect to 127\.0\.0\.1:1"):
        Connection("127.0.0.1", 1, settings)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with pytest.raises(LinkBrokenError, match=r"kafka\.request\.timeout\.ms"):
            Connection("127.0.0.1", port, settings)
