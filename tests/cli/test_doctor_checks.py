"""The checks of `anabranch doctor`, each with what it finds and what it lets pass."""

import errno
import http.server
import resource
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from anabranch.branch.layout import BranchLayout
from anabranch.cli.configs.resources import Entry
from anabranch.cli.doctor import broker_checks, machine
from anabranch.cli.doctor.broker_checks import Place
from anabranch.cli.doctor.findings import Finding, Status
from anabranch.cli.doctor.group_checks import check_groups, check_retention
from anabranch.cli.doctor.questions import judge_sharing
from anabranch.cli.doctor.survey import Look, Survey
from anabranch.cli.doctor.topic_checks import check_topics
from anabranch.cli.groups.describe_output import PartitionRow
from anabranch.cli.groups.lookup import Group, Member
from anabranch.cli.options import Connection
from anabranch.cli.topics.branch_lookup import BranchTopic
from anabranch.client import GroupProgress, PartitionProgress, RetriedRecord
from anabranch.wire.messages.consumer_group_heartbeat import CONSUMER_GROUP_HEARTBEAT
from anabranch.wire.messages.fetch import FETCH

GIB = 1024**3
HERE = Connection(
    bootstrap_server="localhost:9092", command_config=None, timeout_s=5.0, is_debug=False
)


def of(found: list[Finding], check: str) -> Finding:
    (one,) = [finding for finding in found if finding.check == check]
    return one


# Groups -----------------------------------------------------------------------------------------


def member(number: int = 1, *partitions: int, topic: str = "orders") -> Member:
    return Member(
        consumer_id=f"m{number}",
        group_instance_id=None,
        host="/127.0.0.1",
        client_id="c",
        partitions=tuple((topic, partition) for partition in partitions),
    )


def group(*members: Member, state: str | None = None) -> Group:
    return Group(
        group="billing",
        type="Consumer",
        protocol="consumer",
        state=state or ("Stable" if members else "Empty"),
        assignor=None,
        coordinator=(1, "localhost", 9092),
        members=members,
    )


def row(
    committed: int | None,
    end: int,
    *,
    start: int = 0,
    owner: Member | None = None,
    partition: int = 0,
) -> PartitionRow:
    return PartitionRow(
        topic="orders",
        partition=partition,
        current_offset=committed,
        leader_epoch=None,
        log_start_offset=start,
        log_end_offset=end,
        lag=max(0, end - max(start, committed or 0)),
        member=owner,
    )


def seen(
    *looks: Group, rows: list[PartitionRow], before: list[PartitionRow] | None = None
) -> Survey:
    """A survey of one group, whose looks are two seconds apart."""
    ranges = {("orders", 0): (0, 0)} | {
        ("orders", one.partition): (one.log_start_offset or 0, one.log_end_offset or 0)
        for one in rows
    }
    return Survey(
        looks=tuple(
            Look(at_s=2.0 * number, groups={"billing": look}) for number, look in enumerate(looks)
        ),
        rows_before={"billing": rows if before is None else before},
        rows={"billing": rows},
        ranges=ranges,
        configs={"orders": {"retention.ms": "1000", "cleanup.policy": "delete"}},
        branch_topics={},
    )


M1 = member(1, 0)
WELL = seen(group(M1), rows=[row(10, 10, owner=M1)])


def test_a_group_that_is_well() -> None:
    """A group with a member, commits and no lag passes all checks."""
    found = check_groups(WELL)
    assert {one.status for one in found} == {Status.OK}
    assert len(found) == 7


def test_no_groups_at_all() -> None:
    """Without groups there is one line, that says so."""
    (found,) = check_groups(replace(WELL, looks=(Look(at_s=0, groups={}),)))
    assert found.status is Status.SKIPPED


def test_an_abandoned_group() -> None:
    """Empty with lag is a warning, Empty without is how a batch job looks."""
    found = of(check_groups(seen(group(), rows=[row(4, 10)])), "abandoned-groups")
    assert (found.status, found.subject) == (Status.WARNING, "billing")
    assert found.what == "it is Empty with a lag of 6"
    assert "anabranch groups delete billing" in str(found.next_step)
    assert (
        of(check_groups(seen(group(), rows=[row(10, 10)])), "abandoned-groups").status is Status.OK
    )


