"""What every page must be, asked of the browser itself (see page_checks.js)."""

from pathlib import Path
from typing import Any

from playwright.sync_api import Page

_SCRIPT = Path(__file__).with_suffix(".js").read_text()


def _ask(page: Page, question: str) -> Any:
    return page.evaluate(f"(\n{_SCRIPT}).{question}()")


def poor_contrasts(page: Page) -> list[str]:
    """Texts that are hard to read."""
    found: list[str] = _ask(page, "poorContrasts")
    return found


def layout_breaks(page: Page) -> list[str]:
    """What makes the page scroll sideways."""
    found: list[str] = _ask(page, "layoutBreaks")
    return found


def unnamed_controls(page: Page) -> list[str]:
    """What can be used but has no name."""
    found: list[str] = _ask(page, "unnamedControls")
    return found


def outline(page: Page) -> dict[str, Any]:
    """The heads and tables of the page's inner part."""
    found: dict[str, Any] = _ask(page, "outline")
    return found


def tab_stops(page: Page, limit: int) -> list[dict[str, Any]]:
    """What the Tab key leads to behind the skip link, the first, and whether its focus is seen."""
    page.focus(".skip")
    stops: list[dict[str, Any]] = []
    for _ in range(limit):
        page.keyboard.press("Tab")
        stop = _ask(page, "focus")
        if stop is None:
            break
        stops.append(stop)
    return stops
