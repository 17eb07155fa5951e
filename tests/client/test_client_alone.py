"""The client on its own: a wheel of this tree in an environment that has nothing else."""

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from anabranch.wire.compression import CODEC_NAMES, GZIP, LZ4, NONE, SNAPPY, ZSTD
from anabranch.wire.record_batch import Record, build_batch
from support.broker_process import BrokerProcess
from support.raw_client import RawClient
from support.topics import create_topic

TREE = Path(__file__).parents[2]
TIMEOUT_S = 120
SHARED = {"range.fetch.enable": "true"}

# A member of a group that does what a topic has, and says how far it is.
MEMBER = """
import asyncio, sys
from anabranch.client import CooperativeConsumer, MissingCodecError

bootstrap, topic, total = sys.argv[1], sys.argv[2], int(sys.argv[3])
seen = []

async def main():
    async with CooperativeConsumer(bootstrap_servers=bootstrap, group_id="alone") as consumer:
        consumer.subscribe(topic)

        async def handle(record):
            seen.append((record.offset, record.key, record.value))
            if len(seen) == total:
                consumer.stop()

        try:
            await consumer.run(handle, concurrency=8)
        except MissingCodecError as error:
            print(error)

asyncio.run(main())
print(sorted(seen))
foreign = {name.split(".")[0] for name in sys.modules} - sys.stdlib_module_names
print(sorted(foreign - {"__main__", "__mp_main__"}))
"""


def run(*command: str | Path, cwd: Path | None = None) -> str:
    """What a program prints; it must end well, and sees nothing of this environment."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
    ended = subprocess.run(
        [*map(str, command)],
        cwd=cwd,
        env=kept,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert ended.returncode == 0, f"{ended.stdout}\n{ended.stderr}"
    return ended.stdout


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python that has this tree's wheel and none of its dependencies."""
    folder = tmp_path_factory.mktemp("alone")
    tree = folder / "tree"
    tree.mkdir()
    # A copy, because builds leave their traces, and others may be reading the tree.
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(TREE / name, tree)
    ignored = shutil.ignore_patterns("*.so", "__pycache__", "*.egg-info")
    shutil.copytree(TREE / "src", tree / "src", ignore=ignored)
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input")
    options = ("--quiet", "--no-deps", "--no-index")
    run(*pip, "wheel", *options, "--no-build-isolation", "-w", folder, tree)
    (wheel,) = folder.glob("*.whl")
    venv.create(folder / "bare", with_pip=False, symlinks=True)
    python = folder / "bare" / "bin" / "python"
    run(*pip, "--python", python, "install", *options, wheel)
    return python


def produce(broker: BrokerProcess, topic: str, codec: int, count: int = 20) -> None:
    create_topic(broker.bootstrap, topic, 1, SHARED)
    records = [Record(i, 0, b"k%d" % (i % 3), b"v%d" % i) for i in range(count)]
    batch = build_batch(records, base_offset=0, partition_leader_epoch=-1, codec=codec)
    with RawClient(broker.bootstrap) as client:
        assert client.produce(topic, 0, batch).error_code == 0


@pytest.mark.slow
@pytest.mark.parametrize("codec", [NONE, GZIP], ids=CODEC_NAMES.__getitem__)
def test_a_member(shared_broker: BrokerProcess, bare_python: Path, codec: int) -> None:
    """It shares a topic of a real broker with the standard library alone."""
    topic = f"alone-{CODEC_NAMES[codec]}"
    produce(shared_broker, topic, codec)
    seen, foreign = run(
        bare_python, "-I", "-c", MEMBER, shared_broker.bootstrap, topic, "20"
    ).splitlines()
    assert eval(seen) == [(i, b"k%d" % (i % 3), b"v%d" % i) for i in range(20)]
    assert eval(foreign) == ["anabranch"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("codec", "package"),
    [(SNAPPY, "cramjam"), (LZ4, "lz4"), (ZSTD, "cramjam")],
    ids=lambda value: CODEC_NAMES[value] if isinstance(value, int) else value,
)
def test_a_codec_that_is_missing(
    shared_broker: BrokerProcess, bare_python: Path, codec: int, package: str
) -> None:
    """Records that it cannot decompress end the consumer, which names the package to install."""
    name = CODEC_NAMES[codec]
    topic = f"missing-{name}"
    produce(shared_broker, topic, codec)
    told, seen, _ = run(
        bare_python, "-I", "-c", MEMBER, shared_broker.bootstrap, topic, "20"
    ).splitlines()
    assert told == (
        f"records cannot be read: {name} needs the Python package {package}, which is not"
        f" installed; install it with: pip install {package}"
    )
    assert seen == "[]"


@pytest.mark.slow
def test_the_command(bare_python: Path) -> None:
    """The command line does need the dependencies, and says so."""
    command = [str(bare_python.with_name("anabranch")), "topics", "list"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr == (
        "error: The anabranch command needs its dependencies; run: pip install anabranch\n"
    )


@pytest.mark.slow
def test_what_the_wheel_has(bare_python: Path) -> None:
    """It is typed, and its sources in C stay at home."""
    (package,) = (bare_python.parents[1] / "lib").glob("python*/site-packages/anabranch")
    assert (package / "py.typed").exists()
    assert (package / "branch" / "_kernels.pyi").exists()
    assert not [*package.rglob("*.c"), *package.rglob("*.h")]
