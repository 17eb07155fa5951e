"""Jobs where users run them: `spark-submit`, Spark Connect, a cluster, a packed environment.

Each runs a small job through source and sink, in programs of Spark's own, and its output is
compared record by record.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from java_there import WITHOUT_JAVA, has_java
from packaging_kit import (
    ATTEMPTS,
    JOB,
    LIMIT_S,
    RECORDS,
    check_job,
    cluster,
    connect_server,
    environment,
    fill,
    lags,
    packed_environment,
    run,
    submit_command,
    written,
)
from patience import TOO_SLOW
from source_kit import numbered, produce

from support.broker_process import BrokerProcess, wait_until

pytestmark = [
    pytest.mark.skipif(not has_java(), reason=WITHOUT_JAVA),
    # A busy machine takes its time to start all these programs; waits have limits of their own.
    pytest.mark.timeout(3000),
]

ANABRANCH = [sys.executable, "-m", "anabranch.cli"]


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    broker = BrokerProcess(tmp_path_factory.mktemp("packaging-broker") / "data")
    broker.start()
    yield broker.bootstrap
    broker.kill()


@pytest.fixture(scope="module")
def remote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with connect_server(tmp_path_factory.mktemp("connect")) as address:
        yield address


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with cluster(tmp_path_factory.mktemp("cluster")) as address:
        yield address


# spark-submit -------------------------------------------------------------------------------------


def test_spark_submit(bootstrap: str, tmp_path: Path) -> None:
    """A job by pyspark's own spark-submit."""
    fill(bootstrap, "submit-in", "submit-out")
    arguments = [str(JOB), bootstrap, "submit-in", "submit-out", str(tmp_path / "checkpoint")]
    printed = run(submit_command("--master", "local[2]", *arguments), tmp_path)
    check_job(bootstrap, "submit-out", printed)
    assert lags(bootstrap, "submit-out", "submit-in") == [0, 0]


def test_archives_on_a_cluster(bootstrap: str, master: str, tmp_path: Path) -> None:
    """Executors that have no Anabranch of their own get it with `--archives`."""
    fill(bootstrap, "archive-in", "archive-out")
    archive = packed_environment(tmp_path)
    arguments = [str(JOB), bootstrap, "archive-in", "archive-out", str(tmp_path / "checkpoint")]
    command = submit_command(
        *("--master", master, "--executor-memory", "512m"),
        *("--archives", f"{archive}#environment"),
        # Both executors are there before the first task.
        *("--conf", "spark.scheduler.minRegisteredResourcesRatio=1.0"),
        *("--conf", "spark.scheduler.maxRegisteredResourcesWaitingTime=240s"),
        *("--conf", "spark.cores.max=4"),
        *arguments,
    )
    printed = run(command, tmp_path, PYSPARK_PYTHON="./environment/bin/python", PYTHONPATH="")
    made = check_job(bootstrap, "archive-out", printed)
    folders = {one["folder"] for one in made}
    assert len(folders) == 2, folders
    for one in made:
        assert one["python"].startswith(f"{one['folder']}/environment/"), one
        assert one["package"].startswith(f"{one['folder']}/environment/"), one


# Spark Connect ------------------------------------------------------------------------------------


def test_spark_connect(bootstrap: str, remote: str, tmp_path: Path) -> None:
    """The same job behind Spark Connect, without Java on the client's side."""
    fill(bootstrap, "connect-in", "connect-out")
    command = [sys.executable, str(JOB), bootstrap, "connect-in", "connect-out"]
    without_java = {"SPARK_REMOTE": remote, "JAVA_HOME": "/nowhere", "PATH": "/nowhere"}
    printed = run([*command, str(tmp_path / "checkpoint")], tmp_path, **without_java)
    check_job(bootstrap, "connect-out", printed)
    assert lags(bootstrap, "connect-out", "connect-in") == [0, 0]


# anabranch pipeline -------------------------------------------------------------------------------


def new_pipeline(bootstrap: str, folder: Path, topic: str, *options: str) -> None:
    new = [*ANABRANCH, "pipeline", "new", str(folder), "--topic", topic, "--branches", "2"]
    run([*new, "--bootstrap-server", bootstrap, *options], folder.parent)


