"""What `import tffcl` shows, and what it does not load."""

import pathlib
import subprocess
import sys

import pytest

import tffcl
from tffcl.registry import ALGORITHMS

PACKAGES = [tffcl, tffcl.algorithms, tffcl.learning, tffcl.parts]


def by_name(package):
    return package.__name__


@pytest.mark.parametrize("package", PACKAGES, ids=by_name)
def test_dir_shows_what_is_public_and_nothing_else(package):
    import tffcl.rounds.composer  # noqa: F401, a module that is loaded is no public name

    assert dir(package) == sorted(package.__all__)
    assert not [name for name in dir(package) if name.startswith("_")]
    assert not {"importlib", "os", "rounds", "lazily", "public_names"} & set(dir(package))


@pytest.mark.parametrize("package", PACKAGES, ids=by_name)
def test_every_name_is_there_and_says_what_it_is(package):
    for name in dir(package):
        assert getattr(package, name).__doc__, name


@pytest.mark.parametrize("package", PACKAGES, ids=by_name)
def test_another_name_is_an_attribute_error(package):
    name = "buildpacfl"
    with pytest.raises(AttributeError, match=f"module {package.__name__!r} has no attribute {name!r}"):
        getattr(package, name)


def test_every_method_is_shown():
    """Its builder and its parameters, by the registry; see `tffcl/algorithms/__init__.pyi`."""
    for row in ALGORITHMS.values():
        for place in filter(None, (row.place, row.parameters)):
            assert place.split(":")[1] in dir(tffcl.algorithms), place


def test_modules_can_be_imported_from_the_packages():
    from tffcl.algorithms import parameters, presets

    assert tffcl.algorithms.build_pacfl is presets.build_pacfl
    assert tffcl.algorithms.PACFLParameters is parameters.PACFLParameters


def test_importing_loads_no_tensorflow():
    code = """
import sys, tffcl
assert dir(tffcl) and dir(tffcl.algorithms) and dir(tffcl.learning)
heavy = [name for name in ("tensorflow", "tensorflow_federated", "numpy", "sklearn") if name in sys.modules]
assert not heavy, heavy
"""
    check_alone(code)


@pytest.mark.slow
def test_a_name_that_is_used_loads_tensorflow():
    code = """
import sys, tffcl
tffcl.learning.build_clustered_fed_avg
assert "tensorflow_federated" in sys.modules
"""
    check_alone(code)


def check_alone(code):
    """Runs Python in a process of its own."""
    ended = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr[-2000:]


@pytest.mark.slow
def test_types_are_right_for_who_uses_the_library(tmp_path):
    """The public modules as pyproject.toml lists them, and a user's file: what is wrong in it is found, and
    nothing else.
    """
    pytest.importorskip("mypy")
    root = pathlib.Path(tffcl.__file__).parents[1]
    user = tmp_path / "user.py"
    user.write_text(
        "import tffcl\n"
        'config: str = tffcl.resolve("demo_digits", "pacfl")\n'
        'result = tffcl.run(tffcl.resolve("demo_digits", "pacfl"), "runs/x")\n'
        "assert result is not None\n"
        "wrong: int = result.predict\n"
        "training = tffcl.LocalTraining(epochs=3, learning_rate=0.1)\n"
        "method = tffcl.algorithms.PACFLParameters(num_vectors=4)\n"
        "tffcl.no_such_name\n"
    )
    command = [sys.executable, "-m", "mypy", "--cache-dir", str(root / ".pytest_cache" / "mypy"), "--no-error-summary"]
    checked = subprocess.run([*command], cwd=root, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout
    checked = subprocess.run(
        [*command, "--config-file", str(root / "pyproject.toml"), str(user)],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    found = [line.partition("user.py:")[2] for line in checked.stdout.splitlines()]
    assert [line.partition(":")[0] for line in found] == ["2", "5", "8"], checked.stdout
    assert '"RunConfig"' in found[0] and '"no_such_name"' in found[2]
