"""A real Chromium in front of real pages. Where there is no Chromium, these tests are skipped."""

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.served import a_bind, listening

NEEDED = "no Chromium with its driver here: `make chromium` installs it"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.timeout(180))


def _found(*names: str) -> str | None:
    return next((path for name in names if (path := shutil.which(name))), None)


@pytest.fixture(scope="package")  # an open page goes on asking for news
def browser() -> Iterator[Callable[..., Any]]:
    """One window for all tests, as it is asked for: `browser(width=, dark=)`."""
    program = _found("chromium", "chromium-browser", "google-chrome")
    driver = _found("chromedriver")
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    if program is None or driver is None:
        pytest.skip(NEEDED)
    made = _window(webdriver, program, driver)

    def window(*, width: int = 1280, dark: bool = False) -> Any:
        screen = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
        made.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        made.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
        made.get_log("browser")  # forget what earlier tests left there
        return made

    yield window
    made.quit()


def _window(webdriver: Any, program: str, driver: str) -> Any:
    options = webdriver.ChromeOptions()
    options.binary_location = program
    # Tests often run as root in a container, where Chromium's own sandbox cannot start.
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    made = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    made.set_script_timeout(60)
    return made


def css(window: Any, selector: str) -> list[Any]:
    return list(window.find_elements("css selector", selector))


def complaints(window: Any) -> list[str]:
    """Errors on the console."""
    return [one["message"] for one in window.get_log("browser") if one["level"] == "SEVERE"]


@contextmanager
def served(path: Path) -> Iterator[str]:
    """The address of the live pages of a folder."""
    from flatline.report.web.app import application

    bind = a_bind()
    with listening(application(path, bind), bind) as address:
        yield address.rstrip("/")


def wait(condition: Callable[[], Any], *, seconds: float = 60) -> Any:
    """What the condition gives once it is true."""
    from selenium.common.exceptions import WebDriverException

    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with suppress(WebDriverException):  # what was found may be gone: the page moved on
            found = condition()
            if found:
                return found
        time.sleep(0.03)
    raise AssertionError(f"not within {seconds} seconds")
