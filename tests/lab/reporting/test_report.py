"""The whole report: what is written, that the page stands alone, and that what it is told is text to it."""

import base64
import dataclasses
import hashlib
import html.parser
import itertools
import json
import re
import shutil
import struct

import numpy as np
import pytest

from tests.conftest import BLANK
from tests.runs.finished_runs import rows_of
from tffcl.errors import UserError
from tffcl.lab.reporting import batch_index, comparison_table, report_figures
from tffcl.lab.reporting.batch_index import write_index
from tffcl.lab.reporting.comparison_table import notes_of
from tffcl.lab.reporting.html import render
from tffcl.lab.reporting.report import write_report
from tffcl.runs import run_files

RUN_FIGURES = {"accuracy", "progress", "traffic", "clients", "sizes", "labels", "proximity", "dendrogram"}
NEWCOMERS = {
    "newcomers": 2,
    "accuracy": {"cluster": {"mean": 0.9125, "worst_decile": 0.9}, "local": {"mean": 0.885, "worst_decile": 0.8}},
    "clusters": {"founded": 1, "ari": 0.5},
    "task": "digits",
    "algorithm": "pacfl",
    "seed": 0,
    "clients": [
        {
            "client_id": 7,
            "true_cluster": 2,
            "cluster": 1,
            "founded": True,
            "examples": 30,
            "test_examples": 10,
            "cluster_accuracy": 1.0,
            "local_accuracy": None,
        }
    ],
}
LOADING = {"src", "srcset", "href", "data", "action", "poster", "background"}


class Page(html.parser.HTMLParser):
    """The elements of a page, and its text."""

    def __init__(self, path):
        super().__init__()
        self.elements, self.text, self.open = [], "", []
        self.source = path.read_text(encoding="utf-8")
        self.feed(self.source)

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in {"meta", "img", "br", "input", "wbr"}:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open[-1:] not in (["script"], ["style"]):
            self.text += data

    def all(self, tag) -> list[dict]:
        return [attributes for name, attributes in self.elements if name == tag]