@pytest.mark.parametrize(
    ("looks", "is_told"),
    [
        (("Reconciling",) * 4, True),
        (("PreparingRebalance", "Stable", "CompletingRebalance", "PreparingRebalance"), True),
        (("PreparingRebalance", "Stable", "Stable", "Stable"), False),
        (("Stable",) * 4, False),
    ],
)
def test_a_group_that_is_never_at_rest(looks: tuple[str, ...], is_told: bool) -> None:
    """One rebalance is normal, one that is there at most of the looks is not."""
    groups = [group(M1, state=state) for state in looks]
    found = of(check_groups(seen(*groups, rows=[row(10, 10, owner=M1)])), "rebalancing")
    assert (found.status is Status.WARNING) == is_told


def test_members_that_come_and_go() -> None:
    """A group whose members are others at every look restarts all the time."""
    others = [group(member(number, 0)) for number in range(4)]
    found = of(check_groups(seen(*others, rows=[row(10, 10, owner=M1)])), "rebalancing")
    assert found.status is Status.WARNING
    assert found.what == "its members changed 3 times within 6 s"
    once = [group(M1), group(M1), group(M1, member(2)), group(M1, member(2))]
    assert of(check_groups(seen(*once, rows=[row(1, 1)])), "rebalancing").status is Status.OK


def test_members_that_do_not_commit() -> None:
    """Members on partitions with records and without any commit are told of."""
    found = of(check_groups(seen(group(M1), rows=[row(None, 9, owner=M1)])), "no-commits")
    assert found.status is Status.WARNING
    assert "auto.offset.reset" in str(found.why)
    for rows in ([row(None, 0, owner=M1)], [row(3, 9, owner=M1)]):
        assert of(check_groups(seen(group(M1), rows=rows)), "no-commits").status is Status.OK


@pytest.mark.parametrize(
    ("before", "after", "is_told"),
    [
        (0, 1000, True),
        (0, 99, False),
        (50_000, 50_200, False),
        (50_000, 51_000, True),
        (9, 9, False),
    ],
)
def test_lag_that_grows(before: int, after: int, is_told: bool) -> None:
    """Growth counts when it is more than what comes between two commits."""
    survey = seen(
        group(M1),
        group(M1),
        rows=[row(10, 10 + after, owner=M1)],
        before=[row(10, 10 + before, owner=M1)],
    )
    found = of(check_groups(survey), "growing-lag")
    assert (found.status is Status.WARNING) == is_told
    if before == 0 and is_told:
        assert found.what == "its lag grew from 0 to 1000, by 500 records a second"


def test_lag_of_groups_that_are_new_or_left() -> None:
    """A group that was not there before is not judged, one without members elsewhere."""
    growing = seen(group(M1), rows=[row(0, 9000, owner=M1)], before=[row(0, 0, owner=M1)])
    new = replace(growing, rows_before={})
    assert of(check_groups(new), "growing-lag").status is Status.OK
    left = replace(growing, looks=seen(group(), rows=[]).looks)
    assert of(check_groups(left), "growing-lag").status is Status.OK
    assert of(check_groups(growing), "growing-lag").status is Status.WARNING


def test_the_topic_with_the_most_to_read_is_the_one_to_branch() -> None:
    """Of several topics it is the one that the members are behind on."""
    two = group(member(1, 0), member(2, 0, topic="other"), member(3))
    other = replace(row(1, 100), topic="other")
    survey = seen(two, rows=[row(5, 6, owner=M1), other])
    survey = replace(survey, ranges={**survey.ranges, ("other", 0): (0, 100)})
    assert "topics branch other --into 3" in str(of(check_groups(survey), "idle-members").next_step)
    without = replace(survey, rows={"billing": []})
    assert "branch orders" in str(of(check_groups(without), "idle-members").next_step)


def test_members_without_work() -> None:
    """More members than partitions get the branch topic that has one for each."""
    crowd = group(M1, member(2, 1), member(3), member(4), member(5))
    survey = seen(crowd, rows=[row(1, 1, owner=M1), row(1, 1, partition=1)])
    found = of(check_groups(survey), "idle-members")
    assert found.status is Status.WARNING
    assert found.what == "3 of 5 members have nothing to read"
    assert "anabranch topics branch orders --into 6" in str(found.next_step)
    moving = replace(crowd, state="Reconciling")
    assert of(check_groups(seen(moving, rows=[row(1, 1)])), "idle-members").status is Status.OK


