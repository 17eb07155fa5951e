"""What machine the figures are from."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from pathlib import Path


def describe_machine() -> dict[str, object]:
    model = re.search(r"^model name\s*:\s*(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    memory_kb = int(Path("/proc/meminfo").read_text().split()[1])
    java = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False)
    return {
        "cpu": model.group(1) if model else platform.machine(),
        "cpus": os.cpu_count(),
        "memory_gb": round(memory_kb / 1e6),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "java": java.stderr.splitlines()[0] if java.stderr else "",
        "load_average": " ".join(f"{load:.1f}" for load in os.getloadavg()),
    }
