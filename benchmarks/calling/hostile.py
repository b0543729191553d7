"""Texts of 100 kB that cost a reader of calls the most time: a list, and a search for slower ones."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from typing import Final, NamedTuple

from dispatch.calling import parse

SIZE: Final = 100_000
"""Characters of a hostile text."""
HEAD: Final = '<function_call>{"name": "f", "args": {"a": '


class Hostile(NamedTuple):
    """``head``, and ``part`` repeated up to :data:`SIZE` characters; with ``tail``, only whole parts are in front of it."""

    head: str
    part: str
    tail: str = ""

    @property
    def text(self) -> str:
        if self.tail:
            return self.head + self.part * ((SIZE - len(self.head + self.tail)) // len(self.part)) + self.tail
        return (self.head + self.part * (SIZE // max(len(self.part), 1) + 1))[:SIZE]


HOSTILE: Final[Sequence[Hostile]] = (
    *(
        Hostile("", part)
        for part in ("\n", "<function_call>", "<function_call>{", '```json\n{"', "Action: a\n", "<think>")
    ),
    *(
        Hostile("", part)
        for part in ('```json{"call_objective":', "Thought:\nAction: a\nArgs:\n\n", "<function_call>{}\n")
    ),
    *(Hostile(HEAD, part) for part in ("\n", "[", "//\n", "__PAYLOAD_START__", "1/**/,", '{"a":', "'\\'',", "'\"',")),
    *(Hostile(HEAD + '"', part) for part in ("\\", "</function_call>")),
    *(
        Hostile(HEAD + "[", part)
        for part in ("1,", "'a',", "'a\\n',", "{'a':1},", "[],", "{'':{'':[]}},", "True,", "[1,],")
    ),
    *(Hostile(HEAD + "[", part) for part in ("[''],", '"\n",', "[{],", "[ , ],", "//:\n1,", "[1 //\n,],", "\u00a0,")),
    Hostile(HEAD + "__PAYLOAD_START__", "__PAYLOAD_END__ "),
    Hostile("<function_call>[", '{"name":"a"},'),
    Hostile("<tool_call>", "{} "),
    *(
        Hostile('[{"tool_calls":[]}', part, "]")
        for part in (",{}", ",[]", ',{"type":1}', ',{"parts":[]}', ",[[[[[[[[[]]]]]]]]]")
    ),
    *(Hostile('{"tool_calls":[1', part, "]}") for part in (',{"function":{"name":"a"}}', ",{}", ',{"function":{}}')),
    Hostile('{"functionCall":{"name":"a","args":[1', ",[]", "]}}"),
)
_PIECES: Final = (
    *(
        "{",
        "}",
        "[",
        "]",
        '"',
        "'",
        "\\",
        ",",
        ":",
        "//",
        "#",
        "/*",
        "*/",
        "/**/",
        "\n",
        " ",
        "1",
        "-2.5e3",
        "true",
        "None",
    ),
    *(
        "''",
        '""',
        "'a'",
        '"a"',
        '"a":',
        "'a':",
        "'\\''",
        "'\"'",
        '"\n"',
        "[]",
        "{}",
        "[1]",
        "{'a':1}",
        "\u00a0",
        "é",
        "x",
    ),
    *(
        "__PAYLOAD_START__",
        "__PAYLOAD_END__",
        "<function_call>",
        "</function_call>",
        "<tool_call>",
        "</tool_call>",
        "`",
    ),
    *(
        "```json",
        "```",
        "<think>",
        "</think>",
        "Thought:",
        "Action: a\n",
        "Args: ",
        "Observation:",
        "call_objective",
        "name",
    ),
    *(
        '{"name":"a"}',
        '{"name":"a","call_objective":"","args":{}}',
        '{"tool_calls":[]}',
        '"functionCall"',
        '{"type":"tool_use"}',
    ),
)
_HEADS: Final = (
    *(
        "",
        HEAD,
        HEAD + "[",
        HEAD + "[" * 60,
        "<tool_call>",
        "```json\n",
        '```json\n{"call_objective":[',
        "Thought: a\nAction: a\n",
    ),
    *("Thought: a\nAction: a\nArgs: {", '<tool_call>{"name":"a","arguments":"'),
)
_NATIVE_ENDS: Final = (
    *(('[{"tool_calls":[]}', "]"), ('{"tool_calls":[1', "]}"), ('[{"functionCall":1}', "]")),
    ('{"functionCall":{"name":"a","args":[1', "]}}"),
)
_ENDS: Final = (*((head, "", "") for head in _HEADS), *((head, "", tail) for head, tail in _NATIVE_ENDS))


def measure_text(text: str, repeats: int = 1) -> float:
    """Return the least milliseconds of CPU time to parse ``text``."""
    durations = []
    for _ in range(repeats):
        start = time.thread_time()
        parse(text)
        durations.append(time.thread_time() - start)
    return min(durations) * 1e3


def find_slowest(seconds: float, seed: int, *, count: int = 8) -> list[tuple[float, Hostile]]:
    """Search for ``count`` slow texts by mutation of the slowest ones so far; return them with their milliseconds."""
    draw = random.Random(seed)
    slowest = sorted(((measure_text(each.text), each) for each in HOSTILE), reverse=True)
    seen = {each for _, each in slowest}
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        chosen = draw.choice(slowest[: 4 * count])[1] if draw.random() < 0.8 else Hostile(*draw.choice(_ENDS))
        head, _, tail = draw.choice(_ENDS) if draw.random() < 0.2 else chosen
        changed = Hostile(head, _mutate(chosen.part, draw), tail)
        if changed in seen or not changed.part:
            continue
        seen.add(changed)
        duration = measure_text(changed.text)
        if duration > slowest[-1][0]:
            duration = measure_text(changed.text, 3)
        slowest = sorted([*slowest, (duration, changed)], reverse=True)[: 8 * count]
    return slowest[:count]


def _mutate(part: str, draw: random.Random) -> str:
    for _ in range(draw.randint(1, 3)):
        start = draw.randint(0, len(part))
        end = min(len(part), start + draw.choice((0, 0, 1, 2)))
        part = part[:start] + draw.choice((*_PIECES, "")) + part[end:]
    return part[:60]
