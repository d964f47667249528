"""The contract of methods: the one that its docstring shows runs as it stands there."""

import inspect
import textwrap

import numpy as np
import pytest

import tffcl
from tffcl import algorithms, choices
from tffcl.clients.population import Population
from tffcl.errors import UserError
from tffcl.models import layer_weights
from tffcl.rounds import composer


def test_the_method_in_the_docstring_runs(model, digits, tmp_path):
    lines = inspect.cleandoc(algorithms.Method.__doc__).splitlines()
    start = lines.index("    class Halves(Method):")
    length = next(count for count, line in enumerate(lines[start:]) if line and not line.startswith(" "))
    names = {name: getattr(algorithms, name) for name in algorithms.__all__}
    exec(textwrap.dedent("\n".join(lines[start : start + length])), names)
    x, y = digits
    clients = Population.from_arrays({client: (x[20 * client :][:20], y[20 * client :][:20]) for client in range(5)})
    method = names["Halves"](model, tffcl.LocalTraining(batch_size=10, learning_rate=0.1))
    run = tffcl.train(method, clients, rounds=2, clients_per_round=5, out=tmp_path / "run", show_progress=False)
    assert run.summary["algorithm"] == "halves" and run.summary["clusters"]["sizes"] == [3, 2]
    np.testing.assert_array_equal(run.model_of(0), run.model_of(4))
    assert not np.array_equal(run.model_of(0), run.model_of(1))
    with pytest.raises(UserError, match=r"^halves takes no newcomers: Halves has no admit\(state, newcomers\)$"):
        method.admit(run.trained.state, clients)
    with pytest.raises(UserError, match=r"^halves cannot be exported: Halves has no exports\(\)$"):
        tffcl.export_result(run, tmp_path / "export")


def test_the_choices_are_those_that_there_are():
    assert tuple(composer.WEIGHTINGS) == choices.WEIGHTINGS
    assert tuple(layer_weights.INITIALIZATIONS) == choices.INITIALIZATIONS


@pytest.mark.parametrize(
    "signature, message",
    [
        ("subspce", "unknown signature 'subspce'; did you mean 'subspace'"),
        (
            {"name": "subspace", "num_vector": 3},
            "unknown key in .signature subspace. 'num_vector'; did you mean 'num_vectors'",
        ),
        ({"name": "pca_centres", "clip": 0}, "signature pca_centres.clip is 0; it must be a number above 0"),
        ({"name": "descriptors", "clip": 1.0}, "signature descriptors has no parameters of its own; found clip"),
    ],
)
def test_a_wrong_signature_is_told_by_its_parameters(signature, message):
    with pytest.raises(UserError, match=message):
        algorithms.ComposedParameters(signature=signature)
