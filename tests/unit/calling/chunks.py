"""A text through the parser in parts."""

from __future__ import annotations

from dispatch.calling import ParsedCall, Parser


def parse_in_chunks(text: str, size: int) -> list[ParsedCall]:
    """The calls of ``text``, fed in chunks of ``size`` characters."""
    parser = Parser()
    calls = [call for start in range(0, len(text), size) for call in parser.feed(text[start : start + size])]
    return calls + parser.close()
