"""A real browser, a real broker with its console, and members in processes of their own.

`make test-browser` sees to it that everything is there. Where what drives the browser is not
installed, these tests are left out.
"""

import importlib.util
import os
import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from browser_kit import World
    from playwright.sync_api import Browser

_NAMES = ("chromium", "chromium-browser", "google-chrome")

collect_ignore_glob = [] if importlib.util.find_spec("playwright") else ["test_*.py"]


@pytest.fixture(scope="session")
def browser() -> "Iterator[Browser]":
    """Chromium without a window."""
    from playwright.sync_api import sync_playwright

    path = next(filter(None, map(shutil.which, _NAMES)), None)
    if path is None:
        pytest.skip(f"none of {', '.join(_NAMES)} is on PATH; `make browser` says how to get one")
    arguments = ["--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
    if os.geteuid() == 0:
        arguments.append("--no-sandbox")  # as root it does not start with one
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=arguments)
        yield started
        started.close()


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[World]":
    """One broker for all tests, which keep apart by the names of topics and groups."""
    from browser_kit import World

    made = World(tmp_path_factory.mktemp("browser"))
    yield made
    made.close()