def run_until_read(bootstrap: str, folder: Path, topic: str, *where: str) -> None:
    """Run an always-on pipeline until its group shows that all is read; then stop it."""
    for attempt in range(ATTEMPTS):
        log = folder / f"out-{attempt}.log"
        code, is_done = run_and_stop(bootstrap, folder, topic, log, *where)
        if is_done or TOO_SLOW not in log.read_text(errors="replace"):
            break
    text = log.read_text(errors="replace")
    assert is_done and code == 0, text[-4000:]
    assert sum(batch["rows"] for batch in batches_of(log)) == RECORDS, text[-4000:]
    assert batches_of(log)[-1]["lag"] == 0


def batches_of(log: Path) -> list[Any]:
    lines = log.read_text(errors="replace").splitlines()
    return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]


def run_and_stop(
    bootstrap: str, folder: Path, topic: str, log: Path, *where: str
) -> tuple[int, bool]:
    """The exit code of one run, and whether all was read before it was stopped."""
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*ANABRANCH, "pipeline", "run", str(folder), "--format", "json", *where],
            cwd=folder,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
        )

    def is_done() -> bool:
        is_told = sum(batch["rows"] for batch in batches_of(log)) >= RECORDS
        return is_told and lags(bootstrap, folder.name, topic) == [0, 0]

    try:
        wait_until(lambda: process.poll() is not None or is_done(), LIMIT_S, 0.5)
        was_done = process.poll() is None
        process.terminate()
        return process.wait(LIMIT_S), was_done
    finally:
        if process.poll() is None:
            process.kill()
            process.wait(30)


def check_summaries(bootstrap: str, output: str) -> None:
    """What the template's work makes of all records: of each key so many, over all batches."""
    expected = {record.key: 0 for record in numbered(RECORDS, partitions=2)}
    for record in numbered(RECORDS, partitions=2):
        expected[record.key] += 1
    rows = dict.fromkeys(expected, 0)
    for key, value in written(bootstrap, output, len(expected)):
        rows[key] += int(value.split()[0])
    assert rows == expected


def test_a_pipeline_on_a_cluster(bootstrap: str, master: str, tmp_path: Path) -> None:
    """`anabranch pipeline run --master spark://...`: progress here, work there, a stop in order."""
    fill(bootstrap, "on-cluster", "on-cluster-out")
    folder = tmp_path / "clustered"
    new_pipeline(bootstrap, folder, "on-cluster", "--output", "on-cluster-out", "--exactly-once")
    with (folder / "pipeline.toml").open("a") as settings:
        settings.write('"spark.executor.memory" = "512m"\n"spark.driver.host" = "127.0.0.1"\n')
    run_until_read(bootstrap, folder, "on-cluster", "--master", master)
    check_summaries(bootstrap, "on-cluster-out")


def test_a_pipeline_behind_connect(bootstrap: str, remote: str, tmp_path: Path) -> None:
    """`anabranch pipeline run --remote sc://...`."""
    fill(bootstrap, "behind", "behind-out")
    folder = tmp_path / "remote"
    new_pipeline(bootstrap, folder, "behind", "--output", "behind-out", "--exactly-once")
    run_until_read(bootstrap, folder, "behind", "--remote", remote)
    check_summaries(bootstrap, "behind-out")


@pytest.mark.parametrize("where", ["local", "remote"])
def test_a_scheduled_pipeline(
    bootstrap: str, where: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Each run of a Declarative Pipelines project writes what is new, once."""
    topic, output, folder = f"nightly-{where}", f"nightly-{where}-out", tmp_path / f"by-{where}"
    options = ["--master", "local[2]"]
    if where == "remote":
        options = ["--remote", request.getfixturevalue("remote")]
    fill(bootstrap, topic, output)
    new_pipeline(bootstrap, folder, topic, "--output", output, "--scheduled", "--exactly-once")
    command = [*ANABRANCH, "pipeline", "run", str(folder), *options]
    run(command, folder)
    assert sorted(int(value) for _, value in written(bootstrap, output, RECORDS)) == list(
        range(RECORDS)
    )
    produce(bootstrap, topic, numbered(100, first=RECORDS, partitions=2))
    run(command, folder)
    found = sorted(int(value) for _, value in written(bootstrap, output, RECORDS + 100))
    assert found == list(range(RECORDS + 100))
    assert lags(bootstrap, folder.name, topic) == [0, 0]
