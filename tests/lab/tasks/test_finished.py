"""A trained run that is loaded again."""

import numpy as np
import pytest

import tffcl
from tests.runs.finished_runs import rows_of
from tffcl.errors import UserError
from tffcl.lab.tasks import resolve


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    out = tmp_path_factory.mktemp("trained") / "run"
    overrides = {"train": {"rounds": 3}, "newcomers": {"clients": 4}}
    tffcl.run(resolve.resolve("demo_digits", "pacfl", overrides=overrides), out, show_progress=False)
    return out, tffcl.load_run(out)


def test_it_answers_as_well_as_the_run_said(trained):
    out, run = trained
    assert run.round_number == 3
    rows = rows_of(out / "clients.csv")
    for row in rows[:5]:
        client = int(row["client_id"])
        test = run.federated.test.take(run.federated.test_indices[client])
        answers = run.predict(client, test.x)
        assert answers.dtype == np.int32
        assert (answers == test.y).mean() == pytest.approx(float(row["cluster_accuracy"]), abs=1e-6)
        assert run.cluster_of(client) == int(row["cluster"])


def test_one_line_says_what_is_wrong(trained, tmp_path):
    _, run = trained
    stranger = np.setdiff1d(np.arange(40), run.state.client_ids)[0]
    with pytest.raises(UserError, match=f"client {stranger} is not known"):
        run.predict(int(stranger), run.federated.test.x[:1])
    with pytest.raises(
        UserError, match=r"the examples are float64\[8, 8, 1\]; the model takes uint8\[8, 8, 1\]: round them"
    ):
        run.predict(int(run.state.client_ids[0]), np.zeros((1, 8, 8, 1)))
    with pytest.raises(UserError, match="holds no run"):
        tffcl.load_run(tmp_path)
