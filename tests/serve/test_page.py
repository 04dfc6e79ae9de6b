"""The page at / in a headless browser: it draws what the server says, and fits a phone."""

from __future__ import annotations

import shutil

import pytest

from tests.serve.running import open_stream, running, wait_for

pytest.importorskip("uvicorn", reason="needs the extra [serve]")
playwright = pytest.importorskip("playwright.sync_api", reason="needs the package playwright")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
LONG = {"prompt": "Hello", "max_tokens": 2000, "ignore_eos": True}
COLOURS = """() => {
  const data = document.getElementById("map").getContext("2d").getImageData(0, 0, 64, 64).data, seen = {};
  for (let i = 0; i < data.length; i += 4) {
    const key = data.slice(i, i + 3).join();
    seen[key] = (seen[key] || 0) + 1;
  }
  return Object.values(seen).sort((a, b) => a - b);
}"""


@pytest.mark.parametrize(("width", "height"), [(1200, 900), (390, 844)])
def test_the_page_shows_the_ring_as_it_is(width: int, height: int) -> None:
    with running("--time-scale", "40", "--drain", "0") as server, playwright.sync_playwright() as started:
        streams = [open_stream(server.port, LONG) for _ in range(7)]
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": width, "height": height})
        wrong: list[str] = []
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
        page.goto(f"http://127.0.0.1:{server.port}/")
        page.wait_for_function("document.getElementById('running').textContent === '7'", timeout=20_000)
        assert page.inner_text("#state") == "serving"
        assert page.inner_text("#n0") == "4,089"
        assert page.evaluate(COLOURS) == [7, 4089]
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert wrong == []
        for sock in streams:
            sock.close()
        wait_for(lambda: page.inner_text("#running") == "0")
        browser.close()
