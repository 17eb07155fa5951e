"""`anabranch groups reset`: every form, what it shows, and what it refuses."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from groups_kit import T0_MS, GroupsKit
from hypothesis import given
from hypothesis import strategies as st

from anabranch.cli.errors import CliError
from anabranch.cli.groups.reset_plan import Target, TargetKind, new_offset

OFFSETS = st.integers(0, 10_000)

# --- one partition --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "before", "found", "expected"),
    [
        (Target(TargetKind.EARLIEST), 20, -1, 10),
        (Target(TargetKind.LATEST), 20, -1, 50),
        (Target(TargetKind.CURRENT), 20, -1, 20),
        (Target(TargetKind.OFFSET, 30), None, -1, 30),
        (Target(TargetKind.OFFSET, 10), None, -1, 10),
        (Target(TargetKind.OFFSET, 50), None, -1, 50),
        (Target(TargetKind.DATETIME, 1), None, 33, 33),
        (Target(TargetKind.DURATION, 1), None, 33, 33),
        (Target(TargetKind.DATETIME, 1), None, -1, 50),
        (Target(TargetKind.SHIFT, 5), 20, -1, 25),
        (Target(TargetKind.SHIFT, -5), 20, -1, 15),
        (Target(TargetKind.FILE, offsets={("t", 0): 44}), 20, -1, 44),
    ],
)
def test_new_offsets(target: Target, before: int | None, found: int, expected: int) -> None:
    """Each target means one offset of a partition with offsets 10 to 50."""
    assert new_offset(target, ("t", 0), before, 10, 50, found) == (expected, None)


def test_new_offsets_with_a_remark() -> None:
    """What cannot be had becomes the nearest that can, and is told."""
    key = ("t", 0)
    assert new_offset(Target(TargetKind.OFFSET, 9), key, None, 10, 50, -1) == (
        10,
        "Offset 9 of t-0 is before its first; it is set to 10.",
    )
    assert new_offset(Target(TargetKind.SHIFT, 31), key, 20, 10, 50, -1) == (
        50,
        "Offset 51 of t-0 is beyond its end; it is set to 50.",
    )
    assert new_offset(Target(TargetKind.CURRENT), key, None, 10, 50, -1) == (
        50,
        "Nothing was committed for t-0; it is set to its end, 50.",
    )
    with pytest.raises(CliError, match="Cannot shift the offset of t-0 - nothing was committed"):
        new_offset(Target(TargetKind.SHIFT, 1), key, None, 10, 50, -1)


@given(
    kind=st.sampled_from([TargetKind.OFFSET, TargetKind.SHIFT, TargetKind.FILE]),
    value=st.integers(-(2**63), 2**63 - 1),
    before=OFFSETS,
    start=OFFSETS,
    size=OFFSETS,
)
def test_new_offsets_stay_inside(
    kind: TargetKind, value: int, before: int, start: int, size: int
) -> None:
    """Whatever is asked for, a reset offset can be read from; a remark says when it is another."""
    wanted = before + value if kind is TargetKind.SHIFT else value
    target = Target(kind, value, {("t", 0): value})
    after, remark = new_offset(target, ("t", 0), before, start, start + size, -1)
    assert start <= after <= start + size
    assert (remark is None) == (after == wanted)


# --- against a broker -----------------------------------------------------------------------


def test_reset_shows_and_does(groups: Callable, kit: GroupsKit) -> None:
    """A dry run shows before and after; the reset shows what was read back, and it is there."""
    topic = kit.topic("reset-shown", records=10)
    kit.commit("reset-shown", topic, {0: 3})
    arguments = ("reset-shown", "--topic", f"{topic}:0,1", "--to-offset", 7)
    dry = groups("reset", *arguments, "--dry-run")
    assert (dry.code, dry.err) == (0, "Nothing was changed (--dry-run).\n")
    assert dry.out == (
        "GROUP        TOPIC        PARTITION  BEFORE  AFTER  LAG\n"
        "reset-shown  reset-shown  0          3       7      3\n"
        "reset-shown  reset-shown  1          -       7      3\n"
    )
    assert kit.committed("reset-shown") == {(topic, 0): 3}
    done = groups("reset", *arguments, "--yes")
    assert (done.code, done.out) == (0, dry.out)
    assert done.err == "Reset 2 offsets of group 'reset-shown'.\n"
    assert kit.committed("reset-shown") == {(topic, 0): 7, (topic, 1): 7}
    again = groups("reset", *arguments, "--execute", "--format", "json")
    assert (again.code, again.err) == (0, "")
    assert again.document == [
        {
            "group": "reset-shown",
            "topic": "reset-shown",
            "partition": partition,
            "before": 7,
            "after": 7,
            "lag": 3,
            "status": "reset",
            "error": None,
        }
        for partition in (0, 1)
    ]
    valid = groups("reset", *arguments, "--dry-run", "--format", "json").document
    assert {row["status"] for row in valid} == {"valid"}


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (("--to-earliest",), 2),
        (("--to-latest",), 10),
        (("--to-current",), 5),
        (("--to-offset", "8"), 8),
        (("--to-offset", "0"), 2),
        (("--to-offset", "99"), 10),
        (("--to-datetime", "2023-11-14T22:13:24Z"), 4),
        (("--to-datetime", "2023-11-14T23:13:24.001+01:00"), 5),
        (("--to-datetime", "2023-11-14T22:13:27"), 7),
        (("--to-datetime", "2030-01-01"), 10),
        (("--by-duration", "5m"), 10),
        (("--by-duration", "P100000D"), 2),
        (("--shift-by", "3"), 8),
        (("--shift-by", "-2"), 3),
        (("--shift-by", "-100"), 2),
    ],
)
def test_every_form(
    groups: Callable, kit: GroupsKit, target: tuple[str, ...], expected: int
) -> None:
    """Offsets 2 to 10, 5 committed, a record each second: each form finds its offset."""
    name = "form" + re.sub(r"\W+", "-", "".join(target))
    topic = kit.topic(name, records=10, partitions=1)
    kit.delete_records(topic, 0, 2)
    kit.commit(name, topic, {0: 5})
    for scope in (("--topic", topic), ("--all-topics",)):
        kit.commit(name, topic, {0: 5})
        result = groups("reset", name, *scope, *target, "--yes", "--format", "json")
        assert result.code == 0, result.err
        assert [(row["before"], row["after"]) for row in result.document] == [(5, expected)]
        assert kit.committed(name) == {(topic, 0): expected}


def test_records_have_the_times_that_the_forms_assume() -> None:
    """T0 is 22:13:20 UTC, so that --to-datetime above means what it says."""
    from anabranch.cli.times import timestamp_ms

    assert timestamp_ms("2023-11-14T22:13:20Z") == T0_MS


def test_clamping_is_told(groups: Callable, kit: GroupsKit) -> None:
    """An offset outside of the partition is told on stderr."""
    topic = kit.topic("clamped", records=4, partitions=1)
    result = groups("reset", "clamps", "--topic", topic, "--to-offset", 9, "--yes")
    assert result.err == (
        "Group 'clamps' does not exist yet; its first offsets make it.\n"
        "Offset 9 of clamped-0 is beyond its end; it is set to 4.\n"
        "Reset 1 offset of group 'clamps'.\n"
    )
    assert kit.committed("clamps") == {(topic, 0): 4}


def test_export_and_import(groups: Callable, kit: GroupsKit, tmp_path: Path) -> None:
    """What --export writes, --from-file reads, from a file or stdin; a living group can export."""
    topic = kit.topic("exported", records=6)
    kit.commit("exports", topic, {0: 1, 1: 2, 2: 3})
    with kit.member("exports", topic, owning=3):
        exported = groups("reset", "exports", "--all-topics", "--to-current", "--export")
    assert (exported.code, exported.err) == (0, "")
    assert exported.out == "exported,0,1\nexported,1,2\nexported,2,3\n"
    file = tmp_path / "offsets.csv"
    file.write_text(exported.out)
    groups("reset", "exports", "--all-topics", "--to-latest", "--yes")
    assert set(kit.committed("exports").values()) == {6}
    assert groups("reset", "exports", "--from-file", file, "--yes").code == 0
    assert list(kit.committed("exports").values()) == [1, 2, 3]
    piped = groups(
        "reset",
        "exports",
        "--from-file",
        "-",
        "--yes",
        stdin=b"other,exported,0,9\nexports,exported,1,4\n",
    )
    assert piped.code == 0
    assert list(kit.committed("exports").values()) == [1, 4, 3]


def test_an_active_group_is_refused(groups: Callable, kit: GroupsKit) -> None:
    """Members in the way are told with state and number, also in a dry run."""
    topic = kit.topic("active", records=2)
    with kit.member("active", topic, owning=3):
        for flags in (("--yes",), ("--dry-run",)):
            result = groups("reset", "active", "--topic", topic, "--to-latest", *flags)
            assert (result.code, result.out) == (1, "")
            assert result.err == (
                "error: Group 'active' is Stable with 1 member - offsets can only be reset when it"
                " is Empty - stop the members, see `anabranch groups describe active --members`\n"
            )
    assert kit.committed("active") == {}


def test_a_member_that_joins_meanwhile(
    groups: Callable, kit: GroupsKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody joins while the question is open: the broker refuses, and the reason is told."""
    topic = kit.topic("meanwhile", records=2)
    kit.commit("meanwhile", topic, {0: 0})
    members = []

    def confirm(question: str, **_: object) -> bool:
        assert question == "Reset 3 offsets of group 'meanwhile'?"
        member = kit.member("meanwhile", topic, owning=3)
        members.append(member)
        member.__enter__()
        return True

    monkeypatch.setattr("anabranch.cli.options.click.confirm", confirm)
    monkeypatch.setattr("anabranch.cli.options.is_interactive", lambda: True)
    try:
        result = groups("reset", "meanwhile", "--topic", topic, "--to-latest")
    finally:
        members[0].__exit__(None, None, None)
    assert result.code == 1
    assert "Group 'meanwhile' is Stable with 1 member" in result.err
    assert kit.committed("meanwhile") == {(topic, 0): 0}


