"""The documentation as a site: every page has its place, and links lead somewhere."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
_LINK = re.compile(r"\]\(([^)#\s]+)(#[^)]*)?\)")


def pages() -> list[Path]:
    return [*DOCS.rglob("*.md"), *ROOT.glob("*.md"), *(ROOT / "examples").rglob("*.md")]


def test_every_page_is_in_the_navigation() -> None:
    """A page that nobody finds is not documentation."""
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").split("nav:\n")[1]
    listed = set(re.findall(r":\s+([\w/-]+\.md)\s*$", navigation, re.MULTILINE))
    assert listed == {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}


def test_links_to_files_lead_to_files() -> None:
    """In a checkout every relative link opens something."""
    broken = []
    for page in pages():
        text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        for target, _ in _LINK.findall(text):
            if "://" in target or target.startswith("mailto:"):
                continue
            if not (page.parent / target).exists():
                broken.append(f"{page.relative_to(ROOT)}: {target}")
    assert not broken
