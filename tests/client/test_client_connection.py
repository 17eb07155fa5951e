"""Connections: pipelining, time limits, and brokers that talk nonsense."""

import asyncio
import ssl
import struct
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from fake_broker import FakeBroker
from loop_kit import ORDERS, in_loop, new_consumer, polled

from anabranch.client.connection import open_connection
from anabranch.client.errors import (
    BrokerConnectionError,
    BrokerError,
    ProtocolError,
    RequestTimedOutError,
)
from anabranch.wire.header import frame_response
from anabranch.wire.messages.api_versions import (
    API_VERSIONS,
    ApiVersion,
    ApiVersionsResponse,
)
from anabranch.wire.messages.metadata import METADATA, MetadataRequest, MetadataRequestTopic

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def connect(port: int, timeout_s: float = 60):  # type: ignore[no-untyped-def]
    return await open_connection("127.0.0.1", port, client_id="c", tls=None, timeout_s=timeout_s)


async def served_by(serve: Serve) -> tuple[asyncio.Server, int]:
    async def until_closed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await serve(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(until_closed, "127.0.0.1", 0)
    return server, server.sockets[0].getsockname()[1]


async def read_request(reader: asyncio.StreamReader) -> tuple[int, int, int]:
    """(API key, version, correlation id)"""
    (size,) = struct.unpack(">i", await reader.readexactly(4))
    frame = await reader.readexactly(size)
    key, version, correlation_id = struct.unpack_from(">hhi", frame)
    return key, version, correlation_id


async def answer_versions(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, **ranges: tuple[int, int]
) -> None:
    _, version, correlation_id = await read_request(reader)
    served = [
        ApiVersion(api_key=int(key[1:]), min_version=first, max_version=last)
        for key, (first, last) in ranges.items()
    ]
    parts = API_VERSIONS.encode_response(version)(ApiVersionsResponse(api_keys=served))
    writer.writelines(frame_response(parts, correlation_id, tagged=False))


@in_loop
async def test_pipelining() -> None:
    """Many requests can be on their way, and each gets its own answer."""
    async with FakeBroker() as broker:
        for number in range(20):
            broker.create(f"t{number}")
        connection = await connect(broker.port)
        answers = await asyncio.gather(
            *(
                connection.request(
                    METADATA,
                    MetadataRequest(topics=[MetadataRequestTopic(name=f"t{number}")]),
                    timeout_s=20,
                )
                for number in range(20)
            )
        )
        assert [one.topics[0].name for one in answers] == [f"t{number}" for number in range(20)]
        connection.close()


@in_loop
async def test_time_is_over() -> None:
    """A request without an answer ends in time, and so does its connection."""
    async with FakeBroker() as broker:
        connection = await connect(broker.port)
        broker.gates["Metadata"] = asyncio.Event()
        with pytest.raises(RequestTimedOutError, match="did not answer Metadata within"):
            await connection.request(METADATA, MetadataRequest(), timeout_s=0.05)
        assert connection.is_closed
        with pytest.raises(BrokerConnectionError):
            await connection.request(METADATA, MetadataRequest(), timeout_s=20)
        broker.gates["Metadata"].set()


@in_loop
async def test_connection_ends() -> None:
    """Whoever waits learns that the connection ended."""
    async with FakeBroker() as broker:
        connection = await connect(broker.port)
        broker.gates["Metadata"] = asyncio.Event()
        asked = asyncio.ensure_future(connection.request(METADATA, MetadataRequest(), timeout_s=20))
        await asyncio.sleep(0)
        broker.drop_connections()
        with pytest.raises(BrokerConnectionError, match="ended"):
            await asked
        broker.gates["Metadata"].set()


@in_loop
async def test_nobody_waits_any_more() -> None:
    """An answer that nobody waits for is passed over, the next one is not."""
    async with FakeBroker() as broker:
        connection = await connect(broker.port)
        gate = broker.gates["Metadata"] = asyncio.Event()
        asked = asyncio.ensure_future(connection.request(METADATA, MetadataRequest(), timeout_s=20))
        await asyncio.sleep(0)
        asked.cancel()
        gate.set()
        answer = await connection.request(METADATA, MetadataRequest(topics=[]), timeout_s=20)
        assert answer.brokers[0].port == broker.port
        connection.close()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "is it a Kafka broker"),
        (struct.pack(">ii", 4, 77), "not the next one"),
        (struct.pack(">i", -5), "is it a Kafka broker"),
    ],
)
@in_loop
async def test_nonsense(content: bytes, message: str) -> None:
    """A server that is no broker is found out."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(content)
        await reader.read()

    server, port = await served_by(serve)
    with pytest.raises(ProtocolError, match=message):
        await connect(port)
    server.close()


@in_loop
async def test_answer_that_cannot_be_read() -> None:
    """An answer that ends too early is an error, not a wait."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await answer_versions(reader, writer, _3=(0, 13))
        _, _, correlation_id = await read_request(reader)
        writer.write(struct.pack(">iib", 5, correlation_id, 0))
        await reader.read()

    server, port = await served_by(serve)
    connection = await connect(port)
    with pytest.raises(ProtocolError, match="answered Metadata with nonsense"):
        await connection.request(METADATA, MetadataRequest(), timeout_s=20)
    assert connection.is_closed
    server.close()


@in_loop
async def test_older_broker() -> None:
    """A broker that knows ApiVersions only in its first version is asked in that one."""
    asked: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        _, version, correlation_id = await read_request(reader)
        asked.append(version)
        refused = ApiVersionsResponse(error_code=35, api_keys=[])
        parts = API_VERSIONS.encode_response(0)(refused)
        writer.writelines(frame_response(parts, correlation_id, tagged=False))
        await answer_versions(reader, writer, _3=(0, 4))
        _, version, _ = await read_request(reader)
        asked.append(version)
        await reader.read()

    server, port = await served_by(serve)
    connection = await connect(port)
    with pytest.raises(RequestTimedOutError):
        await connection.request(METADATA, MetadataRequest(), timeout_s=0.05)
    assert asked == [3, 4]
    server.close()


@in_loop
async def test_version_that_is_not_served() -> None:
    """A broker that is too old for what is needed is named, with what it serves."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await answer_versions(reader, writer, _3=(0, 4))
        await reader.read()

    server, port = await served_by(serve)
    connection = await connect(port)
    with pytest.raises(BrokerError, match="serves 0 to 4 of its versions, needed is 12 to 13"):
        await connection.request(METADATA, MetadataRequest(), least_version=12, timeout_s=20)
    connection.close()
    server.close()


@in_loop
async def test_tls(tmp_path: Path) -> None:
    """With SSL everything goes through TLS, and the broker's certificate is checked."""
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost"
    command += " -addext subjectAltName=IP:127.0.0.1"
    files = ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run([*command.split(), *files], capture_output=True, check=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    async with FakeBroker() as broker:
        broker.create("orders")
        broker.append("orders", [b"a"])
        await broker.listen(context)
        options = {"group_id": None, "security_protocol": "SSL"}
        trusting = ssl.create_default_context(cafile=str(certificate))
        async with new_consumer(broker, ssl_context=trusting, **options) as consumer:
            consumer.assign({ORDERS: []})
            assert len(await polled(consumer, 1)) == 1
        with pytest.raises(BrokerConnectionError, match="CERTIFICATE_VERIFY_FAILED"):
            await open_connection(
                "127.0.0.1",
                broker.port,
                client_id="c",
                tls=ssl.create_default_context(),
                timeout_s=20,
            )
