"""The numbers of the comparison table, held against plain statistics over the summaries."""

import csv
import dataclasses
import io
import json
import math

import numpy as np
import pytest

from tffcl.lab.reporting import batch_index, comparison_table
from tffcl.lab.reporting.number_format import Stat, human_bytes, human_time, show_bytes, show_number, show_stat


def summaries(path, method) -> list[dict]:
    return [json.loads((path / method / f"seed-{seed}" / "summary.json").read_text()) for seed in (0, 10)]


def test_one_row_a_method(rows):
    assert [(row.algorithm, row.seeds) for row in rows] == [("fedavg", (0, 10)), ("pacfl", (0, 10))]


@pytest.mark.parametrize(
    ("key", "group", "name", "scale"),
    [
        ("cluster_accuracy_percent", "cluster", "mean", 100),
        ("cluster_variance_percent2", "cluster", "variance", 10_000),
        ("cluster_worst_decile_percent", "cluster", "worst_decile", 100),
        ("local_accuracy_percent", "local", "mean", 100),
        ("local_variance_percent2", "local", "variance", 10_000),
        ("local_worst_decile_percent", "local", "worst_decile", 100),
        ("local_trained_percent", "local", "share", 100),
    ],
)
def test_accuracies_are_mean_and_sample_deviation_over_seeds_in_percent(comparison_path, rows, key, group, name, scale):
    for row in rows:
        values = scale * np.array([each["accuracy"][group][name] for each in summaries(comparison_path, row.algorithm)])
        assert row.stats[key].mean == pytest.approx(np.mean(values))
        assert row.stats[key].std == pytest.approx(np.std(values, ddof=1))
        assert row.stats[key].count == 2


def test_the_means_are_those_of_the_clients(comparison_path, rows):
    for row in rows:
        means = []
        for run in (each for each in batch_index.find_runs(comparison_path) if each.method == row.algorithm):
            means.append(100 * np.nanmean(run.clients.local_accuracy))
        assert row.stats["local_accuracy_percent"].mean == pytest.approx(np.mean(means))


def test_what_a_method_lacks(rows):
    fedavg, pacfl = rows
    assert fedavg.stats["global_accuracy_percent"].count == 2
    assert pacfl.stats["global_accuracy_percent"].count == 0
    assert math.isnan(pacfl.stats["global_accuracy_percent"].mean)
    assert fedavg.stats["signature_bytes"].count == 0
    column = next(each for each in comparison_table.COLUMNS if each.name == "global_accuracy_percent")
    table = comparison_table.to_table([dataclasses.replace(fedavg, seeds=(0, 10, 20))])  # one of which has none
    assert f"{column.cell(fedavg.stat(column)).text} (2 of 3)" in table.to_text()


def test_costs_and_clusters(rows):
    pacfl = rows[1].stats
    assert (pacfl["clusters"].mean, pacfl["clusters"].std) == (3, 0)
    assert pacfl["signature_bytes"].mean == 9216
    assert pacfl["seconds"].mean == pytest.approx((12.5 + 22.5) / 2)
    assert pacfl["seconds"].std == pytest.approx(10 / math.sqrt(2))


@pytest.mark.parametrize("width", [80, 100, 120])
def test_text_is_aligned_and_fits(rows, width):
    text = comparison_table.to_table(rows).to_text(width)
    for block in text.split("\n\n"):
        lines = block.split("\n")
        assert max(map(len, lines)) <= width
        over, names, *methods = lines
        assert [line.split()[0] for line in (names, *methods)] == ["method", "fedavg", "pacfl"]
        # Numbers end where the titles of their columns end.
        for line in methods:
            assert len(line) == len(names)
        assert over.strip()


def test_text_shows_each_number_once(rows):
    text = comparison_table.to_table(rows).to_text()
    for row in rows:
        stat = row.stats["cluster_accuracy_percent"]
        assert text.count(f"{stat.mean:.2f} ± {stat.std:.2f}") == 1
    assert "4.32 MB" in text
    assert "9.22 kB" in text
    # Two dashes in a row of their own: no global accuracy for pacfl, no signatures for fedavg.
    assert text.count("–") == 2
    assert "*" not in text


def test_one_seed_has_no_deviation(comparison_path):
    rows = comparison_table.comparison_rows(batch_index.find_runs(comparison_path / "pacfl" / "seed-0"))
    text = comparison_table.to_table(rows).to_text()
    assert "±" not in text
    assert f"{100 * summaries(comparison_path, 'pacfl')[0]['accuracy']['cluster']['mean']:.2f}" in text
    assert math.isnan(rows[0].stats["cluster_accuracy_percent"].std)


