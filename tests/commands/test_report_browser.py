"""Tests the report in a real browser (Chromium, headless): an empty console, and everything works by mouse and keyboard.

Skipped where no Chromium with its driver is found.
"""

import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from mlx_bulk.jobs.cli.main import cli

from ..checkpoints import write_checkpoint
from ..jobs.support.bench import Bench

selenium = pytest.importorskip("selenium")
BROWSER = next((path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None)
DRIVER = shutil.which("chromedriver")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(BROWSER is None or DRIVER is None, reason="no Chromium with chromedriver: apt-get install chromium-driver"),
]

# What is drawn over what: the text's colour against the nearest background behind it that is not transparent.
CONTRASTS = """
const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
function rgba(colour) {
  canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
  const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data; return [r, g, b, a / 255];
}
function over(top, under) { return [0, 1, 2].map((i) => top[i] * top[3] + under[i] * (1 - top[3])); }
function luminance(colour) {
  const [r, g, b] = colour.map((c) => c / 255).map((c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}
function behind(element) {
  if (!element) return [255, 255, 255];
  const own = rgba(getComputedStyle(element).backgroundColor);
  return own[3] >= 1 ? own.slice(0, 3) : over(own, behind(element.parentElement));
}
const found = [];
for (const element of document.querySelectorAll("body *")) {
  const text = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
  if (!text || !element.checkVisibility() || ["SCRIPT", "STYLE"].includes(element.tagName)) continue;
  const style = getComputedStyle(element);
  const ground = behind(element), ink = over(rgba(element.tagName === "text" ? style.fill : style.color), ground);
  const [high, low] = [luminance(ink), luminance(ground)].sort((a, b) => b - a);
  const name = element.tagName + "." + element.getAttribute("class") + ": " + element.textContent.slice(0, 40);
  found.push([(high + 0.05) / (low + 0.05), name]);
}
return found;
"""
CUT_OFF = """
return [...document.querySelectorAll("main *")].filter((element) => {
  const box = element.getBoundingClientRect();
  return box.width && (box.right > innerWidth + 1 || box.left < -1) && !element.closest(".scroll, .chart, #list, .tokens");
}).map((element) => element.tagName + " " + element.className);
"""
UNNAMED = """
return [...document.querySelectorAll("button, input, a, summary, [tabindex='0'], figure")].filter((element) => {
  const label = element.getAttribute("aria-label") || element.textContent.trim() || (element.labels && element.labels.length);
  return !label;
}).map((element) => element.outerHTML.slice(0, 80));
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a run with every figure of tokens, and with text that must not act as HTML."""
    folder = tmp_path_factory.mktemp("report")
    bench = Bench(folder, write_checkpoint(folder / "model"))
    rows = [{"id": f"k{i}", "q": f"Question {i}: <script>document.title = 'taken'</script> what is {i} + {i}?"} for i in range(30)]
    done = bench.run(
        rows=[*rows, {"id": "bad", "q": None}],
        data={"key": "id"},
        sampling={"max_tokens": 12, "temperature": 1.0},
        logprobs={"top": 3, "stats": True},
    )
    assert done.code == 3
    assert CliRunner().invoke(cli, ["report", str(done.output)]).exit_code == 0
    return done.output / "report.html"


@pytest.fixture(scope="module")
def driver() -> Iterator[Any]:
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = str(BROWSER)
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    yield driver
    driver.quit()


def opened(driver: Any, page: Path, width: int = 1440, scheme: str = "light") -> Any:
    """The page in a window of this width."""
    features = [{"name": "prefers-color-scheme", "value": scheme}, {"name": "prefers-reduced-motion", "value": "reduce"}]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": features})
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    driver.get(page.as_uri())
    return driver


def all_of(driver: Any, selector: str) -> list[Any]:
    return driver.find_elements("css selector", selector)


def one(driver: Any, selector: str) -> Any:
    return driver.find_element("css selector", selector)


def tip(driver: Any) -> str:
    return driver.execute_script("const tip = document.getElementById('tip'); return tip.hidden ? '' : tip.textContent")


