"""One table in all its forms."""

import csv
import io
import math

from tffcl.lab.reporting.number_format import Stat
from tffcl.lab.reporting.table import Cell, Column, Table
from tffcl.runs.metrics import BY_KEY

TABLE = Table(
    [
        Column("method"),
        Column.of(BY_KEY["cluster_accuracy"]),
        Column.of(BY_KEY["ari"]),
        Column.of(BY_KEY["up_bytes"], header="sent"),
    ],
    [
        ["=a|b", Stat.of([50, 52]), Stat.of([math.nan]), Stat.of([1200, 1200])],
        ["a_b <i>", Stat.of([7]), Stat.of([]), Stat.of([3])],
    ],
    notes=["a_b failed: <no>"],
    spread=("std", "stderr"),
)


def test_text_has_titles_over_groups_and_puts_below_what_does_not_fit():
    wide, narrow = TABLE.to_text().split("\n"), TABLE.to_text(width=44).split("\n")
    assert [line.split() for line in wide[:3]] == [
        ["accuracy", "%", "-", "clusters", "traffic"], ["method", "cluster", "ARI", "sent"],
        ["=a|b", "51.00", "±", "1.41", "–", "1.20", "kB"],
    ]  # fmt: skip
    assert len({len(line) for line in wide[1:4]}) == 1 and wide[-1] == "a_b failed: <no>"
    assert [line.split()[0] for line in narrow if line.startswith("method")] == ["method"] * 2
    assert max(map(len, narrow)) <= 44


def test_markdown_and_latex_escape():
    head, rule, first, second, _, note = TABLE.to_markdown().rstrip("\n").split("\n")
    assert head == "| method | accuracy %: cluster | clusters: ARI | traffic: sent |" and rule == "|---|---:|---:|---:|"
    assert first == "| =a\\|b | 51.00 ± 1.41 | – | 1.20 kB |" and second.startswith("| a_b &lt;i> | 7.00 | – |")
    assert note == "a_b failed: &lt;no>"
    latex = TABLE.to_latex()
    assert "a\\_b" in latex and "51.00 $\\pm$ 1.41" in latex and "{lrrr}" in latex and "accuracy \\%: cluster" in latex
    assert latex.endswith("% a_b failed: <no>\n")


def test_csv_has_numbers_and_no_formula():
    first, second = csv.DictReader(io.StringIO(TABLE.to_csv()))
    assert (
        first["method"] == "'=a|b"
        and first["ari"] == first["ari_std"] == ""
        and second["cluster_accuracy_percent_std"] == ""
    )
    assert (first["cluster_accuracy_percent"], first["cluster_accuracy_percent_stderr"]) == ("51", "1") and first[
        "up_bytes"
    ] == "1200"
    assert Table.of(["a", "b"], [[-1.5, None], ["-1", True]]).to_csv() == "a,b\n-1.5,\n'-1,true\n"


def test_what_nobody_has_is_left_out():
    assert TABLE.without_empty().heads == ["method", "cluster", "sent"]
    assert TABLE.groups == [("", 1), ("accuracy %", 1), ("clusters", 1), ("traffic", 1)]
    nothing = Table.of(["a"], [], notes=["nobody < a"])
    assert nothing.groups == [] and nothing.without_empty().heads == ["a"]
    assert nothing.to_text() == "nobody < a" and nothing.to_markdown() == "\nnobody &lt; a\n"


def test_a_cell_is_sorted_by_its_number():
    assert [cell.sorted_by for cell in TABLE.cells[0]] == [None, "51.0", "", "1200.0"]
    assert Cell("5").sorted_by is None and Cell("–", None).sorted_by == ""
