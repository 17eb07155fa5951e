"""Each anomaly is found in a small history that has only that one, and good ones have none."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anomalies
import pytest
from anomalies import FAIL, INFO, OK, check

from anabranch.client.history import UnreadableHistory, Verdict

P, Q = "x-0", "x-1"
Told = dict[str, Any]


def send(value: str, offset: int | None = None, partition: str = P) -> list[Any]:
    return ["send", partition, [offset, value]]


def poll(*found: tuple[int, str], partition: str = P) -> list[Any]:
    return ["poll", {partition: [list(one) for one in found]}]


class Story:
    """Events one second after the other."""

    def __init__(self) -> None:
        self.events: list[Told] = []

    def say(self, process: str, f: str, kind: str, **facts: Any) -> None:
        at = float(len(self.events))
        self.events.append({"at": at, "process": process, "f": f, "type": kind, **facts})

    def txn(self, process: str, *steps: Any, outcome: str = OK, **facts: Any) -> None:
        """A transaction that ends as told; one that fails was not asked to commit."""
        self.say(process, "txn", "invoke", value=list(steps))
        if outcome != FAIL:
            self.say(process, "txn", "commit", value=list(steps))
        self.say(process, "txn", outcome, value=list(steps), **facts)

    def killed(self, process: str, *steps: Any, has_asked: bool) -> None:
        """A transaction whose process died."""
        self.say(process, "txn", "invoke", value=list(steps))
        if has_asked:
            self.say(process, "txn", "commit", value=list(steps))

    def poll(self, process: str, *found: tuple[int, str], partition: str = P, **facts: Any) -> None:
        steps = [poll(*found, partition=partition)]
        self.say(process, "poll", "invoke", value=[["poll"]])
        self.say(process, "poll", OK, value=steps, **facts)

    def assign(self, process: str, offset: int = 0, partition: str = P) -> None:
        self.say(process, "assign", OK, value={partition: offset})

    def subscribe(self, process: str, group: str = "g") -> None:
        self.say(process, "subscribe", OK, group=group)

    def check(self) -> Verdict:
        return check(self.events)


# Good ones ----------------------------------------------------------------------------------------


def plain() -> Story:
    """Two write by turns, one of them fails once, and a third reads on and on."""
    story = Story()
    story.txn("a", send("1", 0), send("2", 1), send("q", 0, Q))
    story.txn("b", send("3", 3))
    story.txn("a", send("4", 5), outcome=FAIL)
    story.assign("c")
    story.poll("c", (0, "1"))
    story.poll("c", (1, "2"), (3, "3"))
    story.txn("b", send("5", 7))
    story.poll("c", (7, "5"))
    story.poll("c", (0, "q"), partition=Q)
    return story


def unknown_ends() -> Story:
    """Who is killed before it asks to commit fails; after that it may go either way."""
    story = Story()
    story.killed("a", send("1"), has_asked=False)
    story.killed("b", send("2"), send("3"), has_asked=True)
    story.killed("c", send("4"), has_asked=True)
    story.txn("d", send("5"), outcome=INFO)
    story.poll("e", (2, "2"), (3, "3"))
    return story


def an_aborted_reader_reads_again() -> Story:
    """Who fails goes on where it was before."""
    story = Story()
    story.txn("a", send("1", 0), send("2", 1))
    story.assign("b")
    story.txn("b", poll((0, "1"), (1, "2")), outcome=FAIL)
    story.txn("b", poll((0, "1")))
    story.txn("b", poll((1, "2")), outcome=FAIL)
    story.txn("b", poll((1, "2")))
    return story


def a_group_that_moves() -> Story:
    """Partitions move between the members; each record is taken in once, by who commits it."""
    story = Story()
    story.txn("w", send("1", 0), send("2", 1), send("3", 2), send("4", 3))
    story.subscribe("a")
    story.subscribe("b")
    story.txn("a", poll((0, "1")), moved=[P])
    story.txn("a", poll((1, "2")), outcome=FAIL, moved=[P])
    story.txn("b", poll((1, "2")), moved=[P])
    story.killed("b", poll((2, "3")), has_asked=True)
    story.txn("a", poll((3, "4")), moved=[P])
    story.say("stage", "end", OK, group="g", value={P: 4})
    return story


def an_info_reader_may_start_anywhere() -> Story:
    """Of who does not know whether its commit counted, nothing is expected."""
    story = Story()
    story.txn("a", send("1", 0), send("2", 1))
    story.assign("b")
    story.txn("b", poll((0, "1"), (1, "2")), outcome=INFO)
    story.txn("b", poll((1, "2")))
    return story


GOOD = [
    plain,
    unknown_ends,
    an_aborted_reader_reads_again,
    a_group_that_moves,
    an_info_reader_may_start_anywhere,
]


@pytest.mark.parametrize("tell", GOOD)
def test_good_history(tell: Callable[[], Story]) -> None:
    """What may happen is nothing to complain of."""
    assert tell().check().problems == []


# Bad ones -----------------------------------------------------------------------------------------


def aborted_read() -> Story:
    story = Story()
    story.txn("a", send("1", 0), outcome=FAIL)
    story.poll("b", (0, "1"))
    return story


def aborted_read_by_a_kill() -> Story:
    """Nobody had asked to commit it."""
    story = Story()
    story.killed("a", send("1"), has_asked=False)
    story.poll("b", (0, "1"))
    return story


def aborted_read_in_an_aborted_transaction() -> Story:
    """What the reader's own transaction comes to makes no difference."""
    story = Story()
    story.txn("a", send("1", 0), outcome=FAIL)
    story.txn("b", poll((0, "1")), outcome=FAIL)
    return story


