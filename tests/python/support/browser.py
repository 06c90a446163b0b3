"""The page of a server in headless Chromium, as a user sees it."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator

import pytest

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium drives the browser")

from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402
from selenium.webdriver.remote.webelement import WebElement  # noqa: E402
from selenium.webdriver.support.wait import WebDriverWait  # noqa: E402

_SECONDS = 60


class Page:
    """The page at /."""

    def __init__(self, driver: webdriver.Chrome, url: str):
        self._driver = driver
        driver.get(url)

    def element(self, name: str) -> WebElement:
        return self._driver.find_element(By.ID, name)

    def wait(self, condition) -> None:
        WebDriverWait(self._driver, _SECONDS, poll_frequency=0.05).until(lambda _: condition())

    def wait_ready(self) -> None:
        """Waits until the page knows the models and the ranks."""
        self.wait(lambda: self.element("state").text == "ready" and self.rows("ranks"))

    def models(self) -> list[str]:
        return [option.text for option in self.element("model").find_elements(By.TAG_NAME, "option")]

    def choose(self, model: str) -> None:
        self.element("model").find_element(By.XPATH, f"option[text()='{model}']").click()

    def enter(self, name: str, value: object) -> None:
        field = self.element(name)
        field.clear()
        field.send_keys(str(value))

    def send(self, text: str) -> None:
        self.element("text").send_keys(text, Keys.ENTER)

    def is_answering(self) -> bool:
        return self.element("stop").is_displayed()

    def messages(self) -> list[tuple[str, str, str]]:
        """Returns the class, the text and the note of each message."""
        found = []
        for box in self._driver.find_elements(By.CSS_SELECTOR, "#messages > div"):
            parts = box.find_elements(By.XPATH, "*") or [box]
            texts = [part.get_property("textContent") for part in parts]
            found.append((box.get_attribute("class"), *texts, *[""] * (2 - len(texts))))
        return found

    def rows(self, table: str) -> list[list[str]]:
        """Returns the texts of a table's cells. The page replaces them while they are read, so they are read at once."""
        script = "return [...arguments[0].rows].map((row) => [...row.cells].map((cell) => cell.textContent))"
        return self._driver.execute_script(script, self.element(table))

    def errors(self) -> list[str]:
        """Returns the errors and warnings of the browser so far."""
        entries = self._driver.get_log("browser")
        return [entry["message"] for entry in entries if entry["level"] in ("SEVERE", "WARNING")]

    def addresses(self) -> set[str]:
        """Returns the addresses of all that the page has loaded."""
        script = "return performance.getEntriesByType('resource').map((entry) => entry.name)"
        return set(self._driver.execute_script(script))


@contextlib.contextmanager
def opened(url: str) -> Iterator[Page]:
    """Opens a page in a browser, which ends with the block."""
    driver_path = shutil.which("chromedriver")
    if driver_path is None or (browser := shutil.which("chromium")) is None:
        pytest.skip("there are no chromium and chromedriver")
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    for word in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--window-size=1200,900",
    ):
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options, webdriver.ChromeService(driver_path))
    try:
        yield Page(driver, url)
    finally:
        driver.quit()
