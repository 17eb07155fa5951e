"""The page of our own tagged fields is made from the tables of messages."""

from pathlib import Path

from anabranch.wire.extensions_page import render

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "wire-extensions.md"


def test_the_committed_page_is_up_to_date() -> None:
    """Whoever changes a tag renders the page again."""
    assert PAGE.read_text(encoding="utf-8") == render(), (
        "run: python -m anabranch.wire.extensions_page > docs/reference/wire-extensions.md"
    )