def early_read() -> Story:
    story = Story()
    story.say("a", "txn", "invoke", value=[send("1")])
    story.poll("b", (0, "1"))
    story.say("a", "txn", "commit", value=[send("1", 0)])
    story.say("a", "txn", OK, value=[send("1", 0)])
    return story


def own_read() -> Story:
    story = Story()
    story.txn("a", send("1", 0), poll((0, "1")))
    return story


def circle() -> Story:
    story = Story()
    one, two = [send("1", 0), poll((0, "2"), partition=Q)], [send("2", 0, Q), poll((0, "1"))]
    for kind in ("invoke", "commit", OK):
        story.say("a", "txn", kind, value=one)
        story.say("b", "txn", kind, value=two)
    return story


def lost_write() -> Story:
    story = Story()
    story.txn("a", send("1", 0), send("2", 1))
    story.poll("b", (1, "2"))
    return story


def torn_transaction() -> Story:
    """One record of it was read, so that it has happened, and the other one was not there."""
    story = Story()
    story.txn("a", send("1", 0), send("2", 1, Q), outcome=INFO)
    story.txn("b", send("3", 5, Q))
    story.poll("c", (0, "1"))
    story.poll("c", (5, "3"), partition=Q)
    return story


def unseen() -> Story:
    story = Story()
    story.txn("a", send("1", 0), send("2", 1))
    story.poll("b", (0, "1"))
    return story


def duplicate() -> Story:
    story = Story()
    story.txn("a", send("1", 0))
    story.poll("b", (0, "1"), (1, "1"))
    return story


def inconsistent_offsets() -> Story:
    story = Story()
    story.txn("a", send("1", 0), outcome=INFO)
    story.txn("b", send("2", 0))
    story.poll("c", (0, "2"))
    return story


def unknown_value() -> Story:
    story = Story()
    story.poll("a", (0, "1"))
    return story


def misplaced_value() -> Story:
    story = Story()
    story.txn("a", send("1", None))
    story.poll("b", (0, "1"), partition=Q)
    return story


def _three() -> Story:
    story = Story()
    story.txn("a", send("1", 0), send("2", 1), send("3", 2))
    story.poll("all", (0, "1"), (1, "2"), (2, "3"))
    return story


def poll_skip() -> Story:
    story = _three()
    story.poll("b", (0, "1"))
    story.poll("b", (2, "3"))
    return story


def poll_skip_at_the_start() -> Story:
    story = _three()
    story.assign("b")
    story.poll("b", (1, "2"))
    return story


def poll_skip_after_an_abort() -> Story:
    """Not having gone back would be the client's error; records are left out all the same."""
    story = _three()
    story.assign("b")
    story.txn("b", poll((0, "1")), outcome=FAIL)
    story.txn("b", poll((1, "2")))
    return story


def nonmonotonic_poll() -> Story:
    story = _three()
    story.poll("b", (0, "1"), (1, "2"))
    story.poll("b", (1, "2"), (2, "3"))
    return story


def int_poll_skip() -> Story:
    story = _three()
    story.poll("b", (0, "1"), (2, "3"))
    return story


def int_nonmonotonic_poll() -> Story:
    story = _three()
    story.txn("b", poll((1, "2")), poll((0, "1")))
    return story


def nonmonotonic_send() -> Story:
    story = Story()
    story.txn("a", send("1", 1))
    story.txn("a", send("2", 0))
    story.poll("b", (0, "2"), (1, "1"))
    return story


