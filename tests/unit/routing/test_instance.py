"""The instances that a dispatcher knows, and which of them may receive the next request."""

from __future__ import annotations

from dispatch.routing.instance import Instances, SessionInstance
from tests.helpers.known_instances import arouse_suspicion, known_instance, line_of, occupy


def known(*names: str) -> Instances[SessionInstance]:
    made = Instances[SessionInstance]()
    for name in names:
        made.add(known_instance(name))
    return made


def test_the_version_changes_when_an_instance_is_added_or_removed() -> None:
    made = known("a")
    before = made.version
    each = known_instance("b")
    made.add(each)
    assert made.version != before
    before = made.version
    assert made.remove(each)
    assert made.version != before
    before = made.version
    assert not made.remove(each)
    assert made.version == before


def test_a_new_incarnation_replaces_the_former_one() -> None:
    made = known("a")
    former = made.get("a")
    assert former is not None
    again = known_instance("a", incarnation="2")
    assert made.add(again) is former
    assert made.get("a") is again
    assert not made.remove(former)
    assert list(made) == [again]


def test_name_and_incarnation_are_those_that_the_session_has_proved() -> None:
    each = known_instance("a", "life")
    assert (each.name, each.incarnation, each.topic) == ("a", "life", "topic-a")


def test_requests_are_in_flight_until_they_end() -> None:
    busy = known_instance()
    request = occupy(busy)
    assert busy.in_flight == 1
    busy.session.cancel(request)
    assert busy.in_flight == 0


def test_an_instance_that_answers_no_probe_is_suspect_until_it_does() -> None:
    each = known_instance()
    assert not each.is_suspect
    arouse_suspicion(each)
    line_of(each).exchange()
    assert not each.is_suspect
