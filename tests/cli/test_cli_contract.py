"""What every command keeps to, walked over all of them: formats, streams, exit codes, errors.

`CALLS` has a line for each command: whoever adds a command adds one.
"""

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import click
import pytest
from command_result import Result
from groups_kit import GroupsKit

from anabranch.cli import connection
from anabranch.cli.json_fields import JSON_FIELDS
from anabranch.cli.main import root
from anabranch.cli.pipeline.project import FILE_NAME, GROUP_OPTION
from anabranch.cli.reference_page import commands
from support.broker_process import BrokerProcess
from support.transactional_clients import Confluent

ALL = {
    path.removeprefix("anabranch "): command
    for path, command, _ in commands(root, "anabranch")
    if not isinstance(command, click.Group)
}
# Words that stand for what the fixture makes.
TOPIC, GROUP, ID, FOLDER, NEW = "orders", "billing", "payments-1", "@folder", "@new"

PROGRAMS = ("serve", "dev", "completion")  # which give no results
NEEDS_SPARK = ("pipeline run", "demo")
STREAMS = ("consume", "log dump", "groups watch")  # one JSON object for each line
# Their tables show less or more than TSV: each is tested for itself.
OTHER_TEXT = ("consume", "produce", "log dump", "groups watch", "pipeline new")

# Every command that gives results, as it is called without changing anything.
CALLS: dict[str, tuple[str, ...]] = {
    "topics branch": (TOPIC, "--into", "6", "--dry-run"),
    "topics configs": (TOPIC,),
    "topics create": ("other", "--dry-run"),
    "topics delete": (TOPIC, "--dry-run"),
    "topics describe": (TOPIC,),
    "topics list": (),
    "produce": ("written",),
    "consume": (TOPIC, "--exit-at-end"),
    "groups delete": (GROUP, "--dry-run"),
    "groups delete-offsets": (GROUP, "--topic", TOPIC, "--dry-run"),
    "groups describe": (GROUP,),
    "groups list": (),
    "groups peek": (GROUP,),
    "groups reset": (GROUP, "--topic", TOPIC, "--to-earliest", "--dry-run"),
    "groups watch": (GROUP, "--count", "1"),
    "configs alter": ("--topic", TOPIC, "--set", "retention.ms=1000", "--dry-run"),
    "configs describe": ("--topic", TOPIC),
    "configs explain": ("retention",),
    "configs list": (),
    "transactions abort": (ID, "--dry-run"),
    "transactions describe": (ID,),
    "transactions describe-producers": ("--topic", "written"),
    "transactions find-hanging": (),
    "transactions list": (),
    "pipeline new": (NEW, "--topic", TOPIC),
    "pipeline status": (FOLDER,),
    "log dump": ("@segment",),
    "doctor": ("--only", "broker", "--watch", "0"),
    "bench": ("--records", "50", "--round-trips", "1"),
}
# These need records that nobody could process; test_groups_decide calls them.
DECISIONS = ("groups dlq", "groups release", "groups skip")
_DECISION = (GROUP, "--topic", TOPIC, "--partition", "0", "--all")
WITHOUT_BROKER = ("configs explain", "pipeline new", "log dump")
REMOTE = [name for name in CALLS if name not in WITHOUT_BROKER] + list(DECISIONS)
# What loses or changes something that exists, as it is called to do it.
CHANGES: dict[str, tuple[str, ...]] = {
    "topics branch": (TOPIC, "--into", "6", "--null-key", "ordered"),
    "topics configs": (TOPIC, "--set", "retention.ms=1000"),
    "topics delete": (TOPIC,),
    "groups delete": (GROUP,),
    "groups delete-offsets": (GROUP, "--topic", TOPIC),
    "groups reset": (GROUP, "--topic", TOPIC, "--to-earliest"),
    "configs alter": ("--topic", TOPIC, "--set", "retention.ms=1000"),
    "transactions abort": (ID,),
}


@dataclass(frozen=True, slots=True)
class Site:
    """A broker with something of everything, and what the words of `CALLS` stand for."""

    broker: BrokerProcess
    folder: Path

    def arguments(self, name: str, given: tuple[str, ...], *, server: str = "") -> list[str]:
        segment = self.broker.data_dir / f"{TOPIC}-0" / f"{0:020}.log"
        places = {FOLDER: self.folder, "@segment": segment}
        words = [str(places.get(word, word)) for word in given]
        if name not in WITHOUT_BROKER:
            words += ["--bootstrap-server", server or self.broker.bootstrap]
        return [*name.split(), *words]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """One broker for all tests of the module."""
    folder = tmp_path_factory.mktemp("contract")
    broker = BrokerProcess(folder / "data", {"group.initial.rebalance.delay.ms": "0"})
    broker.start()
    kit = GroupsKit(broker.bootstrap)
    kit.topic(TOPIC, records=3)
    kit.topic("written", partitions=1)
    kit.commit(GROUP, TOPIC, {0: 1, 1: 2})
    producer = Confluent(broker.bootstrap, ID, timeout_ms=900_000)
    producer.begin()
    producer.send("written", b"open", partition=0)
    (folder / "status").mkdir()
    (folder / "status" / "app.py").touch()
    (folder / "status" / FILE_NAME).write_text(
        f'app = "app.py"\n[source]\nsubscribe = "{TOPIC}"\n"{GROUP_OPTION}" = "{GROUP}"\n'
    )
    yield Site(broker, folder / "status")
    broker.kill()


