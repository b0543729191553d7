"""The file of the bearer tokens of ``dispatch mcp --tokens``."""

from __future__ import annotations

import codecs
import os
from pathlib import Path
from typing import Final

import msgspec

MIN_CHARS: Final = 16
"""Characters of a token, at least: 16 random ones of base64 are 96 bits."""


class TokenFileError(ValueError):
    """A file of tokens cannot be used; the message has the mistake and its fix, and no token."""


def read_tokens(path: str | os.PathLike[str]) -> dict[str, str]:
    """Read ``{"USER": "TOKEN"}`` and return the users by their tokens. A user may have a list of tokens, so that one can be
    replaced without an interruption.

    Raises:
        TokenFileError: the file cannot be read, or is invalid.
    """
    form = 'write {"alice": "TOKEN"}, a token or a list of tokens for each user'
    try:
        content = Path(path).read_bytes().removeprefix(codecs.BOM_UTF8)  # some editors begin a file with it
        given = msgspec.json.decode(content, type=dict[str, str | list[str]])
    except OSError as error:
        raise TokenFileError(f"The token file '{path}' cannot be read: {error.strerror or error}.") from None
    except msgspec.MsgspecError as error:
        # The message of a decoding error may contain no value of the file.
        raise TokenFileError(f"The token file '{path}' is invalid ({type(error).__name__}): {form}.") from None
    users: dict[str, str] = {}
    for user, tokens in given.items():
        for token in [tokens] if isinstance(tokens, str) else tokens:
            if len(token) < MIN_CHARS or not token.isascii() or not token.isprintable() or " " in token:
                raise TokenFileError(
                    f"A token of user '{user}' in '{path}' is not usable: it must have {MIN_CHARS} or more printable ASCII "
                    "characters, without blanks. Create one with: openssl rand -base64 24"
                )
            if users.setdefault(token, user) != user:
                raise TokenFileError(
                    f"The users '{users[token]}' and '{user}' in '{path}' have the same token: change one."
                )
    if not users:
        raise TokenFileError(f"The token file '{path}' has no tokens: {form}.")
    return users
