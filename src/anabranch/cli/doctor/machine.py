"""Checks of the machine that a broker runs on, or is to run on."""

import errno
import os
import resource
import shutil
import socket
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from anabranch.cli.doctor.findings import Finding, ok, problem, skipped, warning
from anabranch.cli.errors import CliError
from anabranch.config.listeners import resolve_listeners
from anabranch.config.load import load_settings
from anabranch.config.settings import ConfigError, Settings

_PYTHON_MIN: Final = (3, 11)
_PACKAGES: Final = ("anabranch", "click", "confluent-kafka", "uvloop")
_FILES_PER_PARTITION: Final = 4  # segment, two indexes, and the next segment while it is made
_FILES_BESIDE: Final = 1024  # connections, and what is being compacted
_GIB: Final = 1024**3
_FREE_LOW: Final = 0.15
_FREE_TOO_LOW: Final = 0.05
_FREE_TOO_LOW_BYTES: Final = _GIB
_PROBE_S: Final = 1.0


def check_machine(properties: Path | None) -> Iterator[Finding]:
    """All checks of this machine, with the settings that a broker here would have."""
    yield check_python(sys.version_info[:2])
    yield from check_packages()
    settings, found = check_properties(properties)
    yield from found
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    partitions = sum(_count_partitions(Path(folder)) for folder in settings.log_dirs)
    yield check_open_files(soft, hard, partitions)
    for folder in settings.log_dirs:
        yield from check_folder(Path(folder))
    for listener in resolve_listeners(settings, hostname=lambda: "localhost"):
        yield check_port(listener.host, listener.port)
    yield check_java()


def check_python(present: tuple[int, ...]) -> Finding:
    text = ".".join(map(str, present))
    if present >= _PYTHON_MIN:
        return ok("python", f"Python {text}")
    return problem(
        "python",
        None,
        f"this is Python {text}",
        why="3.11 is the oldest that is supported",
        next_step="install a newer Python, and anabranch in it",
    )


def check_packages() -> Iterator[Finding]:
    present = []
    for name in _PACKAGES:
        try:
            present.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            yield problem(
                "packages",
                name,
                "it is not installed",
                why="the broker or its tools need it",
                next_step="run `pip install anabranch`",
            )
    yield ok("packages", ", ".join(present))


def check_properties(path: Path | None) -> tuple[Settings, list[Finding]]:
    """What is wrong with the settings, each mistake for itself; the defaults where they fail."""
    subject = None if path is None else str(path)
    try:
        settings = load_settings(properties_path=path, environ=os.environ)
    except ConfigError as error:
        return Settings(), [
            problem(
                "settings",
                subject,
                _split(sentence)[0],
                why="the broker does not start with it",
                next_step=_split(sentence)[1] or "correct it",
            )
            for sentence in error.problems
        ]
    found = [
        warning(
            "settings",
            subject,
            _split(sentence)[0],
            why="it does not do what it says",
            next_step=_split(sentence)[1] or "see `anabranch configs explain`",
        )
        for sentence in settings.warnings
    ]
    where = "the defaults" if path is None else str(path)
    return settings, found or [ok("settings", f"{where} and the environment can be used", subject)]


def _split(text: str) -> tuple[str, str]:
    """The loader's sentences: all but the last say what and why, the last what to do."""
    before, dot, last = text.rstrip(". ").rpartition(". ")
    return (before, last[:1].lower() + last[1:]) if dot else (last, "")


# Limits and disks -------------------------------------------------------------------------------


def _count_partitions(folder: Path) -> int:
    try:
        names = [entry.name for entry in os.scandir(folder) if entry.is_dir()]
    except OSError:
        return 0  # it is not there yet, or another check tells of it
    return sum(name.rpartition("-")[2].isdecimal() for name in names)


def check_open_files(soft: int, hard: int, partitions: int) -> Finding:
    """Whether a broker may open the files of its partitions and its connections."""
    needed = partitions * _FILES_PER_PARTITION + _FILES_BESIDE
    if soft == resource.RLIM_INFINITY or soft >= needed:
        text = "no limit" if soft == resource.RLIM_INFINITY else f"up to {soft}"
        return ok("open-files", f"{text}, and {needed} are needed for {partitions} partitions")
    can_raise = hard == resource.RLIM_INFINITY or hard >= needed
    way = f"run `ulimit -n {needed}` before the broker" if can_raise else "raise the hard limit"
    return problem(
        "open-files",
        None,
        f"at most {soft} files may be open, and {needed} are needed",
        why=f"{partitions} partitions have {_FILES_PER_PARTITION} files each, and connections"
        " come on top",
        next_step=f"{way}, or set LimitNOFILE in the unit of systemd",
    )


