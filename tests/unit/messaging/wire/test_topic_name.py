from __future__ import annotations

import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatch.catalog import TopicError, TopicName


def test_a_whole_name_is_taken_apart_and_put_together_again() -> None:
    topic = TopicName.parse("persistent://acme/tools-eu/joke:v2")
    assert topic == TopicName(persistent=True, tenant="acme", namespace="tools-eu", name="joke:v2")
    assert str(topic) == "persistent://acme/tools-eu/joke:v2"


def test_a_non_persistent_name() -> None:
    assert TopicName.parse("non-persistent://tg/request/joke") == TopicName(False, "tg", "request", "joke")


def test_the_namespace_path_is_what_pulsars_tools_call_a_namespace() -> None:
    assert TopicName.parse("non-persistent://tg/response/joke").namespace_path == "tg/response"


def test_a_sibling_stays_in_the_namespace_and_as_persistent_as_it_was() -> None:
    assert (
        str(TopicName.parse("non-persistent://tg/response/joke").sibling("r-1")) == "non-persistent://tg/response/r-1"
    )
    assert str(TopicName.parse("persistent://tg/flow/a").sibling("b")) == "persistent://tg/flow/b"


def test_a_sibling_is_checked_too() -> None:
    with pytest.raises(TopicError):
        TopicName.parse("persistent://tg/flow/a").sibling("b c")


@pytest.mark.parametrize(
    ("short", "whole"),
    [
        ("request:tg:joke", "non-persistent://tg/request/joke"),
        ("response:tg:joke", "non-persistent://tg/response/joke"),
        ("notify:tg:config", "non-persistent://tg/notify/config"),
        ("flow:tg:chunks", "persistent://tg/flow/chunks"),
        ("request:acme:text-completion:default", "non-persistent://acme/request/text-completion:default"),
    ],
)
def test_trustgraphs_short_form_is_expanded(short: str, whole: str) -> None:
    assert str(TopicName.parse(short)) == whole


def test_the_short_form_means_what_trustgraphs_own_client_makes_of_it() -> None:
    from trustgraph.base.async_pulsar_backend import AsyncPulsarBackend  # seconds, for this test alone

    map_topic = AsyncPulsarBackend._map_topic
    for text in ("request:tg:joke", "response:tg:joke", "notify:x:y", "flow:tg:a:b", "persistent://a/b/c"):
        assert str(TopicName.parse(text)) == map_topic(None, text)


@pytest.mark.parametrize(
    ("text", "problem", "fix"),
    [
        ("", "empty", "for example 'non-persistent://tg/request/joke'"),
        ("joke", "'joke' is no whole topic name", "for example 'non-persistent://tg/request/joke'"),
        ("tg/request/joke", "no whole topic name", "for example"),
        ("request:joke", "no whole topic name", "for example"),
        ("request::joke", "no whole topic name", "for example"),
        ("requests:tg:joke", "'requests' is no queue class", "write 'request'"),
        ("topic:tg:joke", "'topic' is no queue class", "flow, request, response, notify"),
        ("persistant://tg/request/joke", "'persistant' is no scheme", "write 'persistent'"),
        ("pulsar://tg/request/joke", "'pulsar' is no scheme", "persistent, non-persistent"),
        ("non-persistent://tg/joke", "not of the form non-persistent://tenant/namespace/name", "all three parts"),
        ("persistent://tg//joke", "not of the form persistent://", "all three parts"),
        ("persistent://", "not of the form", "all three parts"),
        ("persistent://tg/cluster/request/joke", "four parts", "leave the cluster out"),
        ("persistent://t/g/h/i/j", "not of the form", "all three parts"),
        ("persistent://t g/request/joke", "a blank", "take it out"),
        ("persistent://tg/request/joke\n", "a control character", "take it out"),
        ("persistent://tg/requ$st/joke", "the namespace 'requ$st'", "letters, digits"),
        ("persistent://tägg/request/joke", "the tenant 'tägg'", "letters, digits"),
        ("request:t/g:joke", "the tenant 't/g'", "letters, digits"),
        ("request:tg:jo/ke", "has a '/'", "for example"),
        ("persistent://tg/request/" + "j" * 1000, "the limit is 1,000", "for example"),
    ],
)
def test_what_is_no_topic_says_why_and_what_to_write(text: str, problem: str, fix: str) -> None:
    with pytest.raises(TopicError) as raised:
        TopicName.parse(text)
    assert problem in raised.value.problem
    assert fix in raised.value.fix
    assert raised.value.problem in str(raised.value)
    assert raised.value.fix in str(raised.value)


def test_the_error_survives_a_process_border() -> None:
    copy = pickle.loads(pickle.dumps(TopicError("a", "b")))
    assert (copy.problem, copy.fix) == ("a", "b")


@settings(deadline=None)  # a busy machine is no failure
@given(st.text())
def test_any_text_is_a_topic_or_a_topic_error(text: str) -> None:
    result: TopicName | TopicError
    try:
        result = TopicName.parse(text)
    except TopicError as error:
        result = error
    assert str(result).isprintable()
    if isinstance(result, TopicName):
        assert TopicName.parse(str(result)) == result
