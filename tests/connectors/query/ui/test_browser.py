"""The pages in a real browser: signing in, going down the layers, changing, on a phone too.

One headless Chromium for the module. Outside CI a machine without it skips.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.expected_conditions import staleness_of
from selenium.webdriver.support.ui import WebDriverWait

from tests.connectors.query.fakes import profile
from tests.connectors.query.serving import World
from tests.connectors.query.ui.rig import ADMIN, ANA, HOSTILE
from tests.connectors.query.ui.test_pages import PAGES

FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)
WIDTHS = (390, 1280)


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    binary = shutil.which("chromium") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    if binary is None or driver is None:
        message = "no chromium and chromedriver; on Debian: apt-get install chromium-driver"
        if os.environ.get("CI") == "true":
            pytest.fail(message)
        pytest.skip(message)
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    profile: Path = tmp_path_factory.mktemp("chromium")
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    started = webdriver.Chrome(options=options, service=Service(driver))
    started.implicitly_wait(10)  # a click may return before the next page is there
    try:
        yield started
    finally:
        started.quit()


@pytest.fixture
def page(chromium: webdriver.Chrome, world: World) -> Iterator[webdriver.Chrome]:
    """Give the browser without cookies; afterwards nothing must have acted or been blocked."""
    yield chromium
    assert chromium.execute_script("return window.hacked") is None
    complaints = [
        one
        for one in chromium.get_log("browser")  # type: ignore[no-untyped-call]
        if one["source"] != "network"
    ]
    assert not complaints
    chromium.delete_all_cookies()


def width_of(page: webdriver.Chrome, width: int, scheme: str = "light") -> None:
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


def text_of(page: webdriver.Chrome, css: str = "main") -> str:
    return page.find_element(By.CSS_SELECTOR, css).text


def enter(page: webdriver.Chrome, element: WebElement, *keys: str) -> None:
    """Type, press enter and wait until the page has gone: the browser waits for clicks alone."""
    element.send_keys(*keys, Keys.ENTER)
    WebDriverWait(page, 20).until(staleness_of(element))


def test_from_signing_in_down_the_layers_to_a_change(
    page: webdriver.Chrome, keyed_url: str, world: World
) -> None:
    def follow(words: str) -> None:
        page.find_element(By.PARTIAL_LINK_TEXT, words).click()

    width_of(page, 390)
    page.get(f"{keyed_url}/ui")
    key = page.switch_to.active_element  # the form has the focus
    enter(page, key, "wrong")
    assert "not valid" in text_of(page, "[role=alert]")
    enter(page, page.find_element(By.ID, "key"), ADMIN)
    assert text_of(page, "h1") == "Overview"
    follow("Scopes")
    follow("acme / helper / ana")
    assert "Lives in Berlin." in text_of(page)
    follow("moving")  # the scene
    assert "packed" in text_of(page)
    follow("lives in Berlin")  # the atom
    assert "lives in Lyon" in text_of(page)  # which it superseded
    follow("event e1")
    assert "I moved to Berlin" in text_of(page)
    follow("lives in Berlin")  # up again

    follow("Edit")
    assert not world.log
    box = page.find_element(By.ID, "new-text")
    box.clear()
    box.send_keys("lives in Porto")
    page.find_element(By.CSS_SELECTOR, "main button").click()
    assert "in the log" in text_of(page, "[role=status]")
    assert json.loads(world.log[0].value or b"")["content"] == "lives in Porto"

    page.find_element(By.XPATH, "//button[text()='Sign out']").click()
    page.get(f"{keyed_url}/ui/memory?{ANA}&id=new")
    assert text_of(page, "h1") == "Sign in"


def test_a_search_by_keyboard_says_why(page: webdriver.Chrome, open_url: str) -> None:
    width_of(page, 1280)
    page.get(f"{open_url}/ui/search?{ANA}")
    enter(page, page.switch_to.active_element, "click the dot in <i>Berlin</i>")
    shown = text_of(page)
    assert "As the agent sees it" in shown
    assert "<memories>" in text_of(page, "pre:last-of-type")
    assert HOSTILE[:40] in shown
    assert page.find_elements(By.CSS_SELECTOR, ".explain b")
    first = page.find_element(By.CSS_SELECTOR, "ol.items a.text")
    enter(page, first)
    assert "History of this fact" in text_of(page)


def test_pages_fit_the_screen_and_stay_still(page: webdriver.Chrome, open_url: str) -> None:
    """Whatever was said: nothing runs, nothing is fetched, no phone has to scroll sideways."""
    for address in PAGES:
        page.get(f"{open_url}{address}")
        for width in WIDTHS:
            width_of(page, width)
            wide = page.execute_script("return document.documentElement.scrollWidth")
            assert wide <= width, (address, width)
        fetched = page.execute_script(
            "return performance.getEntriesByType('resource').map(one => one.name)"
        )
        assert all(one.startswith(f"{open_url}/ui/static/") for one in fetched), fetched
        assert page.execute_script("return window.hacked") is None


def test_a_heading_in_another_direction_turns_nothing_below_it(
    page: webdriver.Chrome, open_url: str, world: World
) -> None:
    width_of(page, 1280)
    said = "# \u05e9\u05dc\u05d5\u05dd\n\nLives in Berlin.\n\n\u05e9\u05dc\u05d5\u05dd"
    world.store.profiles = [profile("persona", "persona.md", said)]
    page.get(f"{open_url}/ui/scope?{ANA}")
    lefts = page.execute_script(
        "return ['.markdown', '.markdown p', '.markdown p:last-child'].map(css => {"
        "const all = document.createRange(); all.selectNodeContents(document.querySelector(css));"
        "return all.getBoundingClientRect().left; })"
    )
    assert lefts[1] == lefts[0]
    assert lefts[2] > lefts[0], "and what is Hebrew itself stands on its own side"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_its_ground(
    scheme: str, page: webdriver.Chrome, open_url: str
) -> None:
    width_of(page, 1280, scheme)
    for address in ("/ui", f"/ui/memory?{ANA}&id=old", f"/ui/search?{ANA}"):
        page.get(f"{open_url}{address}")
        weak = page.execute_script(_CONTRAST)
        assert not weak, (address, weak)


_CONTRAST = """
const parts = colour => colour.match(/[0-9.]+/g).map(Number);
const light = colour => {
  const [r, g, b] = parts(colour).slice(0, 3).map(v => {
    v /= 255; return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const ground = one => {
  for (; one; one = one.parentElement) {
    const colour = getComputedStyle(one).backgroundColor;
    if ((parts(colour)[3] ?? 1) > 0) return colour;
  }
  return 'rgb(255, 255, 255)';
};
const weak = [];
for (const one of document.querySelectorAll('body *')) {
  const own = [...one.childNodes].some(node => node.nodeType === 3 && node.data.trim());
  if (!own || !one.checkVisibility()) continue;
  const [a, b] = [light(getComputedStyle(one).color), light(ground(one))];
  const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  if (contrast < 4.5) weak.push(one.tagName + ' ' + one.className + ' ' + contrast.toFixed(2)
    + ' ' + one.textContent.slice(0, 30));
}
return [...new Set(weak)];
"""
