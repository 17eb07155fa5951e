"""The reference page of settings says what the table says."""

from pathlib import Path

from anabranch.config.definitions import BROKER_SETTINGS, GROUP_SETTINGS, TOPIC_SETTINGS
from anabranch.config.reference_page import render_page

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "configuration.md"


def test_the_committed_page_is_up_to_date() -> None:
    """Whoever changes the table renders the page again."""
    assert PAGE.read_text(encoding="utf-8") == render_page(), (
        "run: python -m anabranch.config.reference_page > docs/reference/configuration.md"
    )


def test_every_setting_is_on_the_page() -> None:
    """All but the settings for tests have a heading."""
    headings = PAGE.read_text(encoding="utf-8").splitlines()
    tables = (BROKER_SETTINGS, TOPIC_SETTINGS, GROUP_SETTINGS)
    for setting in (line for table in tables for line in table.values()):
        assert (f"#### `{setting.name}`" in headings) is not setting.internal
