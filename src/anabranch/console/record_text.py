"""How the bytes of a key, a value or a header are shown: as JSON, as text, or as hexadecimal.

Bytes come from anybody: text is UTF-8 that has nothing but printable characters, line ends and
tabs, everything else is shown as numbers, and what is long is cut.
"""

import base64
import json
from dataclasses import dataclass
from typing import Final

LINE_CHARS: Final = 160
"""What fits a row of a table."""
BLOCK_CHARS: Final = 4_096
"""What is unfolded in a list."""
_HEX_BYTES = 512
_JSON_BEGINS = (b"{", b"[", b'"')
# Pretty printing takes a multiple of that; deeper JSON than Python can read is text.
_JSON_MAX_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class ShownBytes:
    """`kind` is `null`, `empty`, `json`, `text` or `binary`."""

    kind: str
    text: str
    is_cut: bool = False

    @property
    def line(self) -> str:
        """The beginning, in one line."""
        text = " ".join(self.text.split()) if self.kind in ("json", "text") else self.text
        return text if len(text) <= LINE_CHARS else text[: LINE_CHARS - 1] + "…"

    @property
    def block(self) -> str:
        """As much as a list shows."""
        return self.text if len(self.text) <= BLOCK_CHARS else self.text[:BLOCK_CHARS] + "…"


def show_bytes(content: bytes | None, size: int | None = None) -> ShownBytes:
    """`content` may be the beginning of what has `size` bytes."""
    if content is None:
        return ShownBytes("null", "null")
    if not content:
        return ShownBytes("empty", "empty")
    is_cut = size is not None and size > len(content)
    if not is_cut and len(content) <= _JSON_MAX_BYTES and content[:1] in _JSON_BEGINS:
        pretty = _pretty(content)
        if pretty is not None:
            return ShownBytes("json", pretty)
    text = _decoded(content, is_cut)
    if text is not None:
        return ShownBytes("text", text, is_cut)
    shown = content[:_HEX_BYTES]
    return ShownBytes("binary", shown.hex(" "), is_cut or len(shown) < len(content))


def _pretty(content: bytes) -> str | None:
    try:
        return json.dumps(json.loads(content), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return None


def _decoded(content: bytes, is_cut: bool) -> str | None:
    """The text that bytes are, if they are any; a cut may go through a character."""
    for missing in range(4 if is_cut else 1):
        try:
            text = content[: len(content) - missing].decode()
        except UnicodeDecodeError:
            continue
        return text if all(c.isprintable() or c in "\n\r\t" for c in text) else None
    return None


def export_bytes(content: bytes | None, size: int) -> str | None:
    """For files: text as it is, anything else as `base64:`, and how much of it there is."""
    if content is None:
        return None
    is_cut = size > len(content)
    text = _decoded(content, is_cut)
    if text is None:
        text = "base64:" + base64.b64encode(content).decode()
    return f"{text}… ({size} bytes)" if is_cut else text
