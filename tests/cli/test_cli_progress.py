"""Progress bars: on a terminal, on stderr, and nowhere else."""

import io
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from command_result import Result
from groups_kit import GroupsKit

from anabranch.cli.progress import progress_bar
from support.broker_process import BrokerProcess

RECORDS = 300


class Terminal(io.StringIO):
    """A stream that takes itself for a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_bar_reaches_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last step is drawn, however few steps are between two drawings."""
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with progress_bar("Reading", 1001) as advance:
        for _ in range(1001):
            advance(1)
    drawn = terminal.getvalue()
    assert "Reading" in drawn and "100%" in drawn
    assert drawn.count("Reading") < 300  # not one for every step


@pytest.mark.parametrize("length", [0, -1])
def test_nothing_to_do_has_no_bar(monkeypatch: pytest.MonkeyPatch, length: int) -> None:
    """Where there is nothing to do, or nobody knows how much, nothing is drawn."""
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with progress_bar("Reading", length) as advance:
        advance(1)
    with progress_bar("Reading", 5, is_shown=False) as advance:
        advance(5)
    assert terminal.getvalue() == ""


def test_no_terminal_has_no_bar(capsys: pytest.CaptureFixture[str]) -> None:
    """What is piped or kept in a file has no bars in it."""
    with progress_bar("Reading", 10) as advance:
        advance(10)
    assert capsys.readouterr() == ("", "")


def on_a_terminal(output: Path, *arguments: object) -> str:
    """Run a command whose stderr is a terminal and whose stdout is a file; what it drew."""
    ours, theirs = pty.openpty()
    with output.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "anabranch.cli", *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=theirs,
        )
    os.close(theirs)
    drawn = b""
    while True:
        try:
            more = os.read(ours, 65536)
        except OSError:  # the other side is closed, as Linux says it
            break
        if not more:
            break
        drawn += more
    os.close(ours)
    assert process.wait(60) == 0, drawn
    return drawn.decode()


def test_long_work_shows_how_far_it_is(
    kit: GroupsKit, group_broker: BrokerProcess, tmp_path: Path, run: Callable[..., Result]
) -> None:
    """Sending a file, reading to a file and dumping a log draw a bar beside their results."""
    server = ("--bootstrap-server", group_broker.bootstrap)
    kit.topic("long", partitions=1)
    lines = tmp_path / "lines"
    lines.write_text("".join(f"record {number}\n" for number in range(RECORDS)))
    out = tmp_path / "out"
    drawn = on_a_terminal(out, "produce", "long", "--file", lines, *server)
    assert "Sending  [####" in drawn and "100%" in drawn
    assert "Delivered 300 records" in drawn
    assert out.read_bytes() == b""
    drawn = on_a_terminal(out, "consume", "long", "--exit-at-end", *server)
    assert "Reading  [####" in drawn and "100%" in drawn
    assert out.read_bytes() == lines.read_bytes()
    drawn = on_a_terminal(
        out, "consume", "long", "--from", "earliest", "--max-messages", 5, *server
    )
    assert "Reading  [####" in drawn and "100%" in drawn
    segment = group_broker.data_dir / "long-0"
    drawn = on_a_terminal(out, "log", "dump", segment, "--format", "json")
    assert "Reading  [####" in drawn
    assert run("consume", "long", "--exit-at-end", *server).err == ""


def test_deleting_many_shows_how_far_it_is(
    kit: GroupsKit, group_broker: BrokerProcess, tmp_path: Path
) -> None:
    """Topics and groups that go together are counted, one alone is not."""
    server = ("--bootstrap-server", group_broker.bootstrap, "--yes")
    for name in ("gone-1", "gone-2", "gone-3"):
        kit.topic(name, records=1, partitions=1)
        kit.commit(f"of-{name}", name, {0: 1})
    drawn = on_a_terminal(tmp_path / "out", "groups", "delete", "of-gone-1", "of-gone-2", *server)
    assert "Deleting  [####" in drawn and "100%" in drawn and "Deleted 2 groups" in drawn
    drawn = on_a_terminal(tmp_path / "out", "topics", "delete", "gone-1", "gone-2", *server)
    assert "Deleting  [####" in drawn and "100%" in drawn and "Deleted 2 topics" in drawn
    drawn = on_a_terminal(tmp_path / "out", "topics", "delete", "gone-3", *server)
    assert "Deleting" not in drawn
