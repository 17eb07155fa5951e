from pathlib import Path

from anabranch.handlers.reference_page import render

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "apis.md"


def test_page_lists_what_is_served() -> None:
    """The committed page is what the routes say."""
    assert PAGE.read_text() == render(), "run: python -m anabranch.handlers.reference_page"