def test_a_group_on_a_branch_topic_and_its_source() -> None:
    """Both at once are the same records twice."""
    branch = BranchTopic("orders.by-key", "orders", BranchLayout(1, 4))
    both = group(M1, member(2, 0, topic="orders.by-key"))
    survey = replace(seen(both, rows=[row(1, 1)]), branch_topics={branch.name: branch})
    found = of(check_groups(survey), "branch-and-source")
    assert found.status is Status.PROBLEM
    one = replace(seen(group(M1), rows=[row(1, 1)]), branch_topics={branch.name: branch})
    assert of(check_groups(one), "branch-and-source").status is Status.OK


def test_records_that_went_unread() -> None:
    """An offset behind the log's start is a problem of a living group, a warning of a dead one."""
    found = of(check_groups(seen(group(M1), rows=[row(3, 10, start=5, owner=M1)])), "lost-records")
    assert (found.status, found.subject) == (Status.PROBLEM, "billing on orders")
    assert found.what == "2 records went before the group had read them"
    dead = of(check_groups(seen(group(), rows=[row(3, 10, start=5)])), "lost-records")
    assert dead.status is Status.WARNING


@pytest.mark.parametrize(("safe_from", "is_told"), [(7, True), (4, False), (None, False)])
def test_records_that_are_about_to_go(safe_from: int | None, is_told: bool) -> None:
    """What is unread and older than most of its retention is told, with how much it is."""
    survey = seen(group(M1), rows=[row(4, 10, owner=M1)])
    given = {} if safe_from is None else {("orders", 0): safe_from}
    (found,) = check_retention(survey, given, 0.8)
    assert (found.status is Status.WARNING) == is_told
    if is_told:
        assert found.what == "3 records that it has not read will soon be deleted"
        assert "older than 80% of retention.ms (1000)" in str(found.why)


def test_records_that_are_gone_already_do_not_count() -> None:
    """A group without commits, or behind the log's start, has only what is there before it."""
    for committed in (None, 1):
        survey = seen(group(M1), rows=[row(committed, 10, start=5, owner=M1)])
        (found,) = check_retention(survey, {("orders", 0): 7}, 0.8)
        assert found.what.startswith("2 records")
        (well,) = check_retention(survey, {("orders", 0): 5}, 0.8)
        assert well.status is Status.OK


def sharing(**given: object) -> list[Finding]:
    partition = PartitionProgress(
        topic="orders",
        partition=0,
        stable_offset=5,
        high_watermark=10,
        **given,  # type: ignore[arg-type]
    )
    progress = GroupProgress(
        group_id="billing", state="Stable", is_enabled=True, partitions=(partition,)
    )
    return judge_sharing(group(M1), progress)


def test_cooperative_groups_that_are_blocked() -> None:
    """A record that is given up blocks its key; a stable offset may stand still without one."""
    waiting = RetriedRecord(offset=5, key_hash=1, attempts=5, rest_ms=None, reason="no")
    (found,) = sharing(retried=(waiting,))
    assert found.status is Status.PROBLEM
    assert "anabranch groups release billing --topic orders --partition 0" in str(found.next_step)
    (stalled,) = sharing(stalled_ms=61_000)
    assert (stalled.status, stalled.subject) == (Status.WARNING, "billing on orders-0")
    assert sharing(retried=(replace(waiting, rest_ms=100),), stalled_ms=1000) == []


# Topics -----------------------------------------------------------------------------------------


def test_topics_that_nobody_reads() -> None:
    """A topic with records needs a group; an empty one, a branch and a dead-letter topic do not."""
    survey = replace(
        WELL,
        ranges={
            ("orders", 0): (0, 10),
            ("alone", 0): (2, 10),
            ("empty", 0): (10, 10),
            ("alone.dlq", 0): (0, 1),
            ("letters", 0): (0, 2),
            ("__own", 0): (0, 5),
        },
        configs={"orders": {"coop.dlq.topic": "letters"}},
    )
    found = check_topics(survey)
    unread = of(found, "unread-topics")
    assert (unread.subject, unread.what) == ("alone", "nobody reads its 8 records")
    letters = [one for one in found if one.check == "dead-letters"]
    assert [(one.subject, one.what) for one in letters] == [
        ("alone.dlq", "it has 1 record"),
        ("letters", "it has 2 records"),
    ]
    well = check_topics(WELL)
    assert {one.status for one in well} == {Status.OK}
    assert [one.status for one in check_topics(replace(WELL, ranges={}))] == [Status.SKIPPED]