def int_nonmonotonic_send() -> Story:
    story = Story()
    story.txn("a", send("1", 1), send("2", 0))
    story.poll("b", (0, "2"), (1, "1"))
    return story


def consume_twice() -> Story:
    story = _three()
    story.subscribe("b")
    story.subscribe("c")
    story.txn("b", poll((0, "1")), moved=[P])
    story.txn("c", poll((0, "1")), moved=[P])
    return story


def consume_twice_unknown() -> Story:
    """Of the first nobody was told that it counted, but what it wrote was read."""
    story = _three()
    story.subscribe("b")
    story.subscribe("c")
    story.killed("b", poll((0, "1")), send("4", 4), has_asked=True)
    story.txn("c", poll((0, "1")), moved=[P])
    story.poll("all", (4, "4"))
    return story


def consume_skip() -> Story:
    story = _three()
    story.subscribe("b")
    story.txn("b", poll((0, "1")), moved=[P])
    story.txn("b", poll((2, "3")), moved=[P])
    story.say("stage", "end", OK, group="g", value={P: 3})
    return story


BAD = [
    (aborted_read, "G1a"),
    (aborted_read_by_a_kill, "G1a"),
    (aborted_read_in_an_aborted_transaction, "G1a"),
    (early_read, "early-read"),
    (own_read, "early-read"),
    (circle, "G1c"),
    (lost_write, "lost-write"),
    (torn_transaction, "lost-write"),
    (unseen, "unseen"),
    (duplicate, "duplicate"),
    (inconsistent_offsets, "inconsistent-offsets"),
    (unknown_value, "unknown-value"),
    (misplaced_value, "unknown-value"),
    (poll_skip, "poll-skip"),
    (poll_skip_at_the_start, "poll-skip"),
    (poll_skip_after_an_abort, "poll-skip"),
    (nonmonotonic_poll, "nonmonotonic-poll"),
    (int_poll_skip, "int-poll-skip"),
    (int_nonmonotonic_poll, "int-nonmonotonic-poll"),
    (nonmonotonic_send, "nonmonotonic-send"),
    (int_nonmonotonic_send, "int-nonmonotonic-send"),
    (consume_twice, "consume-twice"),
    (consume_twice_unknown, "consume-twice"),
    (consume_skip, "consume-skip"),
]


@pytest.mark.parametrize(("tell", "anomaly"), BAD)
def test_bad_history(tell: Callable[[], Story], anomaly: str) -> None:
    """The anomaly is found, and no other."""
    assert tell().check().rules == {anomaly}


def test_every_anomaly_can_be_found() -> None:
    """What the checker says that it looks for, one of these histories has."""
    named = re.findall(r"`([\w-]+)`", "".join(re.findall(r"^\| `.*?\|", anomalies.__doc__, re.M)))
    assert set(named) == {anomaly for _, anomaly in BAD}


def test_numbers() -> None:
    """Transactions are counted by their end, records as they were sent and polled."""
    numbers = plain().check().numbers
    assert (numbers["txn ok"], numbers["txn fail"], numbers["poll ok"]) == (3, 1, 4)
    assert (numbers["records sent"], numbers["records committed"]) == (6, 5)
    assert numbers["records polled"] == 5


# The tool -----------------------------------------------------------------------------------------


def run(path: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, anomalies.__file__, str(path), *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_tool(tmp_path: Path) -> None:
    """The tool reads a folder, says what is wrong, and ends with 0 or with 1."""
    path = tmp_path / "one.jsonl"
    path.write_text("".join(json.dumps(event) + "\n" for event in plain().events))
    ended = run(tmp_path)
    assert ended.returncode == 0 and ended.stdout.endswith("nothing is wrong\n"), ended
    path.write_text("".join(json.dumps(event) + "\n" for event in unseen().events))
    ended = run(tmp_path, "--json")
    assert ended.returncode == 1
    (problem,) = json.loads(ended.stdout)["problems"]
    assert problem == "unseen: '2' of a's txn at 0.000 (ok), sent to x-0"


def test_no_history(tmp_path: Path) -> None:
    """What is no history is not judged."""
    (tmp_path / "one.jsonl").write_text('{"at": 1, "type": "ok", "process": "a"}\n')
    ended = run(tmp_path)
    assert ended.returncode == 2 and "cannot be read" in ended.stderr
    with pytest.raises(UnreadableHistory):
        check([{"at": 1, "type": "ok", "f": "txn", "process": "nobody", "value": []}])
