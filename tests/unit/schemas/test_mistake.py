from __future__ import annotations

from dispatch.schemas import MAX_SHOWN, Mistake, join_mistakes, join_pointer, split_pointer


def test_text_of_a_mistake() -> None:
    assert str(Mistake("/a/0", "is required")) == "/a/0 is required"
    assert str(Mistake("", "must be null, not a string")) == "the whole value must be null, not a string"
    assert str(Mistake("/u", "must be one of the allowed values", ('"a"', "1"))) == (
        '/u must be one of the allowed values: "a", 1'
    )


def test_long_lists_are_shortened_with_their_number() -> None:
    text = str(Mistake("/u", "must be one of the allowed values", tuple(map(str, range(1_025)))))
    assert text.endswith("18, 19 and 1,005 more")
    mistakes = [Mistake(f"/{n}", "is required") for n in range(MAX_SHOWN + 3)]
    assert join_mistakes(mistakes).endswith("/19 is required; and 3 more")
    assert join_mistakes(mistakes[:2]) == "/0 is required; /1 is required"


def test_json_pointer() -> None:
    assert join_pointer(()) == ""
    assert join_pointer(["a/b", 0, "~c", ""]) == "/a~1b/0/~0c/"
    assert split_pointer("/a~1b/0/~0c/") == ["a/b", "0", "~c", ""]
    assert split_pointer(join_pointer(["~1"])) == ["~1"]
    assert split_pointer("") == []
