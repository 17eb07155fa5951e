"""`anabranch pipeline`: what `new` writes, what `status` shows, and what `run` asks for first."""

import ast
import importlib.util
import json
import os
import random
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from anabranch.cli.errors import CliError
from anabranch.cli.own_broker import create_topics, own_broker
from anabranch.cli.pipeline import demo
from anabranch.cli.pipeline.needs import check_needs
from anabranch.cli.pipeline.project import load_project
from support.broker_process import BrokerProcess

Run = Callable[..., Any]


# new ----------------------------------------------------------------------------------------------


def test_new_writes_an_application(run: Run, tmp_path: Path) -> None:
    """The always-on form: settings, an application that parses, and what git shall not have."""
    folder = tmp_path / "billing"
    result = run("pipeline", "new", folder, "--topic", "orders", "--branches", 16)
    assert result.code == 0, result.err
    written = {str(path.relative_to(folder)) for path in folder.rglob("*")}
    assert written == {"pipeline.toml", "app.py", ".gitignore"}
    project = load_project(folder)
    assert (project.name, project.group, project.spec) == ("billing", "billing", None)
    assert project.source == {
        "kafka.bootstrap.servers": "localhost:9092",
        "subscribe": "orders",
        "startingOffsets": "earliest",
        "branches": "16",
        "kafka.group.id": "billing",
    }
    functions = {
        node.name for node in ast.parse((folder / "app.py").read_text()).body if _is_function(node)
    }
    assert {"start", "transform", "summary"} <= functions
    assert f"anabranch pipeline run {folder}" in result.err


def _is_function(node: ast.stmt) -> bool:
    return isinstance(node, ast.FunctionDef)


def test_new_writes_a_scheduled_project(run: Run, tmp_path: Path) -> None:
    """Declarative Pipelines' form: a spec, and a flow whose names Python and Spark accept."""
    folder = tmp_path / "nightly-run"
    result = run(
        "pipeline", "new", folder, "--topic", "orders", "--scheduled", "--format", "json",
        "--output", "bills", "--bootstrap-server", "broker:1234",
    )  # fmt: skip
    assert result.code == 0, result.err
    assert json.loads(result.out)["files"] == [
        "pipeline.toml",
        "spark-pipeline.yml",
        "transformations/flow.py",
        ".gitignore",
    ]
    project = load_project(folder)
    assert project.spec == folder / "spark-pipeline.yml" and project.app is None
    settings = tomllib.loads((folder / "pipeline.toml").read_text())
    assert settings["sink"] == {"kafka.bootstrap.servers": "broker:1234", "topic": "bills"}
    names = {
        node.name
        for node in ast.walk(ast.parse((folder / "transformations/flow.py").read_text()))
        if isinstance(node, ast.FunctionDef)
    }
    assert names == {"nightly_run_flow"}
    assert "name: nightly-run\n" in (folder / "spark-pipeline.yml").read_text()


@pytest.mark.parametrize("form", [[], ["--scheduled"]])
def test_new_writes_an_exactly_once_sink(run: Run, tmp_path: Path, form: list[str]) -> None:
    """Each row once if it is asked for, at least once otherwise."""
    for name, more in (("once", ["--exactly-once"]), ("least", [])):
        assert run("pipeline", "new", tmp_path / name, "--topic", "orders", *form, *more).code == 0
    settings = {
        name: tomllib.loads((tmp_path / name / "pipeline.toml").read_text())["sink"]
        for name in ("once", "least")
    }
    assert settings["once"].pop("exactlyOnce") == "true"
    assert settings["once"].keys() == settings["least"].keys()


def test_new_spares_what_is_there(run: Run, tmp_path: Path) -> None:
    """A folder with something in it is refused, and stays as it is; an empty one is taken."""
    folder = tmp_path / "billing"
    folder.mkdir()
    (folder / "app.py").write_text("mine")
    result = run("pipeline", "new", folder, "--topic", "orders")
    assert result.code == 1 and "not empty" in result.err
    assert [path.name for path in folder.iterdir()] == ["app.py"]
    (folder / "app.py").unlink()
    assert run("pipeline", "new", folder, "--topic", "orders").code == 0


@pytest.mark.parametrize("topic", ["a b", 'x"', "", "$name"])
def test_new_refuses_names_that_no_topic_has(run: Run, tmp_path: Path, topic: str) -> None:
    """Names go into files as they are, so other characters never get there."""
    result = run("pipeline", "new", tmp_path / "billing", "--topic", topic)
    assert result.code == 1 and "other characters" in result.err
    assert not (tmp_path / "billing").exists()


# The folder ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("name =", "Invalid"),
        ('name = "x"', "either `app` or `spec`"),
        ('app = "app.py"\nspec = "x.yml"', "either `app` or `spec`"),
        ('app = "other.py"', "other.py is not there"),
        ('app = "app.py"\nsource = 1', "`source` must be a table"),
        ('app = "app.py"\n[source]\nkafka.group.id = "x"', "names with dots in quotes"),
    ],
)
def test_settings_that_are_wrong_are_named(run: Run, tmp_path: Path, text: str, why: str) -> None:
    """What is wrong with pipeline.toml is one line."""
    (tmp_path / "app.py").touch()
    (tmp_path / "pipeline.toml").write_text(text)
    result = run("pipeline", "run", tmp_path)
    assert result.code == 1 and why in result.err, result.err


def test_a_folder_without_a_pipeline(run: Run, tmp_path: Path) -> None:
    """The error says how to make one."""
    for command in ("run", "status"):
        result = run("pipeline", command, tmp_path)
        assert result.code == 1 and "anabranch pipeline new" in result.err


