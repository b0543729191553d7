"""The text of an item that is put: read from a file or from stdin, and parsed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

from dispatch.catalog.readers.parsing import DocumentError
from dispatch.catalog.sources.folder_reader import MAX_FILE_BYTES, PARSERS
from dispatch.cli.exit_codes import CliError

STDIN: Final = "-"


class ItemDocument(NamedTuple):
    """The text of a descriptor.

    Attributes:
        text: as it was given, with a line end.
        suffix: of its format: ``.json``, ``.yaml`` or ``.yml``.
        raw: the parsed text.
    """

    text: str
    suffix: str
    raw: Any


def read_document(name: str, stdin: BinaryIO | None = None) -> ItemDocument:
    """Read and parse a descriptor.

    Args:
        name: of the file; ``-``: stdin, as JSON.
        stdin: stream for ``-``; None: that of the process.

    Raises:
        CliError: it cannot be read, or is not JSON or YAML.
    """
    what = "stdin" if name == STDIN else name
    try:
        if name == STDIN:
            content = (stdin or sys.stdin.buffer).read(MAX_FILE_BYTES + 1)
        else:
            with Path(name).open("rb") as file:
                content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise CliError(
            f"{what} cannot be read: {error.strerror or error}.", "name a readable file, or - for stdin"
        ) from None
    if len(content) > MAX_FILE_BYTES:
        raise CliError(f"{what} has more than {MAX_FILE_BYTES:,} bytes.", "keep data out of the descriptor")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise CliError(f"{what} is not UTF-8 (byte {error.start:,}).", "convert it to UTF-8") from None
    suffix = Path(name).suffix.lower() if name != STDIN else ".json"
    parse = PARSERS.get(suffix)
    if parse is None:
        raise CliError(f"{what} is not a .json, .yaml or .yml file.", "rename it, or give its JSON on stdin")
    try:
        raw = parse(text)
    except DocumentError as error:
        _, problem, fix = error.mistakes[0]
        raise CliError(f"{what}: {problem}. Nothing was written.", fix) from None
    return ItemDocument(text if text.endswith("\n") else f"{text}\n", suffix, raw)
