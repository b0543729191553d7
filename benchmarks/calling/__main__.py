"""Read the calls in models' outputs: right, wrong and missed calls of a corpus, and time.

``python -m benchmarks.calling``; no broker, seconds. ``--search`` looks for texts that cost more time.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from benchmarks.calling.contenders import Reader, contenders
from benchmarks.calling.corpus import Case, make_corpus
from benchmarks.calling.hostile import HOSTILE, SIZE, Hostile, find_slowest, measure_text
from benchmarks.harness.programs import Programme, write_figures
from dispatch.calling import parse


@dataclass
class Rates:
    """Calls of one contender on the corpus; ``wrong``: executed and not meant, or with other arguments."""

    contender: str
    meant: int = 0
    right: int = 0
    missed: int = 0
    wrong: int = 0


def count_calls(name: str, read: Reader, corpus: Sequence[Case]) -> Rates:
    """Compare the calls of each case with those that are meant."""
    rates = Rates(name)
    for case in corpus:
        remaining = list(case.calls)
        rates.meant += len(remaining)
        for call in read(case.text):
            if call in remaining:
                remaining.remove(call)
                rates.right += 1
            else:
                rates.wrong += 1
        rates.missed += len(remaining)
    return rates


def measure(function: Callable[[], object], repeats: int) -> float:
    """Return the least milliseconds of CPU time."""
    durations = []
    for _ in range(repeats):
        start = time.thread_time()
        function()
        durations.append(time.thread_time() - start)
    return min(durations) * 1e3


def clean_ratio(calls: int, size: int, repeats: int) -> float:
    """Time to parse a text of valid calls, over ``json.loads`` of their contents."""
    body = json.dumps(
        {"name": "search_web", "call_objective": "find", "args": {"query": "x" * size, "limit": 5, "in": [1]}}
    )
    text = f"Text.\n<function_call>{body}</function_call>\n" * calls
    return measure(lambda: [parse(text) for _ in range(100)], repeats) / measure(
        lambda: [json.loads(body) for _ in range(100 * calls)], repeats
    )


def describe(text: Hostile) -> str:
    return f"{text.head[-40:]}…{text.part}…{text.tail}"


def print_slowest(title: str, slowest: Sequence[tuple[float, Hostile]]) -> None:
    duration, text = max(slowest)
    print(f"\nslowest {title}, {SIZE // 1000} kB each: {duration:.1f} ms, goal 50 ms: {describe(text)!r}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run. Returns the exit code: 0 done, whatever the figures; 2 the results cannot be written."""
    programme = Programme("benchmarks.calling", __doc__)
    programme.add_number("--repeats", 9, "of each measurement")
    programme.add_argument(
        "--search", type=float, default=0, metavar="S", help="seconds to search for slower texts (default 0)"
    )
    programme.add_argument("--seed", type=int, default=1, metavar="N", help="of the search (default 1)")
    options = programme.begin(arguments)
    corpus = make_corpus()
    tagged = [
        case for case in corpus if any(mark in case.text for mark in ("<function_call>", "<tool_call>", "```json"))
    ]
    rates = {
        title: [count_calls(name, read, cases) for name, read in contenders().items()]
        for title, cases in (("all forms", corpus), ("tags and code blocks", tagged))
    }
    for title, found in rates.items():
        print(f"{title:22} meant  right missed  wrong")
        for each in found:
            print(f"  {each.contender:20} {each.meant:5} {each.right:6} {each.missed:6} {each.wrong:6}")
    slowest = sorted(((measure_text(each.text, options.repeats), each) for each in HOSTILE), reverse=True)
    print_slowest(f"of {len(HOSTILE)} hostile texts", slowest)
    if options.search:
        slowest += find_slowest(options.search, options.seed)
        print_slowest(f"found in {options.search:g} s", slowest[len(HOSTILE) :])
    ratios = {f"{calls} calls": clean_ratio(calls, 40, options.repeats) for calls in (1, 4, 16)}
    print("clean calls, times json.loads (goal 5): " + ", ".join(f"{key} {value:.1f}" for key, value in ratios.items()))
    figures = {
        "rates": {title: [asdict(each) for each in found] for title, found in rates.items()},
        "hostile_ms": {describe(each): duration for duration, each in slowest},
        "clean_ratios": ratios,
    }
    write_figures(options.json, figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
