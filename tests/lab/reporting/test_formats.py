"""Tables as Markdown and LaTeX, figures as SVG and PDF."""

import re
import shutil

import pytest

from tests.lab.cli.test_cli import fails
from tffcl.lab.reporting import comparison_table
from tffcl.lab.reporting.batch_index import Failure
from tffcl.lab.reporting.report import write_report


def test_markdown_has_the_cells_of_the_text(rows):
    head, rule, *lines = comparison_table.to_table(rows).to_markdown().strip().split("\n")
    assert head.startswith("| method | seeds | accuracy %: cluster |")
    columns = head.count("|")
    assert {line.count("|") for line in (rule, *lines)} == {columns}
    assert [line.split("|")[1].strip() for line in lines] == ["fedavg", "pacfl"]
    stat = rows[1].stats["cluster_accuracy_percent"]
    assert f"| {stat.mean:.2f} ± {stat.std:.2f} |" in lines[1]


def test_latex_escapes_and_has_as_many_cells_in_every_line(rows):
    odd = comparison_table.Row("my_method & 50 %", (), rows[0].stats, (Failure("my_method", 0, "diverged", True),))
    text = comparison_table.to_table([*rows, odd]).to_latex()
    assert r"my\_method \& 50 \%" in text and r"$\pm$" in text and "% my_method seed 0 failed: diverged" in text
    lines = [line for line in text.split("\n") if line.endswith(r"\\")]
    wanted = len(re.search(r"\\begin\{tabular\}\{(\w+)\}", text)[1])
    for line in lines:
        assert len(re.findall(r"(?<!\\)&", line)) == wanted - 1
    assert len(lines) == 1 + 3


@pytest.mark.slow
def test_a_report_in_all_formats(comparison_path, tmp_path):
    path = tmp_path / "comparison"
    shutil.copytree(comparison_path / "fedavg", path / "fedavg")
    write_report(path, ["md", "latex", "svg", "pdf"])
    drawn = {file.stem for file in (path / "figures").glob("*.png")}
    assert len(drawn) > 3
    found = {file.name: file.read_bytes() for file in (path / "figures").iterdir()}
    for ending, start in (("svg", b"<?xml"), ("pdf", b"%PDF")):
        assert {name.removesuffix(f".{ending}") for name in found if name.endswith(ending)} == drawn
        assert all(data.startswith(start) for name, data in found.items() if name.endswith(ending))
    assert (path / "table.md").read_text().startswith("| method") and (path / "table.tex").read_text().startswith(
        r"\begin"
    )
    assert (path / "table.csv").is_file()


@pytest.mark.slow  # draws every figure four times
def test_figures_drawn_again_are_the_same(comparison_path, tmp_path):
    path, drawn = shutil.copytree(comparison_path, tmp_path / "comparison"), []
    for _ in range(2):
        write_report(path, ["svg", "pdf"])
        drawn.append({file.name: file.read_bytes() for file in (path / "figures").iterdir()})
    assert drawn[0] == drawn[1]


def test_an_unknown_format_is_one_line(capsys, comparison_path):
    message = fails(capsys, "report", str(comparison_path), "--format", "csv,tex")
    assert "unknown format 'tex'; did you mean" in message and "csv, latex, md, pdf, png, svg" in message
