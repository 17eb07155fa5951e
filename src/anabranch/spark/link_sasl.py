"""Saying who we are: SASL PLAIN and SCRAM (RFC 5802), in requests as Kafka has them.

A refusal is final: a password does not get better by trying it again.
"""

import base64
import hashlib
import hmac
import secrets
from typing import TYPE_CHECKING

from anabranch.spark.errors import BrokerRefusal, LinkProtocolError
from anabranch.spark.link_settings import Security
from anabranch.wire.api import api
from anabranch.wire.schema import Bytes, Int16, Int64, String, at, struct

if TYPE_CHECKING:
    from anabranch.spark.link_connection import Connection

_ITERATIONS_MAX = 1_000_000
_HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}


@struct
class SaslHandshakeRequest:
    mechanism: String = at("0+")


@struct
class SaslHandshakeResponse:
    error_code: Int16 = at("0+")
    mechanisms: list[String] = at("0+")


@struct
class SaslAuthenticateRequest:
    auth_bytes: Bytes = at("0+")


@struct
class SaslAuthenticateResponse:
    error_code: Int16 = at("0+")
    error_message: String | None = at("0+", default=None)
    auth_bytes: Bytes = at("0+")
    session_lifetime_ms: Int64 = at("1+", ignorable=True)


SASL_HANDSHAKE = api(
    17,
    "SaslHandshake",
    request=SaslHandshakeRequest,
    response=SaslHandshakeResponse,
    versions="0-1",
    flexible="none",
)
SASL_AUTHENTICATE = api(
    36,
    "SaslAuthenticate",
    request=SaslAuthenticateRequest,
    response=SaslAuthenticateResponse,
    versions="0-2",
    flexible="2+",
)


def authenticate(connection: "Connection", security: Security) -> None:
    """Say who we are on a connection that was just opened."""
    mechanism = security.sasl_mechanism or ""
    offered = connection.ask(
        SASL_HANDSHAKE, SaslHandshakeRequest(mechanism=mechanism), least_version=1
    )
    if offered.error_code:
        raise BrokerRefusal(
            offered.error_code,
            f"SASL at {connection.place}",
            f"the broker offers {', '.join(offered.mechanisms) or 'nothing'}, not {mechanism}"
            " (kafka.sasl.mechanism)",
        )
    if mechanism == "PLAIN":
        _exchange(connection, f"\0{security.username}\0{security.password}".encode())
    else:
        _scram(connection, security, _HASHES[mechanism])


def _exchange(connection: "Connection", token: bytes) -> bytes:
    answer = connection.ask(SASL_AUTHENTICATE, SaslAuthenticateRequest(auth_bytes=token))
    if answer.error_code:
        raise BrokerRefusal(
            answer.error_code,
            f"SASL at {connection.place}",
            answer.error_message or "see kafka.sasl.username and kafka.sasl.password",
        )
    return bytes(answer.auth_bytes)


def _scram(connection: "Connection", security: Security, hash_name: str) -> None:
    nonce = secrets.token_urlsafe(24)
    first = scram_first(security.username, nonce)
    challenge = _exchange(connection, b"n,," + first)
    proof, signature = scram_final(security.password, nonce, first, challenge, hash_name)
    final = _exchange(connection, proof)
    if not hmac.compare_digest(_fields(final).get("v", ""), signature):
        raise LinkProtocolError(
            f"the broker at {connection.place} does not know the password of"
            f" {security.username!r}: it may not be the broker that it seems to be"
        )


def scram_first(username: str, nonce: str) -> bytes:
    """The client's first message, without its header."""
    escaped = username.replace("=", "=3D").replace(",", "=2C")
    return f"n={escaped},r={nonce}".encode()


def scram_final(
    password: str, nonce: str, first: bytes, challenge: bytes, hash_name: str
) -> tuple[bytes, str]:
    """The client's last message, and what the server must sign."""
    fields = _fields(challenge)
    try:
        server_nonce, iterations = fields["r"], int(fields["i"])
        salt = base64.b64decode(fields["s"])
    except (KeyError, ValueError) as error:
        raise LinkProtocolError(f"the broker's SCRAM challenge makes no sense: {error}") from error
    if not server_nonce.startswith(nonce) or not 0 < iterations <= _ITERATIONS_MAX:
        raise LinkProtocolError("the broker's SCRAM challenge is not an answer to ours")
    salted = hashlib.pbkdf2_hmac(hash_name, password.encode(), salt, iterations)
    client_key = hmac.digest(salted, b"Client Key", hash_name)
    bare = f"c=biws,r={server_nonce}".encode()
    signed = b",".join([first, challenge, bare])
    signature = hmac.digest(hashlib.new(hash_name, client_key).digest(), signed, hash_name)
    proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
    server_key = hmac.digest(salted, b"Server Key", hash_name)
    expected = hmac.digest(server_key, signed, hash_name)
    message = bare + b",p=" + base64.b64encode(proof)
    return message, base64.b64encode(expected).decode()


def _fields(message: bytes) -> dict[str, str]:
    parts = message.decode("utf-8", "replace").split(",")
    return {part[:1]: part[2:] for part in parts if part[1:2] == "="}