def test_who_reads_a_branch_topic_reads_its_source() -> None:
    """The source of a branch topic that a group reads is not without a reader."""
    branch = BranchTopic("orders", "source", BranchLayout(1, 1))
    survey = replace(
        WELL,
        ranges={("source", 0): (0, 9), ("orders", 0): (0, 9)},
        branch_topics={"orders": branch},
    )
    assert of(check_topics(survey), "unread-topics").status is Status.OK
    without = replace(survey, branch_topics={})
    assert of(check_topics(without), "unread-topics").subject == "source"


# Brokers ----------------------------------------------------------------------------------------


def advertised(host: str, port: int, asked: str = "localhost:9092") -> Finding:
    connection = replace(HERE, bootstrap_server=asked)
    (found,) = broker_checks.check_advertised(connection, [Place(1, host, port)])
    return found


def test_an_address_that_works() -> None:
    """A broker on this machine that says so is right."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert advertised("127.0.0.1", server.getsockname()[1]).status is Status.OK


@pytest.mark.parametrize(
    ("host", "asked", "why"),
    [
        ("localhost", "kafka.example:9092", "that is the client itself"),
        ("127.0.0.1", "10.0.0.7:9092", "that is the client itself"),
        ("0.0.0.0", "localhost:9092", "no address of any machine"),
        ("no-such-host.invalid", "localhost:9092", "cannot be resolved"),
    ],
)
def test_an_address_that_does_not_work(host: str, asked: str, why: str) -> None:
    """What clients are told to come to is tried, and the classic trap is called by its name."""
    found = advertised(host, 9092, asked)
    assert found.status is Status.PROBLEM
    assert why in str(found.why)
    assert "advertised.listeners" in str(found.next_step)


def test_an_address_where_nobody_is() -> None:
    """A name that resolves to a port without a listener is found as well."""
    found = advertised("127.0.0.1", 1)
    assert found.status is Status.PROBLEM and "refused" in str(found.why)


def test_versions() -> None:
    """Old brokers are told apart: too old for clients, and without the new groups."""
    new = {FETCH.key: (4, 17), CONSUMER_GROUP_HEARTBEAT.key: (0, 1)}
    statuses = [
        broker_checks.judge_versions("broker 1", served).status
        for served in (new, {FETCH.key: (0, 17)}, {FETCH.key: (0, 3)}, {})
    ]
    assert statuses == [Status.OK, Status.WARNING, Status.PROBLEM, Status.PROBLEM]


@pytest.mark.parametrize(
    ("ahead_s", "status"),
    [
        (0.0, Status.OK),
        (1.9, Status.OK),
        (-2.5, Status.OK),  # the date is whole seconds, so it may be one behind
        (5.0, Status.WARNING),
        (-5.0, Status.WARNING),
        (3600.0, Status.PROBLEM),
        (-61.5, Status.PROBLEM),
    ],
)
def test_clocks(ahead_s: float, status: Status) -> None:
    """A second is nothing, a minute is a problem."""
    assert broker_checks.judge_clock(ahead_s, precision_s=1.0).status is status


def entry(value: str | None, name: str = "any") -> Entry:
    return Entry(
        name=name,
        value=value,
        source="DEFAULT_CONFIG",
        default=None,
        type=None,
        is_read_only=False,
        is_sensitive=False,
        documentation=None,
    )


@contextmanager
def http_server(headers: bool = True) -> Iterator[int]:
    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()

        do_HEAD = do_GET

        def log_message(self, *arguments: object) -> None:
            """Silence."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_the_clock_of_the_http_listener() -> None:
    """The date of the console's listener is compared with ours; without one, records are."""
    place = Place(1, "localhost", 9092)
    with http_server() as port:
        configs = {"console.listeners": entry(f"127.0.0.1:{port}")}
        found = broker_checks.check_clock(HERE, [place], configs, None)
        assert found.status is Status.OK and "differ by less" in found.what
        remote = [Place(1, "kafka.example", 9092)]
        assert broker_checks.check_clock(HERE, remote, configs, None).status is Status.SKIPPED
    assert broker_checks.check_clock(HERE, [place], {}, None).status is Status.SKIPPED
    ahead = broker_checks.check_clock(HERE, [place], {}, 1 << 50)
    assert ahead.status is Status.PROBLEM and "ahead of this one" in ahead.what
    assert broker_checks.check_clock(HERE, [place], {}, 1).status is Status.OK


def test_automatic_topics() -> None:
    """Topics that a typo makes are a warning."""
    on = {"auto.create.topics.enable": entry("true")}
    assert broker_checks.check_auto_create(on).status is Status.WARNING
    off = {"auto.create.topics.enable": entry("false")}
    assert broker_checks.check_auto_create(off).status is Status.OK


@pytest.mark.parametrize(
    ("given", "status"),
    [
        (None, Status.OK),
        ("45000", Status.OK),
        ("5999", Status.PROBLEM),
        ("1800001", Status.PROBLEM),
    ],
)
def test_session_timeouts_of_clients(tmp_path: Path, given: str | None, status: Status) -> None:
    """A consumer's file with a timeout that the broker refuses is found before it is refused."""
    file = tmp_path / "consumer.properties"
    file.write_text("" if given is None else f"session.timeout.ms={given}\n")
    configs = {
        "group.min.session.timeout.ms": entry("6000"),
        "group.max.session.timeout.ms": entry("1800000"),
    }
    connection = replace(HERE, command_config=file)
    assert broker_checks.check_client_session(connection, configs).status is status


@pytest.mark.parametrize(("value", "is_told"), [("50000", False), ("70000", True), ("1", True)])
def test_session_timeouts_of_groups(value: str, is_told: bool) -> None:
    """A group's own timeout outside of the broker's bounds is not what holds."""
    configs = {
        "group.consumer.min.session.timeout.ms": entry("45000"),
        "group.consumer.max.session.timeout.ms": entry("60000"),
    }
    own = {"consumer.session.timeout.ms": entry(value)}
    found = broker_checks.check_group_session("billing", own, configs)
    assert (found is not None) == is_told


def test_what_a_broker_does_not_tell_is_no_finding(tmp_path: Path) -> None:
    """Settings that Kafka has not, or had not yet, are passed over."""
    own = {"consumer.session.timeout.ms": entry("1")}
    assert broker_checks.check_group_session("billing", own, {}) is None
    bounds = {
        "group.consumer.min.session.timeout.ms": entry(None),
        "group.consumer.max.session.timeout.ms": entry("60000"),
    }
    assert broker_checks.check_group_session("billing", own, bounds) is None
    assert broker_checks.check_group_session("billing", {}, bounds) is None
    file = tmp_path / "consumer.properties"
    file.write_text("session.timeout.ms=1\n")
    found = broker_checks.check_client_session(replace(HERE, command_config=file), {})
    assert found.status is Status.OK
    for address in ("localhost:0", "localhost:any"):
        configs = {"console.listeners": entry(address)}
        place = [Place(1, "localhost", 9092)]
        assert broker_checks.check_clock(HERE, place, configs, None).status is Status.SKIPPED


def test_versions_are_not_asked_for_through_tls(tmp_path: Path) -> None:
    """Our own codecs speak neither TLS nor SASL, which is said."""
    file = tmp_path / "client.properties"
    file.write_text("security.protocol=SSL\n")
    connection = replace(HERE, command_config=file)
    (found,) = broker_checks.check_versions(connection, [Place(1, "localhost", 1)])
    assert (found.status, found.why) == (Status.SKIPPED, "it is asked without TLS and SASL only")
    (dead,) = broker_checks.check_versions(HERE, [Place(1, "127.0.0.1", 1)])
    assert dead.status is Status.SKIPPED and "broker 1 does not answer" in str(dead.why)


# The machine ------------------------------------------------------------------------------------


def test_python_versions() -> None:
    """The oldest Python that is supported is 3.11."""
    assert machine.check_python((3, 11)).status is Status.OK
    assert machine.check_python((3, 10)).status is Status.PROBLEM


@pytest.mark.parametrize(
    ("soft", "hard", "partitions", "status"),
    [
        (1024, 4096, 0, Status.OK),
        (1024, 4096, 1, Status.PROBLEM),
        (65536, 65536, 10_000, Status.OK),
        (65536, 65536, 20_000, Status.PROBLEM),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, 10**9, Status.OK),
    ],
)
def test_open_files(soft: int, hard: int, partitions: int, status: Status) -> None:
    """The limit is compared with what so many partitions need."""
    found = machine.check_open_files(soft, hard, partitions)
    assert found.status is status
    if partitions == 1:
        assert "ulimit -n 1028" in str(found.next_step)
    if partitions == 20_000:
        assert "hard limit" in str(found.next_step)


@pytest.mark.parametrize(
    ("free", "total", "status"),
    [
        (50 * GIB, 100 * GIB, Status.OK),
        (14 * GIB, 100 * GIB, Status.WARNING),
        (4 * GIB, 100 * GIB, Status.PROBLEM),
        (GIB // 2, 2 * GIB, Status.PROBLEM),
    ],
)
def test_disk_space(free: int, total: int, status: Status) -> None:
    """A share of the disk has to be free, and one GiB at least."""
    assert machine.check_space("data", free, total).status is status


def test_inodes() -> None:
    """A file system without files left is a problem, one without a limit is none."""
    assert machine.check_inodes("data", 1, 100).status is Status.PROBLEM
    assert machine.check_inodes("data", 50, 100).status is Status.OK
    assert machine.check_inodes("data", 0, 0).status is Status.OK


def test_a_folder_that_is_not_there_yet(tmp_path: Path) -> None:
    """The disk that it will be on is looked at; one that cannot be written to is a problem."""
    statuses = [one.check for one in machine.check_folder(tmp_path / "a" / "b")]
    assert statuses == ["disk-space", "inodes"]


def test_a_folder_that_cannot_be_written_to(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Permissions are told before the broker fails of them."""
    monkeypatch.setattr(machine.os, "access", lambda path, mode: False)
    (found,) = machine.check_folder(tmp_path)
    assert found.status is Status.PROBLEM and found.what == "it cannot be written to"


def test_properties(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names that are none get the nearest, values that cannot be are problems, the rest is well."""
    monkeypatch.setattr(machine.os, "environ", {})
    file = tmp_path / "server.properties"
    file.write_text("num.partitons=3\n")
    settings, (found,) = machine.check_properties(file)
    assert (found.status, found.subject) == (Status.WARNING, str(file))
    assert found.next_step == "did you mean num.partitions?"
    file.write_text("num.partitions=many\nlog.segment.bytes=-1\n")
    settings, broken = machine.check_properties(file)
    assert [one.status for one in broken] == [Status.PROBLEM] * 2
    assert settings.log_dirs  # the defaults, so that the other checks go on
    file.write_text("num.partitions=3\n")
    _, (well,) = machine.check_properties(file)
    assert well.status is Status.OK


def free_port() -> int:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        return int(server.getsockname()[1])


def test_ports() -> None:
    """Free, taken by something else, or a broker already: each is told as what it is."""
    assert machine.check_port("127.0.0.1", free_port()).what == "free"
    assert machine.check_port("", 0).status is Status.OK
    with http_server() as port:
        found = machine.check_port("127.0.0.1", port)
        assert (found.status, found.what) == (Status.PROBLEM, "an HTTP server listens there")


def serve_once(answer: bytes) -> Callable[[socket.socket], None]:
    def serve(server: socket.socket) -> None:
        while True:
            try:
                peer, _ = server.accept()
            except OSError:
                return
            with peer:
                peer.recv(1024)
                peer.sendall(answer)

    return serve


@pytest.mark.parametrize(
    ("answer", "what"),
    [
        (b"\x15\x03\x01\x00\x02\x02\x46", "a server that wants TLS listens there"),
        (b"+PONG\r\n", "something that does not speak Kafka's protocol listens there"),
    ],
)
def test_other_servers_on_the_port(answer: bytes, what: str) -> None:
    """What answers is told from other servers by its first bytes."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve_once(answer), args=(server,), daemon=True)
        thread.start()
        found = machine.check_port("127.0.0.1", server.getsockname()[1])
        server.shutdown(socket.SHUT_RDWR)
        thread.join(60)
    assert (found.status, found.what) == (Status.PROBLEM, what)


def test_a_listener_that_is_no_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """An address that this machine cannot even try is a mistake in listeners."""

    def fail(host: str, port: int) -> str:
        raise OSError(errno.ENETUNREACH, "Network is unreachable")

    monkeypatch.setattr(machine, "_listening", fail)
    found = machine.check_port("192.0.2.1", 9092)
    assert found.status is Status.PROBLEM and "unreachable" in found.what


def test_java_only_where_spark_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without pyspark nobody needs Java; with it and without Java it is a problem."""
    monkeypatch.setattr(machine, "find_spec", lambda name: None)
    assert machine.check_java().status is Status.SKIPPED
    monkeypatch.setattr(machine, "find_spec", lambda name: object())
    from anabranch.cli.errors import CliError
    from anabranch.cli.pipeline import needs

    def fail() -> None:
        raise CliError("Spark cannot start", "no java in JAVA_HOME or PATH", "install Java 17")

    monkeypatch.setattr(needs, "check_needs", fail)
    found = machine.check_java()
    assert (found.status, found.why) == (Status.PROBLEM, "no java in JAVA_HOME or PATH")
    monkeypatch.setattr(needs, "check_needs", lambda: None)
    assert machine.check_java().status is Status.OK
