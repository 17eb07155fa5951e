"""Members of a group, one Java virtual machine each, and the history that each of them tells."""

from __future__ import annotations

import functools
import os
import subprocess
import zipfile
from pathlib import Path

from member_history import NEVER, HistoryProcess, Partition, partitions_of

HERE = Path(__file__).resolve().parent
# Ten of them run at once on a small machine: little memory, and what starts fastest.
_JAVA_OPTIONS = [
    "-Xmx64m",
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    "-XX:-UsePerfData",
    # Whatever the machine itself has to say must not get between the lines of the history.
    "-Xlog:disable",
    "-Xlog:all=error:stderr",
    f"-Dlog4j2.configurationFile={HERE / 'log4j2-member.properties'}",
]
_MEMBER_CLASS = "anabranch.compat.MemberProcess"
# A member needs no more than these.
_JARS = ("kafka-clients-*", "slf4j-api-*", "log4j-api-*", "log4j-core-*", "log4j-slf4j-impl-*")


class MemberProcess(HistoryProcess):
    """One consumer of the Java client."""

    @property
    def generation(self) -> int:
        """The generation of the last thing that the broker accepted from it."""
        return int(self.of("assigned", "committed")[-1]["generation"])

    @property
    def member_id(self) -> str:
        return str(self.events[-1]["member"])

    def processed(self, before: float = NEVER) -> list[tuple[Partition, int]]:
        return [
            (partition, event["offset"])
            for event in self.of("processed")
            for partition in partitions_of(event)
            if event["at"] < before
        ]

    @property
    def unaware_until(self) -> float:
        """When a member that was frozen has learned from its client what it lost meanwhile.

        Until then it may process what it had fetched; nobody can keep it from that.
        """
        return min((event["at"] for event in self.of("lost", after=self.frozen_at)), default=NEVER)

    def left_behind(self) -> set[tuple[Partition, int]]:
        """What it had processed and not committed when it was killed, or frozen and unaware."""
        confirmed = self.confirmed(before=min(self.ended_at, self.frozen_at))
        return {
            (partition, offset)
            for partition, offset in self.processed(before=min(self.ended_at, self.unaware_until))
            if offset >= confirmed.get(partition, 0)
        }


def member_command() -> tuple[str, ...]:
    """How a member is started, up to its arguments."""
    return java_command(_MEMBER_CLASS)


@functools.cache
def java_command(main_class: str) -> tuple[str, ...]:
    """How a program of this suite is started, up to its arguments.

    The classes that a member loads before it has found its broker are archived once, and every
    process maps that archive: it takes 40 % off the time of a start.
    """
    target, lib = HERE / "target", HERE / "lib"
    jar, archive = target / "member.jar", target / "member.jsa"
    classes = sorted((target / "classes").rglob("*.class"))
    jars = [jar, *(path for pattern in _JARS for path in sorted(lib.glob(pattern + ".jar")))]
    start = [*_JAVA_OPTIONS, "-cp", os.pathsep.join(map(str, jars))]
    newest = max(path.stat().st_mtime for path in classes)
    if not archive.exists() or archive.stat().st_mtime < newest:
        # Only classes from jars can be shared.
        with zipfile.ZipFile(jar, "w") as packed:
            for path in classes:
                packed.write(path, path.relative_to(target / "classes"))
        archive.unlink(missing_ok=True)
        # Nobody listens there and stdin is at its end: it starts, closes, and writes the archive.
        subprocess.run(
            [
                *("java", f"-XX:ArchiveClassesAtExit={archive}", *start, _MEMBER_CLASS),
                *("127.0.0.1:1", "none", "none", "group.protocol=consumer"),
            ],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=60,
            check=True,
        )
    return ("java", f"-XX:SharedArchiveFile={archive}", *start, main_class)