def check_folder(folder: Path) -> Iterator[Finding]:
    """Whether the data folder can be written to and has room."""
    there = folder
    while not there.exists() and there != there.parent:
        there = there.parent
    if not os.access(there, os.W_OK | os.X_OK):
        yield problem(
            "data-folder",
            str(folder),
            "it cannot be written to",
            why=f"{there} does not let this user",
            next_step="change its owner, or log.dirs",
        )
        return
    usage = shutil.disk_usage(there)
    yield check_space(str(folder), usage.free, usage.total)
    inodes = os.statvfs(there)
    yield check_inodes(str(folder), inodes.f_favail, inodes.f_files)


def check_space(folder: str, free_bytes: int, total_bytes: int) -> Finding:
    share = free_bytes / max(total_bytes, 1)
    what = f"{free_bytes / _GIB:.1f} GiB are free ({share:.0%})"
    advice = "lower retention.ms or retention.bytes, free space, or move log.dirs"
    if share < _FREE_TOO_LOW or free_bytes < _FREE_TOO_LOW_BYTES:
        why = "a broker whose disk is full takes no records"
        return problem("disk-space", folder, what, why=why, next_step=advice)
    if share < _FREE_LOW:
        why = "records of retention.ms may not fit"
        return warning("disk-space", folder, what, why=why, next_step=advice)
    return ok("disk-space", what, folder)


def check_inodes(folder: str, free: int, total: int) -> Finding:
    if total == 0:  # a file system that makes them as it needs them
        return ok("inodes", "the file system has no limit", folder)
    share = free / total
    what = f"{free} files can still be made ({share:.0%})"
    if share < _FREE_TOO_LOW:
        return problem(
            "inodes",
            folder,
            what,
            why="no segment can be started when there is none left, however much space there is",
            next_step="remove small files, have fewer partitions, or larger segments",
        )
    return ok("inodes", what, folder)


# Ports ------------------------------------------------------------------------------------------


def check_port(host: str, port: int) -> Finding:
    """Whether a broker could listen there, or what listens there now."""
    subject = f"{host or '*'}:{port}"
    if port == 0:
        return ok("port", "any that is free", subject)
    try:
        server = _listening(host or "localhost", port)
    except OSError as error:
        if error.errno in (errno.ECONNREFUSED, errno.ETIMEDOUT) or isinstance(error, TimeoutError):
            return ok("port", "free", subject)
        return problem(
            "port",
            subject,
            f"cannot be tried: {error.strerror or error}",
            why="listeners has an address that this machine does not know",
            next_step="correct listeners",
        )
    if server == "kafka":
        return ok("port", "a broker listens", subject)
    return problem(
        "port",
        subject,
        f"{server} listens there",
        why="a broker cannot have the port at the same time",
        next_step="stop it, or set another port in listeners",
    )


def _listening(host: str, port: int) -> str:
    """What kind of server answers; OSError when none does."""
    from anabranch.cli.raw_client import RawClient

    socket.create_connection((host, port), _PROBE_S).close()
    try:
        RawClient(host, port, _PROBE_S).close()
        return "kafka"
    except CliError:
        pass
    try:
        with socket.create_connection((host, port), _PROBE_S) as probe:
            probe.sendall(b"HEAD / HTTP/1.0\r\n\r\n")
            answer = probe.recv(64)
    except OSError:
        return "something that does not speak Kafka's protocol"
    if answer.startswith(b"HTTP/"):
        return "an HTTP server"
    if answer[:1] == b"\x15":  # an alert
        return "a server that wants TLS"
    return "something that does not speak Kafka's protocol"


# Spark ------------------------------------------------------------------------------------------


def check_java() -> Finding:
    """Java, where Spark is installed and will look for it."""
    if find_spec("pyspark") is None:
        return skipped("java", "pyspark is not installed", "it is needed for pipelines only")
    from anabranch.cli.pipeline.needs import check_needs, java_program

    try:
        check_needs()
    except CliError as error:
        what, why, next_step = str(error).split(" - ", 2)
        return problem("java", None, what, why=why, next_step=next_step)
    return ok("java", f"Spark can start with {java_program()}")
