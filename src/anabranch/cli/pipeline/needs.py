"""What Spark needs on this machine, and the sentence about what is missing."""

import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path

from anabranch.cli.errors import CliError

JAVA_MIN = 17
_VERSION = re.compile(r'version "(\d+)')


def check_needs(*, is_remote: bool = False, is_scheduled: bool = False) -> None:
    """CliError when Spark cannot run here.

    A remote session needs no Java on this machine, but Spark's `spark-pipelines` does in any case.
    """
    modules = ["pyspark", "pyarrow", *(["yaml", "grpc"] if is_scheduled else [])]
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        raise CliError(
            "Cannot run a pipeline",
            f"{' and '.join(missing)} cannot be imported",
            "run `pip install 'anabranch[spark]'`",
        )
    if is_scheduled or not is_remote:
        _check_java()


def _check_java() -> None:
    next_step = (
        f"install Java {JAVA_MIN} or newer (a package such as openjdk-{JAVA_MIN}-jre-headless) or"
        " set JAVA_HOME; a session elsewhere, --remote sc://HOST, needs none here"
    )
    java = java_program()
    if java is None:
        raise CliError("Spark cannot start", "no java in JAVA_HOME or PATH", next_step)
    try:
        told = subprocess.run(
            [java, "-version"], check=False, capture_output=True, text=True, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CliError("Spark cannot start", f"{java} does not run: {error}", next_step) from error
    found = _VERSION.search(told.stderr + told.stdout)
    if found is not None and int(found[1]) < JAVA_MIN:
        raise CliError(
            "Spark cannot start", f"{java} is Java {found[1]}, and {JAVA_MIN} is needed", next_step
        )


def java_program() -> str | None:
    """The java that Spark's scripts would take."""
    home = os.environ.get("JAVA_HOME")
    if home:
        program = Path(home, "bin", "java")
        return str(program) if program.exists() else None
    return shutil.which("java")
