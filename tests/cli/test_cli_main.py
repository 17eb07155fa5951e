"""How command lines end: exit codes, sentences, tracebacks, signals, pipes, start-up."""

import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from anabranch.cli import main as main_module
from anabranch.cli.errors import CliError

UNREACHABLE = "127.0.0.1:1"  # nothing listens on port 1


def test_version(run: Callable) -> None:
    """--version says name and version."""
    result = run("--version")
    assert result.code == 0
    assert result.out.split()[0] == "anabranch"
    assert result.out.split()[1][0].isdigit()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["nope"], "No such command 'nope'"),
        (["topics", "nope"], "No such command 'nope'"),
        (["topics", "list", "--nope"], "No such option"),
        (["topics", "create"], "Missing argument 'TOPIC...'"),
        (["topics", "create", "x", "--partitions", "0"], "--partitions must be 1 or more"),
        (["topics", "create", "x", "--replication-factor", "0"], "must be 1 or more"),
        (["topics", "create", "x", "--config", "nonsense"], "--config takes name=value"),
        (["topics", "create", "x", "--config", "=v"], "--config takes name=value"),
        (["topics", "create", "x", "--config", "a=1", "--config", "a=2"], "names 'a' twice"),
        (["topics", "configs", "x", "--set", "a=1", "--unset", "a"], "both name 'a'"),
        (["topics", "list", "--timeout", "0"], "--timeout"),
        (["topics", "list", "--format", "xml"], "--format"),
        (["topics", "list", "--command-config", "/no/such/file"], "does not exist"),
        (["produce", "t", "--acks", "2"], "--acks"),
        (["produce", "t", "--key-separator", ""], "must not be empty"),
        (["produce", "t", "--key-separator", "\\q"], "knows no escape \\q"),
        (["produce", "t", "--input", "json", "--null-marker", "x"], "belong to --input lines"),
        (["produce", "t", "--keep-partitions"], "needs --input json"),
        (["produce", "t", "--partition", "-1"], "--partition"),
        (["produce", "t", "--file", "/no/such/file"], "does not exist"),
        (["consume", "t", "--from", "whenever"], "is none of earliest, latest"),
        (["consume", "t", "--template", "%x"], "knows no placeholder %x"),
        (["consume", "t", "--template", "%s", "--format", "json"], "exclude each other"),
        (["consume", "t", "--max-messages", "0"], "--max-messages"),
        (["log", "dump"], "Missing argument"),
        (["log", "dump", "/no/such/file"], "does not exist"),
        (["log", "dump", __file__], "is none of .log, .index"),
    ],
)
def test_wrong_usage(run: Callable, arguments: list[str], sentence: str) -> None:
    """Wrong usage exits 2 with a sentence on stderr, before any broker is asked."""
    result = run(*arguments)
    assert (result.code, result.out) == (2, "")
    assert sentence in result.err
    assert "Traceback" not in result.err


