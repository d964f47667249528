"""README and docs: short, their links lead somewhere, and the commands, methods and pages that they name are there."""

import pathlib
import re
import tomllib

import pytest

from tffcl import registry
from tffcl.lab.cli.listing import _parsers
from tffcl.lab.cli.main import build_parser
from tffcl.lab.reporting import league_table, study_results
from tffcl.lab.tasks import task_file

ROOT = pathlib.Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [ROOT / "README.md", *sorted((ROOT / "tffcl" / "docs").glob("*.md"))]


@pytest.fixture(scope="module")
def league():
    return study_results.read_study(ROOT / "tasks" / "results" / "league")


def commands():
    return {parser.prog.removeprefix("tffcl ") for parser in _parsers(build_parser())} - {"tffcl"}


def test_it_is_short():
    assert len(README.splitlines()) <= 150


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_links_and_files_are_there(page):
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#:=]+)\)|src=\"([^\"]+)\"", text):
        assert (page.parent / "".join(target)).exists(), target
    for name in re.findall(r"`((?:tests|tffcl/docs|docs|notebooks|tasks|tffcl/install|install)/[\w./]+\.\w+)`", text):
        assert (ROOT / name).exists(), name


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_what_stands_there_in_a_language_can_be_read(page):
    blocks = re.findall(r"^```(\w+)\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    for language, block in blocks:
        {"python": lambda text: compile(text, page.name, "exec"), "toml": tomllib.loads}[language](block)


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_commands_and_options_are_there(page):
    options = {parser.prog: set(parser._option_string_actions) for parser in _parsers(build_parser())}
    lines = re.findall(r"(?:^|`)(tffcl [^`\n]*)", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert lines or page.stem in ("privacy", "own_data", "own_parts", "robustness", "callbacks")
    for line in lines:
        words = line.split()
        if words[1] in ("...", "--print-completion", "COMMAND"):
            continue
        assert words[1] in commands(), line
        known = options[f"tffcl {words[1]}"]
        assert not {word for word in re.findall(r"(?<![\w-])--[a-z-]+", line.partition("#")[0])} - known, line


def test_the_table_of_commands_is_whole():
    page = (ROOT / "tffcl" / "docs" / "experiments.md").read_text(encoding="utf-8")
    table = page[page.index("| command | does |") :].split("\n\n")[0]
    assert {name for name in re.findall(r"`tffcl (\w+)", table)} == commands()


def test_what_the_table_of_methods_says_is_what_the_league_found(league):
    """Who is named in the first four rows is above FedAvg beyond chance, the best ones of the first column first."""
    settings = {
        "P(X):": ("FMNIST, P(X)", "MNIST, four rotations, 400 clients"),
        "P(Y) |": ("FMNIST, P(Y)", "FMNIST, two labels a client"),
        "P(Y\\|X)": ("FMNIST, P(Y|X)", "Clinics that name opposite"),
        "P(X\\|Y)": ("FMNIST, P(X|Y)",),
    }
    ranked = league_table.league_rows(league)
    table = README[README.index("| what differs") :].split("\n\n")[0]
    for kind, columns in settings.items():
        (row,) = [line for line in table.splitlines() if kind in line]
        named, above = re.findall(r"`(\w+)`", re.split(r"(?<!\\)\|", row)[2]), []
        for column in columns:
            rows = [each for each in ranked[column] if each.above_baseline.mean > 0]
            above.append([each.result.noted["method"] for each in rows if each.is_beyond_chance])
        assert set(named) <= set().union(*above), kind
        first = [name for name in named if name in above[0]]
        assert first == sorted(first, key=above[0].index), kind


def test_what_the_readme_says_of_the_league_can_be_counted(league):
    words = r"(\d+) methods, the true groups among them,\s+on (\d+) settings.*?; (\d+) of ([\d,]+) runs diverged"
    told = [int(each.replace(",", "")) for each in re.search(words, README, re.DOTALL).groups()]
    run = [each for each in league.results if each.seeds or each.failures]
    methods, settings = ({each.noted[key] for each in run} for key in ("method", "column"))
    runs = [*(ROOT / "tasks" / "results" / "league").glob("*/*/seed-*")]
    failed = [path for path in runs if (path / "failed.json").is_file()]
    assert told == [len(methods), len(settings), len(failed), len(runs)]


def test_methods_and_tasks_are_there():
    table = README[README.index("| what differs") :].split("\n\n")[0]
    named = set(re.findall(r"`(\w+)`", table)) - {"local"}
    assert len(named) > 12 and not named - set(registry.ALGORITHMS)
    assert set(registry.ALGORITHMS) <= set(re.findall(r"`(\w+)`", README)), "every method is named"
    used = re.findall(r"tffcl (?:run|compare|show|similarity|sweep) ([a-z]\w+)", " ".join(p.read_text() for p in PAGES))
    assert used and not set(used) - set(task_file.task_names()) - {"my_task"}
