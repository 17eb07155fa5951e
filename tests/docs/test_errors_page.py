"""The pages of errors and of what is not implemented say what the source says."""

import re
from pathlib import Path

from anabranch.handlers import not_implemented_page
from anabranch.handlers.registry import ROUTES
from anabranch.model import errors_page
from anabranch.model.errors import ErrorCode

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs" / "reference"
SERVING = ("handlers", "broker", "log", "engine", "coordinator", "server")


def test_the_committed_pages_are_up_to_date() -> None:
    """Whoever changes a table renders its page again."""
    for name, render in (
        ("errors.md", errors_page.render),
        ("not-implemented.md", not_implemented_page.render),
    ):
        assert (REFERENCE / name).read_text(encoding="utf-8") == render(), name


def test_every_code_that_a_broker_answers_with_is_explained() -> None:
    """A code in the source of the broker has a sentence, and no sentence is about another."""
    used = set()
    for package in SERVING:
        for path in (ROOT / "src" / "anabranch" / package).rglob("*.py"):
            used |= set(re.findall(r"ErrorCode\.([A-Z_]+)", path.read_text(encoding="utf-8")))
    used -= {"NONE"}
    assert {code.name for code in errors_page.MEANINGS} == used
    assert all(ErrorCode[name] in errors_page.MEANINGS for name in used)


def test_nothing_that_is_served_is_called_missing() -> None:
    """An API that is served from now on has to leave the list."""
    assert not ROUTES.keys() & not_implemented_page.KAFKA_APIS.keys()
