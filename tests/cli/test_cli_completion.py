"""What a shell is offered: the scripts, and live names by the protocol that the scripts speak."""

import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.shell_completion import get_completion_class
from command_result import Result
from groups_kit import GroupsKit

from anabranch.cli.completion import live_names, shells
from anabranch.cli.main import root
from support.broker_process import BrokerProcess
from support.transactional_clients import Confluent

Completion = Callable[..., list[str]]
DEAD = "127.0.0.1:1"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker with two topics, a group and a transaction."""
    overrides = {"group.initial.rebalance.delay.ms": "0"}
    broker = BrokerProcess(tmp_path_factory.mktemp("completion") / "data", overrides)
    broker.start()
    kit = GroupsKit(broker.bootstrap)
    kit.topic("orders", records=1)
    kit.topic("orders.late", partitions=1)
    kit.topic("payments", partitions=1)
    kit.commit("billing", "orders", {0: 1})
    kit.commit("audit", "orders", {0: 1})
    Confluent(broker.bootstrap, "payments-1").begin()
    yield broker
    broker.kill()


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine may need longer than a person who presses Tab has patience."""
    monkeypatch.setattr(live_names, "PATIENCE_S", 30.0)


@pytest.fixture
def offered(monkeypatch: pytest.MonkeyPatch) -> Completion:
    """What bash is offered at the end of a line, in this process."""

    def complete(line: str) -> list[str]:
        monkeypatch.setenv("COMP_LINE", line)
        monkeypatch.setenv("COMP_POINT", str(len(line.encode())))
        complete_class = get_completion_class("bash")
        assert complete_class is shells.WholeLineBash
        told = complete_class(root, {}, "anabranch", shells.COMPLETE_VARIABLE).complete()
        return [line.partition(",")[2] for line in told.splitlines()]

    return complete


def test_topics(offered: Completion, broker: BrokerProcess) -> None:
    """Topics are those of the broker that the line names, without its own unless asked for."""
    server = f"--bootstrap-server {broker.bootstrap}"
    assert offered(f"anabranch topics describe {server} ") == ["orders", "orders.late", "payments"]
    assert offered(f"anabranch topics describe {server} or") == ["orders", "orders.late"]
    assert offered(f"anabranch topics describe {server} orders or") == ["orders.late"]
    assert offered(f"anabranch consume {server} pay") == ["payments"]
    assert "__consumer_offsets" in offered(f"anabranch topics describe {server} __c")
    assert offered(f"anabranch groups reset billing {server} --topic pay") == ["payments"]


