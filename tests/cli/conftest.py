"""Running the command line: in this process, which is quick, or as a process of its own."""

import io
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from command_result import Result
from groups_kit import GroupsKit

from anabranch.cli.main import main
from support.broker_process import BrokerProcess
from support.signals import interruptible


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No setting of the machine's owner reaches the tests."""
    for name in ("ANABRANCH_BOOTSTRAP_SERVER", "_ANABRANCH_COMPLETE", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Result]:
    """Run a command line in this process."""

    def run_main(*arguments: object, stdin: bytes = b"") -> Result:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8"))
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Result(code, captured.out, captured.err)

    return run_main


@pytest.fixture
def start() -> Callable[..., "subprocess.Popen[bytes]"]:
    """Start a command line in a process of its own."""

    def start_process(*arguments: object, **environment: str) -> "subprocess.Popen[bytes]":
        with interruptible():
            return subprocess.Popen(
                [sys.executable, "-m", "anabranch.cli", *map(str, arguments)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**os.environ, **environment},
            )

    return start_process


@pytest.fixture(scope="module")
def group_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """One broker for all tests of a module, whose groups form at once."""
    overrides = {"num.partitions": "3", "group.initial.rebalance.delay.ms": "0"}
    broker = BrokerProcess(tmp_path_factory.mktemp("groups") / "data", overrides)
    broker.start()
    yield broker
    broker.kill()


@pytest.fixture
def groups(run: Callable[..., Result], group_broker: BrokerProcess) -> Callable[..., Result]:
    """`anabranch groups ...` on that broker."""

    def run_groups(verb: str, *arguments: object, **options: Any) -> Result:
        return run(
            "groups", verb, *arguments, "--bootstrap-server", group_broker.bootstrap, **options
        )

    return run_groups


@pytest.fixture
def kit(group_broker: BrokerProcess) -> GroupsKit:
    """Topics, offsets and members to run commands on."""
    return GroupsKit(group_broker.bootstrap)
