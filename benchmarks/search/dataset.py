"""MetaTool's data (Huang et al., 2023; MIT): descriptions of tools, and queries with the one tool that answers each."""

from __future__ import annotations

import argparse
import csv
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dispatch.catalog import ToolDescriptor

VARIABLE = "METATOOL"
LAYOUTS = (("tools.json", "queries.csv"), ("plugin_des.json", "data/all_clean_data.csv"))
"""Files of descriptions and of queries: of an extract, and in the folder ``dataset`` of MetaTool's repository."""


class DataError(Exception):
    """The data is missing or unreadable."""


@dataclass(frozen=True)
class Dataset:
    """Tools, and queries with the index of the tool that answers each."""

    tools: tuple[ToolDescriptor, ...]
    queries: tuple[str, ...]
    answers: tuple[int, ...]


def add_data_option(parser: argparse.ArgumentParser) -> None:
    """Add ``--data`` to a command line."""
    parser.add_argument(
        "--data",
        type=Path,
        default=os.environ.get(VARIABLE) or None,
        metavar="FOLDER",
        help=f"MetaTool's data: tools.json and queries.csv, or its folder dataset (default: ${VARIABLE})",
    )


def load_dataset(folder: Path | str | None) -> Dataset:
    """Read the data.

    Raises:
        DataError: there is none in ``folder``, or a query names an unknown tool.
    """
    fix = f"Clone https://github.com/HowieHwong/MetaTool and pass --data MetaTool/dataset, or set {VARIABLE} to it."
    if folder is None:
        raise DataError(f"No folder of MetaTool's data is given. {fix}")
    for tools_file, queries_file in LAYOUTS:
        if (Path(folder) / tools_file).is_file() and (Path(folder) / queries_file).is_file():
            break
    else:
        raise DataError(f"{folder} has no {' and no '.join(' with '.join(layout) for layout in LAYOUTS)}. {fix}")
    descriptions = json.loads((Path(folder) / tools_file).read_text("utf-8"))
    tools = tuple(ToolDescriptor(name, description, "metatool") for name, description in descriptions.items())
    return Dataset(tools, *read_queries(Path(folder) / queries_file, tools))


def read_queries(file: Path, tools: Sequence[ToolDescriptor]) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Return the queries of a file, and the index of the tool that answers each. Names are compared without case.

    Raises:
        DataError: a column is missing, or a query names an unknown tool.
    """
    indices = {tool.name.casefold(): index for index, tool in enumerate(tools)}
    queries, answers = [], []
    with file.open(encoding="utf-8", newline="") as lines:
        for row in csv.DictReader(lines):
            fields = {key.casefold(): value for key, value in row.items() if key is not None}
            if "query" not in fields or "tool" not in fields:
                raise DataError(f"{file} has no columns 'query' and 'tool'.")
            if fields["tool"].casefold() not in indices:
                raise DataError(f"{file} names the tool {fields['tool']!r}, which is not among the descriptions.")
            queries.append(fields["query"])
            answers.append(indices[fields["tool"].casefold()])
    return tuple(queries), tuple(answers)
