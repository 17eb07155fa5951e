"""The import rules are really enforced: a copy of the sources that breaks one is refused."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LINT_IMPORTS = Path(sys.executable).with_name("lint-imports")


def _lint(root: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(LINT_IMPORTS), "--config", str(root / "pyproject.toml"), "--no-cache"],
        cwd=root / "src",
        env={"PYTHONPATH": str(root / "src"), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("copied")
    shutil.copytree(ROOT / "src", root / "src", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", root)
    return root


def test_sources_keep_the_layers(copied: Path) -> None:
    """The sources as they are pass."""
    ended = _lint(copied)
    assert ended.returncode == 0, ended.stdout
    assert "0 broken" in ended.stdout


@pytest.mark.parametrize(
    ("module", "statement", "contract"),
    [
        ("model/topics.py", "import time", "the core is pure"),
        ("wire/header.py", "import logging", "the core is pure"),
        ("wire/primitives.py", "from random import random", "the core is pure"),
        ("wire/api.py", "import asyncio", "the core is pure"),
        ("log/segment.py", "import anabranch.broker.broker", "imports only from below"),
        ("config/rules.py", "import anabranch.server.run", "imports only from below"),
    ],
)
def test_broken_rule(copied: Path, module: str, statement: str, contract: str) -> None:
    """An import against the layers, or of a clock, socket or log in the core, is found."""
    path = copied / "src" / "anabranch" / module
    good = path.read_text()
    path.write_text(f"{good}\n{statement}\n")
    try:
        ended = _lint(copied)
    finally:
        path.write_text(good)
    assert ended.returncode == 1, ended.stdout
    (broken,) = [line for line in ended.stdout.splitlines() if line.endswith("BROKEN")]
    assert contract in broken
