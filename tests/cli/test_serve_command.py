"""`anabranch serve`: what it passes on, and a broker started as users start one."""

import signal
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from anabranch.cli.serve import serve
from anabranch.config.console_settings import CONSOLE_LISTENERS
from anabranch.config.group_config import serves_consumer_protocol
from anabranch.config.load import load_settings
from anabranch.config.serve_flags import SERVE_FLAGS


def test_what_is_passed_on(run: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    """File, overrides and --check reach the server as given; its exit code is ours."""
    calls: list[tuple[object, ...]] = []

    def fake_run(*arguments: object) -> int:
        calls.append(arguments)
        return 3

    monkeypatch.setattr("anabranch.server.run.run", fake_run)
    assert run("serve").code == 3
    assert run("serve", "my.properties", "--override", "a=1", "--override", "b=2").code == 3
    assert run("serve", "--check").code == 3
    assert calls == [
        (None, [], False),
        ("my.properties", ["a=1", "b=2"], False),
        (None, [], True),
    ]


def test_where_the_console_is(run: Callable) -> None:
    """The help has the flag, and what it is given counts as the setting's value."""
    assert "--console HOST:PORT" in run("serve", "--help").out
    settings = load_settings(environ={}, overrides=["--console=localhost:8081"])
    assert settings.get_list(CONSOLE_LISTENERS) == ("localhost:8081",)
    assert str(settings.source(CONSOLE_LISTENERS)) == "--console"
    nowhere = load_settings(environ={}, overrides=["--console="])
    assert nowhere.get_list(CONSOLE_LISTENERS) == ()


def test_check(start: Callable, tmp_path: Path) -> None:
    """--check exits 0 for a sound configuration and 2 for another, starting nothing."""
    good = tmp_path / "good.properties"
    good.write_text(f"log.dirs={tmp_path / 'data'}\nnum.partitions=3\n")
    sound = start("serve", good, "--check")
    sound.communicate(timeout=60)
    assert sound.returncode == 0
    wrong = start("serve", good, "--check", "--override", "num.partitions=zero")
    _, err = wrong.communicate(timeout=60)
    assert wrong.returncode == 2
    assert b"num.partitions" in err
    assert not (tmp_path / "data").exists()


def test_start_use_stop(start: Callable, run: Callable, tmp_path: Path) -> None:
    """A broker says in four lines that it is ready, serves, and stops in order on SIGTERM."""
    data = tmp_path / "data"
    process = start(
        "serve", "--override", "listeners=PLAINTEXT://127.0.0.1:0", "--override", f"log.dirs={data}"
    )
    lines = [process.stdout.readline().decode() for _ in range(4)]
    assert "is ready" in lines[0]
    address = lines[1].split("//")[1].strip()
    assert str(data) in lines[2]
    assert run("produce", "t", "--bootstrap-server", address, stdin=b"hello\n").code == 0
    assert run("consume", "t", "--bootstrap-server", address, "--exit-at-end").out == "hello\n"
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 0


def test_flags_are_passed_on_under_their_names(
    run: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each flag that stands for a setting reaches the server as an override, after the others."""
    calls: list[list[str]] = []
    monkeypatch.setattr(
        "anabranch.server.run.run", lambda _, overrides, check: calls.append(overrides) or 0
    )
    run(
        "serve",
        *("--consumer-session-timeout-ms", "30000", "--consumer-heartbeat-interval-ms", "3000"),
        *("--consumer-assignors", "range,uniform", "--consumer-max-group-size", "1000"),
        *("--enable-new-protocol", "--override", "a=1"),
    )
    run("serve", "--no-enable-new-protocol")
    assert calls == [
        [
            "a=1",
            "--consumer-session-timeout-ms=30000",
            "--consumer-heartbeat-interval-ms=3000",
            "--consumer-assignors=range,uniform",
            "--consumer-max-group-size=1000",
            "--enable-new-protocol=classic,consumer",
        ],
        ["--no-enable-new-protocol=classic"],
    ]
    settings = load_settings(environ={}, overrides=calls[0])
    assert settings.warnings == ("--override: a is not a setting. It has no effect.",)
    assert settings.get_int("group.consumer.session.timeout.ms") == 30_000
    assert not serves_consumer_protocol(load_settings(environ={}, overrides=calls[1]))


def test_help_says_what_a_flag_sets() -> None:
    """The flags are those that the configuration knows, and each names its setting."""
    options = [option for option in serve.params if isinstance(option, click.Option)]
    helps = {flag: o.help for o in options for flag in (*o.opts, *o.secondary_opts)}
    for flag, setting in SERVE_FLAGS.items():
        assert setting in (helps[flag] or "")


def test_flags_of_a_command_line(start: Callable) -> None:
    """A flag beyond the usual bounds is sound; a senseless one is named in the error."""
    sound = start("serve", "--check", "--consumer-session-timeout-ms", "30000")
    sound.communicate(timeout=60)
    assert sound.returncode == 0
    wrong = start("serve", "--check", "--consumer-session-timeout-ms", "4000")
    _, err = wrong.communicate(timeout=60)
    assert wrong.returncode == 2
    assert b"--consumer-session-timeout-ms: group.consumer.heartbeat.interval.ms=5000" in err


@pytest.mark.parametrize("check", [(), ("--check",)])
def test_an_assignor_that_is_not_there(
    start: Callable, tmp_path: Path, check: tuple[str, ...]
) -> None:
    """A name that no assignor has is a mistake in the configuration, found before the start."""
    data = tmp_path / "data"
    arguments = ("--override", f"log.dirs={data}", "--consumer-assignors", "uniform,by-moon")
    process = start("serve", *arguments, *check)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 2
    assert b"--consumer-assignors: There is no assignor named 'by-moon'" in err
    assert b"Known: key-range-range, key-range-round-robin, line-cut, range, uniform" in err
    assert not data.exists()
