"""The page in a real browser: at three widths, by light and by dark, pointed at, clicked, with the keyboard and without
scripts.

The photographs are kept in the directory that TFFCL_SCREENSHOTS names, to be looked at.
"""

import json
import os
import pathlib
import shutil

import numpy as np
import pytest

from tests.lab.reporting.browser import CHROMIUM, Browser
from tests.lab.reporting.conftest import write_run
from tffcl.lab.reporting.report import write_report

WIDTHS = (390, 768, 1280)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium; apt-get install chromium"),
]
# Panels whose texts cover each other, and those that leave their picture; ticks of one axis are the likely ones.
OVERLAPS = """[...document.querySelectorAll('svg.panel')].flatMap((svg) => {
  const boxes = [...svg.querySelectorAll('text')].map((text) => [text.textContent, text.getBoundingClientRect()]);
  return boxes.flatMap(([said, a], place) => boxes.slice(place + 1)
    .filter(([, b]) => a.left < b.right - 1 && b.left < a.right - 1
      && a.top + 3 < b.bottom - 3 && b.top + 3 < a.bottom - 3)
    .map(([other]) => `${said} | ${other}`));
})"""
SMALLEST_TEXT = """Math.min(...[...document.querySelectorAll('svg.panel text')].map((text) =>
  parseFloat(getComputedStyle(text).fontSize) * text.closest('svg').getBoundingClientRect().width
    / text.closest('svg').viewBox.baseVal.width))"""