@pytest.fixture
def call(run: Callable[..., Result], site: Site, tmp_path: Path) -> Callable[..., Result]:
    """Run a command of `CALLS` with more arguments."""

    def call_command(name: str, *more: str, given: tuple[str, ...] | None = None) -> Result:
        words = CALLS[name] if given is None else given
        fresh = tuple(
            str(tmp_path / f"new-{time.monotonic_ns()}") if w == NEW else w for w in words
        )
        stdin = b"one\ntwo\n" if name == "produce" else b""
        return run(*site.arguments(name, fresh), *more, stdin=stdin)

    return call_command


def headers(text: str, separator: str) -> list[list[str]]:
    """The header of each table: tables are an empty line apart."""
    return [re.split(separator, block.split("\n")[0]) for block in text.strip("\n").split("\n\n")]


def test_every_command_is_called() -> None:
    """No command is left out of these tests."""
    assert sorted(ALL) == sorted([*CALLS, *DECISIONS, *PROGRAMS, *NEEDS_SPARK])


@pytest.mark.parametrize("name", REMOTE)
def test_connection_flags_are_those_of_kafka(name: str) -> None:
    """Commands that speak with a broker take --bootstrap-server, --command-config, --timeout."""
    flags = {flag for parameter in ALL[name].params for flag in parameter.opts}
    assert {"--bootstrap-server", "--command-config", "--timeout"} <= flags


@pytest.mark.parametrize("name", CALLS)
def test_text(call: Callable[..., Result], name: str) -> None:
    """Results are on stdout; columns have upper-case headers with hyphens."""
    result = call(name)
    assert result.code == 0, result.err
    if name not in OTHER_TEXT:
        for header in headers(result.out, " {2,}"):
            for column in header:
                assert re.fullmatch(r"#?[A-Z][A-Z0-9/-]*( \(ID\))?", column), header
    assert "error:" not in result.err


@pytest.mark.parametrize("name", CALLS)
def test_json(call: Callable[..., Result], name: str) -> None:
    """JSON is one document, or one object for each line; its fields are those of the page."""
    result = call(name, "--format", "json")
    assert result.code == 0, result.err
    found = result.documents if name in STREAMS else result.document
    documents = found if isinstance(found, list) else [found]
    if name != "transactions find-hanging":  # nothing hangs here
        assert documents
    documented = set(re.findall(r"`(\w+)`", " ".join(fields_of(name))))
    for document in documents:
        assert isinstance(document, dict)
        assert set(document) <= documented, set(document) - documented


def fields_of(name: str) -> list[str]:
    """What the page says of the fields of a command."""
    rows = {words: fields for words, _, fields in JSON_FIELDS}
    return [fields for words, fields in rows.items() if name in expanded(words)]


def expanded(words: str) -> list[str]:
    """`groups release, skip` stands for two commands, and a flag behind one for none of its own."""
    first, *others = words.split(" --")[0].split(", ")
    family = first.rpartition(" ")[0]
    return [first, *others, *(f"{family} {other}" for other in others)]


@pytest.mark.parametrize("name", [*CALLS, *DECISIONS, *NEEDS_SPARK])
def test_json_is_documented(name: str) -> None:
    """The page has the fields of every command that gives results."""
    assert fields_of(name), f"add {name} to the fields in cli/json_fields.py"


@pytest.mark.parametrize("name", [name for name in CALLS if name not in OTHER_TEXT])
def test_tsv_has_the_columns_of_text(call: Callable[..., Result], name: str) -> None:
    """The same tables with the same headers, tabs between, and every line as long as its header."""
    text, tsv = call(name), call(name, "--format", "tsv")
    assert tsv.code == 0, tsv.err
    assert headers(tsv.out, "\t") == headers(text.out, " {2,}")
    for block in tsv.out.strip("\n").split("\n\n"):
        lines = block.split("\n")
        assert {line.count("\t") for line in lines} == {lines[0].count("\t")}


@pytest.mark.parametrize("name", OTHER_TEXT)
def test_tsv_where_text_is_no_table(call: Callable[..., Result], name: str) -> None:
    """Where text is for reading, TSV still has a header and lines of its length."""
    result = call(name, "--format", "tsv")
    assert result.code == 0, result.err
    header, *lines = result.out.splitlines()
    columns = header.split("\t")
    assert all(re.fullmatch(r"[A-Z][A-Z-]*", column) for column in columns)
    assert lines and {line.count("\t") for line in lines} == {len(columns) - 1}


