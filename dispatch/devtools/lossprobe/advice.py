"""What to do, in plain words, from what was measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from dispatch.devtools.lossprobe.plan import size_text
from dispatch.devtools.lossprobe.results import Cell, Run, lost_calls, share_text


def advice(cells: Sequence[Cell], planned: int | None = None) -> list[str]:
    """Sentences for a person, the most important first.

    Args:
        cells: what was measured.
        planned: how many cells were to be measured, if the measurement ended before all of them were; None: it is complete.
    """
    plain_lost, plain_calls = lost_calls(cell.plain for cell in cells)
    ours_lost, ours_calls = lost_calls(cell.credit for cell in cells)
    if not plain_calls + ours_calls:
        return ["Nothing was measured."]
    said = []
    if plain_lost:
        said += _about_plain(cells, ours_lost, ours_calls)
    if ours_lost:
        said += _about_ours(cells, ours_lost, ours_calls)
    if not plain_lost and not ours_lost:
        said.append(_nothing_lost(plain_calls, ours_calls, len(cells), planned))
    said += _about_failures(cells)
    said += _about_speed(cells)
    return said


def safe_in_flight(cells: Sequence[Cell], size: int) -> int | None:
    """The greatest number in flight up to which a plain client lost nothing at ``size``; None: it lost some at the least."""
    safe = None
    for cell in sorted((c for c in cells if c.size == size and c.plain is not None), key=lambda c: c.in_flight):
        if cell.plain is not None and cell.plain.lost:
            break
        safe = cell.in_flight
    return safe


def where(cell: Cell) -> str:
    """``100 kB and 64 in flight``."""
    return f"{size_text(cell.size)} and {cell.in_flight:,} in flight"


def _of(run: Run) -> str:
    return f"{share_text(run.lost, run.calls)}" if run.lost else "none"


def _about_plain(cells: Sequence[Cell], ours_lost: int, ours_calls: int) -> list[str]:
    losing = [(cell, cell.plain) for cell in cells if cell.plain is not None and cell.plain.lost]
    worst, run = max(losing, key=lambda each: (each[1].share, each[1].lost))
    line = f"At {where(worst)} your broker dropped {share_text(run.lost, run.calls)} of a plain client's answers"
    line += f" ({run.lost:,} of {run.calls:,})"
    if worst.credit is not None:
        line += f" and {_of(worst.credit)} of ours ({worst.credit.lost:,} of {worst.credit.calls:,})"
    first = min((cell for cell, _ in losing), key=lambda cell: (cell.size, cell.in_flight))
    line += "." if first is worst else f"; the smallest answers it dropped were of {where(first)}."
    said = [f"{line} Each costs a plain client its whole timeout."]
    if ours_calls and not ours_lost:
        said.append(
            "Use ToolServer on the service side (dispatch serve MODULE:CLASS) and dispatch.connect() on the agent's: with "
            f"credit none of {ours_calls:,} calls was lost."
        )
    elif ours_calls:
        said.append(
            "ToolServer on the service side (dispatch serve MODULE:CLASS) with dispatch.connect() on the agent's lost "
            f"{share_text(ours_lost, ours_calls)} of {ours_calls:,} calls, over everything measured."
        )
    said.append(
        "Where a service or its clients must stay as they are: persistent response topics, "
        "response_queue=persistent://TENANT/NAMESPACE/TOPIC on both sides. They drop nothing and cost a write to the "
        "broker's disk (some 10 ms) an answer."
    )
    said.append(_safe_lines(cells, sorted({cell.size for cell, _ in losing})))
    return said


def _safe_lines(cells: Sequence[Cell], sizes: Sequence[int]) -> str:
    safe = {size: safe_in_flight(cells, size) for size in sizes}
    limits = ", ".join(f"{n:,} at {size_text(size)}" for size, n in safe.items() if n is not None)
    never = ", ".join(size_text(size) for size, n in safe.items() if n is None)
    line = (
        f"Until then, let a plain client have no more calls in flight than lost nothing here: {limits}."
        if limits
        else ""
    )
    if never:
        line += (
            f"{' ' if line else ''}At {never} it lost some at every number in flight that was tried from the least on."
        )
    return line


def _about_ours(cells: Sequence[Cell], lost: int, calls: int) -> list[str]:
    losing = [(cell, cell.credit) for cell in cells if cell.credit is not None and cell.credit.lost]
    worst, run = max(losing, key=lambda each: (each[1].share, each[1].lost))
    return [
        f"Ours lost {lost:,} of {calls:,} calls ({share_text(lost, calls)}) in spite of credit, most at {where(worst)} "
        f"({run.lost:,} of {run.calls:,}). That should not be. Measure again with nothing else on this machine; if it "
        "stays, put tools whose calls must not vanish on persistent topics (request-queue and response-queue: "
        "persistent://TENANT/NAMESPACE/TOPIC), and report the output of 'dispatch doctor --loss --json'."
    ]


def _nothing_lost(plain_calls: int, ours_calls: int, cells: int, planned: int | None) -> str:
    parts = []
    if plain_calls:
        parts.append(f"none of a plain client's {plain_calls:,} call{'' if plain_calls == 1 else 's'}")
    if ours_calls:
        parts.append(f"none of our {ours_calls:,}")
    if planned is not None:
        return (
            f"This allows no conclusion: {cells} of {planned} lines were measured, perhaps not in full, and nothing was "
            f"lost in them ({' and '.join(parts)}). Measure the others too, or only what you have: --sizes and --in-flight."
        )
    return (
        f"Nothing was lost: {' and '.join(parts)}, at any size and number in flight that was tried. Loss comes with load: "
        "measure again while your broker and your network are as busy as they get."
    )


def _about_failures(cells: Sequence[Cell]) -> list[str]:
    said = []
    for who, runs in (
        ("a plain client's", [(cell, cell.plain) for cell in cells]),
        ("our", [(cell, cell.credit) for cell in cells]),
    ):
        failed: Counter[str] = Counter()
        places: dict[str, Cell] = {}
        for cell, run in runs:
            for type, count in run.errors.items() if run is not None else ():
                failed[type] += count
                places.setdefault(type, cell)
        said += [
            f"{count:,} of {who} calls failed with {type}, the first at {where(places[type])}: they are not among the lost."
            + (" Your broker takes smaller messages only (maxMessageSize)." if type == "MessageTooBig" else "")
            for type, count in failed.most_common()
        ]
    return said


def _about_speed(cells: Sequence[Cell]) -> list[str]:
    ratios = [
        (cell.credit.rate / cell.plain.rate, cell)
        for cell in cells
        if cell.plain is not None and cell.credit is not None and cell.plain.rate > 0 and cell.credit.rate > 0
    ]
    if not ratios:
        return []
    least, most = min(ratios, key=lambda each: each[0]), max(ratios, key=lambda each: each[0])
    if least[1] is most[1]:
        span = f"{_times(least[0])} times"
    else:
        span = f"{_times(least[0])} (at {where(least[1])}) to {_times(most[0])} times (at {where(most[1])})"
    return [
        f"With credit there were {span} a plain client's answers a second. Here that client had none of a real one's work: "
        "its messages were made beforehand and not decoded, and a lost call gave its place free after half a second."
    ]


def _times(ratio: float) -> str:
    return f"{ratio:,.1f}" if ratio >= 1 else f"{ratio:.2g}"
