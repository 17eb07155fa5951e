"""Those who work on records in the benchmark of cooperation: processes that are told what to do.

Each is one process, ours (cooperative_member.py) or one of others (cooperative_java), which takes
part in one run after another. So a Java virtual machine is warm when it is measured.
"""

from __future__ import annotations

import contextlib
import queue
import subprocess
import sys
import threading
import time
from array import array
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from anabranch.model.units import SLOT_COUNT
from cooperative_load import Load, LoadError, Sender, create_topic, delete_topic
from server_process import BUILD, ServerProcess, process_cpu_seconds

HERE = Path(__file__).resolve().parent
JAVA = HERE / "cooperative_java"
_JAVA_BUILD = BUILD / "cooperative-peers"
_JAVA_OPTIONS = ["-Xms1g", "-Xmx1g", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"]
_READY_LIMIT_S = 90.0
_END_LIMIT_S = 60.0
_CLOSE_LIMIT_S = 10.0
# Equal ranges are assigned within a few heartbeats; then they do not change any more.
_QUIET_S = 0.3


def build_peers() -> list[str]:
    """Compile the Java peers and fetch what they need; returns the command without arguments."""
    stamp = _JAVA_BUILD / ".built"
    sources = [JAVA / "pom.xml", *JAVA.glob("src/**/*.java")]
    if not stamp.exists() or stamp.stat().st_mtime < max(path.stat().st_mtime for path in sources):
        print("building the Java peers with Maven ...", file=sys.stderr)
        goals = ["compile", "dependency:copy-dependencies"]
        options = ["-DincludeScope=runtime", f"-DoutputDirectory={_JAVA_BUILD / 'lib'}"]
        subprocess.run(["mvn", "-q", "-B", *goals, *options], cwd=JAVA, check=True)
        stamp.touch()
    classpath = f"{_JAVA_BUILD / 'classes'}:{_JAVA_BUILD / 'lib'}/*"
    return ["java", *_JAVA_OPTIONS, "-cp", classpath, "anabranch.bench.Peers"]


def member_command() -> list[str]:
    return [sys.executable, str(HERE / "cooperative_member.py")]


class Worker:
    """One process, and what it has said."""

    def __init__(self, command: Sequence[str], server: ServerProcess, log_path: Path) -> None:
        self._log_path = log_path
        with log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [*command, server.bootstrap_servers],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self._lines: queue.Queue[list[str] | None] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()

    def cpu_seconds(self) -> float:
        """User and system time of all its threads."""
        return process_cpu_seconds(self._process.pid)

    def tell(self, *words: object) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(" ".join(map(str, words)) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise LoadError(f"a worker has ended:\n{self._log_tail()}") from None

    def hear(self, timeout_s: float) -> list[str]:
        """The next thing it says; nothing if it is silent for so long."""
        try:
            line = self._lines.get(timeout=timeout_s) if timeout_s else self._lines.get_nowait()
        except queue.Empty:
            return []
        if line is None:
            raise LoadError(f"a worker has ended:\n{self._log_tail()}")
        return line

    def close(self) -> None:
        """The end of what it is told is its end."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(_CLOSE_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout:
            for line in self._process.stdout:
                self._lines.put(line.split())
        self._lines.put(None)

    def _log_tail(self) -> str:
        return "\n".join(self._log_path.read_text(errors="replace").splitlines()[-20:])


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """A way to work on one partition: how many processes of which kind, at which broker."""

    name: str
    kind: str
    server: ServerProcess
    processes: int = 1

    @property
    def is_ours(self) -> bool:
        return self.kind in ("async", "threads", "logged")

    @property
    def is_java(self) -> bool:
        return self.kind in ("plain", "parallel", "share")

    @property
    def topic_configs(self) -> dict[str, str]:
        return {"range.fetch.enable": "true"} if self.is_ours else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of one run."""

    records: int
    seconds: float
    done: int
    repeated: int
    disordered: int
    per_process: tuple[int, ...] = ()
    # Of the broker, and of those who work.
    server_cpu_seconds: float = 0.0
    worker_cpu_seconds: float = 0.0

    @property
    def rate(self) -> float:
        return self.done / self.seconds if self.seconds else 0.0

    @property
    def is_complete(self) -> bool:
        return self.done >= self.records


class Crew:
    """The processes of a contender."""

    def __init__(self, contender: Contender, command: Sequence[str], folder: Path) -> None:
        self.contender = contender
        self._command = command
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.workers: list[Worker] = []
        self.start()

    def start(self) -> None:
        log_path = self._folder / "workers.log"
        for _ in range(self.contender.processes):
            self.workers.append(Worker(self._command, self.contender.server, log_path))

    def run(self, load: Load, *, workers: int, work_us: int, limit_s: float) -> Outcome:
        """One run: the group forms on an empty topic, all records come, and are worked off."""
        topic = create_topic(self.contender.server, self.contender.topic_configs)
        try:
            self._begin(topic, workers=workers, work_us=work_us, expected=len(load))
            self._await_ready()
            cpu = self._cpu_seconds()
            sender = Sender(self.contender.server, topic)
            sender.send(load.batches)
            sender.close()
            self._await_done(len(load), limit_s)
            cpu_after = self._cpu_seconds()
            return replace(
                self._end(load),
                server_cpu_seconds=cpu_after[0] - cpu[0],
                worker_cpu_seconds=cpu_after[1] - cpu[1],
            )
        finally:
            delete_topic(self.contender.server, topic)

    def _begin(self, topic: str, *, workers: int, work_us: int, expected: int) -> None:
        group = f"{topic}-group"
        each = workers // len(self.workers)
        for worker in self.workers:
            worker.tell("run", self.contender.kind, topic, group, each, work_us, expected)

    def _await_ready(self) -> None:
        """Until everybody has its share and nothing changes any more."""
        if self.contender.is_ours:
            widths = [width(slots) for slots in await_slots(self.workers)]
            if max(widths) > 1.5 * min(widths):
                raise LoadError(f"the ranges of the members are not equal: {widths}")
            return
        for worker in self.workers:
            if worker.hear(_READY_LIMIT_S) != ["ready"]:
                raise LoadError(f"{self.contender.name} is not ready in {_READY_LIMIT_S:.0f} s")

    def _await_done(self, expected: int, limit_s: float) -> None:
        """Until all records are done, or the time is over."""
        done = [0] * len(self.workers)
        deadline_s = time.monotonic() + limit_s
        while sum(done) < expected and time.monotonic() < deadline_s:
            for number, worker in enumerate(self.workers):
                while line := worker.hear(0.0):
                    if line[0] == "done":
                        done[number] = int(line[1])
            time.sleep(0.01)

    def _cpu_seconds(self) -> tuple[float, float]:
        return (
            self.contender.server.cpu_seconds(),
            sum(worker.cpu_seconds() for worker in self.workers),
        )

    def _end(self, load: Load) -> Outcome:
        """Stop everybody, and see what they have done."""
        files = [self._folder / f"done-{number}" for number in range(len(self.workers))]
        for worker, path in zip(self.workers, files, strict=True):
            worker.tell("stop", path)
        ends = [self._ended(worker) for worker in self.workers]
        done = [self._read(path) for path in files]
        firsts = [first for first, _, count in ends if count]
        lasts = [last or time.monotonic_ns() for _, last, count in ends if count]
        repeated = sum(map(len, done)) - len(set().union(*done))
        return Outcome(
            records=len(load),
            seconds=(max(lasts) - min(firsts)) / 1e9 if firsts else 0.0,
            done=sum(map(len, done)) - repeated,
            repeated=repeated,
            disordered=sum(disorder(load.keys, offsets) for offsets in done),
            per_process=tuple(map(len, done)),
        )

    def _read(self, path: Path) -> array[int]:
        numbers = array("q", path.read_bytes())
        if self.contender.is_java and sys.byteorder == "little":  # Java writes big-endian
            numbers.byteswap()
        return numbers

    def _ended(self, worker: Worker) -> tuple[int, int, int]:
        while line := worker.hear(_END_LIMIT_S):
            if line[0] == "ended":
                return int(line[1]), int(line[2]), int(line[3])
        raise LoadError(f"{self.contender.name} does not stop")

    def close(self) -> None:
        with ThreadPoolExecutor(len(self.workers)) as pool:
            list(pool.map(Worker.close, self.workers))
        self.workers.clear()


Slots = list[tuple[int, int]]


def slots_said(line: Sequence[str]) -> Slots:
    """The ranges of slots that a member of ours says it has."""
    return [(int(first), int(end)) for first, _, end in (one.partition("-") for one in line[1:])]


def width(slots: Slots) -> int:
    return sum(end - first for first, end in slots)


def await_slots(workers: Sequence[Worker]) -> list[Slots]:
    """Until the members have all slots, each of them some, and nothing changes any more."""
    owned: list[Slots] = [[] for _ in workers]
    deadline_s = time.monotonic() + _READY_LIMIT_S
    changed_s = time.monotonic()
    while time.monotonic() < deadline_s:
        for number, worker in enumerate(workers):
            while line := worker.hear(0.0):
                if line[0] == "owns":
                    owned[number] = slots_said(line)
                    changed_s = time.monotonic()
        is_complete = sum(map(width, owned)) == SLOT_COUNT and all(owned)
        if is_complete and time.monotonic() - changed_s > _QUIET_S:
            return owned
        time.sleep(0.01)
    raise LoadError(f"the group is not complete after {_READY_LIMIT_S:.0f} s: {owned}")


def disorder(keys: Sequence[int], offsets: Iterable[int]) -> int:
    """How many records were done after a later one of their key."""
    latest: dict[int, int] = {}
    late = 0
    for offset in offsets:
        key = keys[offset]
        if offset < latest.get(key, -1):
            late += 1
        else:
            latest[key] = offset
    return late
