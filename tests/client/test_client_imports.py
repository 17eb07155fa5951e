"""The client stands alone: what only a broker needs is not needed by it."""

import subprocess
import sys

from anabranch.wire.compression import CODEC_NAMES
from anabranch.wire.record_batch import Record, build_batch, check_batch, iter_records

BROKER_ONLY = (
    "click",
    "confluent_kafka",
    "javaproperties",
    "prometheus_client",
    "re2",
    "uvloop",
    "google.re2",
)
FOR_RECORDS = ("cramjam", "crc32c", "lz4")


def run_without(modules: tuple[str, ...], program: str) -> subprocess.CompletedProcess[str]:
    """Run a program in which modules cannot be imported."""
    blocked = f"import sys\nfor name in {modules!r}: sys.modules[name] = None\n"
    return subprocess.run(
        [sys.executable, "-c", blocked + program], capture_output=True, text=True, check=False
    )


def test_import() -> None:
    """The client can be imported and made without what the broker and its tools depend on."""
    ended = run_without(
        (*BROKER_ONLY, *FOR_RECORDS),
        "from anabranch.client import *\n"
        "SyncCooperativeConsumer(group_id='g').close()\n"
        "loaded = sorted(n for n in sys.modules if n.count('.') == 1 and n[:10] == 'anabranch.')\n"
        "print(loaded)\n",
    )
    assert ended.returncode == 0, ended.stderr
    allowed = {f"anabranch.{name}" for name in ("branch", "client", "model", "wire")}
    assert set(eval(ended.stdout)) == allowed


def test_records() -> None:
    """Records are read with the standard library alone, and what is missing for others is named."""
    batches = [
        build_batch([Record(0, 0, b"k", b"v")], base_offset=0, codec=codec)
        for codec in range(len(CODEC_NAMES))
    ]
    ended = run_without(
        (*BROKER_ONLY, *FOR_RECORDS),
        "from anabranch.client.errors import MissingCodecError\n"
        "from anabranch.client.record_reader import FetchedRecords\n"
        "from anabranch.branch.slots import DEFAULT_RULE\n"
        f"for batch in {batches!r}:\n"
        "    try:\n"
        "        print(len(FetchedRecords(memoryview(batch), DEFAULT_RULE, 0)))\n"
        "    except MissingCodecError as error:\n"
        "        print(error.__cause__.name)\n",
    )
    assert ended.stdout.split() == ["1", "1", "cramjam", "lz4", "cramjam"], ended.stderr


def test_checksums() -> None:
    """Who writes records needs one package more, and is told so."""
    ended = run_without(
        FOR_RECORDS,
        "from anabranch.wire.record_batch import Record, build_batch\n"
        "build_batch([Record(0, 0, b'k', b'v')], base_offset=0)\n",
    )
    assert "ImportError: checksums need the Python package crc32c" in ended.stderr


def test_batches() -> None:
    """Records are written with the standard library alone, too, and compressed with gzip."""
    ended = run_without(
        (*BROKER_ONLY, *FOR_RECORDS),
        "from anabranch.client.outbox import Outgoing, encode_batch\n"
        "record = Outgoing('t', b'v', b'k', None, (), 0)\n"
        "for codec in (0, 1):\n"
        "    print(encode_batch([record], producer_id=7, producer_epoch=1, sequence=0,"
        " codec=codec).hex())\n",
    )
    batches = [bytes.fromhex(text) for text in ended.stdout.split()]
    assert len(batches) == 2, ended.stderr
    for batch in batches:
        assert check_batch(memoryview(batch)).is_transactional
        assert [(one.key, one.value) for one in iter_records(batch)] == [(b"k", b"v")]


def test_start_of_the_import() -> None:
    """Importing the client is quick enough for a command line."""
    ended = run_without((), "import anabranch.client\nprint(len(sys.modules))\n")
    assert ended.returncode == 0
    assert int(ended.stdout) < 400