def test_csv_has_plain_numbers(rows):
    lines = list(csv.DictReader(io.StringIO(comparison_table.plain_table(rows).to_csv())))
    assert [(line["algorithm"], line["seeds"]) for line in lines] == [("fedavg", "2"), ("pacfl", "2")]
    for line, row in zip(lines, rows, strict=True):
        for key, stat in row.stats.items():
            assert line[f"{key}_count"] == str(stat.count)
            if stat.count:
                assert float(line[key]) == pytest.approx(stat.mean, rel=1e-9)
                assert float(line[f"{key}_std"]) == pytest.approx(stat.std, rel=1e-9, abs=1e-9)
                assert float(line[f"{key}_stderr"]) == pytest.approx(stat.std / 2**0.5, rel=1e-9, abs=1e-9)
            else:
                assert (line[key], line[f"{key}_std"]) == ("", "")


def test_a_label_is_neither_a_formula_nor_a_tag_nor_a_line(rows):
    odd = [dataclasses.replace(rows[0], algorithm="=1+1|<svg onload=x>\n# a")]
    assert (
        "\n'=1+1|<svg onload=x>" not in (csv_text := comparison_table.plain_table(odd).to_csv())
        and '"\'=1+1|<svg onload=x>\n# a"' in csv_text
    )
    head, bar, line = comparison_table.to_table(odd).to_markdown().strip().splitlines()
    assert line.startswith("| =1+1\\|&lt;svg onload=x>\\n# a |")


def test_the_page_has_a_cell_for_each_column_that_has_a_number(rows):
    groups = (*comparison_table.RESULT_GROUPS, *comparison_table.FURTHER_GROUPS)
    table = comparison_table.page_table(rows, groups)
    columns = [each for group in groups for each in comparison_table.COLUMNS if each.group == group]
    columns = [each for each in columns if any(row.stats[each.name].count for row in rows)]
    assert list(table.heads) == ["method", "seeds", *(each.header for each in columns)]
    assert sum(span for _, span in table.groups) == len(table.heads)
    of_numbers = [dataclasses.replace(row, stats={}) for row in rows]  # as of a regression, which has no accuracy
    assert comparison_table.page_table(of_numbers, groups).heads == ["method", "seeds"]
    for row, cells in zip(rows, table.cells, strict=True):
        assert [cells[0].text, cells[1].text] == [row.algorithm, "2"]
        for column, cell in zip(columns, cells[2:], strict=True):
            stat = row.stats[column.name]
            assert cell.text == show_stat(stat, column.metric.digits)
            # What it is sorted by is the mean alone; a dash has none, and comes last.
            assert cell.sorted_by == (str(stat.mean) if stat.count else "")


def test_trained_is_no_accuracy(rows):
    head, *_ = comparison_table.to_table(rows).to_markdown().split("\n")
    assert "| clients %: trained |" in head and "accuracy %: trained" not in head
    groups = {column.header: column.group for column in comparison_table.COLUMNS if column.group == "accuracy %"}
    assert set(groups) == {"cluster", "local", "global"}


def test_the_legend_explains_each_column_of_the_page():
    terms = ", ".join(term for term, _ in comparison_table.LEGEND).split(", ")
    texts = " ".join(text for _, text in comparison_table.LEGEND)
    shown = comparison_table.RESULT_GROUPS + comparison_table.FURTHER_GROUPS
    for each in comparison_table.COLUMNS:
        named = each.header in terms or each.group in terms or f"“{each.header}”" in texts
        assert named or each.group not in shown, each


def test_the_legend_explains_the_three_accuracies():
    text = "\n".join(f"{name}: {words}" for name, words in comparison_table.LEGEND)
    for start in ("cluster: The model that the method assigns", "local: A client's own model after its last local"):
        assert start in text
    assert "global: One model on the union of all test data" in text
    assert "ddof = 1" in text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"), (999, "999 B"), (999.6, "1.00 kB"), (1234, "1.23 kB"), (12_345, "12.3 kB"), (123_456, "123 kB"),
        (999_499, "999 kB"), (999_500, "1.00 MB"), (9_996_000, "10.0 MB"), (99_960_000, "100 MB"), (4.5e9, "4.50 GB"),
    ],
)  # fmt: skip
def test_bytes_have_three_digits(count, text):
    assert human_bytes(count) == text


def test_times_are_as_people_say_them():
    shown = [human_time(seconds) for seconds in (89, 90, 5399, 5400, 12_600)]
    assert shown == ["89 s", "2 min", "90 min", "1.5 h", "3.5 h"]


def test_deviations_have_the_unit_of_their_mean():
    assert show_bytes(Stat.of([1_200_000, 1_300_000])) == "1.25 ± 0.07 MB"
    assert show_bytes(Stat.of([1_200_000, 1_200_000])) == "1.20 MB"
    assert show_number(Stat.of([1, 2, math.nan]), 1) == "1.5 ± 0.7"
    assert show_number(Stat.of([math.nan]), 1) == "–"
