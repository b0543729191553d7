"""Every key that a policy in JSON accepts, from the code of ``dispatch.policy``."""

from __future__ import annotations

import ast
import typing
from pathlib import Path

import msgspec

from dispatch.policy import Policy
from structure.layers import DISPATCH


def find_policy_keys(policy: type[msgspec.Struct] = Policy, folder: Path = DISPATCH / "policy") -> list[str]:
    """The keys, sorted: a policy's own (``timeout``), those of its parts (``retry.attempts``) and short forms.

    A part that stands under several keys (``rate-limit``, ``user-rate-limit``) has its own keys once, under the first.
    Values that users name themselves (priorities, weights) are no keys.
    """
    own = list(policy.__struct_encode_fields__)
    keys = [*own, *(f"{key} (short form)" for key in find_short_forms(folder) if key not in own)]
    seen: set[type] = set()
    hints = typing.get_type_hints(policy)
    for field, key in zip(policy.__struct_fields__, policy.__struct_encode_fields__, strict=True):
        for part in (hints[field], *typing.get_args(hints[field])):
            if isinstance(part, type) and issubclass(part, msgspec.Struct) and part not in seen:
                seen.add(part)
                keys += [f"{key}.{inner}" for inner in part.__struct_encode_fields__]
    return sorted(keys)


def find_short_forms(folder: Path) -> set[str]:
    """Keys that ``parse_policy`` accepts beside the fields: those that it looks for by name, as in ``"x" in values``."""
    return {
        node.left.value
        for path in folder.glob("*.py")
        for function in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(function, ast.FunctionDef) and function.name == "parse_policy"
        for node in ast.walk(function)
        if isinstance(node, ast.Compare)
        and isinstance(node.ops[0], ast.In)
        and isinstance(node.left, ast.Constant)
        and isinstance(node.left.value, str)
    }
