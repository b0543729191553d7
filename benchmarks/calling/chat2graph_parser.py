"""Chat2Graph's parser (``app/core/common/util.py`` and ``ModelService._parse_function_calls``, Apache-2.0, commit 13e9719),
for comparison; its docstring is shortened and its types are written in newer syntax."""

from __future__ import annotations

import json
import re
import uuid
from typing import Any


def parse_jsons(
    text: str,
    start_marker: str = r"```(?:json)?\s*",
    end_marker: str = "```",
    placeholder_start_marker: str = "__PAYLOAD_START__",
    placeholder_end_marker: str = "__PAYLOAD_END__",
) -> list[dict[str, Any] | json.JSONDecodeError]:
    """Return the JSON between the marks, or the error of each that is none."""
    # add re.MULTILINE flag to allow ^ to match start of lines
    json_pattern = f"{start_marker}(.*?){re.escape(end_marker)}"
    json_matches = re.finditer(json_pattern, text, re.DOTALL | re.MULTILINE)
    results: list[dict[str, Any] | json.JSONDecodeError] = []

    def _find_and_replace_placeholders(obj: Any, extracted_payloads: dict[str, str]) -> None:
        """Recursively find and replace placeholders in the object."""
        if isinstance(obj, dict):
            for key, value in obj.items():
                if isinstance(value, str) and value in extracted_payloads:
                    obj[key] = extracted_payloads[value]
                else:
                    _find_and_replace_placeholders(value, extracted_payloads)
        elif isinstance(obj, list):
            for i, item in enumerate(obj):
                if isinstance(item, str) and item in extracted_payloads:
                    obj[i] = extracted_payloads[item]
                else:
                    _find_and_replace_placeholders(item, extracted_payloads)

    def _replace_with_placeholder(m, extracted_payloads: dict[str, str]):
        raw_content = m.group(1)
        # generate a unique placeholder for each match
        placeholder = f"__PLACEHOLDER_{uuid.uuid4().hex}__"
        extracted_payloads[placeholder] = raw_content
        # the replacement must be a valid JSON string value
        return f'"{placeholder}"'

    for match in json_matches:
        json_str = match.group(1).strip()

        extracted_payloads: dict[str, str] = {}

        use_placeholder_logic = placeholder_start_marker and placeholder_end_marker

        if use_placeholder_logic:
            placeholder_pattern = re.compile(
                f"{re.escape(placeholder_start_marker)}(.*?){re.escape(placeholder_end_marker)}",
                re.DOTALL,
            )

            # replace all occurrences of the placeholder block
            json_str = placeholder_pattern.sub(
                lambda m, p=extracted_payloads: _replace_with_placeholder(m, p),
                json_str,
            )

        try:
            # the rest of the cleaning logic remains the same
            # 1. remove comments
            lines = json_str.splitlines()
            cleaned_lines = []
            for line in lines:
                stripped_line = line.strip()
                if stripped_line.startswith("//"):
                    continue
                in_quotes = False
                escaped = False
                comment_start_index = -1
                for i, char in enumerate(line):
                    if char == '"' and not escaped:
                        in_quotes = not in_quotes
                    elif char == "/" and not in_quotes:
                        if i + 1 < len(line) and line[i + 1] == "/":
                            comment_start_index = i
                            break
                    escaped = char == "\\" and not escaped
                if comment_start_index != -1:
                    cleaned_line = line[:comment_start_index].rstrip()
                else:
                    cleaned_line = line
                if cleaned_line.strip():
                    cleaned_lines.append(cleaned_line)
            json_str_no_comments = "\n".join(cleaned_lines)

            # 1.5 fix single-quoted keys
            json_str_fixed_keys = re.sub(r"(?<=[{,])(\s*)'([^']+)'(\s*:)", r'\1"\2"\3', json_str_no_comments)
            json_str_fixed_keys = re.sub(r"({)(\s*)'([^']+)'(\s*:)", r'\1\2"\3"\4', json_str_fixed_keys)

            # 2. fix trailing commas
            json_str_fixed_commas = re.sub(r",\s*(?=[\}\]])", "", json_str_fixed_keys)

            # 3. remove control characters and BOM
            json_str_cleaned_ctrl = re.sub(r"[\x00-\x08\x0b\x0c\x0e-\x1f]", "", json_str_fixed_commas)
            if json_str_cleaned_ctrl.startswith("\ufeff"):
                json_str_cleaned = json_str_cleaned_ctrl[1:]
            else:
                json_str_cleaned = json_str_cleaned_ctrl

            processed_json_for_error_reporting = json_str_cleaned
            if not processed_json_for_error_reporting.strip():
                continue

            # 4. parse the cleaned JSON string
            parsed_json = json.loads(processed_json_for_error_reporting)

            # post-processing to inject back the payloads
            if use_placeholder_logic and extracted_payloads:
                _find_and_replace_placeholders(parsed_json, extracted_payloads)

            results.append(parsed_json)
        except json.JSONDecodeError as e:
            results.append(e)

    return results


def read_calls(text: str) -> list[tuple[str, dict[str, Any]]]:
    """The calls that Chat2Graph executes."""
    values = parse_jsons(text, start_marker=r"^\s*<function_call>\s*", end_marker="</function_call>")
    if "json" in text:
        for value in parse_jsons(text, start_marker=r"^\s*```json\s*", end_marker="```"):
            if isinstance(value, dict) and {"name", "call_objective", "args"} <= value.keys():
                values.append(value)
    return [(value.get("name", ""), value.get("args", {})) for value in values if isinstance(value, dict)]
