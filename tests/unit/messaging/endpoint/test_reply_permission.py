"""Which inboxes an instance may send to."""

from __future__ import annotations

import pytest

from dispatch.messaging.endpoint import MAX_KNOWN, ReplyPermission, find_inbox_owner
from dispatch.messaging.wire import derive_key, instance_topic, reply_topic

SECRET = "the secret of a caller"
KEY = derive_key(SECRET)
RESPONSES = "non-persistent://tg/response/work"
INBOX = reply_topic(RESPONSES, f"{KEY}-agent")


@pytest.mark.parametrize("path", [0, 1, 3])
def test_the_inboxes_of_the_holder_of_the_secret_are_allowed(path: int) -> None:
    assert ReplyPermission(RESPONSES)(reply_topic(RESPONSES, f"{KEY}-agent", path), SECRET)


@pytest.mark.parametrize(
    "inbox",
    [
        INBOX.replace("/response/", "/request/"),
        INBOX.replace("tg/", "other/"),
        INBOX.replace("non-persistent", "persistent"),
        INBOX.replace(KEY, derive_key("of another caller")),
        "non-persistent://tg/response/work",
        f"non-persistent://tg/response/dispatch-reply-{KEY[:-1]}-agent",
        "no topic",
        "",
        INBOX + "x" * 1_000,
    ],
)
def test_other_topics_are_not_allowed(inbox: str) -> None:
    assert not ReplyPermission(RESPONSES)(inbox, SECRET)


@pytest.mark.parametrize("secret", ["", "another", SECRET + "x" * 100])
def test_other_secrets_are_not_allowed(secret: str) -> None:
    assert not ReplyPermission(RESPONSES)(INBOX, secret)


def test_further_namespaces_can_be_allowed() -> None:
    elsewhere = INBOX.replace("/response/", "/agents/")
    assert not ReplyPermission(RESPONSES)(elsewhere, SECRET)
    assert ReplyPermission(RESPONSES, ["tg/agents"])(elsewhere, SECRET)


def test_persistent_topics_can_be_allowed() -> None:
    persistent = INBOX.replace("non-persistent", "persistent")
    assert ReplyPermission(RESPONSES, allows_persistent=True)(persistent, SECRET)
    assert ReplyPermission(RESPONSES, allows_persistent=True)(INBOX, SECRET)


def test_inboxes_that_are_named_are_remembered_within_bounds() -> None:
    permission = ReplyPermission(RESPONSES)
    for number in range(MAX_KNOWN + 10):
        permission(f"non-persistent://tg/response/{number}", SECRET)
    assert len(permission._owners) <= MAX_KNOWN
    assert permission(INBOX, SECRET)


def test_the_inboxes_of_one_dispatcher_have_one_owner() -> None:
    assert find_inbox_owner(INBOX) == find_inbox_owner(reply_topic(RESPONSES, f"{KEY}-agent", 2)) == KEY
    instance = instance_topic("non-persistent://tg/request/work", "one")
    assert find_inbox_owner(instance) == instance
    assert find_inbox_owner("no topic") == "no topic"
