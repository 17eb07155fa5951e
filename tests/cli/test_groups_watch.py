"""`anabranch groups watch`: lag, trend and time to drain, alerts, and every form of output."""

import json
import signal
import subprocess
from collections.abc import Callable

import pytest
from command_result import Result
from groups_kit import GroupsKit

from anabranch.cli.errors import CliError
from anabranch.cli.groups.lag_trend import GroupLag, LagTrend
from anabranch.cli.groups.watch import _drain_text, _looks, _trend_text
from anabranch.cli.options import Connection
from support.broker_process import BrokerProcess

CONNECTION = Connection(bootstrap_server="x", command_config=None, timeout_s=10, is_debug=False)


def test_a_trend_is_the_change_per_second_over_the_window() -> None:
    """Two looks make a trend; what is older than the window no longer counts."""
    trend = LagTrend(window_ms=10_000)
    assert trend.add(0, 1_000) == (None, None)
    assert trend.add(2_000, 800) == (-100.0, 8.0)
    assert trend.add(4_000, 1_200) == (50.0, None)
    # At 14 s the window begins at 4 s.
    assert trend.add(14_000, 200) == (-100.0, 2.0)


def test_no_lag_is_drained_and_an_unknown_lag_begins_anew() -> None:
    """A lag of 0 needs no time; after a look that found nothing there is no trend."""
    trend = LagTrend()
    trend.add(0, 10)
    assert trend.add(1_000, 0) == (-10.0, 0.0)
    assert trend.add(2_000, None) == (None, None)
    assert trend.add(3_000, 5) == (None, None)


@pytest.mark.parametrize(
    ("lag", "trend_per_s", "drain_s", "texts"),
    [
        (0, -1.0, 0.0, ("-1.0/s", "done")),
        (10, 0.0, None, ("steady", "never")),
        (10, 1234.5, None, ("+1,234.5/s", "never")),
        (10, -1.0, 10.0, ("-1.0/s", "10s")),
        (10, -1.0, 185.0, ("-1.0/s", "3m05s")),
        (10, -1.0, 7_500.0, ("-1.0/s", "2h05m")),
        (10, None, None, (None, None)),
    ],
)
def test_trend_and_drain_are_words_that_people_read(
    lag: int,
    trend_per_s: float | None,
    drain_s: float | None,
    texts: tuple[str | None, str | None],
) -> None:
    """Seconds become minutes and hours; a lag that does not fall never drains."""
    group = GroupLag(
        group="g", state="Stable", members=1, lag=lag, trend_per_s=trend_per_s, drain_s=drain_s
    )
    assert (_trend_text(trend_per_s), _drain_text(group)) == texts


def test_looks_keep_their_pace_and_wait_for_a_broker_that_returns() -> None:
    """A look that fails is told once and tried again; the pace is from start to start."""
    clock_s, slept = 0.0, []
    answers: list[object] = [[], CliError("a", "b", "c"), CliError("a", "b", "c"), []]

    def look() -> list[GroupLag]:
        nonlocal clock_s
        clock_s += 0.5  # a look takes time
        answer = answers.pop(0)
        if isinstance(answer, CliError):
            raise answer
        return []

    def sleep(seconds: float) -> None:
        nonlocal clock_s
        slept.append(seconds)
        clock_s += seconds

    looks = _looks(look, CONNECTION, 2.0, sleep, lambda: clock_s)
    assert next(looks) == []
    assert next(looks) == []
    assert slept == [1.5, 1.5, 1.5]


def test_a_broker_that_stays_away_ends_the_watch() -> None:
    """After three timeouts without an answer the failure is the command's."""
    clock_s = 0.0

    def look() -> list[GroupLag]:
        raise CliError("a", "b", "c")

    def sleep(seconds: float) -> None:
        nonlocal clock_s
        clock_s += seconds

    with pytest.raises(CliError):
        next(_looks(look, CONNECTION, 2.0, sleep, lambda: clock_s))
    assert 30 < clock_s <= 34


