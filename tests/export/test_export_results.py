"""What `tffcl.train` gave, exported: also a method, a model and data of one's own, of which no file tells."""

import json

import numpy as np
import pytest

import tffcl
from tests.experiments.own.my_methods import Histograms
from tests.short_runs import TRAINING
from tffcl.algorithms.clustered_training import build_clustered_training
from tffcl.algorithms.ditto import build_ditto
from tffcl.errors import UserError
from tffcl.export.export_check import check_export


def trained(method, population, out):
    return tffcl.train(method, population, rounds=2, clients_per_round=2, seed=3, out=out, show_progress=False)


def test_a_method_of_ones_own(tff_worker, model, population, tmp_path):
    result = trained(Histograms(build_clustered_training(model, TRAINING), 2, seed=0), population, tmp_path / "run")
    manifest = tffcl.export_result(result, tmp_path / "to")
    assert manifest["algorithm"] == "histograms" and manifest["rounds"] == 2 and manifest["seed"] == 3
    np.testing.assert_array_equal(np.load(tmp_path / "to" / "state" / "models.npy"), result.trained.state.models)
    *checked, last = check_export(tmp_path / "to")
    assert len(checked) >= 2 and last == "it is of tffcl.train, whose data no file holds: not compared on real clients"
    with pytest.raises(UserError, match="holds something already"):
        tffcl.export_result(result, tmp_path / "to")
    with pytest.raises(UserError, match=r"is of tffcl.train, .*resume=True.*export_result"):
        tffcl.load_run(tmp_path / "run")


@pytest.mark.slow
def test_what_clients_keep_stays_in_the_run(tff_worker, model, population, tmp_path):
    result = trained(build_ditto(model, TRAINING), population, tmp_path / "run")
    manifest = tffcl.export_result(result, tmp_path / "to")
    assert "personal_training" in manifest["computations"]
    assert check_export(tmp_path / "to") and json.loads((tmp_path / "to" / "manifest.json").read_text()) == manifest
