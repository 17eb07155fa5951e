"""Whether Spark can start on this machine."""

import os
import shutil
from pathlib import Path

WITHOUT_JAVA = "Spark needs Java 17 or newer: no java in PATH, and JAVA_HOME is not set"


def has_java() -> bool:
    home = os.environ.get("JAVA_HOME")
    return bool(home and Path(home, "bin", "java").exists()) or shutil.which("java") is not None