def test_json_has_one_object_a_look(groups: Callable[..., Result], kit: GroupsKit) -> None:
    """Every look is a line with the groups as they are, the second one with a trend."""
    kit.commit("watched-json", kit.topic("watched-json", records=5), {0: 1, 1: 2, 2: 5})
    result = groups(
        "watch", "watched-json", "--format", "json", "--count", 2, "--interval", "100ms"
    )
    assert result.code == 0, result.err
    first, second = (json.loads(line) for line in result.out.splitlines())
    (group,) = first["groups"]
    assert (group["group"], group["state"], group["members"]) == ("watched-json", "Empty", 0)
    assert (group["lag"], group["trend_per_s"], group["is_alert"]) == (7, None, False)
    assert second["groups"][0]["trend_per_s"] == 0


def test_text_and_tsv_have_the_time_before_each_line(
    groups: Callable[..., Result], kit: GroupsKit
) -> None:
    """On a pipe nothing is redrawn, and the header comes once."""
    kit.commit("watched-text", kit.topic("watched-text", records=2), {0: 0, 1: 0, 2: 0})
    arguments = ("watch", "watched-text", "--count", 2, "--interval", "100ms")
    text = groups(*arguments).out.splitlines()
    assert text[0].split() == ["TIME", "GROUP", "STATE", "MEMBERS", "LAG", "TREND", "DRAIN"]
    assert text[1].split()[1:5] == ["watched-text", "Empty", "0", "6"]
    assert text[2].split()[1:] == ["watched-text", "Empty", "0", "6", "steady", "never"]
    tsv = groups(*arguments, "--format", "tsv").out.splitlines()
    assert tsv[0].split("\t")[0] == "TIME"
    assert tsv[1].split("\t")[1:] == ["watched-text", "Empty", "0", "6", "", ""]


def test_a_lag_above_the_limit_ends_it_with_1(
    groups: Callable[..., Result], kit: GroupsKit
) -> None:
    """Only a lag above the limit is an alert; the error says what to look at."""
    kit.commit("watched-alert", kit.topic("watched-alert", records=2), {0: 0, 1: 0, 2: 0})
    arguments = ("watch", "watched-alert", "--count", 1, "--exit-on-alert", "--alert-lag")
    assert groups(*arguments, 6).code == 0
    result = groups(*arguments, 5)
    assert result.code == 1
    assert "6 !" in result.out
    assert "lag of 6 - that is above --alert-lag 5 - see `anabranch groups describe" in result.err


def test_a_watch_can_end_when_nothing_is_left(
    groups: Callable[..., Result], kit: GroupsKit
) -> None:
    """A group without lag ends it at once; one with lag goes on."""
    topic = kit.topic("watched-done", records=1)
    kit.commit("watched-done", topic, {0: 0, 1: 1, 2: 1})
    arguments = ("watch", "watched-done", "--until-drained", "--interval", "100ms")
    assert len(groups(*arguments, "--count", 3).out.splitlines()) == 4
    kit.commit("watched-done", topic, {0: 1})
    result = groups(*arguments, "--count", 3)
    assert (result.code, len(result.out.splitlines())) == (0, 2)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "name groups"),
        (("a", "--all"), "name groups"),
        (("a", "--exit-on-alert"), "--alert-lag"),
        (("a", "--interval", "5"), "duration"),
        (("a", "--interval", "1ms"), "100ms"),
    ],
)
def test_wrong_usage_is_told(
    groups: Callable[..., Result], arguments: tuple[str, ...], words: str
) -> None:
    """What cannot be meant is exit code 2 with the flag named."""
    result = groups("watch", *arguments)
    assert result.code == 2
    assert words in result.err


def test_an_unknown_group_is_told_at_once(groups: Callable[..., Result]) -> None:
    """A name that nobody has is an error, not an empty table."""
    result = groups("watch", "nobody-is-here", "--count", 1)
    assert result.code == 1
    assert "There is no group 'nobody-is-here'" in result.err


def test_ctrl_c_ends_a_watch_of_all_groups(
    start: Callable[..., "subprocess.Popen[bytes]"], group_broker: BrokerProcess, kit: GroupsKit
) -> None:
    """It goes on until it is interrupted, with lines for groups that come meanwhile."""
    topic = kit.topic("watched-all", records=1)
    process = start(
        *("groups", "watch", "--all", "--interval", "100ms", "--format", "json"),
        *("--bootstrap-server", group_broker.bootstrap),
    )
    assert process.stdout is not None
    assert b'"groups":' in process.stdout.readline()
    kit.commit("watched-late", topic, {0: 0})
    for line in process.stdout:  # until it is there; the suite's time limit ends a wait for ever
        if b"watched-late" in line:
            break
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGINT
