"""What is asked of Kafka Connect on a broker: sources, sinks, and what they survive."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from confluent_kafka import ConsumerGroupState
from lines import GrowingFile, KeyedProducer, check_once, check_replayed, lines_of, topic_lines
from workers import GROUP, SINK, SINK_GROUP_PREFIX, SOURCE, Cluster, wait_for

from branch_topics import create_branched, require_branch_topics

BRANCHES = 8
RECORDS = 6_000
_ANABRANCH = Path(sys.executable).with_name("anabranch")

Check = Callable[[Cluster], None]


def sink_config(topic: str, file: Path, tasks: int) -> dict[str, Any]:
    return {"connector.class": SINK, "topics": topic, "file": str(file), "tasks.max": tasks}


def source_config(cluster: Cluster, topic: str, file: Path) -> dict[str, Any]:
    exactly_once = {"exactly.once.support": "required", "transaction.boundary": "poll"}
    return {
        "connector.class": SOURCE,
        "topic": topic,
        "file": str(file),
        "tasks.max": 1,
        "batch.size": 100,
        **(exactly_once if cluster.is_exactly_once else {}),
    }


def wait_for_lines(path: Path, count: int) -> list[str]:
    """So many different lines are in a sink's file."""
    wait_for(
        lambda: len(set(lines_of(path))) >= count,
        f"{count} lines in {path.name}",
        lambda: f"{len(set(lines_of(path)))} are there",
    )
    return lines_of(path)


def wait_for_topic(cluster: Cluster, source: str, topic: str, count: int) -> list[str]:
    """So many committed records are in a source's topic."""
    found: list[str] = []

    def is_there() -> bool:
        cluster.check_tasks(source)
        found[:] = topic_lines(cluster.servers, topic)
        return len(found) >= count

    wait_for(is_there, f"{count} records in {topic}", lambda: f"{len(found)} are there")
    return found


def group_of(cluster: Cluster, group: str) -> Any:
    admin = cluster.admin
    (future,) = admin.describe_consumer_groups([group]).values()
    return future.result(20)


def owned(cluster: Cluster, group: str) -> list[list[int]]:
    """The partitions of each member of a settled group; nothing while it is not settled."""
    found = group_of(cluster, group)
    if found.state != ConsumerGroupState.STABLE:
        return []
    return [[tp.partition for tp in m.assignment.topic_partitions] for m in found.members]


# The checks -------------------------------------------------------------------------------------


def a_source(cluster: Cluster) -> None:
    """Every line of a file becomes a record, in order and once, also those that are added later."""
    topic = cluster.create_topic("from-file", 1)
    file = GrowingFile(cluster.work_dir / "source.txt")
    file.write(RECORDS // 2)
    cluster.create("file-source", source_config(cluster, topic, file.path))
    wait_for_topic(cluster, "file-source", topic, RECORDS // 2)
    file.write(RECORDS // 2)
    found = wait_for_topic(cluster, "file-source", topic, RECORDS)
    cluster.delete("file-source")
    assert found == file.written, f"{len(found)} records of {len(file.written)} lines"


def a_plain_sink(cluster: Cluster) -> None:
    """Three tasks write a topic of three partitions to a file."""
    topic = cluster.create_topic("orders", 3)
    producer = KeyedProducer(cluster.servers, topic)
    producer.send(RECORDS // 2)
    file = cluster.work_dir / "plain-sink.txt"
    cluster.create("plain-sink", sink_config(topic, file, 3))
    producer.send(RECORDS // 2)
    found = wait_for_lines(file, RECORDS)
    members = owned(cluster, SINK_GROUP_PREFIX + "plain-sink")
    cluster.delete("plain-sink")
    check_once(found, producer.lines)
    assert sorted(members) == [[0], [1], [2]], f"the tasks have {members}"


def a_branch_sink(cluster: Cluster) -> None:
    """Eight tasks share one partition by key: each has a branch, and every record comes once."""
    topic = create_branched(cluster.servers, "clicks", 1, BRANCHES)
    producer = KeyedProducer(cluster.servers, "clicks")
    producer.send(RECORDS // 2)
    file = cluster.work_dir / "branch-sink.txt"
    cluster.create("branch-sink", sink_config(topic, file, BRANCHES))
    producer.send(RECORDS // 2)
    found = wait_for_lines(file, RECORDS)
    check_once(found, producer.lines)
    group = SINK_GROUP_PREFIX + "branch-sink"
    alone = [[number] for number in range(BRANCHES)]
    wait_for(lambda: sorted(owned(cluster, group)) == alone, "each task has a branch")
    workers = {task.worker_id for task in cluster.tasks("branch-sink")}
    assert len(workers) == 2, f"all tasks are on {workers}"
    # What the tasks committed adds up to the end of the one partition.
    finished = f"{group} has finished everything of clicks-0 below {RECORDS}"
    wait_for(lambda: finished in _cli(cluster, "groups", "describe", group), finished)
    cluster.delete("branch-sink")


def groups_are_shown(cluster: Cluster) -> None:
    """The workers' group is listed with its protocol, and described member by member."""
    require_branch_topics(cluster.servers)  # as a sign of whose command line this is
    wait_for(lambda: _listed(cluster)["state"] == "Stable", "the workers agree")
    listed = _listed(cluster)
    assert (listed["protocol"], listed["type"].lower()) == ("connect", "classic"), listed
    text = _cli(cluster, "groups", "describe", GROUP, "--members")
    assert text.count("connect-") >= len(cluster.workers), text


def _listed(cluster: Cluster) -> dict[str, Any]:
    found = json.loads(_cli(cluster, "groups", "list", "--format", "json"))
    listed = [one for one in found if one["group"] == GROUP]
    assert len(listed) == 1, f"{GROUP} is not in {found}"
    return dict(listed[0])


def _cli(cluster: Cluster, *arguments: str) -> str:
    command = [str(_ANABRANCH), *arguments, "--bootstrap-server", cluster.servers]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, f"{' '.join(arguments)}: {done.stdout} {done.stderr}"
    return done.stdout + done.stderr  # tables and what is said about them


class Flow:
    """A source, and a sink with a branch for each of its tasks, with lines that keep coming.

    Where there are no branch topics the sink reads a topic with as many partitions.
    """

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster = cluster
        self.source, self.sink = f"{name}-source", f"{name}-sink"
        self.topic = cluster.create_topic(f"{name}-lines", 1)
        self.file = GrowingFile(cluster.work_dir / f"{name}-source.txt")
        self.sink_file = cluster.work_dir / f"{name}-sink.txt"
        work = f"{name}-work"
        try:
            read = create_branched(cluster.servers, work, 1, BRANCHES)
        except LookupError:
            read = cluster.create_topic(work, BRANCHES)
        self.producer = KeyedProducer(cluster.servers, work)
        cluster.create(self.source, source_config(cluster, self.topic, self.file.path))
        cluster.create(self.sink, sink_config(read, self.sink_file, BRANCHES))
        self.producer.start()
        self.go_on()

    def go_on(self) -> None:
        """More lines, and all of both sides have come out that were there before."""
        self.file.write(RECORDS // 10)
        count = self.producer.lines.total
        wait_for_lines(self.sink_file, count)
        wait_for_topic(self.cluster, self.source, self.topic, len(self.file.written))

    def wait_until_running(self) -> None:
        self.cluster.wait_until_running(self.source, 1)
        self.cluster.wait_until_running(self.sink, BRANCHES)

    def finish(self, *, is_repeated: bool) -> None:
        """Nothing is missing, keys are in order, and the source's lines are there once.

        The sink's only where nobody was killed, because a sink of files works at least once.
        """
        self.go_on()
        self.producer.stop()
        wait_for_lines(self.sink_file, self.producer.lines.total)
        self.cluster.delete(self.sink)
        self.cluster.delete(self.source)
        found = topic_lines(self.cluster.servers, self.topic)
        assert found == self.file.written, (
            f"{len(found)} records of {len(self.file.written)} lines, {len(set(found))} different"
        )
        written = lines_of(self.sink_file)
        print(f"{'':<26}{check_replayed(written, self.producer.lines)}")
        if not is_repeated:
            check_once(written, self.producer.lines)


def a_worker_is_killed(cluster: Cluster) -> None:
    """SIGKILL for the worker of the source: its tasks go to the other one and go on."""
    flow = Flow(cluster, "killed")
    (source_task,) = cluster.tasks(flow.source)
    flow.file.write(RECORDS // 2)
    cluster.kill(source_task.worker_id)
    flow.wait_until_running()
    flow.go_on()
    cluster.start(2)
    flow.wait_until_running()
    flow.finish(is_repeated=True)


def the_broker_is_killed(cluster: Cluster) -> None:
    """SIGKILL for the broker: workers and tasks find their way back by themselves."""
    flow = Flow(cluster, "broker")
    for _ in range(2):
        flow.file.write(RECORDS // 2)
        cluster.server.kill()
        cluster.server.start()
        flow.go_on()
    flow.wait_until_running()
    flow.finish(is_repeated=True)


def all_workers_are_started_again(cluster: Cluster) -> None:
    """New workers find connectors, offsets and states in the topics, and nothing comes twice."""
    flow = Flow(cluster, "again")
    cluster.close_all()
    flow.file.write(RECORDS // 10)
    cluster.start(2)
    flow.wait_until_running()
    flow.finish(is_repeated=False)


CHECKS: dict[str, Check] = {
    "source: every line of a file, once and in order": a_source,
    "sink: a task for each of three partitions": a_plain_sink,
    "sink: eight tasks share one partition through a branch topic": a_branch_sink,
    "groups: the command line shows workers and tasks": groups_are_shown,
    "kill: tasks of a killed worker go to another one": a_worker_is_killed,
    "broker: it is killed twice under all of them": the_broker_is_killed,
    "restart: all workers end and others take over": all_workers_are_started_again,
}
