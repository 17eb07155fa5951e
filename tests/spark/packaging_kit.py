"""Spark as it is deployed: its scripts, a Connect server, a cluster; all on loopback."""

import importlib.metadata
import json
import os
import re
import socket
import subprocess
import sys
import tarfile
import venv
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pyspark
from confluent_kafka import Consumer, TopicPartition
from patience import TOO_SLOW
from source_kit import create, numbered, produce

from support.broker_process import wait_until

LIMIT_S = 600
ATTEMPTS = 4
PARTITIONS = 2
RECORDS = 1000
SPARK_HOME = Path(pyspark.__file__).parent
JOB = Path(__file__).with_name("packaged_job.py")
REPOSITORY = Path(__file__).resolve().parents[2]


def environment(**more: str) -> dict[str, str]:
    """For programs of Spark's: everything on loopback, drivers in this Python."""
    return {
        **os.environ,
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "512m",
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYSPARK_PYTHON": sys.executable,
        **more,
    }


def run(command: list[str], folder: Path, **more: str) -> str:
    """Run a program to its end, and return what it printed.

    Again, where a process of Spark's was too slow to start: it goes on by its checkpoint.
    """
    for _ in range(ATTEMPTS):
        ended = subprocess.run(
            command,
            cwd=folder,
            env=environment(**more),
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        if TOO_SLOW not in ended.stdout + ended.stderr or ended.returncode == 0:
            break
    assert ended.returncode == 0, f"{ended.stdout[-3000:]}\n{ended.stderr[-6000:]}"
    return ended.stdout


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


def listens(port: int) -> bool:
    with socket.socket() as one:
        one.settimeout(1)
        return one.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def service(command: list[str], folder: Path, port: int | None, **more: str) -> Iterator[Path]:
    """A program in the background; yields its log once it listens, and ends it afterwards."""
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "service.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment(**more),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
        )
    try:
        if port is not None:
            up = wait_until(lambda: listens(port) or process.poll() is not None, LIMIT_S, 0.1)
            assert up and process.poll() is None, log.read_text(errors="replace")[-3000:]
        yield log
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(30)


# Where jobs run -----------------------------------------------------------------------------------


def submit_command(*options: str) -> list[str]:
    local = ["--conf", "spark.driver.host=127.0.0.1", "--conf", "spark.ui.enabled=false"]
    small = ["--driver-memory", "512m", "--conf", "spark.sql.shuffle.partitions=2"]
    return [str(SPARK_HOME / "bin" / "spark-submit"), *local, *small, *options]


@contextmanager
def connect_server(folder: Path) -> Iterator[str]:
    """A Spark Connect server of its own session; yields its address."""
    port = free_port()
    command = submit_command(
        *("--master", "local[2]"),
        *("--class", "org.apache.spark.sql.connect.service.SparkConnectServer"),
        *("--conf", f"spark.connect.grpc.binding.port={port}"),
        *("--conf", f"spark.sql.warehouse.dir={folder / 'warehouse'}"),
        "spark-internal",
    )
    with service(command, folder, port):
        yield f"sc://127.0.0.1:{port}"


@contextmanager
def cluster(folder: Path, workers: int = 2) -> Iterator[str]:
    """A standalone cluster: a master and workers with two cores each; yields its address."""
    program, port = str(SPARK_HOME / "bin" / "spark-class"), free_port()
    address = f"spark://127.0.0.1:{port}"
    master = [program, "org.apache.spark.deploy.master.Master", "--host", "127.0.0.1"]
    master += ["--port", str(port), "--webui-port", "0"]
    with service(master, folder / "master", port, PYTHONPATH=""):
        worker = [program, "org.apache.spark.deploy.worker.Worker", "--host", "127.0.0.1"]
        worker += ["--cores", "2", "--memory", "1g", "--webui-port", "0"]
        homes = [folder / f"worker-{number}" for number in range(workers)]
        with all_of(
            [
                service([*worker, "--work-dir", str(home), address], home, None, PYTHONPATH="")
                for home in homes
            ]
        ) as logs:
            for log in logs:
                assert wait_until(
                    lambda log=log: b"Successfully registered with master" in log.read_bytes(),
                    LIMIT_S,
                    0.1,
                ), log.read_text(errors="replace")[-3000:]
            yield address


@contextmanager
def all_of(services: list[Any]) -> Iterator[list[Path]]:
    with ExitStack() as stack:
        yield [stack.enter_context(one) for one in services]


