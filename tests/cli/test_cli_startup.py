"""Help and completion come at once: nothing heavy is imported, and little more than click."""

import os
import resource
import subprocess
import sys

import click
import pytest

from anabranch.cli.main import root
from anabranch.cli.reference_page import commands

HEAVY = (
    "asyncio",
    "confluent_kafka",
    "javaproperties",
    "jinja2",
    "prometheus_client",
    "pyarrow",
    "pyspark",
    "starlette",
    "uvicorn",
    "uvloop",
)
GROUPS = [
    path.split()[1:]
    for path, command, _ in commands(root, "anabranch")
    if isinstance(command, click.Group)
]
_TRIES = 7
_REPORT = """
import atexit, sys
def report():
    present = sorted(name for name in sys.modules if "." not in name)
    sys.stderr.write("modules: " + " ".join(present) + "\\n")
atexit.register(report)
from anabranch.cli.main import main
sys.exit(main())
"""


def modules_of(*arguments: str, **environment: str) -> set[str]:
    """The modules that a command line has imported when it ends."""
    done = subprocess.run(
        [sys.executable, "-c", _REPORT, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stderr
    return set(done.stderr.rpartition("modules: ")[2].split())


@pytest.mark.parametrize("words", GROUPS, ids=" ".join)
def test_help_imports_nothing_heavy(words: list[str]) -> None:
    """The help of the program and of its families needs no client, broker or web server."""
    assert modules_of(*words, "--help").isdisjoint(HEAVY)


@pytest.mark.parametrize("command", ["serve", "doctor", "consume", "completion", "bench", "demo"])
def test_help_of_commands_imports_nothing_heavy(command: str) -> None:
    """Neither does that of a command whose work needs much."""
    assert modules_of(command, "--help").isdisjoint(HEAVY)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_import_nothing_heavy(shell: str) -> None:
    """A shell that starts waits for its script."""
    assert modules_of("completion", shell).isdisjoint(HEAVY)


def test_completion_of_words_imports_nothing_heavy() -> None:
    """What needs no broker is offered without what asks one."""
    line = "anabranch topics list --for"
    asked = {
        "_ANABRANCH_COMPLETE": "bash_complete",
        "COMP_LINE": line,
        "COMP_POINT": str(len(line)),
    }
    assert modules_of(**asked).isdisjoint(HEAVY)


def test_the_test_would_see_them() -> None:
    """A command that does use the client is seen to import it."""
    environment = {"ANABRANCH_BOOTSTRAP_SERVER": "127.0.0.1:1"}
    done = subprocess.run(
        [sys.executable, "-c", _REPORT, "topics", "list"],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, **environment},
    )
    assert done.returncode == 1
    assert "confluent_kafka" in done.stderr.rpartition("modules: ")[2].split()


def cpu_seconds(*arguments: str) -> float:
    """The processor time of a Python, which waits for nobody else's work as a clock would."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], check=True, capture_output=True, timeout=120)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def test_help_starts_as_quickly_as_click() -> None:
    """`anabranch --help` costs not much more than the import of click alone.

    The budget is 250 ms, which leaves room for five times that import on a machine of today.
    Processor time is compared, and the best of several tries, so that other work does not count.
    """
    click_s, help_s = [], []
    for _ in range(_TRIES):
        click_s.append(cpu_seconds("-c", "import click"))
        help_s.append(cpu_seconds("-m", "anabranch.cli", "--help"))
    assert min(help_s) < 2.5 * min(click_s), (min(help_s), min(click_s))