# Contrast (WCAG 2) of the colour of every kind of text and of every line's colour with the page behind it.
CONTRASTS = """(() => {
  const paint = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
  const luminance = (color) => {
    paint.fillStyle = color; paint.fillRect(0, 0, 1, 1);
    const parts = [...paint.getImageData(0, 0, 1, 1).data.slice(0, 3)].map((part) => part / 255)
      .map((part) => part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2];
  };
  const paper = luminance(getComputedStyle(document.body).backgroundColor);
  const ratio = (color) => { const [a, b] = [luminance(color), paper].sort();
    return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05); };
  const style = getComputedStyle(document.documentElement);
  const own = (name) => ratio(style.getPropertyValue(`--${name}`).trim());
  return { text: ['ink', 'soft', 'link'].map(own),
    marks: ['c0', 'c1', 'c2', 'c3', 'c4', 'c5', 'c6', 'c7', 'grey'].map(own) };
})()"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    found = Browser(tmp_path_factory.mktemp("profile"))
    yield found
    found.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory, comparison_path, finished_run):
    """The pages of a comparison of four methods, with images and newcomers, and of one run; by name."""
    path = tmp_path_factory.mktemp("pages")
    shutil.copytree(comparison_path, path / "comparison")
    for method in ("a_method_with_quite_a_long_name", "ifca"):
        for seed in (0, 10):
            write_run(path / "comparison" / method / f"seed-{seed}", method, seed)
    for summary in (path / "comparison").glob("*/seed-*/summary.json"):
        rng = np.random.default_rng(0)
        images = rng.integers(0, 256, (30, 8, 8, 1), dtype=np.uint8)
        np.savez(
            summary.parent / "samples.npz", images=images, labels=np.arange(30) % 10, clusters=np.repeat(range(3), 10)
        )
    shutil.copytree(finished_run, path / "run")
    return {name: write_report(path / name) for name in ("comparison", "run")}


def keep(browser: Browser, name: str, **how):
    """Writes a photograph where one is asked for, and checks that there is something on it."""
    data = browser.photograph(**how)
    assert len(data) > 30_000
    if os.environ.get("TFFCL_SCREENSHOTS"):
        folder = pathlib.Path(os.environ["TFFCL_SCREENSHOTS"])
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.png").write_bytes(data)


@pytest.mark.parametrize("width, dark", [*((width, False) for width in WIDTHS), (WIDTHS[-1], True)])
@pytest.mark.parametrize("name", ["comparison", "run"])
def test_nothing_is_cut_off_or_unreadable(browser, pages, name, width, dark):
    browser.open(pages[name], width=width, dark=dark)
    assert browser.run("document.documentElement.scrollWidth") <= width
    assert browser.run(OVERLAPS) == []
    assert browser.run(SMALLEST_TEXT) >= 9.5
    found = browser.run(CONTRASTS)
    assert min(found["text"]) >= 4.5 and min(found["marks"]) >= 3, found
    paper = browser.run("getComputedStyle(document.body).backgroundColor")
    assert paper == ("rgb(22, 24, 28)" if dark else "rgb(255, 255, 255)")
    keep(browser, f"{name}-{width}-{'dark' if dark else 'light'}")
    assert browser.errors == []


def test_a_screen_shows_the_rand_index_and_a_phone_one_panel_a_row(browser, pages):
    browser.open(pages["comparison"], width=1280)
    heads = "[...document.querySelectorAll('#result table thead th[scope=col]')]"
    ari = f"{heads}.find((head) => head.textContent.startsWith('ARI')).getBoundingClientRect().right"
    assert browser.run(ari) <= 1280
    assert browser.run(
        "(({ scrollWidth, clientWidth }) => scrollWidth <= clientWidth)(document.querySelector('#result .wide'))"
    )
    columns = """new Set([...document.querySelectorAll('figure[data-name=accuracy] .panel')]
      .map((panel) => Math.round(panel.getBoundingClientRect().left))).size"""
    panels = browser.run("document.querySelectorAll('figure[data-name=accuracy] .panel').length")
    assert browser.run(columns) == panels == 3
    used = """(() => { const page = document.querySelector('main').getBoundingClientRect().width;
      return [...document.querySelectorAll('figure.broad .panels')].map((all) => {
        const edges = [...all.children].map((panel) => panel.getBoundingClientRect());
        const [left, right] = [edges.map((each) => each.left), edges.map((each) => each.right)];
        return (Math.max(...right) - Math.min(...left)) / page; }); })()"""
    shares = browser.run(used)
    assert len(shares) > 3 and min(shares) > 0.9, "two, three or four panels take the page's width"
    browser.open(pages["comparison"], width=390)
    assert browser.run(columns) == 1
    # A long name leaves room for the first accuracy.
    assert browser.run("document.querySelector('#result tbody td:nth-child(3)').getBoundingClientRect().right") < 330
    # The clusters are blocks there, each number with its name before it.
    cell = "getComputedStyle(document.querySelector('table.stacked td'), '::before').content"
    assert browser.run(cell) == '"clients"'


def test_tables_are_sorted_by_click_and_by_key_and_back(browser, pages):
    browser.open(pages["comparison"], width=1280)
    rows = "[...document.querySelectorAll('#result table')][0].tBodies[0]"
    names = f"[...{rows}.rows].map((row) => row.cells[0].textContent)"
    values = f"[...{rows}.rows].map((row) => Number(row.cells[2].dataset.value))"
    head = "[...document.querySelectorAll('#result table thead th[scope=col]')][2]"
    asked = browser.run(names)
    browser.run(f"{head}.querySelector('button').click()")
    assert browser.run(f"{head}.getAttribute('aria-sort')") == "descending"
    found = browser.run(values)
    assert found == sorted(found, reverse=True) and len(set(found)) > 1
    browser.run(f"{head}.querySelector('button').focus()")
    browser.press("Enter", 13, "\r")
    assert browser.run(f"{head}.getAttribute('aria-sort')") == "ascending"
    assert browser.run(values) == sorted(found)
    browser.press(" ", 32, " ")
    assert browser.run(f"{head}.getAttribute('aria-sort')") == "none" and browser.run(names) == asked
    # A dash comes last, whichever way.
    other = "[...document.querySelectorAll('#result table thead th[scope=col]')][4]"
    for _ in range(2):
        browser.run(f"{other}.querySelector('button').click()")
        assert browser.run(f"[...{rows}.rows].map((row) => row.cells[4].textContent)")[-1] == "–"
    assert browser.errors == []


def test_values_are_said_where_the_pointer_is(browser, pages):
    browser.open(pages["comparison"], width=1280)
    svg = "document.querySelector('figure[data-name=accuracy] svg')"
    browser.run(f"{svg}.scrollIntoView({{ block: 'center' }})")
    box = browser.run(
        f"(({{ left, top, width, height }}) => [left, top, width, height])({svg}.getBoundingClientRect())"
    )
    hover = json.loads(browser.run(f"{svg}.dataset.hover"))
    left, top, width, _ = map(float, browser.run(f"{svg}.getAttribute('viewBox')").split())
    scale = box[2] / width
    browser.move(box[0] + scale * (hover["box"][2] - 2 - left), box[1] + scale * (hover["box"][1] + 90 - top))
    said = browser.run("document.getElementById('tip').innerText")
    keep(browser, "hover-lines", whole=False)
    assert said.startswith("round 5")
    for line in hover["lines"]:
        x, mean, std = line["points"][-1]
        assert x == 5 and line["name"] in said and f"{mean:.2f} ± {std:.2f}" in said
    # The arrow keys go through the rounds.
    browser.run(f"{svg}.focus()")
    browser.press("ArrowLeft", 37)
    assert browser.run("document.getElementById('tip').innerText").startswith("round 3")
    # A run that is switched off is neither drawn nor said.
    browser.run("document.getElementById('run-0').click()")
    assert browser.run("getComputedStyle(document.querySelector('.line.run-0')).display") == "none"
    browser.press("ArrowLeft", 37)
    said = browser.run("document.getElementById('tip').innerText")
    assert said.startswith("round 1") and hover["lines"][0]["name"] not in said and hover["lines"][1]["name"] in said
    keep(browser, "switched-off", whole=False)
    assert browser.errors == []


def test_a_matrix_says_its_entries(browser, pages, population):
    browser.open(pages["run"], width=768)
    image = "document.querySelector('figure[data-name=proximity] image[data-hover]')"
    browser.run(f"{image}.scrollIntoView({{ block: 'center' }})")
    left, top, width, height = browser.run(
        f"(({{ left, top, width, height }}) => [left, top, width, height])({image}.getBoundingClientRect())"
    )
    count = len(population.labels)
    # The middle of the entry in the second row and the last column.
    browser.move(left + width - width / count / 2, top + 1.5 * height / count)
    said = browser.run("document.getElementById('tip').innerText")
    keep(browser, "hover-matrix", whole=False)
    rows = json.loads(browser.run(f"{image}.dataset.hover"))["rows"]
    assert said.startswith(f"{rows[1]} · {rows[-1]}: ") and said.endswith(" degrees")
    one, other = (int(name.removeprefix("client-")) for name in (rows[1], rows[-1]))
    between = population.proximity[~np.eye(count, dtype=bool)]
    value = float(said.split(": ")[1].split()[0])
    assert value == pytest.approx(population.proximity[one, other], abs=np.ptp(between) / 200)


def test_without_scripts_the_page_is_there(browser, pages):
    browser.open(pages["comparison"], width=768, scripts=False)
    keep(browser, "without-scripts")
    # The script takes the titles of marks for its own box, and makes buttons of heads; without it there are titles and
    # no buttons.
    assert browser.run("document.querySelectorAll('svg.panel title').length") > 100
    assert browser.run("document.querySelectorAll('button, [aria-sort]').length") == 0
    assert browser.run("document.documentElement.scrollWidth") <= 768
    # Switches are the page's style alone.
    browser.run("document.getElementById('run-1').click()")
    assert browser.run("getComputedStyle(document.querySelector('.line.run-1')).display") == "none"