# What `dev` does not know belongs to the command that it runs.
@pytest.mark.parametrize("name", [name for name in ALL if name != "dev"])
def test_wrong_usage(run: Callable[..., Result], name: str) -> None:
    """A flag that does not exist ends with exit code 2, and says so on stderr alone."""
    result = run(*name.split(), "--no-such-flag")
    assert (result.code, result.out) == (2, "")
    assert "--no-such-flag" in result.err and "Usage: anabranch" in result.err


@pytest.mark.parametrize("name", REMOTE)
def test_nobody_listens(
    run: Callable[..., Result], site: Site, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a broker a command ends with exit code 1, soon, with what, why and a next step."""
    monkeypatch.setattr(connection, "_REFUSED_GRACE_S", 0.1)
    given = CALLS.get(name, _DECISION)
    dead = [*site.arguments(name, given, server="127.0.0.1:1"), "--timeout", "2"]
    dead += ["--format", "tsv"]  # whose header is no result
    began_s = time.monotonic()
    result = run(*dead, stdin=b"one\n")
    assert time.monotonic() - began_s < 30  # generous: the timeout is two seconds
    assert result.code == 1
    if name == "doctor":  # for which that is a result
        assert "problem" in result.out and "start one with `anabranch serve`" in result.out
        return
    assert result.out == ""
    what, why, next_step = result.err.strip().split(" - ")
    assert what == "error: Cannot reach a broker at 127.0.0.1:1"
    assert why == "the connection was refused, nothing listens there"
    assert "anabranch serve" in next_step


@pytest.mark.parametrize("name", CHANGES)
def test_changes_are_asked_for(call: Callable[..., Result], name: str) -> None:
    """Without a terminal to ask on, a change needs --yes; --dry-run shows it and does nothing."""
    flags = {flag for parameter in ALL[name].params for flag in parameter.opts}
    assert {"--yes", "--dry-run"} <= flags
    unasked = call(name, given=CHANGES[name])
    assert unasked.code == 2
    assert "--yes" in unasked.err and "--dry-run" in unasked.err
    dry = call(name, "--dry-run", given=CHANGES[name])
    assert dry.code == 0
    # A second look finds what it would change as it was.
    assert call(name, "--dry-run", given=CHANGES[name]).out == dry.out


@pytest.mark.parametrize("name", DECISIONS)
def test_decisions_are_asked_for(name: str) -> None:
    """The commands that decide about records take --yes and --dry-run, too."""
    flags = {flag for parameter in ALL[name].params for flag in parameter.opts}
    assert {"--yes", "--dry-run", "--format"} <= flags


def test_reset_shows_before_and_after(call: Callable[..., Result]) -> None:
    """A change of offsets shows both, in Kafka's words."""
    result = call("groups reset")
    assert headers(result.out, " {2,}") == [
        ["GROUP", "TOPIC", "PARTITION", "BEFORE", "AFTER", "LAG"]
    ]


def test_columns_of_kafka_consumer_groups(call: Callable[..., Result]) -> None:
    """`groups describe` has the columns of Kafka's tool, in all views that it has."""
    expected = {
        "--offsets": "GROUP TOPIC PARTITION CURRENT-OFFSET LOG-END-OFFSET LAG CONSUMER-ID HOST"
        " CLIENT-ID",
        "--members": "GROUP CONSUMER-ID GROUP-INSTANCE-ID HOST CLIENT-ID #PARTITIONS",
    }
    for flag, columns in expected.items():
        result = call("groups describe", flag)
        assert headers(result.out, " {2,}")[0] == columns.split()
    (state,) = headers(call("groups describe", "--state").out, " {2,}")
    assert state == ["GROUP", "COORDINATOR (ID)", "ASSIGNMENT-STRATEGY", "STATE", "#MEMBERS"]


def test_an_error_of_the_broker_has_three_parts(call: Callable[..., Result]) -> None:
    """What is refused says what, why and a next step, and leaves stdout empty."""
    for name, given in (
        ("topics describe", ("ordres",)),
        ("groups describe", ("biling",)),
        ("configs describe", ("--topic", "ordres")),
        ("consume", ("ordres", "--exit-at-end")),
        ("transactions describe", ("payments-2",)),
    ):
        result = call(name, given=given)
        assert result.code == 1, name
        assert result.out == "", name
        assert len(result.err.strip().split(" - ")) == 3, result.err


def test_json_is_never_null(call: Callable[..., Result]) -> None:
    """A list with nothing in it is `[]`."""
    assert call("groups list", "--format", "json", given=("--state", "Stable")).document == []
