"""Lets pages link to files of the repository that are no pages of the site.

In a checkout such a link opens the file; in the site it becomes the file's name, because the site
has no such page.
"""

import re
from pathlib import Path
from typing import Any

_LINK = re.compile(r"\[([^\]]+)\]\(((?:\.\./)+[^)#]+)(#[^)]*)?\)")


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    docs = Path(config["docs_dir"]).resolve()
    folder = (docs / page.file.src_uri).parent

    def plain(match: re.Match[str]) -> str:
        target = (folder / match[2]).resolve()
        if target.is_relative_to(docs) or not target.exists():
            return match[0]  # a page, or a mistake, which the build tells
        return f"{match[1]} (`{target.relative_to(docs.parent)}`)"

    return _LINK.sub(plain, markdown)
