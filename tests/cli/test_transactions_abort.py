"""`anabranch transactions abort` when brokers do not do as usual."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from command_result import Result

from anabranch.cli.options import Connection
from anabranch.cli.transactions import questions
from anabranch.cli.transactions.questions import Cluster, Described, Node
from anabranch.model.errors import ErrorCode

NODE = Node(id=1, host="127.0.0.1", port=1)
CONCURRENT = ErrorCode.CONCURRENT_TRANSACTIONS


class Script:
    """What the coordinator answers: the state each time it is asked, the code of each fencing."""

    def __init__(self) -> None:
        self.states: Iterator[str] = iter(())
        self.codes: Iterator[int] = iter(())
        self.fenced = 0

    def describe(self, _: Cluster, transactional_id: str) -> Described:
        return Described(
            transactional_id=transactional_id,
            coordinator=NODE,
            producer_id=5,
            producer_epoch=0,
            state=next(self.states),
            timeout_ms=1000,
            start_time_ms=0,
            partitions=(("t", 0),),
        )

    def fence(self, _: Cluster, __: Described) -> int:
        self.fenced += 1
        return next(self.codes)


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Script:
    found = Script()

    def open_cluster(connection: Connection) -> Cluster:
        return Cluster(connection=connection, metadata=None, nodes={1: NODE})  # type: ignore[arg-type]

    monkeypatch.setattr(questions, "open_cluster", open_cluster)
    monkeypatch.setattr(questions, "describe_transaction", found.describe)
    monkeypatch.setattr(questions, "fence", found.fence)
    monkeypatch.setattr(questions, "_PAUSE_S", 0.001)
    return found


@pytest.fixture
def abort(run: Callable[..., Result]) -> Callable[[], Result]:
    return lambda: run("transactions", "abort", "tx", "--yes", "--timeout", "0.05")


def test_the_end_is_waited_for(script: Script, abort: Callable[[], Result]) -> None:
    """The producer is fenced once, and it is done when no marker is missing any more."""
    script.states = iter(("Ongoing", "PrepareAbort", "PrepareAbort", "CompleteAbort"))
    script.codes = iter((CONCURRENT,))
    assert abort().code == 0
    assert (script.fenced, next(script.states, None)) == (1, None)


def test_a_coordinator_that_starts(script: Script, abort: Callable[[], Result]) -> None:
    """It is asked again until it answers."""
    script.states = iter(("Ongoing", "CompleteAbort"))
    script.codes = iter((ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, CONCURRENT))
    assert abort().code == 0


@pytest.mark.parametrize(
    ("states", "code", "said"),
    [
        (("Ongoing",), ErrorCode.NONE, "it has ended by itself meanwhile"),
        (("Ongoing", "CompleteCommit"), CONCURRENT, "it was committed meanwhile"),
        (
            ("Ongoing",),
            ErrorCode.INVALID_TRANSACTION_TIMEOUT,
            "the broker says INVALID_TRANSACTION_TIMEOUT - look at the broker's log",
        ),
        (("PrepareCommit",), None, "its transaction is being ended (PrepareCommit)"),
        (("Empty",), None, "it has no open transaction (Empty)"),
    ],
)
def test_what_was_not_aborted(
    script: Script,
    abort: Callable[[], Result],
    states: tuple[str, ...],
    code: int | None,
    said: str,
) -> None:
    """It is told why, and the command fails."""
    script.states = iter(states)
    script.codes = iter(() if code is None else (code,))
    result = abort()
    assert result.code == 1
    assert said in result.err


def test_a_marker_that_cannot_be_written(script: Script, abort: Callable[[], Result]) -> None:
    """After --timeout it is told that the end is decided, and still under way."""
    script.states = iter(["Ongoing", *["PrepareAbort"] * 10_000])
    script.codes = iter((CONCURRENT,))
    result = abort()
    assert result.code == 1
    assert "is not ended in all partitions - the end is decided (PrepareAbort)" in result.err


def test_a_coordinator_that_never_starts(script: Script, abort: Callable[[], Result]) -> None:
    """After --timeout it is told."""
    script.states = iter(("Ongoing",))
    script.codes = iter([ErrorCode.NOT_COORDINATOR] * 10_000)
    result = abort()
    assert result.code == 1
    assert "the broker says NOT_COORDINATOR - try again, the broker may be starting" in result.err


def test_a_listener_with_tls(run: Callable[..., Result], tmp_path: Path) -> None:
    """Our codecs go in the clear, so it is said before anything is tried."""
    properties = tmp_path / "client.properties"
    properties.write_text("security.protocol=SSL\n")
    result = run("transactions", "list", "--command-config", properties)
    assert result.code == 1
    assert "cannot be asked for them by ssl - use a listener without TLS" in result.err
