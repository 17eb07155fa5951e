"""`anabranch doctor` on real brokers: a healthy one, a sick one, and none."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from command_result import Result
from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic
from groups_kit import TIMEOUT_S, GroupsKit

from anabranch.cli.doctor import machine
from support.broker_process import BrokerProcess, wait_until
from support.confluent_client import QUICK

Doctor = Callable[..., Result]


@pytest.fixture(scope="module")
def group_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """One broker for all tests, which makes no topics by itself."""
    overrides = {
        "auto.create.topics.enable": "false",
        "group.initial.rebalance.delay.ms": "0",
        "group.consumer.max.session.timeout.ms": "60000",
    }
    broker = BrokerProcess(tmp_path_factory.mktemp("doctor") / "data", overrides)
    broker.start()
    yield broker
    broker.kill()


@pytest.fixture
def doctor(run: Callable[..., Result], group_broker: BrokerProcess) -> Doctor:
    """`anabranch doctor --only broker ...` on that broker."""

    def run_doctor(*arguments: object) -> Result:
        server = ("--bootstrap-server", group_broker.bootstrap)
        return run("doctor", "--only", "broker", "--watch", "0.1", *server, *arguments)

    return run_doctor


def found(result: Result, check: str) -> list[tuple[str, str | None]]:
    """Status and subject of what a check found."""
    return [(one["status"], one["subject"]) for one in result.document if one["check"] == check]


def shared_out(kit: GroupsKit, group: str) -> tuple[int, int]:
    """How many members a group has, and how many partitions they have, once it is at rest."""
    described = kit.admin.describe_consumer_groups([group])[group].result(TIMEOUT_S)
    partitions = [tp for one in described.members for tp in one.assignment.topic_partitions]
    return (len(described.members), len(partitions)) if described.state.name == "STABLE" else (0, 0)


def test_an_empty_broker_is_healthy(doctor: Doctor) -> None:
    """Nothing is wrong with a broker that nobody uses yet, and nothing is made by looking."""
    result = doctor("--format", "json")
    assert result.code == 0, result.out
    assert {one["status"] for one in result.document} <= {"ok", "skipped"}
    assert result.err == "0 problems, 0 warnings.\n"
    assert found(result, "advertised-listeners") == [("ok", "broker 1")]
    assert found(result, "api-versions") == [("ok", "broker 1")]


def test_what_ails_groups_and_topics(doctor: Doctor, kit: GroupsKit) -> None:
    """Each ailment of a cluster is found, with the group or topic that has it."""
    kit.topic("read", records=4, partitions=1)
    kit.topic("unread", records=1, partitions=1)
    kit.topic("read.dlq", records=2, partitions=1)
    kit.topic("trimmed", records=9, partitions=1)
    kit.commit("left", "read", {0: 1})
    kit.commit("done", "read", {0: 4})
    kit.commit("late", "trimmed", {0: 1})
    kit.delete_records("trimmed", 0, 5)
    joining = {"group_protocol": "consumer", "heartbeat_interval_ms": None}
    with kit.member("crowd", "read", **joining), kit.member("crowd", "read", **joining):
        assert wait_until(lambda: shared_out(kit, "crowd") == (2, 1))
        result = doctor("--format", "json")
    assert result.code == 0, result.out
    assert found(result, "abandoned-groups") == [("warning", "late"), ("warning", "left")]
    assert found(result, "unread-topics") == [("warning", "unread")]
    assert found(result, "dead-letters") == [("warning", "read.dlq")]
    assert found(result, "idle-members") == [("warning", "crowd")]
    assert found(result, "no-commits") == [("warning", "crowd")]
    assert found(result, "lost-records") == [("warning", "late on trimmed")]
    assert found(result, "transactions") == [("ok", None)]
    for name in ("left", "done", "late", "crowd"):
        kit.admin.delete_consumer_groups([name])[name].result(TIMEOUT_S)
    for name in ("read", "unread", "read.dlq", "trimmed"):
        kit.delete_topic(name)


def test_records_that_are_about_to_go(doctor: Doctor, kit: GroupsKit) -> None:
    """Unread records that are older than most of retention.ms are told in time."""
    kept_ms = 1000 * 86_400_000
    topic = NewTopic("aging", 1, 1, config={"retention.ms": str(kept_ms)})
    kit.admin.create_topics([topic])["aging"].result(TIMEOUT_S)
    now_ms = int(time.time() * 1000)
    producer = Producer({**QUICK, "bootstrap.servers": kit.bootstrap})
    for age_ms in (kept_ms * 9 // 10, kept_ms * 85 // 100, kept_ms // 2):
        producer.produce("aging", b"v", partition=0, timestamp=now_ms - age_ms)
        assert producer.flush(TIMEOUT_S) == 0
    kit.commit("slow", "aging", {0: 1})
    result = doctor("--format", "json")
    (one,) = [one for one in result.document if one["check"] == "retention"]
    assert (one["status"], one["subject"]) == ("warning", "slow on aging")
    assert one["what"] == "1 record that it has not read will soon be deleted"
    kit.commit("slow", "aging", {0: 2})
    assert found(doctor("--format", "json"), "retention") == [("ok", None)]
    kit.admin.delete_consumer_groups(["slow"])["slow"].result(TIMEOUT_S)
    kit.delete_topic("aging")


def test_a_session_timeout_that_does_not_hold(
    doctor: Doctor, run: Callable[..., Result], group_broker: BrokerProcess, tmp_path: Path
) -> None:
    """A consumer's file with a timeout above the broker's bound is a problem, and exits 1."""
    file = tmp_path / "consumer.properties"
    file.write_text("session.timeout.ms=3000000\n")
    result = doctor("--command-config", file, "--format", "tsv")
    assert result.code == 1
    header, *lines = [line.split("\t") for line in result.out.splitlines()]
    assert header == ["STATUS", "CHECK", "SUBJECT", "FINDING", "NEXT-STEP"]
    (line,) = [cells for cells in lines if cells[0] == "problem"]
    assert line[1:3] == ["session-timeout", str(file)]
    assert "INVALID_SESSION_TIMEOUT" in line[3]
    assert result.err == "1 problem, 0 warnings.\n"


def test_a_broker_that_sends_clients_astray(run: Callable[..., Result], tmp_path: Path) -> None:
    """A name that does not resolve is found, and the rest is left until it is corrected."""
    overrides = {"advertised.listeners": "PLAINTEXT://no-such-host.invalid:9092"}
    broker = BrokerProcess(tmp_path / "data", overrides)
    broker.start()
    try:
        result = run(
            "doctor", "--only", "broker", "--bootstrap-server", broker.bootstrap, "--format", "json"
        )
    finally:
        broker.kill()
    assert result.code == 1
    (one,) = [one for one in result.document if one["status"] == "problem"]
    assert one["check"] == "advertised-listeners"
    assert one["why"] == "the name 'no-such-host.invalid' cannot be resolved from here"
    assert found(result, "topics-and-groups") == [("skipped", None)]


def test_a_broker_on_its_port(group_broker: BrokerProcess) -> None:
    """A port that a broker has is taken by the right kind of server."""
    host, _, port = group_broker.bootstrap.rpartition(":")
    found = machine.check_port(host, int(port))
    assert (found.status.value, found.what) == ("ok", "a broker listens")


def test_the_machine_alone(
    run: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """--only machine asks no broker, and takes its folder and port from the file."""
    monkeypatch.setattr(machine, "check_java", lambda: machine.ok("java", "not looked at here"))
    file = tmp_path / "server.properties"
    file.write_text(f"listeners=PLAINTEXT://127.0.0.1:1\nlog.dirs={tmp_path / 'data'}\n")
    result = run("doctor", file, "--only", "machine", "--format", "json")
    checks = [one["check"] for one in result.document]
    assert checks == [
        *("python", "packages", "settings", "open-files", "disk-space", "inodes", "port", "java")
    ]
    assert found(result, "port") == [("ok", "127.0.0.1:1")]
    assert found(result, "disk-space")[0][1] == str(tmp_path / "data")
    file.write_text("num.partitions=many\n")
    broken = run("doctor", file, "--only", "machine")
    assert broken.code == 1
    assert "problem" in broken.out and "num.partitions=many cannot be used" in broken.out
