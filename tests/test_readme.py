"""README and docs: short, their links lead somewhere, and the commands, methods and pages that they name are there."""

import pathlib
import re

import pytest

from tffcl import registry
from tffcl.lab.cli.listing import _parsers
from tffcl.lab.cli.main import build_parser
from tffcl.lab.tasks import task_file

ROOT = pathlib.Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [ROOT / "README.md", *sorted((ROOT / "tffcl" / "docs").glob("*.md"))]


def commands():
    return {parser.prog.removeprefix("tffcl ") for parser in _parsers(build_parser())} - {"tffcl"}


def test_it_is_short():
    assert len(README.splitlines()) < 200


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_links_and_files_are_there(page):
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#:=]+)\)|src=\"([^\"]+)\"", text):
        assert (page.parent / "".join(target)).exists(), target
    for name in re.findall(r"`((?:tests|tffcl/docs|docs|notebooks|tasks|tffcl/install|install)/[\w./]+\.\w+)`", text):
        assert (ROOT / name).exists(), name


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_commands_and_options_are_there(page):
    options = {parser.prog: set(parser._option_string_actions) for parser in _parsers(build_parser())}
    lines = re.findall(r"(?:^|`)(tffcl [^`\n]*)", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert lines or page.stem in ("privacy", "own_data", "own_parts", "robustness")
    for line in lines:
        words = line.split()
        if words[1] in ("...", "--print-completion", "COMMAND"):
            continue
        assert words[1] in commands(), line
        known = options[f"tffcl {words[1]}"]
        assert not {word for word in re.findall(r"(?<![\w-])--[a-z-]+", line.partition("#")[0])} - known, line


def test_the_table_of_commands_is_whole():
    table = README[README.index("| command | does |") :].split("\n\n")[0]
    assert {name for name in re.findall(r"`tffcl (\w+)", table)} == commands()


def test_methods_and_tasks_are_there():
    table = README[README.index("| what differs") :].split("\n\n")[0]
    named = set(re.findall(r"`(\w+)`", table)) - {"local"}
    assert len(named) > 12 and not named - set(registry.ALGORITHMS)
    assert set(registry.ALGORITHMS) <= set(re.findall(r"`(\w+)`", README)), "every method is named"
    used = re.findall(r"tffcl (?:run|compare|show|similarity|sweep) ([a-z]\w+)", " ".join(p.read_text() for p in PAGES))
    assert used and not set(used) - set(task_file.task_names()) - {"my_task"}