def write_panels(path):
    """The report of a directory with the panels of its page; of its PNGs, which take longest, `test_a_run` looks at
    those of a run.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report_figures, "to_png", lambda figure: BLANK)
        return write_report(path)


@pytest.fixture(scope="module")
def comparison(comparison_path, tmp_path_factory):
    """A comparison with its report, where the tests may look but not touch."""
    path = tmp_path_factory.mktemp("report") / "out"
    shutil.copytree(comparison_path, path)
    page_without_pictures(path / "pacfl" / "seed-0")
    write_panels(path)
    return path


@pytest.fixture(scope="module")
def run_page(finished_run, tmp_path_factory):
    """The page of a run; only read by tests."""
    path = tmp_path_factory.mktemp("page") / "out"
    shutil.copytree(finished_run, path)
    assert write_report(path) == path / "report.html"
    return Page(path / "report.html"), path


def page_without_pictures(path) -> Page:
    """The page of a directory, which is made in no time where no pictures are drawn."""
    (path / "report.html").write_text(render(batch_index.find_runs(path), [], path), encoding="utf-8")
    return Page(path / "report.html")


def assert_stands_alone(page: Page) -> None:
    names = {name for name, _ in page.elements}
    assert not names & {"link", "iframe", "object", "embed", "base", "form"}
    # One script, and the page's policy lets no other run.
    (script,) = re.findall(r"<script>(.*?)</script>", page.source, re.DOTALL)
    assert page.all("script") == [{}]
    (policy,) = (each["content"] for each in page.all("meta") if each.get("http-equiv") == "Content-Security-Policy")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert policy.startswith("default-src 'none';") and policy.endswith(f"script-src 'sha256-{digest}'")
    for tag, attributes in page.elements:
        for name, value in attributes.items():
            assert not name.startswith("on")
            if (tag, name) in (("img", "src"), ("image", "href")):
                assert value.startswith("data:image/png;base64,")
            elif name in LOADING:
                assert tag == "a"
                assert not re.match(r"[a-z]+:|//", value)
    style = re.search(r"<style>(.*?)</style>", page.source, re.DOTALL)[1]
    assert "url(" not in style
    assert "@import" not in style
    assert not page.open


def test_a_run(run_page):
    page, run_path = run_page
    assert {each.stem for each in (run_path / "figures").glob("*.png")} == RUN_FIGURES
    assert not (run_path / "table.csv").exists()
    assert_stands_alone(page)
    assert {each["data-name"] for each in page.all("figure")} == RUN_FIGURES
    panels = re.findall(r"<figure.*?</figure>", page.source, re.DOTALL)
    assert all('<svg class="panel' in each and '<img class="picture"' not in each for each in panels)
    for file in (run_path / "figures").glob("*.png"):
        picture = file.read_bytes()
        width, height = struct.unpack(">II", picture[16:24])
        assert 400 < width < 1600
        assert 200 < height < 1600
        assert len(picture) > 5_000


def test_what_a_page_of_a_run_says(run_page):
    page, run_path = run_page
    run = run_files.read_run(run_path)
    for words in (
        "digits: pacfl", "Digits, three groups of labels.", "made for the tests", "train.learning_rate", "0.05",
        "6, 6, 6", "4.32 MB", "9.22 kB", "numpy", np.__version__, "client-17", "clustering.npz",
        "The model that the method assigns to a client, before any local training",
        "A client's own model after its last local training",
        "One model on the union of all test data",
    ):  # fmt: skip
        assert words in page.text, words
    mean = 100 * run.clients.cluster_accuracy.mean()
    assert f"{mean:.2f}" in page.text
    assert "±" not in page.text.replace("±Mean and sample", "")


def test_each_client_has_a_row(run_page):
    page, run_path = run_page
    details = re.search(r'<details id="clients">.*?</details>', page.source, re.DOTALL)[0]
    rows = re.findall(r'<tr><th scope="row">(.*?)</th>(.*?)</tr>', details, re.DOTALL)
    clients = run_files.read_run(run_path).clients
    assert [name for name, _ in rows] == clients.client_id.tolist()
    cells = [re.findall("<td[^>]*>(.*?)</td>", cells) for _, cells in rows]
    assert [each[5] for each in cells] == [f"{100 * value:.2f}" for value in clients.cluster_accuracy]
    assert [each[6] for each in cells][-2:] == ["–", "–"]


def test_a_comparison(comparison):
    page = Page(comparison / "report.html")
    assert_stands_alone(page)
    names = {each.stem for each in (comparison / "figures").glob("*.png")}
    shared = {"accuracy", "progress", "traffic", "clients", "sizes", "labels-fedavg", "labels-pacfl"}
    assert names == shared | {"proximity-pacfl", "dendrogram-pacfl"}
    # Who holds which labels is shown for the clusters of each method, and these differ.
    assert {each["data-name"] for each in page.all("figure")} == names
    assert all('<svg class="panel' in each for each in re.findall(r"<figure.*?</figure>", page.source, re.DOTALL))
    # Both methods are switched on and off, with the figures that are theirs alone.
    assert [each["id"] for each in page.all("input")] == ["run-0", "run-1"]
    assert [each["class"] for each in page.all("div") if each.get("class", "").startswith("run-")] == ["run-0", "run-1"]
    rows = comparison_table.comparison_rows(batch_index.find_runs(comparison))
    for row in rows:
        stat = row.stats["cluster_accuracy_percent"]
        assert f"{stat.mean:.2f} ± {stat.std:.2f}" in page.text
    for words in ("digits: 2 methods compared", "fedavg, pacfl", "0, 10", "pacfl/seed-10/clients.csv"):
        assert words in page.text, words


def test_the_table_of_a_comparison(comparison):
    lines = rows_of(comparison / "table.csv")
    assert [line["algorithm"] for line in lines] == ["fedavg", "pacfl"]
    for line in lines:
        runs = batch_index.find_runs(comparison)
        means = [100 * run.clients.cluster_accuracy.mean() for run in runs if run.method == line["algorithm"]]
        assert float(line["cluster_accuracy_percent"]) == pytest.approx(np.mean(means))
        assert float(line["cluster_accuracy_percent_std"]) == pytest.approx(np.std(means, ddof=1))


def test_links_lead_to_the_reports_of_single_runs(comparison):
    page = Page(comparison / "report.html")
    addresses = [link["href"] for link in page.all("a") if not link["href"].startswith("#")]
    assert addresses == ["pacfl/seed-0/report.html"]
    anchors = {link["href"][1:] for link in page.all("a") if link["href"].startswith("#")}
    assert anchors == {section["id"] for section in page.all("section")}
    assert not {name for name in anchors if not re.search(f'id="{name}"', page.source)}


def test_settings_are_shared_or_differ(comparison):
    runs = batch_index.find_runs(comparison)
    methods, rows = comparison_table.differing_settings(runs)
    assert methods == ["fedavg", "pacfl"]
    assert rows == [["train.learning_rate", "0.1", "0.05"]]
    assert comparison_table.shared_settings(runs) == [("dataset.name", "digits"), ("train.rounds", "5")]
    assert comparison_table.versions_of(runs) == [("numpy", np.__version__)]


def test_settings_are_flat_text():
    config = {"a": 1, "b": {"c": True, "d": {"e": [1, 2.5, "x"]}}}
    assert comparison_table.flatten(config) == {"a": "1", "b.c": "true", "b.d.e": "1, 2.5, x"}


def test_texts_are_escaped(tmp_path, make_run, monkeypatch):
    monkeypatch.setattr(report_figures, "OF_RUNS", ())  # in which there is no client's name, and no task's
    evil = "<script>alert('x')</script>&\""
    make_run(tmp_path / "out", task=evil)
    config = tmp_path / "out" / "config.toml"
    config.write_text(config.read_text().replace("made for the tests", "<img src=http://example.org/x onerror=y>"))
    clients = tmp_path / "out" / "clients.csv"
    clients.write_text(clients.read_text().replace("client-03", "<script>c</script>"))
    page = Page(write_panels(tmp_path / "out"))
    assert_stands_alone(page)
    assert evil in page.text
    assert "<img src=http://example.org/x onerror=y>" in page.text
    assert "<script>c</script>" in page.text


@pytest.mark.slow
def test_the_same_files_give_the_same_report_and_nothing_is_printed(run_page, run_path, capfd):
    _, first = run_page
    # The page holds the pictures, so that these are compared, too.
    assert write_report(run_path).read_bytes() == (first / "report.html").read_bytes()
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
def test_a_run_without_rounds_tree_or_local_training(run_path):
    path = run_path / "rounds.csv"
    path.write_text(path.read_text().splitlines()[0] + "\n")
    with np.load(run_path / "clustering.npz") as archive:
        arrays = dict(archive) | {"merges": np.empty((0, 4)), "threshold": np.nan}
    np.savez(run_path / "clustering.npz", **arrays)
    page = Page(write_panels(run_path))
    assert_stands_alone(page)
    expected = RUN_FIGURES - {"accuracy", "progress", "traffic", "dendrogram"}
    assert {each.stem for each in (run_path / "figures").glob("*.png")} == expected


def test_all_files_that_a_page_is_made_of_are_named(run_path):
    run = batch_index.find_runs(run_path)[0]
    for name in ("splits.csv", "representations.npz", "confusion.npz", "samples.npz"):
        (run_path / name).write_bytes(b"")
    named = {file.name for file in run_path.glob("*.*")} - {"run.json"}
    cells = r"<th scope=\"row\"[^>]*>([a-z]+\.(?:csv|json|npz|toml))</th>"
    assert named == set(re.findall(cells, render([run], [], run_path)))


def test_different_clients_are_not_put_side_by_side(comparison):
    # The first report of the comparison has them, all clients being the same.
    assert "Each client (seed 0)" in Page(comparison / "report.html").text
    runs = batch_index.find_runs(comparison)
    other = dataclasses.replace(runs[2].clients, examples=runs[2].clients.examples + 1)
    changed = [*runs[:2], dataclasses.replace(runs[2], clients=other), runs[3]]
    assert "Each client" in render(runs, [], comparison)
    assert "Each client" not in render(changed, [], comparison)


def test_the_clients_of_a_comparison_have_their_clusters(comparison):
    page = Page(comparison / "report.html")
    details = re.search(r'<details id="clients">.*?</details>', page.source, re.DOTALL)[0]
    heads = re.findall(r'<th scope="col">(.*?)</th>', details)
    assert heads == ["client", "true group", "examples", *["cluster", "cluster %", "local %"] * 2]
    assert re.findall(r'colspan="3">(.*?)<', details) == ["", "fedavg", "pacfl"]
    rows = [
        re.findall("<td[^>]*>(.*?)</td>", row)
        for row in re.findall(r"<tr>(?=<th scope=.row)(.*?)</tr>", details, re.DOTALL)
    ]
    by_method = {run.method: run.clients for run in batch_index.find_runs(comparison) if run.seed == 0}
    assert [row[2] for row in rows] == list(map(str, by_method["fedavg"].cluster))
    assert [row[5] for row in rows] == list(map(str, by_method["pacfl"].cluster))


def test_rows_stand_in_the_order_that_was_asked_for(comparison_path, tmp_path):
    path = tmp_path / "out"
    shutil.copytree(comparison_path, path)
    write_index(path, "comparison", {"algorithms": ["pacfl", "fedavg"], "targets": ["cluster=50"]})
    (path / "pacfl" / "seed-0" / "newcomers.json").write_text(json.dumps(NEWCOMERS))
    (path / "fedavg" / "seed-0" / "newcomers.json").write_text(json.dumps({**NEWCOMERS, "algorithm": "fedavg"}))
    page = page_without_pictures(path)
    tables_of = re.findall(r"<tbody>(.*?)</tbody>", page.source, re.DOTALL)
    orders = [re.findall(r'<th scope="row"[^>]*>(fedavg|pacfl)</th>', body) for body in tables_of]
    assert [order for order in orders if order] == [
        ["pacfl", "fedavg"]
    ] * 6  # results, targets, further, newcomers, bytes, seconds
    assert [each["id"] for each in page.all("section")][-4:] == ["newcomers", "costs", "settings", "files"]


def test_the_newcomers_of_a_run(run_path):
    (run_path / "newcomers.json").write_text(json.dumps(NEWCOMERS))
    page = page_without_pictures(run_path)
    section = re.search(r'<section id="newcomers">.*?</section>', page.source, re.DOTALL)[0]
    for words in ("91.25", "88.50", "1 (founded)", "100.00", "–"):
        assert f">{words}<" in section, words
    (run_path / "newcomers.json").write_text(json.dumps({**NEWCOMERS, "clients": [{}]}))
    with pytest.raises(UserError, match=r"newcomers\.json is damaged"):
        page_without_pictures(run_path)


def test_notes_say_whose_they_are(comparison_path, tmp_path):
    path = tmp_path / "out"
    shutil.copytree(comparison_path, path)
    for method, notes in (("fedavg", ["of all", "attack"]), ("pacfl", ["of all"])):
        for file in path.glob(f"{method}/*/summary.json"):
            file.write_text(json.dumps({**json.loads(file.read_text()), "notes": notes}))
    text = render(batch_index.find_runs(path), [], path)
    assert "<dd>of all</dd>" in text and "<dd>fedavg: attack</dd>" in text


def test_notes_say_of_whom_they_are(comparison_path, tmp_path):
    """Of all runs, of some methods, or of some seeds of theirs."""
    path = shutil.copytree(comparison_path, tmp_path / "out")
    runs = sorted(path.glob("*/*/summary.json"))
    notes = {"all": runs, "one": runs[:1], "first of each": [runs[0], runs[-1]]}
    for file in runs:
        own = [note for note, files in notes.items() if file in files]
        file.write_text(json.dumps(json.loads(file.read_text()) | {"notes": own}))
    found = batch_index.find_runs(path)
    one, last = (next(run for run in found if run.path == file.parent) for file in (runs[0], runs[-1]))
    several = sum(run.method == one.method for run in found) > 1
    assert several and notes_of(found) == [
        "all",
        f"{one.method}, seed {one.seed}: one",
        f"{one.method}, seed {one.seed}; {last.method}, seed {last.seed}: first of each",
    ]


def test_seeds_that_ran_with_different_code_are_told(comparison_path, tmp_path):
    path = shutil.copytree(comparison_path, tmp_path / "out")
    runs = batch_index.find_runs(path)
    same = [dataclasses.replace(run, config={**run.config, "versions": {"mine.py": run.method}}) for run in runs]
    assert notes_of(same) == notes_of(runs)
    several = next(each for each in runs if sum(run.method == each.method for run in runs) > 1)
    edited = [
        run if run.path != several.path else dataclasses.replace(run, config={"versions": {"mine.py": "b"}})
        for run in same
    ]
    told = f"{several.method} ran with different versions of mine.py"
    assert [note for note in notes_of(edited) if note not in notes_of(runs)] == [told]


def test_private_runs_say_what_they_cost_together(comparison_path, tmp_path):
    """By basic composition: whoever is a client of several runs is told of by each."""
    path = shutil.copytree(comparison_path, tmp_path / "out")

    def told(*privacies):
        for file, privacy in itertools.zip_longest(sorted(path.glob("*/*/summary.json")), privacies):
            contents = json.loads(file.read_text()) | {"privacy": privacy, "notes": []}
            file.write_text(json.dumps(contents))
        return notes_of(batch_index.find_runs(path))

    spent = {"epsilon": 1.5, "delta": 1e-3, "neighbours": "add or remove a client"}
    said = "each run's epsilon is its own: a client of all 2 private runs is told of by each of them"
    assert told(spent) == []
    assert told(spent, spent | {"epsilon": 2}) == [
        f"{said}, which cost together epsilon 3.5 at delta 0.002 at most, "
        "each with noise of its own; runs of one seed, as here, may share theirs"
    ]
    assert told(spent, spent | {"epsilon": None}) == told(spent, spent | {"neighbours": "another"}) == [said]


def test_without_a_target_one_is_suggested(comparison):
    page = Page(comparison / "report.html")
    best = [100 * np.nanmax(run.rounds["cluster_accuracy"]) for run in batch_index.find_runs(comparison)]
    wanted = 5 * int(max(best) // 5)  # half of two is one
    assert f"cluster {wanted} %" in page.text and "No target was asked for" in page.text
    assert not (comparison / "targets.csv").exists()


def test_damage_leaves_the_old_report(run_path):
    (run_path / "report.html").write_text("old")
    (run_path / "clients.csv").unlink()
    with pytest.raises(UserError, match=r"clients\.csv is missing"):
        write_report(run_path)
    assert (run_path / "report.html").read_text() == "old"


def test_a_directory_that_cannot_be_written(run_path):
    (run_path / "figures").write_text("in the way")
    with pytest.raises(UserError, match="figures cannot be written: "):
        write_report(run_path)