def test_settings_are_texts(tmp_path: Path) -> None:
    """Numbers and truth values become what Spark's options are."""
    (tmp_path / "app.py").touch()
    (tmp_path / "pipeline.toml").write_text(
        'app = "app.py"\n[source]\nbranches = 8\nfailOnDataLoss = false\n[spark]\na = "b"\n'
    )
    project = load_project(tmp_path)
    assert project.source == {"branches": "8", "failOnDataLoss": "false"}
    assert (project.spark, project.name, project.group) == ({"a": "b"}, tmp_path.name, None)


# What Spark needs ---------------------------------------------------------------------------------


def test_without_java_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Neither PATH nor JAVA_HOME has one; a remote session needs none, `spark-pipelines` does."""
    pytest.importorskip("pyspark")
    monkeypatch.setenv("PATH", str(tmp_path))
    for home in (None, str(tmp_path)):
        monkeypatch.delenv("JAVA_HOME", raising=False)
        if home is not None:
            monkeypatch.setenv("JAVA_HOME", home)
        with pytest.raises(CliError, match=r"no java.*install Java 17 or newer"):
            check_needs()
        check_needs(is_remote=True)
        with pytest.raises(CliError, match="no java"):
            check_needs(is_remote=True, is_scheduled=True)


def test_an_old_java_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Java 11 starts and fails with a stack trace later, so it is refused before."""
    pytest.importorskip("pyspark")
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\" 2019-01-15' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(CliError, match="is Java 11, and 17 is needed"):
        check_needs()
    java.write_text("#!/bin/sh\necho 'openjdk version \"21\" 2023-09-19' >&2\n")
    check_needs()


def test_without_pyspark_it_says_what_to_install(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The extra is named, by `run` and by `demo`."""
    assert run("pipeline", "new", tmp_path / "x", "--topic", "orders").code == 0
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "pyspark" else real(name)
    )
    for arguments in (["pipeline", "run", tmp_path / "x"], ["demo"]):
        result = run(*arguments)
        assert result.code == 1
        assert "pyspark cannot be imported" in result.err
        assert "pip install 'anabranch[spark]'" in result.err


def test_master_and_remote_exclude_each_other(run: Run, tmp_path: Path) -> None:
    """Wrong usage, before anything is looked for."""
    assert run("pipeline", "new", tmp_path / "x", "--topic", "orders").code == 0
    result = run("pipeline", "run", tmp_path / "x", "--master", "local", "--remote", "sc://x")
    assert result.code == 2 and "exclude" in result.err


# status -------------------------------------------------------------------------------------------


def test_status_shows_the_lag_of_the_group(
    run: Run, shared_broker: BrokerProcess, tmp_path: Path
) -> None:
    """Committed offsets, ends and lag of all partitions, also of those without a commit."""
    topic = "pipeline-status"
    admin = AdminClient({"bootstrap.servers": shared_broker.bootstrap})
    admin.create_topics([NewTopic(topic, 3)])[topic].result(30)
    producer = Producer({"bootstrap.servers": shared_broker.bootstrap})
    for number in range(30):
        producer.produce(topic, b"x", partition=number % 3)
    assert producer.flush(30) == 0
    folder = tmp_path / "status-of-it"
    made = run(
        "pipeline", "new", folder, "--topic", topic, "--bootstrap-server", shared_broker.bootstrap
    )
    assert made.code == 0
    consumer = Consumer({"bootstrap.servers": shared_broker.bootstrap, "group.id": "status-of-it"})
    consumer.commit(
        offsets=[TopicPartition(topic, 0, 10), TopicPartition(topic, 1, 4)], asynchronous=False
    )
    consumer.close()
    result = run("pipeline", "status", folder, "--format", "json")
    assert result.code == 0, result.err
    shown = json.loads(result.out)
    assert (shown["group"], shown["total_lag"]) == ("status-of-it", 16)
    found = {p["partition"]: (p["current_offset"], p["lag"]) for p in shown["partitions"]}
    assert found == {0: (10, 0), 1: (4, 6), 2: (None, 10)}
    result = run("pipeline", "status", folder)
    assert result.out.splitlines()[0].split()[-1] == "LAG"
    assert "16 records behind" in result.err


def test_status_without_a_group(run: Run, tmp_path: Path) -> None:
    """A pipeline that shows its progress nowhere has no status, and is told so."""
    (tmp_path / "app.py").touch()
    (tmp_path / "pipeline.toml").write_text('app = "app.py"\n[source]\nsubscribe = "orders"\n')
    result = run("pipeline", "status", tmp_path)
    assert result.code == 1 and "kafka.group.id" in result.err


# demo ---------------------------------------------------------------------------------------------


def test_orders_have_one_hot_customer() -> None:
    """About a third of all orders are of one customer; prices are numbers."""
    chosen = random.Random(1)
    orders = [demo.order(chosen) for _ in range(3000)]
    hot = sum(key == demo.HOT_CUSTOMER.encode() for key, _ in orders)
    assert 900 < hot < 1100
    assert all(int(value) >= 100 for _, value in orders)
    assert demo.PARTITIONS * demo.BRANCHES_PER_PARTITION == 24


def test_the_broker_of_the_demo_comes_and_goes(tmp_path: Path) -> None:
    """It answers inside the block and has its topics; orders come, and it ends with the block."""
    with own_broker(tmp_path, {}) as address:
        create_topics(address, [(demo.TOPIC, demo.PARTITIONS)])
        with demo.Orders(address, 1000):
            admin = AdminClient({"bootstrap.servers": address})
            assert len(admin.list_topics(timeout=30).topics[demo.TOPIC].partitions) == 3
    assert b"ready" in (tmp_path / "broker.log").read_bytes()
    assert os.listdir(tmp_path / "data")