def test_reset_asks(groups: Callable, kit: GroupsKit, monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan, the question, then what is there; without a terminal --yes is needed."""
    topic = kit.topic("asking", records=1, partitions=1)
    assert groups("reset", "asking", "--topic", topic, "--to-latest").code == 2
    assert kit.committed("asking") == {}
    monkeypatch.setattr("anabranch.cli.options.click.confirm", lambda *_, **__: True)
    monkeypatch.setattr("anabranch.cli.options.is_interactive", lambda: True)
    table = (
        "GROUP   TOPIC   PARTITION  BEFORE  AFTER  LAG\n"
        "asking  asking  0          -       1      0\n"
    )
    assert groups("reset", "asking", "--topic", topic, "--to-latest").out == f"{table}\n{table}"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--topic", "t"), "say where to: one of --to-earliest, --to-latest"),
        (
            ("--topic", "t", "--to-earliest", "--to-offset", "0"),
            "--to-earliest, --to-offset exclude each other; give one of them",
        ),
        (("--to-earliest",), "give --topic or --all-topics, one of them"),
        (("--topic", "t", "--all-topics", "--to-latest"), "give --topic or --all-topics"),
        (("--topic", "t:x", "--to-latest"), "--topic takes a topic, or topic:0,1, got 't:x'"),
        (("--topic", "t", "--to-datetime", "noon"), "'noon' is no time such as"),
        (("--topic", "t", "--by-duration", "P1M"), "'P1M' is no duration such as"),
        (("--topic", "t", "--to-latest", "--export", "--yes"), "--export and --yes exclude"),
        (
            ("--topic", "t", "--to-latest", "--export", "--format", "json"),
            "--export and --format json exclude",
        ),
    ],
)
def test_wrong_usage(run: Callable, arguments: tuple[str, ...], sentence: str) -> None:
    """Flags that do not go together are told before any broker is asked."""
    result = run("groups", "reset", "g", *arguments)
    assert (result.code, result.out) == (2, "")
    assert sentence in result.err


def test_what_is_not_there(groups: Callable, kit: GroupsKit, tmp_path: Path) -> None:
    """Topics and partitions that do not exist, and groups that committed nothing, are told."""
    topic = kit.topic("there", partitions=2)
    missing = groups("reset", "g", "--topic", "ther", "--to-latest", "--yes")
    assert (missing.code, missing.out) == (1, "")
    assert "There is no topic 'ther'" in missing.err and "did you mean 'there'?" in missing.err
    beyond = groups("reset", "g", "--topic", f"{topic}:7", "--to-latest", "--yes")
    assert beyond.code == 1
    assert "Topic 'there' has no partition 7 - its partitions are 0 to 1" in beyond.err
    nothing = groups("reset", "g", "--all-topics", "--to-latest", "--yes")
    assert nothing.code == 1
    assert "Group 'g' has committed no offsets" in nothing.err
    file = tmp_path / "offsets.csv"
    file.write_text("there,9,1\n")
    assert "has no partition 9" in groups("reset", "g", "--from-file", file, "--yes").err
    assert groups("reset", "g", "--from-file", file, "--topic", topic).code == 2
    absent = groups("reset", "g", "--from-file", tmp_path / "none.csv", "--yes")
    assert absent.code == 1
    assert "No such file" in absent.err
    assert groups("describe", "g").code == 1
