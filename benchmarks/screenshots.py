"""The pictures of the pages in docs/images.

    python benchmarks/screenshots.py --demo runs/demo --opening examples/recorded \\
        --experiment FOLDER --journal FOLDER

Takes what `flatline demo` left and the folders of a finished experiment and its journal, and opens
their pages in Chromium. For the live page it trains a run and looks while that trains. A picture
whose folder is not given is left as it is. Sizes are printed: none should have more than 150 KB.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flatline.report import page_of

WIDTH, HEIGHT = 1100, 820
AT_STEP = 12
"""Of the run that the live page shows: it has a curve by then."""
_LAB = "from flatline.config import RunConfig; from flatline.training.run import train; import sys;"
_LAB += "train(RunConfig(task='musique', max_steps=24, batch_size=32, eval_limit=0,"
_LAB += "output_dir=sys.argv[1]))"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--demo", type=Path, help="what `flatline demo` left")
    parser.add_argument("--opening", type=Path, help="a recording; examples/recorded in the README")
    parser.add_argument("--experiment", type=Path, help="an experiment with a verdict")
    parser.add_argument("--journal", type=Path, help="a journal")
    parser.add_argument("--live", action="store_true", help="train a run and look at it")
    parser.add_argument("--out", type=Path, default=Path("docs/images"))
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    with _chromium() as browser, tempfile.TemporaryDirectory() as spare:
        camera = Camera(browser, asked.out, Path(spare))
        if asked.demo:
            camera.demo(asked.demo)
            camera.tokens(asked.demo / "broken")
        if asked.opening:
            camera.page(page_of(asked.opening), "opening")
        if asked.experiment:
            camera.page(page_of(asked.experiment), "experiment", charts=True)
        if asked.journal:
            camera.page(page_of(asked.journal), "board")
        if asked.live:
            camera.live()


class Camera:
    """A window, and where its pictures go."""

    def __init__(self, browser: Any, out: Path, spare: Path) -> None:
        self._browser, self._out, self._spare = browser, out, spare

    def demo(self, folder: Path) -> None:
        """The report that the demo writes: its top, and both runs over each other."""
        page = page_of(folder / "broken", folder / "mended")
        self.page(page, "demo-report")
        self._to("#compared")
        self._wait("return document.querySelectorAll('#compared ~ .charts .plot > svg').length > 3")
        self._shoot("demo-compared")

    def page(self, text: str, name: str, *, charts: bool = False) -> None:
        """The top of a self-contained page."""
        file = self._spare / "page.html"
        file.write_text(text, encoding="utf-8", errors="backslashreplace")
        self._browser.get(file.as_uri())
        if charts:
            self._wait("return document.querySelector('.plot > svg')")
        self._shoot(name)

    def tokens(self, run: Path) -> None:
        """The first rollout of a run, at its worst disagreement."""
        with _served(run.parent) as site:
            self._browser.get(f"{site}/rollout/{run.name}?step=1&rollout=0")
            self._wait("return document.querySelector('.tokens .q5')")
            self._browser.execute_script("document.querySelector('button.worst').click()")
            self._to(".tokenview")
            self._shoot("token-view")

    def live(self) -> None:
        """A run that trains while one looks."""
        run = self._spare / "runs" / "musique-lab"
        training = subprocess.Popen([sys.executable, "-c", _LAB, str(run)])
        try:
            while not (run / "run.json").exists():
                time.sleep(0.5)
            with _served(run.parent) as site:
                self._browser.get(f"{site}/run/musique-lab")
                at = "document.querySelector('.live .at').textContent.slice(5)"
                self._wait(f"return Number({at}) >= {AT_STEP}", seconds=900)
                self._shoot("live")
        finally:
            training.terminate()
            training.wait()

    def _to(self, selector: str) -> None:
        self._browser.execute_script(f"document.querySelector('{selector}').scrollIntoView()")

    def _wait(self, condition: str, seconds: float = 60) -> None:
        end = time.monotonic() + seconds
        while not self._browser.execute_script(condition):
            if time.monotonic() > end:
                raise SystemExit(f"not within {seconds} s: {condition}")
            time.sleep(0.1)

    def _shoot(self, name: str) -> None:
        time.sleep(1)  # fonts and the last chart
        path = self._out / f"{name}.png"
        self._browser.save_screenshot(str(path))
        print(f"{path} {path.stat().st_size / 1000:.0f} KB")


@contextmanager
def _chromium() -> Iterator[Any]:
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for flag in ("--headless=new", "--no-sandbox", "--hide-scrollbars"):
        options.add_argument(flag)
    driver = webdriver.ChromeService(executable_path=shutil.which("chromedriver"))
    browser = webdriver.Chrome(options=options, service=driver)
    screen = {"width": WIDTH, "height": HEIGHT, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    light = {"name": "prefers-color-scheme", "value": "light"}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [light]})
    try:
        yield browser
    finally:
        browser.quit()


@contextmanager
def _served(folder: Path) -> Iterator[str]:
    import uvicorn

    from flatline.loopback import Bind
    from flatline.loopback.server import configured
    from flatline.report.web.app import application

    bind = Bind(host="127.0.0.1", port=8398, token=None)
    server = uvicorn.Server(configured(application(folder, bind), bind))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.05)
    yield "http://127.0.0.1:8398"
    server.should_exit = True
    thread.join(timeout=10)


if __name__ == "__main__":
    main()
