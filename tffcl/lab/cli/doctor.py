"""Collects facts about an installation, for users with a problem; also installs missing packages."""

import importlib.metadata
import os
import pathlib
import platform
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator

from tffcl.errors import UserError

_PACKAGES = (
    "tffcl", "tensorflow-federated", "tensorflow", "jax", "numpy", "scipy", "scikit-learn", "tensorflow-datasets",
)  # fmt: skip


def facts(data_dir: str | None = None, *, check: bool = False) -> list[tuple[str, str]]:
    """Collects pairs of names and values without importing TensorFlow; if packages are missing, stops after these.

    Args:
      data_dir: As on the command line.
      check: Whether to start a worker, run a computation in it and end it, too, which takes seconds.
    """
    found = [("python", f"{platform.python_version()} on {platform.system()} {platform.machine()}")]
    found += [(name, _version(name) or "not installed") for name in _PACKAGES]
    if missing := missing_packages():
        found.append(("missing", ", ".join(missing)))
        found.append(("to install them", "tffcl doctor --fix"))
        return found
    found += [("not as tested", each) for each in _overridden_otherwise()]
    found.append(
        ("to add packages", f"{shlex.join(_installer())} -c {requirements_file()} NAME, which keeps these versions")
    )
    from tffcl import runtime
    from tffcl.runtime import memory

    found.append(("cores", f"{runtime.WorkerSettings().cores} usable: so many client computations at a time"))
    size = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    found.append(("memory", f"{memory.shown(size)}, of which {memory.shown(memory.free_bytes())} are free for tffcl"))
    try:
        found.append(("TFF worker", str(runtime.worker_binary())))
    except UserError as error:
        found.append(("TFF worker", str(error)))
    found.append(("GPU", "not used to train; CUDA_VISIBLE_DEVICES=-1 hides it from evaluations, too"))
    found.append(("data directory", _data_directory(data_dir)))
    if check:
        found.append(("worker check", _check()))
    return found


def _data_directory(data_dir: str | None) -> str:
    from tffcl.lab.datasets import storage

    chosen, why = next(
        (path, why)
        for path, why in (
            (data_dir, "--data-dir"),
            (os.environ.get("TFFCL_DATA_DIR"), "$TFFCL_DATA_DIR"),
            (os.environ.get("TFDS_DATA_DIR"), "$TFDS_DATA_DIR"),
            (storage.resolve(None), "TFDS's default"),
        )
        if path
    )
    path = storage.expanded(chosen)
    try:
        if path.is_file():
            return f"{path} ({why}; a file, where a directory is needed)"
        if not path.is_dir():
            return f"{path} ({why}; not there yet: data sets are downloaded into it)"
        there = sorted(entry.name for entry in path.iterdir() if not entry.name.startswith("."))
    except OSError as error:
        return f"{path} ({why}; cannot be read: {error.strerror})"
    return f"{path} ({why}; has {', '.join(there) or 'nothing'})"


def _check() -> str:
    import tensorflow as tf
    import tensorflow_federated as tff

    from tffcl import runtime

    @tff.federated_computation(tff.FederatedType(tf.int32.as_numpy_dtype, tff.CLIENTS))
    def add(values):
        return tff.federated_sum(values)

    try:
        worker = runtime.use_local_worker()
        total = add([1, 2, 3])
        way = "which only this user can reach"
        if worker.open_because:
            way = f"which everyone who reaches port {worker.port} of this machine can reach ({worker.open_because})"
        return f"a sum over 3 clients: {total} ({'right' if total == 6 else 'wrong'}), in a worker {way}"
    finally:
        runtime.stop_local_worker()


def requirements_file() -> pathlib.Path:
    """The file that lists all packages; it is inside the package, so that an installed wheel has it, too."""
    return pathlib.Path(__file__).resolve().parents[2] / "install" / "requirements.txt"


def missing_packages() -> list[str]:
    """Names of packages that tffcl and TFF require and that are not installed.

    Versions are not checked: TFF 0.87 pins a jaxlib that is no longer available, and another version works.
    """
    wanted = {name for package in ("tffcl", "tensorflow-federated") for name in _required_by(package)}
    return sorted(name for name in wanted if _version(name) is None)


def _required_by(package: str) -> list[str]:
    if _version(package) is None:
        return []
    found = importlib.metadata.requires(package) or []
    return [re.match(r"[\w.-]+", each)[0] for each in found if ";" not in each]


def _version(package: str) -> str | None:
    """The installed version of a package; None if it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _overridden_otherwise() -> Iterator[str]:
    """Packages whose version differs from the override of TFF's pin, each with the command that installs the override;
    e.g. many packages do not work with an older typing-extensions."""
    from packaging.requirements import Requirement  # comes with TensorFlow, so it is there if nothing is missing

    lines = requirements_file().with_name("overrides.txt").read_text(encoding="utf-8").splitlines()
    for wanted in (Requirement(line) for line in lines if not line.startswith("#")):
        version = importlib.metadata.version(wanted.name)
        if not wanted.specifier.contains(version):
            yield f"{wanted.name} {version}; {shlex.join(_installer())} --no-deps '{wanted}'"


def _installer() -> list[str]:
    """The beginning of a command that installs into this Python."""
    if _version("pip"):  # find_spec would give a warning of setuptools once TensorFlow is imported
        return [sys.executable, "-m", "pip", "install"]
    return [shutil.which("uv") or "uv", "pip", "install", "--python", sys.executable]


def fix_command() -> list[str]:
    """Returns the command that installs the missing packages into this Python.

    Raises:
      UserError: If there is neither pip nor uv.
    """
    what = ["--no-deps", "-r", str(requirements_file())]
    if not _version("pip") and not shutil.which("uv"):
        raise UserError(
            f"this Python has no pip, and there is no uv; install uv, then: uv pip install {' '.join(what)}"
        )
    return [*_installer(), *what]


def fix() -> int:
    """Installs the missing packages, if there are any; returns the installer's exit code."""
    if not missing_packages():
        print("nothing is missing")
        return 0
    command = fix_command()
    print(shlex.join(command), flush=True)
    return subprocess.run(command, check=False).returncode
