"""umap-learn's loops are compiled once for all processes, and the points are the same."""

import importlib
import json
import subprocess
import sys

import numpy as np
import pytest

from tffcl.clustering import projection, taskonomy

# Lays points out and places others; tells which loops were compiled here, and which came from the disk.
LAID_OUT = """
import json
import numpy as np
import numba.core.event as event
from tffcl.clustering import projection, taskonomy

compiled = []
class Listener(event.Listener):
    def on_start(self, told):
        compiled.append(told.data["dispatcher"].__name__)
    def on_end(self, told):
        pass
projection.load_umap()
event.register("numba:compile", Listener())
rng = np.random.default_rng(0)
centres, mask = rng.normal(size=(6, 4, 8)), np.ones((6, 4), bool)
fitted = taskonomy.fit_map(centres, mask, seed=0)
placed = fitted.place(centres[:2] + 0.01, mask[:2])
distances = np.abs(np.subtract.outer(np.arange(9.0), np.arange(9.0)))
plane = projection.project(distances, seed=0)
print(json.dumps({"compiled": compiled, "points": [fitted.points.tolist(), placed.tolist(), plane.tolist()]}))
"""


def laid_out() -> dict:
    return json.loads(subprocess.run([sys.executable, "-c", LAID_OUT], check=True, capture_output=True).stdout)


@pytest.mark.parametrize(
    ("module", "name"), [(module, name) for module, names in projection._LOOPS.items() for name in names]
)
def test_the_installed_version_has_the_loops_and_keeps_them(module, name):
    projection.load_umap()
    loop = getattr(importlib.import_module(module), name)
    assert type(loop._cache).__name__ == "FunctionCache"


@pytest.mark.slow
def test_a_second_process_compiles_nothing_and_finds_the_same_points():
    first, second = laid_out(), laid_out()
    assert set(second["compiled"]) == {"euclidean"}  # a metric, which takes no time
    assert first["points"] == second["points"]


@pytest.mark.slow
def test_a_fitted_map_stays_as_it_is_when_another_of_as_many_points_is_fitted():
    rng = np.random.default_rng(0)
    mask = np.ones((12, 4), bool)
    first, second = (rng.normal(size=(12, 4, 8)) for _ in range(2))
    fitted = taskonomy.fit_map(first, mask, seed=0)
    before = fitted.place(first[:2] + 0.01, mask[:2])
    taskonomy.fit_map(second, mask, seed=0)
    np.testing.assert_array_equal(fitted.place(first[:2] + 0.01, mask[:2]), before)