def test_the_broker_of_the_environment(
    offered: Completion, broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a flag it is the variable that says which broker is asked."""
    monkeypatch.setenv("ANABRANCH_BOOTSTRAP_SERVER", broker.bootstrap)
    assert offered("anabranch produce pay") == ["payments"]


def test_the_broker_of_a_file(offered: Completion, broker: BrokerProcess, tmp_path: Path) -> None:
    """--command-config names the broker as well."""
    file = tmp_path / "client.properties"
    file.write_text(f"bootstrap.servers={broker.bootstrap}\n")
    assert offered(f"anabranch produce --command-config {file} pay") == ["payments"]


def test_groups_and_members(offered: Completion, broker: BrokerProcess) -> None:
    """Groups, and the members of the group that the line names."""
    server = f"--bootstrap-server {broker.bootstrap}"
    assert offered(f"anabranch groups describe {server} ") == ["audit", "billing"]
    assert offered(f"anabranch configs describe {server} --group b") == ["billing"]
    kit = GroupsKit(broker.bootstrap)
    with kit.member("working", "orders", owning=3) as consumer:
        (member,) = offered(f"anabranch groups describe working {server} --member ")
        assert member == consumer.memberid()
        assert offered(f"anabranch groups describe audit {server} --member ") == []


def test_transactional_ids(offered: Completion, broker: BrokerProcess) -> None:
    """Transactional ids come from the coordinators."""
    server = f"--bootstrap-server {broker.bootstrap}"
    assert offered(f"anabranch transactions describe {server} pay") == ["payments-1"]
    assert offered(f"anabranch transactions abort {server} ") == ["payments-1"]


def test_names_of_settings(offered: Completion) -> None:
    """Settings are those of what the line is about, and ask for a value where they take one."""
    assert "retention.ms" in offered("anabranch configs describe --topic t retention")
    assert offered("anabranch configs alter --group g --set consumer.session") == [
        "consumer.session.timeout.ms="
    ]
    assert "num.partitions=" in offered("anabranch serve --override num")
    assert offered("anabranch topics create t --config retention.m") == ["retention.ms="]
    assert offered("anabranch topics configs t --unset retention.m") == ["retention.ms"]


def test_words_of_the_program(offered: Completion) -> None:
    """Commands, flags and choices need no broker."""
    assert offered("anabranch top") == ["topics"]
    assert offered("anabranch completion ") == ["bash", "zsh", "fish"]
    assert offered("anabranch topics list --format ") == ["text", "json", "tsv"]
    assert "--bootstrap-server" in offered("anabranch topics list --boot")


def test_nobody_answers(
    offered: Completion, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a broker there is nothing to offer, and nothing is said."""
    monkeypatch.setattr(live_names, "PATIENCE_S", 1.0)
    began_s = time.monotonic()
    for command in ("topics describe", "groups describe", "transactions describe"):
        assert offered(f"anabranch {command} --bootstrap-server {DEAD} ") == []
    assert offered(f"anabranch groups describe g --bootstrap-server {DEAD} --member ") == []
    assert time.monotonic() - began_s < 30
    assert capfd.readouterr() == ("", "")


def test_a_broker_that_is_silent_is_left_in_peace(
    offered: Completion, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who takes the connection and says nothing is given up after the time that there is."""
    import socket

    monkeypatch.setattr(live_names, "PATIENCE_S", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        server = f"127.0.0.1:{silent.getsockname()[1]}"
        began_s = time.monotonic()
        assert offered(f"anabranch topics describe --bootstrap-server {server} ") == []
        assert time.monotonic() - began_s < 20


def test_a_broker_behind_tls_is_asked_by_librdkafka(
    offered: Completion, broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where our own codecs cannot go, topics and groups are still offered."""
    monkeypatch.setattr(live_names, "_can_ask", lambda connection: False)
    server = f"--bootstrap-server {broker.bootstrap}"
    assert offered(f"anabranch topics describe {server} pay") == ["payments"]
    assert offered(f"anabranch groups describe {server} aud") == ["audit"]


def test_bash_keeps_what_is_before_a_break(offered: Completion, broker: BrokerProcess) -> None:
    """Bash cuts words at `:` and `=` and puts the offer behind the last of them."""
    assert offered("anabranch topics list --format=j") == ["json"]
    line = f"anabranch topics describe --bootstrap-server={broker.bootstrap} pay"
    assert offered(line) == ["payments"]


@pytest.mark.parametrize("shell", shells.SHELLS)
def test_the_scripts(run: Callable[..., Result], shell: str) -> None:
    """Each shell gets a script that calls the program back with its own variable."""
    result = run("completion", shell)
    assert (result.code, result.err) == (0, "")
    assert f"_ANABRANCH_COMPLETE={shell}_complete" in result.out
    if (program := shutil.which(shell)) is not None:
        checked = subprocess.run(
            [program, "-n"], input=result.out, text=True, capture_output=True, check=False
        )
        assert (checked.returncode, checked.stderr) == (0, "")


def test_a_shell_that_is_not_known(run: Callable[..., Result]) -> None:
    """Another shell is wrong usage, which names those there are."""
    result = run("completion", "csh")
    assert result.code == 2 and "'bash', 'zsh', 'fish'" in result.err


def test_bash_itself(broker: BrokerProcess, tmp_path: Path) -> None:
    """The script makes a real bash fill COMPREPLY, server with a colon and all."""
    bash = shutil.which("bash")
    assert bash is not None, "the tests of this project run where there is bash"
    program = tmp_path / "anabranch"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m anabranch.cli "$@"\n')
    program.chmod(0o755)
    line = f"anabranch topics describe --bootstrap-server {broker.bootstrap} pay"
    script = f"""
compopt() {{ :; }}
source <({program} completion bash)
complete -p anabranch
COMP_LINE='{line}' COMP_POINT={len(line)}
# Only a shell with a terminal asks by itself, and the time for that is short on a busy machine.
for attempt in 1 2 3 4 5 6 7 8 9 10; do
    COMPREPLY=()
    _anabranch_completion {program} pay ''
    [ ${{#COMPREPLY[@]}} -gt 0 ] && break
done
printf 'offered: %s\\n' "${{COMPREPLY[@]}}"
"""
    done = subprocess.run(
        [bash, "--norc", "-c", script], text=True, capture_output=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == (
        "complete -o nosort -F _anabranch_completion anabranch\noffered: payments\n"
    )
