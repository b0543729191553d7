"""The console in a real browser: every page is accessible and current, and acts."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import pytest
from selenium.common.exceptions import NoSuchElementException, StaleElementReferenceException
from selenium.webdriver import ActionChains, Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

import dispatch
from dispatch import Admin, DispatchError, ToolServer
from tests.helpers.admin_endpoint import Observed, observed, price
from tests.helpers.browser import browser, emulate, find_violations
from tests.helpers.run_profile import by_profile

pytestmark = [pytest.mark.process, pytest.mark.wall_clock, pytest.mark.xdist_group("console")]  # one browser
PAGES = ("/", "/tools/price", "/catalogue", "/tools", "/instances", "/instances/shop-1", "/calls", "/calls/1", "/users")
PAGES = PAGES[: by_profile(short=3, long=len(PAGES))]
"""axe-core takes some seconds a page."""


@pytest.fixture(scope="module")
def chrome() -> Iterator[Chrome]:
    with browser() as found:
        yield found


async def look(work: Callable[..., Any], *arguments: Any) -> Any:
    """Run ``work`` with the browser, beside the event loop that serves it."""
    return await asyncio.to_thread(work, *arguments)


REPLACED = (NoSuchElementException, StaleElementReferenceException)
"""Raised for an element of a page that is left or a part that is refreshed at that moment."""


def wait_for(chrome: Chrome, text: str, selector: str = "main") -> None:
    WebDriverWait(chrome, 20, ignored_exceptions=REPLACED).until(
        lambda _: text in chrome.find_element(By.CSS_SELECTOR, selector).text
    )


def click(chrome: Chrome, by: str, selector: str) -> None:
    def clicked(_: Chrome) -> bool:
        chrome.find_element(by, selector).click()
        return True

    WebDriverWait(chrome, 20, ignored_exceptions=REPLACED).until(clicked)


def press(chrome: Chrome, *keys: str) -> None:
    ActionChains(chrome).send_keys(*keys).perform()


async def fail_once(it: Observed, user: str = "alice") -> None:
    with contextlib.suppress(DispatchError):
        await it.dispatcher.call("price", {"item": "bad"}, user=user)


@pytest.mark.long
async def test_every_page_is_accessible_and_its_scripts_work(chrome: Chrome) -> None:
    async with observed() as it:
        await fail_once(it)
        await it.dispatcher.call("order", {"item": "a"}, user="<b>eve</b>")

        def visit(path: str) -> None:
            chrome.get(f"{it.dispatcher.admin_url}{path}")
            assert find_violations(chrome) == [], path

        for path in PAGES:
            await look(visit, path)


async def test_the_cause_of_a_failing_tool_is_two_clicks_away(chrome: Chrome) -> None:
    async with observed() as it:
        for _ in range(3):
            await fail_once(it)

        def find() -> None:
            chrome.get(str(it.dispatcher.admin_url))
            click(chrome, By.CSS_SELECTOR, ".attention a")
            wait_for(chrome, "ValueError")
            click(chrome, By.CSS_SELECTOR, "[data-live=errors] td.mono a")
            wait_for(chrome, "shop-1")
            assert chrome.find_element(By.CSS_SELECTOR, ".waterfall rect.warn")

        await look(find)


async def test_the_overview_lists_other_agents_while_they_are_there(chrome: Chrome) -> None:
    broker = f"memory://{uuid4().hex}"
    async with observed(broker=broker) as it:
        async with dispatch.connect(broker, client_id="agent-2", admin="127.0.0.1:0") as other:
            await look(chrome.get, str(it.dispatcher.admin_url))
            await look(wait_for, chrome, "agent-2")
            row = await look(chrome.find_element, By.LINK_TEXT, "agent-2")
            assert (await look(row.get_attribute, "href")).rstrip("/") == other.admin_url

        def is_gone(page: Chrome) -> bool:
            return "agent-2" not in page.find_element(By.CSS_SELECTOR, "main").text

        await look(WebDriverWait(chrome, 20, ignored_exceptions=REPLACED).until, is_gone)


async def test_a_page_follows_the_process_and_the_focus_stays_where_it_is(chrome: Chrome) -> None:
    async with observed() as it:

        def focus() -> None:
            chrome.get(f"{it.dispatcher.admin_url}/tools")
            chrome.execute_script("document.querySelector('#rows td a[href$=price]').focus()")

        await look(focus)
        await it.dispatcher.call("price", {"item": "a"})
        await look(wait_for, chrome, "closed", "#rows")
        assert await look(lambda: chrome.switch_to.active_element.text) == "price"


async def test_many_pages_of_one_tab_and_many_tabs_do_not_use_up_the_connections_of_the_browser(chrome: Chrome) -> None:
    """A browser has six connections to a host. Pages that are left stay in memory, for its back button."""
    async with observed() as it:

        def visit() -> None:
            chrome.set_page_load_timeout(10)
            first = chrome.current_window_handle
            chrome.get(str(it.dispatcher.admin_url))
            for _ in range(3):
                click(chrome, By.CSS_SELECTOR, "nav [data-key=t]")
                wait_for(chrome, "Tools", "h1")
                click(chrome, By.CSS_SELECTOR, "nav [data-key=o]")
                wait_for(chrome, "Overview", "h1")
            for _ in range(7):
                chrome.switch_to.new_window("tab")
                chrome.get(f"{it.dispatcher.admin_url}/tools")
            wait_for(chrome, "price", "#rows")
            asyncio.run_coroutine_threadsafe(it.dispatcher.call("price", {"item": "a"}), loop).result(5)
            wait_for(chrome, "closed", "#rows")
            for handle in chrome.window_handles:
                chrome.switch_to.window(handle)
                if handle != first:
                    chrome.close()
            chrome.switch_to.window(first)

        loop = asyncio.get_running_loop()
        await look(visit)


async def test_an_action_asks_for_a_reason_and_is_undone_by_another(chrome: Chrome) -> None:
    async with observed() as it:

        def act(label: str) -> None:
            chrome.get(f"{it.dispatcher.admin_url}/tools/price")
            click(chrome, By.XPATH, f"//button[text()='{label}']")
            press(chrome, "wrong prices", "\t", "alice")
            ActionChains(chrome).double_click(chrome.find_element(By.CSS_SELECTOR, "dialog .primary")).perform()
            wait_for(chrome, "wrong prices", "[data-live=events]")

        await look(act, "Open circuit")
        (circuit,) = await it.get("/api/circuits")
        assert (circuit["state"], circuit["until"] is None) == ("forced-open", False)
        await look(act, "Reset")
        assert (await it.get("/api/circuits"))[0]["state"] == "closed"
        actions = [each["action"] for each in await it.get("/api/events") if each["event"] == "action"]
        assert actions == ["reset", "open"]

        def offer(label: str) -> bool:
            click(chrome, By.XPATH, f"//button[text()='{label}']")
            offers = chrome.find_element(By.CSS_SELECTOR, "dialog .duration").is_displayed()
            press(chrome, "\ue00c")  # Escape
            return bool(offers)

        assert not await look(offer, "Reset")
        assert await look(offer, "Disable")


async def test_an_instance_is_ejected_and_a_service_drained(chrome: Chrome) -> None:
    async with observed() as it:
        await it.dispatcher.call("price", {"item": "a"})

        def act(url: str | None, label: str, expected: str) -> None:
            chrome.get(f"{url}/instances/shop-1")
            click(chrome, By.XPATH, f"//button[text()='{label}']")
            press(chrome, "new disk", "\t", "alice", "\n")
            wait_for(chrome, expected)

        await look(act, it.dispatcher.admin_url, "Eject", "ejected by operator")
        await look(act, it.server.admin_url, "Drain", "draining")
        assert it.server.is_draining


async def test_the_page_of_an_instance_that_leaves_says_so(chrome: Chrome) -> None:
    async with observed() as it:
        await it.dispatcher.call("price", {"item": "a"})
        await look(chrome.get, f"{it.dispatcher.admin_url}/instances/shop-1")
        await it.server.drain()
        await look(wait_for, chrome, "No instance 'shop-1' is known")


async def test_the_keyboard_reaches_the_pages_and_the_filter(chrome: Chrome) -> None:
    async with observed() as it:

        def use() -> None:
            chrome.get(str(it.dispatcher.admin_url))
            press(chrome, "g", "t")
            wait_for(chrome, "price")
            press(chrome, "/", "ord")
            shown = [row for row in chrome.find_elements(By.CSS_SELECTOR, "#rows tbody tr") if row.is_displayed()]
            assert [row.find_element(By.TAG_NAME, "a").text for row in shown] == ["order"]

        await look(use)


async def test_a_token_is_asked_for_a_reader_cannot_act_and_signs_out(chrome: Chrome) -> None:
    token = "read-token-0123456789"
    async with observed(Admin("127.0.0.1:0", read={"bob": token})) as it:

        def sign_in() -> None:
            chrome.get(f"{it.dispatcher.admin_url}/tools/price")
            press(chrome, "an-unknown-token", "\n")
            wait_for(chrome, "not known")
            press(chrome, token, "\n")
            wait_for(chrome, "price", "h1")  # the page that was asked for
            assert not chrome.find_element(By.XPATH, "//button[text()='Open circuit']").is_enabled()
            click(chrome, By.ID, "sign-out")
            wait_for(chrome, "Token")
            assert chrome.get_cookies() == []
            chrome.get(f"{it.dispatcher.admin_url}/tools/price")
            wait_for(chrome, "Token")

        await look(sign_in)


async def test_an_action_without_an_answer_says_so_and_the_page_recovers(chrome: Chrome) -> None:
    token = "act-token-01234567890"
    async with observed(Admin("127.0.0.1:0", act={"bob": token})) as it:
        address = str(it.dispatcher.admin_url)

        def ask_in_vain() -> None:
            chrome.get(f"{address}/tools/price")
            press(chrome, token, "\n")
            wait_for(chrome, "price", "h1")
            click(chrome, By.XPATH, "//button[text()='Reset']")
            chrome.delete_all_cookies()
            press(chrome, "INC-7", "\n")
            wait_for(chrome, "You are signed out", "#act .error")

        await look(ask_in_vain)
    async with observed() as it:

        def lose() -> None:
            chrome.get(f"{it.dispatcher.admin_url}/tools/price")
            click(chrome, By.XPATH, "//button[text()='Reset']")

        await look(lose)
        port = str(it.dispatcher.admin_url).rpartition(":")[2]

    def act_in_vain() -> None:
        press(chrome, "INC-7", "\t", "alice", "\n")
        wait_for(chrome, "The process does not answer", "#act .error")
        press(chrome, Keys.ESCAPE)
        WebDriverWait(chrome, 20).until(
            lambda _: not chrome.find_element(By.CSS_SELECTOR, ".who .state").is_displayed()
        )

    await look(act_in_vain)
    broker = f"memory://{uuid4().hex}"
    async with dispatch.connect(broker, dispatch.Announced(), admin=f"127.0.0.1:{port}"):
        await look(wait_for, chrome, "There is no tool 'price'", "h1")
        async with ToolServer(functions=[price], service="shop", broker=broker):
            await look(wait_for, chrome, "Price of an item", ".lead")


async def test_a_filter_without_a_match_says_so_and_long_names_stay_short(chrome: Chrome) -> None:
    async with observed() as it:
        await fail_once(it, "u" * 400)
        with contextlib.suppress(DispatchError):
            await it.dispatcher.call("price", {"item": "odd"})

        def use() -> None:
            chrome.get(f"{it.dispatcher.admin_url}/tools")
            assert not chrome.find_elements(By.CSS_SELECTOR, ".unmatched")
            press(chrome, "/")
            press(chrome, "nothing like this")
            assert chrome.find_elements(By.CSS_SELECTOR, ".unmatched")
            for path in ("/users", "/calls", "/tools/price"):
                chrome.get(f"{it.dispatcher.admin_url}{path}")
                name = chrome.find_element(By.XPATH, "//td//*[contains(text(), 'uuuu')]")
                assert name.size["height"] < 60, path
            chrome.get(f"{it.dispatcher.admin_url}/")
            badge = chrome.find_element(By.XPATH, "//td//*[contains(text(), 'tttt')]")
            assert badge.size["width"] < 300
            assert badge.get_attribute("title") == "t" * 200

        await look(use)


@pytest.mark.slow
@pytest.mark.long
async def test_a_phone_in_the_dark_needs_no_sideways_scroll(chrome: Chrome) -> None:
    long = "a-rather-long-name-" + "x" * 100
    async with observed(broker=f"memory://{long}-{uuid4().hex}", instance=long) as it:
        await fail_once(it, long)

        def visit() -> None:
            emulate(chrome, 375, 812, dark=True)
            for path in dict.fromkeys((*PAGES[: by_profile(short=1, long=len(PAGES))], "/instances/shop-1")):
                chrome.get(f"{it.dispatcher.admin_url}{path.replace('shop-1', long)}")
                assert chrome.execute_script("return document.documentElement.scrollWidth") <= 375, path
                assert find_violations(chrome) == [], path

        def restore() -> None:
            chrome.get("about:blank")
            chrome.get_log("browser")
            emulate(chrome)

        try:
            await look(visit)
        finally:
            await look(restore)
