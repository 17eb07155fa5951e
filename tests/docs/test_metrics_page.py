"""The page of metrics is made from their table."""

from pathlib import Path

from anabranch.observe.reference_page import render

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"


def test_the_committed_page_is_up_to_date() -> None:
    """Whoever changes the table renders the page again."""
    assert PAGE.read_text(encoding="utf-8") == render(), (
        "run: python -m anabranch.observe.reference_page > docs/reference/metrics.md"
    )