@pytest.mark.parametrize("width", [1440, 768, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_is_readable(driver: Any, page: Path, width: int, scheme: str):
    opened(driver, page, width, scheme)
    assert driver.get_log("browser") == []
    assert driver.execute_script("return document.documentElement.scrollWidth") <= width
    assert driver.execute_script(CUT_OFF) == []
    for details in all_of(driver, "details"):
        driver.execute_script("arguments[0].open = true", details)
    found = driver.execute_script(CONTRASTS)
    assert len(found) > 100
    assert [text for ratio, text in found if ratio < 4.5] == []  # WCAG 2.2, 1.4.3


def test_contrast_is_measured(driver: Any, page: Path):
    opened(driver, page)
    driver.execute_script("document.documentElement.style.setProperty('--soft', '#aaa')")
    assert any(ratio < 4.5 for ratio, _ in driver.execute_script(CONTRASTS))


def test_everything_has_a_name(driver: Any, page: Path):
    opened(driver, page)
    assert driver.execute_script(UNNAMED) == []
    assert one(driver, "html").get_attribute("lang") == "en"
    levels = driver.execute_script("return [...document.querySelectorAll('h1,h2,h3,h4')].map((heading) => Number(heading.tagName[1]))")
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))


def test_model_output_runs_nothing(driver: Any, page: Path):
    opened(driver, page)
    assert driver.title == "run · mlx-bulk report"
    assert "<script>document.title = 'taken'</script>" in one(driver, "#detail").text


def test_samples_are_searched_and_filtered(driver: Any, page: Path):
    opened(driver, page)
    shown = len(all_of(driver, "#list button"))
    assert one(driver, "#count").text == f"{shown} samples"
    one(driver, "#search").send_keys("k17")
    assert [button.text.split("\n")[0] for button in all_of(driver, "#list button")] == ["k17 · sample 0"]
    assert one(driver, "#detail h3").text == "row 17 · sample 0 · key k17"
    one(driver, "#search").send_keys("nothing has this")
    assert one(driver, "#count").text == "0 samples: nothing fits, search for less or take all sorts"
    assert one(driver, "#detail").text == ""
    one(driver, "#search").clear()
    one(driver, "#search").send_keys(" ")
    for chip in all_of(driver, "#sorts button"):
        chip.click()
        assert chip.get_attribute("aria-pressed") == "true"
        assert chip.text.endswith(f"({len(all_of(driver, '#list button'))})")
        name = chip.text.rpartition(" (")[0]
        assert name == "all" or name in one(driver, ".facts").text
    assert driver.get_log("browser") == []


def test_tokens_tell_by_mouse_and_by_keyboard(driver: Any, page: Path):
    from selenium.webdriver import ActionChains, Keys

    opened(driver, page)
    box = one(driver, ".tokens")
    ActionChains(driver).move_to_element(box.find_elements("css selector", "span")[2]).perform()
    assert "logprob −" in tip(driver)
    assert "rank " in tip(driver)
    assert tip(driver).split("most likely here:\n")[1].count("\n") == 2
    driver.execute_script("arguments[0].focus()", box)
    seen: list[str] = []
    for key in (Keys.HOME, Keys.ARROW_RIGHT, Keys.ARROW_RIGHT, Keys.END, Keys.ARROW_LEFT):
        box.send_keys(key)
        seen.append(driver.execute_script("return arguments[0].querySelector('.at').dataset.index", box))
        assert "logprob " in tip(driver)
    assert seen == ["0", "1", "2", "11", "10"]
    box.send_keys(Keys.ESCAPE)
    assert tip(driver) == ""


def test_the_list_goes_by_arrow_keys(driver: Any, page: Path):
    from selenium.webdriver import Keys

    opened(driver, page)
    buttons = all_of(driver, "#list button")
    buttons[0].click()
    buttons[0].send_keys(Keys.ARROW_DOWN)
    assert driver.switch_to.active_element == buttons[1]
    key, _, sample = buttons[1].text.split("\n")[0].partition(" · ")
    assert one(driver, "#detail h3").text.endswith(f" · {sample} · key {key}")
    assert [button.get_attribute("aria-current") for button in buttons[:2]] == ["false", "true"]


def test_charts_tell_and_links_lead(driver: Any, page: Path):
    opened(driver, page)
    bars = all_of(driver, ".chart [aria-roledescription='rect mark']")
    tall = max(bars, key=lambda bar: bar.size["height"] * bar.size["width"])
    driver.execute_script("arguments[0].dispatchEvent(new MouseEvent('mouseenter'))", tall)
    assert tip(driver) == tall.get_attribute("aria-label")
    for link in all_of(driver, "nav a"):
        link.click()
        assert driver.execute_script("return document.querySelector(location.hash) !== null")
    for summary in all_of(driver, "section > details > summary"):
        summary.click()
        assert driver.execute_script("return arguments[0].parentElement.open", summary)


def test_on_paper_nothing_is_cut(driver: Any, page: Path):
    opened(driver, page, 760, "dark")
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print", "features": []})
    assert driver.execute_script("return getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not one(driver, "nav").is_displayed()
    assert driver.execute_script(CUT_OFF) == []
    found = driver.execute_script(CONTRASTS)
    assert [text for ratio, text in found if ratio < 4.5] == []