def packed_environment(folder: Path) -> Path:
    """What `--archives` ships: a virtual environment with this package's wheel, as tar.gz.

    What the package needs is taken from the environment of the tests, so nothing is downloaded.
    """
    wheels = folder / "wheels"
    build = ["wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(wheels)]
    run([sys.executable, "-m", "pip", *build, str(REPOSITORY)], folder)
    home = folder / "environment"
    venv.create(home, symlinks=True, with_pip=False)
    (target,) = home.glob("lib/python*/site-packages")
    (wheel,) = wheels.glob("anabranch-*.whl")
    install = ["install", "--quiet", "--no-deps", "--no-compile", "--target", str(target)]
    run([sys.executable, "-m", "pip", *install, str(wheel)], folder)
    here = Path(pyspark.__file__).parents[1]
    for name in needed_files("anabranch", "pyarrow", "pandas"):
        # The wheel is there already; what leads to this checkout shall not be.
        is_ours = name.startswith(("anabranch", "__editable__"))
        if not is_ours and (here / name).exists():
            (target / name).symlink_to(here / name)
    archive = folder / "environment.tar.gz"
    with tarfile.open(archive, "w:gz", compresslevel=1, dereference=False) as packed:
        for path in sorted(home.rglob("*")):
            _add(packed, path, path.relative_to(home))
    return archive


def needed_files(*names: str) -> set[str]:
    """Top-level files and folders of distributions, and of all that they need."""
    done: set[str] = set()
    left = list(names)
    while left:
        name = left.pop()
        if name in done:
            continue
        done.add(name)
        for line in importlib.metadata.requires(name) or ():
            if "extra ==" not in line:
                left.append(re.split(r"[ ;<>=!~\[(]", line, maxsplit=1)[0])
        left = [one for one in left if _is_installed(one)]
    return {
        path.parts[0]
        for name in done
        for path in importlib.metadata.files(name) or ()
        if path.parts[0] not in ("..", "__pycache__")
    }


def _is_installed(name: str) -> bool:
    try:
        importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return False  # for another system
    return True


def _add(packed: tarfile.TarFile, path: Path, name: Path) -> None:
    """Packages that are links are packed as what they point to; the interpreter stays a link."""
    if path.is_symlink() and "site-packages" in path.parts:
        packed.add(path.resolve(), str(name))
    else:
        packed.add(path, str(name), recursive=False)


# What jobs are given and leave --------------------------------------------------------------------


def fill(bootstrap: str, topic: str, *outputs: str) -> None:
    for name in (topic, *outputs):
        create(bootstrap, name, PARTITIONS)
    produce(bootstrap, topic, numbered(RECORDS, partitions=PARTITIONS))


def written(bootstrap: str, topic: str, count: int) -> list[tuple[bytes, str]]:
    """The first so many committed records of a topic, and no more may there be."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "packaging-kit", "enable.auto.commit": False}
    )
    places = [TopicPartition(topic, number, 0) for number in range(PARTITIONS)]
    consumer.assign(places)
    found: list[tuple[bytes, str]] = []
    try:
        while len(found) < count:
            message = consumer.poll(60)
            assert message is not None, f"{topic} has {len(found)} records"
            assert message.error() is None, message.error()
            found.append((message.key(), message.value().decode()))
        more = consumer.poll(2)
        assert more is None, f"{topic} has more than {count} records: {more.value()!r}"
    finally:
        consumer.close()
    return found


def check_job(bootstrap: str, output: str, printed: str) -> list[Mapping[str, Any]]:
    """Every record once, those of a key in their order; returns what the rows say."""
    assert json.loads(printed.strip().splitlines()[-1]) == {"rows": RECORDS}, printed
    by_key: dict[bytes, list[int]] = defaultdict(list)
    made = []
    for key, value in written(bootstrap, output, RECORDS):
        one = json.loads(value)
        by_key[key].append(one["number"])
        made.append(one)
    assert sorted(one["number"] for one in made) == list(range(RECORDS))
    assert all(numbers == sorted(numbers) for numbers in by_key.values())
    return made


def lags(bootstrap: str, group: str, topic: str) -> list[int]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    try:
        places = [TopicPartition(topic, number) for number in range(PARTITIONS)]
        committed = consumer.committed(places, timeout=30)
        ends = [consumer.get_watermark_offsets(place, timeout=30)[1] for place in places]
        return [end - max(0, place.offset) for place, end in zip(committed, ends, strict=True)]
    finally:
        consumer.close()
