"""The queries of the main job: a real set where there is one, made-up ones elsewhere, the same ones each time."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.interop import queries as module
from tests.integration.interop.queries import COUNT, VARIABLE, generated, queries


def test_made_up_ones_are_a_thousand_different_ones() -> None:
    assert len(set(generated())) == len(generated()) == COUNT


def test_made_up_ones_are_long_and_odd_enough() -> None:
    made = generated()
    assert sum(map(len, made)) / COUNT > 50
    assert {"=", '"', "\\", "{", "%", "€", "🧘", "東", "ع"} <= set("".join(made))


def test_without_a_file_they_are_made_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(module, "BESIDE_THE_REPOSITORY", tmp_path / "queries.csv")
    assert queries() == generated()


def test_a_file_is_read_from_end_to_end(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "queries.csv"
    rows = [f'"query ""{n}"", with\na new line",tool' for n in range(5 * COUNT)] + ["¿Qué?,tool", "¿Qué?,tool"]
    file.write_text("\n".join(["query,tool", *rows]), encoding="utf-8")
    monkeypatch.setenv(VARIABLE, str(file))
    taken = queries()
    assert len(set(taken)) == len(taken) == COUNT
    assert taken == queries()
    assert "¿Qué?" in taken
    assert 'query "0", with\na new line' in taken
    assert any(f'query "{n}"' in query for query in taken for n in range(4_900, 5_000))


def test_a_file_that_is_not_there_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "none.csv"))
    with pytest.raises(ValueError, match=r"none\.csv.*DISPATCH_QUERIES"):
        queries()


@pytest.mark.parametrize("text", ["query,tool\nonly one,tool\n", "question\na\nb\n", ""])
def test_a_file_with_too_few_is_said(tmp_path: Path, text: str) -> None:
    file = tmp_path / "queries.csv"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=r"queries\.csv has [01] different queries"):
        queries(file)