@pytest.mark.parametrize(
    "arguments",
    [
        ["topics", "list"],
        ["topics", "create", "x"],
        ["topics", "describe"],
        ["topics", "delete", "x", "--yes"],
        ["topics", "configs", "x"],
        ["produce", "x"],
        ["consume", "x"],
    ],
)
def test_an_unreachable_broker_is_one_sentence(
    run: Callable, arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """When nothing listens, a command says so in one line and exits 1."""
    monkeypatch.setattr("anabranch.cli.connection._REFUSED_GRACE_S", 0.05)
    result = run(*arguments, "--bootstrap-server", UNREACHABLE, "--timeout", "60")
    assert (result.code, result.out) == (1, "")
    assert result.err == (
        "error: Cannot reach a broker at 127.0.0.1:1 - the connection was refused, nothing"
        " listens there - start one with `anabranch serve`, or point --bootstrap-server at a"
        " running one\n"
    )


def test_refusal_does_not_use_up_a_long_timeout(start: Callable) -> None:
    """A refused connection is told long before a timeout of minutes, in a single line."""
    process = start("topics", "list", "--timeout", "300", ANABRANCH_BOOTSTRAP_SERVER=UNREACHABLE)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (1, b"")
    assert err.count(b"\n") == 1


def test_an_unknown_host_is_told(run: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host name that does not resolve is named as the reason."""
    monkeypatch.setattr("anabranch.cli.connection._REFUSED_GRACE_S", 0.05)
    result = run("topics", "list", "--bootstrap-server", "no-such-host.invalid:9092")
    assert result.code == 1
    assert "the host name cannot be resolved - correct --bootstrap-server" in result.err


def test_a_silent_server_runs_into_the_timeout(run: Callable) -> None:
    """A server that accepts and says nothing is given up after the timeout."""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        result = run("topics", "list", "--bootstrap-server", address, "--timeout", "0.5")
    assert result.code == 1
    assert f"Cannot reach a broker at {address} - no answer within 0.5 s" in result.err


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Callable[[BaseException], None]:
    """Make `anabranch topics` end in an exception."""

    def fail_with(exception: BaseException) -> None:
        def get_command(*_: object) -> None:
            raise exception

        monkeypatch.setattr(main_module.LazyGroup, "get_command", get_command)

    return fail_with


def test_failures_have_no_traceback_without_debug(run: Callable, failing: Callable) -> None:
    """A foreseen failure is its sentence, an unforeseen one says how to learn more."""
    failing(CliError("It failed", "so it is", "do that"))
    assert run("topics").err == "error: It failed - so it is - do that\n"
    failing(ZeroDivisionError("boom"))
    result = run("topics")
    assert result.code == 1
    assert result.err == (
        "error: Unexpected ZeroDivisionError - boom - run again with --debug and report the"
        " traceback\n"
    )


def test_debug_lets_the_traceback_through(run: Callable, failing: Callable) -> None:
    """With --debug the exception itself comes out."""
    failing(ZeroDivisionError("boom"))
    with pytest.raises(ZeroDivisionError):
        run("--debug", "topics")


def test_a_closed_pipe_is_a_quiet_success(start: Callable) -> None:
    """A reader that goes away ends the command without a word and with exit code 0."""
    process = start("topics", "create", "--help")
    process.stdout.close()
    assert process.wait(60) == 0
    assert process.stderr.read() == b""


@pytest.fixture(params=["heeded", "ignored"])
def sigint(request: pytest.FixtureRequest) -> Iterator[None]:
    """SIGINT as it is in the foreground, and as it is where a shell started the tests in the
    background."""
    handler = signal.default_int_handler if request.param == "heeded" else signal.SIG_IGN
    before = signal.signal(signal.SIGINT, handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("sigint")
def test_interrupt_is_quiet(start: Callable) -> None:
    """Ctrl-C while waiting for a broker ends by that signal, at once and without a word."""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        process = start("topics", "list", "--bootstrap-server", address, "--timeout", "300")
        connection, _ = server.accept()  # it is waiting for an answer now
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        connection.close()
    assert process.returncode == -signal.SIGINT
    assert (out, err) == (b"", b"")


def test_help_imports_nothing_heavy() -> None:
    """The list of commands needs no Kafka client, no codec, no server."""
    script = (
        "import sys; from anabranch.cli.main import main; main(['--help']); main(['topics', '-h']);"
        "print(sorted({m.split('.')[0] for m in sys.modules} & {'confluent_kafka', 'asyncio',"
        " 'uvloop', 'cramjam', 'lz4', 'javaproperties', 'ssl', 'rich'}), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stderr == "[]\n"


def test_start_up_budget(record_property: Callable) -> None:
    """`anabranch --help` costs a small multiple of starting Python with click at all.

    The 250 ms budget is not asserted, because machines differ; the ratio to importing click is. It
    is the processor's time that is measured, which other processes do not add to.
    """

    def spent_s() -> float:
        spent = resource.getrusage(resource.RUSAGE_CHILDREN)
        return spent.ru_utime + spent.ru_stime

    def best_s(*arguments: str) -> float:
        durations = []
        for _ in range(5):
            before_s = spent_s()
            subprocess.run([sys.executable, *arguments], capture_output=True, check=True)
            durations.append(spent_s() - before_s)
        return min(durations)

    help_s = best_s("-m", "anabranch.cli", "--help")
    click_s = best_s("-c", "import click, json, importlib")
    record_property("help_s", round(help_s, 3))
    record_property("click_s", round(click_s, 3))
    assert help_s < 4 * click_s
