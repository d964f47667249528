"""What public objects say of themselves: a line that is not a page, and a table in a notebook."""

import dataclasses
import pathlib
import re

import numpy as np
import pytest

import tffcl
from tffcl import registry
from tffcl.algorithms.method import ClusteredState, Views
from tffcl.display import counted, sizes_of, table
from tffcl.runs.result import Result, Trained

LONGEST = 200


@pytest.fixture(scope="module")
def config():
    return tffcl.resolve("demo_digits", "pacfl")


@pytest.fixture(scope="module")
def objects(config):
    x, y = np.arange(64 * 30, dtype=np.float32).reshape(30, 8, 8, 1), np.arange(30, dtype=np.int32) % 10
    dataset = tffcl.Dataset.from_arrays("mine", (x, y), (x[:5], y[:5]))
    partition = tffcl.Partition((np.arange(20), np.arange(20, 30)), (np.arange(5), np.arange(5)))
    population = tffcl.Population.from_arrays({"bonn": (x, y), "oslo": (x[:9], y[:9])})
    return [
        config,
        config.train,
        tffcl.load_task("demo_digits"),
        tffcl.load_data(config),
        dataset,
        dataset.train,
        partition,
        population,
    ]


def test_a_line_and_a_table(objects):
    for each in objects:
        line, html = repr(each), each._repr_html_()
        assert line.startswith(type(each).__name__ + "(") and "\n" not in line and len(line) < LONGEST, line
        assert "array(" not in line
        assert (
            html.startswith("<table><caption>") and html.count("<tr>") == html.count("</tr>") == len(each.facts()) > 0
        )


def test_lines_say_what_one_looks_for(objects, config):
    said = " ".join(map(repr, objects))
    for words in (
        "algorithm: pacfl",
        "30 of 20 clients",
        "clients: 40",
        "true groups: 4",
        "training examples: 30",
        "10 to 20",
    ):
        assert words in said, words
    assert "not set" in config.train._repr_html_() and "momentum" in config.train._repr_html_()


def test_one_is_no_plural(config):
    assert (counted(1, "row"), sizes_of([1, 1], "row"), sizes_of([1, 2], "row")) == ("1 row", "1 row", "1 to 2 rows")
    alone = tffcl.Population.from_arrays({"bonn": (np.zeros([1, 2], np.float32), np.zeros(1, np.int32))})
    alone = dataclasses.replace(alone, groups=np.zeros(1, np.int32))
    assert repr(alone) == "Population(1 client, 1 training example, 1 true group)"
    one = dataclasses.replace(config, train=dataclasses.replace(config.train, clients_per_round=1))
    assert one.facts()["rounds"] == "30 of 1 client"


def test_parameters_are_the_call_that_makes_them():
    assert repr(tffcl.algorithms.PACFLParameters(num_clusters=4)) == "PACFLParameters(num_clusters=4)"
    assert repr(tffcl.LocalTraining()) == "LocalTraining()"
    for entry in registry.ALGORITHMS.values():
        cls = entry.parameter_class()
        if cls and not any(field.default is field.default_factory for field in dataclasses.fields(cls)):
            assert eval(repr(cls()), {cls.__name__: cls}) == cls() and cls()._repr_html_()
    asked = tffcl.LocalTraining(epochs=3, learning_rate=0.5)
    assert eval(repr(asked), {"LocalTraining": tffcl.LocalTraining}) == asked


def test_states_views_and_results():
    ids = np.arange(6, dtype=np.int32)
    state = ClusteredState(ids, ids % 2, np.zeros((2, 1000), np.float32), ())
    assert repr(state) == "ClusteredState(clients: 6, models: 2, of parameters: 1,000)"
    views = Views(ids, ids % 2, relatedness=np.eye(6))
    assert repr(views) == "Views(clients: 6, clusters: 2, also: relatedness)"
    mean = {kind: {"mean": mean} for kind, mean in (("cluster", 0.5), ("local", None), ("global", 0.25))}
    summary = {"algorithm": "pacfl", "rounds": 3, "accuracy": mean, "clusters": {"count": 2}}
    result = Result(summary, None, pathlib.Path("runs/x"), {}, {})
    assert repr(result) == "Result(pacfl after 3 rounds: cluster 50.00 %, global 25.00 %; 2 clusters; runs/x)"
    assert ">50.00 %<" in result._repr_html_() and "local" not in result._repr_html_()

    class Stub:
        name = "mine"

        def views(self, state):
            return views

    clients = tffcl.Population.from_arrays({number: (np.zeros((1, 2)), [0]) for number in range(6)})
    assert (
        repr(Trained(Stub(), state, clients, 3, {})) == "Trained(method: mine, after round: 3, clients: 6, clusters: 2)"
    )


def test_a_table_is_escaped():
    assert re.search(r"&lt;b&gt;.*&amp;", table("<b>", {"a": "&"}))
    assert "<b>" not in table("<b>", {"<b>": "<b>"})
