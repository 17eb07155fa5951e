"""Whether a broker is well, for whoever restarts it or sends it traffic.

Health is that the process serves at all: whoever gets an answer has it. Readiness is that clients
can work with it: their groups and transactions are loaded, and what they produce can be kept.
"""

import asyncio
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker

_PROBE_BYTES = 4096
_NAMED_MAX = 5


@dataclass(frozen=True, slots=True)
class Health:
    """Nothing wrong, or sentences that say what is."""

    problems: tuple[str, ...] = ()

    @property
    def is_ok(self) -> bool:
        return not self.problems

    @property
    def text(self) -> str:
        """For people and for logs, a line for each problem."""
        return "".join(f"{problem}\n" for problem in self.problems) or "ok\n"


def health(broker: "Broker") -> Health:
    """Whether the process serves; asked on its loop, so that an answer says that the loop runs."""
    if broker.is_closed:
        return Health(("The broker is stopping.",))
    return Health()


async def readiness(broker: "Broker") -> Health:
    """Whether clients can work with the broker."""
    if broker.is_closed:
        return health(broker)
    problems = []
    if not broker.endpoints:
        problems.append("No listener is bound yet.")
    for why in (*broker.groups.refusals(), *broker.transactions.refusals()):
        problems.append(f"A coordinator cannot serve: {why}")
    failed = [p.log for t in broker.topics if t.source is None for p in t.partitions]
    failed = [log for log in failed if log.failed is not None]
    for log in failed[:_NAMED_MAX]:
        problems.append(f"The log {log.folder.name} takes no records: {log.failed}. See the disk.")
    folders = [directory.path for directory in broker.engine.directories]
    # A disk that hangs must not hang the loop.
    problems += await asyncio.get_running_loop().run_in_executor(None, _unwritable, folders)
    return Health(tuple(problems))


def _unwritable(folders: Iterable[Path]) -> list[str]:
    """What is wrong with folders that cannot be written to; nothing of a probe remains."""
    problems = []
    for folder in folders:
        try:
            with tempfile.TemporaryFile(dir=folder) as probe:
                probe.write(bytes(_PROBE_BYTES))
                probe.flush()
        except OSError as error:
            problems.append(f"{folder} cannot be written to: {error.strerror}. Make room for it.")
    return problems
