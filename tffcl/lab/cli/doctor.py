"""Facts of an installation that one asks for when something does not work."""

import importlib.metadata
import os
import platform

from tffcl.errors import UserError
from tffcl.lab.cli import installation

_PACKAGES = (
    "tffcl",
    "tensorflow-federated",
    "tensorflow",
    "jax",
    "numpy",
    "scipy",
    "scikit-learn",
    "tensorflow-datasets",
)


def facts(data_dir: str | None = None, *, check: bool = False) -> list[tuple[str, str]]:
    """Collects name and value pairs, without importing TensorFlow; only what is missing where packages are.

    Args:
      data_dir: As on the command line.
      check: Also start a worker, run a computation in it and end it (seconds).
    """
    found = [("python", f"{platform.python_version()} on {platform.system()} {platform.machine()}")]
    for name in _PACKAGES:
        try:
            found.append((name, importlib.metadata.version(name)))
        except importlib.metadata.PackageNotFoundError:
            found.append((name, "not installed"))
    if missing := installation.missing_packages():
        found.append(("missing", ", ".join(missing)))
        found.append(("to install them", "tffcl doctor --fix"))
        return found
    from tffcl import runtime

    found.append(("cores", f"{len(os.sched_getaffinity(0))} usable: so many client computations at a time"))
    found.append(("memory", _memory()))
    try:
        found.append(("TFF worker", str(runtime.worker_binary())))
    except UserError as error:
        found.append(("TFF worker", str(error)))
    found.append(("GPU", "not used: TFF 0.87's worker is built for the CPU"))
    found.append(("data directory", _data_directory(data_dir)))
    if check:
        found.append(("worker check", _check()))
    return found


def _memory() -> str:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return f"{total / 2**30:.1f} GiB"


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
    if path.is_file():
        return f"{path} ({why}; a file, where a directory is needed)"
    if not path.is_dir():
        return f"{path} ({why}; not there yet: data sets are downloaded into it)"
    there = sorted(entry.name for entry in path.iterdir() if not entry.name.startswith("."))
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
