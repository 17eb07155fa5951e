"""What the operating system knows of this process, under the names that every exporter uses."""

import contextlib
import os
import resource
import time
from collections.abc import Iterator

from anabranch.observe.broker_metrics import (
    PROCESS_CPU,
    PROCESS_MAX_FDS,
    PROCESS_OPEN_FDS,
    PROCESS_RESIDENT,
    PROCESS_START_TIME,
)
from anabranch.observe.metrics import Metric, Values

_STARTTIME_FIELD = 19  # of /proc/PID/stat, counted from after the name


def collect() -> Iterator[tuple[Metric, Values]]:
    """Some tens of microseconds; what a system does not tell is left out."""
    usage = os.times()
    yield PROCESS_CPU, {(): usage.user + usage.system}
    with contextlib.suppress(OSError, ValueError):
        with open("/proc/self/statm") as statm:
            pages = int(statm.read().split()[1])
        yield PROCESS_RESIDENT, {(): pages * resource.getpagesize()}
    with contextlib.suppress(OSError):
        yield PROCESS_OPEN_FDS, {(): len(os.listdir("/proc/self/fd"))}
    yield PROCESS_MAX_FDS, {(): resource.getrlimit(resource.RLIMIT_NOFILE)[0]}
    with contextlib.suppress(OSError, ValueError, IndexError):
        yield PROCESS_START_TIME, {(): _start_time_s()}


def _start_time_s() -> float:
    with open("/proc/self/stat") as stat:
        after_name = stat.read().rpartition(")")[2].split()
    ticks = int(after_name[_STARTTIME_FIELD])
    up_s = time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.time() - up_s + ticks / os.sysconf("SC_CLK_TCK")
