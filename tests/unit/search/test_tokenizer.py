"""Terms of texts in any script."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatch.search.index import split_terms


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("", []),
        ("  ,.;  ", []),
        ("Get the weather!", ["get", "the", "weather"]),
        ("get_user_name", ["get", "user", "name"]),
        ("_private__name_", ["private", "name"]),
        ("getUserName", ["get", "user", "name", "getusername"]),
        ("YouTube", ["you", "tube", "youtube"]),
        ("HTTPServer2Go", ["http", "server2", "go", "httpserver2go"]),
        ("PDF ocr 2024", ["pdf", "ocr", "2024"]),
        ("a.b/c-d", ["a", "b", "c", "d"]),
        ("天気予報", ["天気", "気予", "予報"]),
        ("猫", ["猫"]),
        ("搜索API文档", ["搜索", "api", "文档"]),
        ("날씨 예보", ["날씨", "예보"]),
        ("ﾃﾞｰﾀ", ["デー", "ータ"]),
        ("ＡＢＣ", ["abc"]),
        ("Straße", ["strasse"]),
        ("ﬁle", ["file"]),
        ("ÉtatCivil", ["état", "civil", "étatcivil"]),
        ("मौसम की जानकारी", ["मौसम", "की", "जानकारी"]),
        ("cafe\u0301", ["café"]),
        ("погодаСегодня", ["погода", "сегодня", "погодасегодня"]),
        ("¿Qué tiempo hará?", ["qué", "tiempo", "hará"]),
    ],
)
def test_terms(text: str, terms: list[str]) -> None:
    assert split_terms(text) == terms


@given(st.text())
def test_terms_are_folded_words(text: str) -> None:
    for term in split_terms(text):
        assert term
        assert "_" not in term
        assert unicodedata.normalize("NFKC", term.casefold()) == term
        assert all(char.isalnum() or unicodedata.category(char)[0] == "M" for char in term)


@given(st.text(), st.text())
def test_terms_of_texts_side_by_side(first: str, second: str) -> None:
    assert split_terms(f"{first} {second}") == split_terms(first) + split_terms(second)


@given(st.text(st.characters(codec="ascii")))
def test_ascii_and_other_texts_are_split_alike(text: str) -> None:
    assert split_terms(f"{text} é") == [*split_terms(text), "é"]


@given(st.text("abcz _-.'"))
def test_case_of_whole_texts_is_ignored(text: str) -> None:
    assert split_terms(text.upper()) == split_terms(text.lower())
