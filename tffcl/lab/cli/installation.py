"""What an installation lacks, and the command that installs it. Works where nothing but tffcl is installed."""

import importlib.metadata
import importlib.util
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

from tffcl.errors import UserError


def requirements_file() -> pathlib.Path:
    """Where the list of all packages is: inside the package, so that an installed wheel has it, too."""
    return pathlib.Path(__file__).resolve().parents[2] / "install" / "requirements.txt"


def missing_packages() -> list[str]:
    """Names of packages that tffcl and TFF ask for and that are not installed.

    Versions are not looked at: TFF 0.87 pins a jaxlib that cannot be had, and another one does.
    """
    wanted = {name for package in ("tffcl", "tensorflow-federated") for name in _asked_for(package)}
    return sorted(name for name in wanted if not _installed(name))


def _asked_for(package: str) -> list[str]:
    if not _installed(package):
        return []
    found = importlib.metadata.requires(package) or []
    return [re.match(r"[\w.-]+", each)[0] for each in found if ";" not in each]


def _installed(package: str) -> bool:
    try:
        importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def fix_command() -> list[str]:
    """Returns the command that installs what is missing into this Python.

    Raises:
      UserError: If there is neither pip nor uv to install with.
    """
    what = ["install", "--no-deps", "-r", str(requirements_file())]
    if importlib.util.find_spec("pip"):
        return [sys.executable, "-m", "pip", *what]
    if uv := shutil.which("uv"):
        return [uv, "pip", what[0], "--python", sys.executable, *what[1:]]
    raise UserError(f"this Python has no pip, and there is no uv; install uv, then: uv pip {' '.join(what)}")


def fix() -> int:
    """Installs what is missing, if anything is; returns the installer's exit code."""
    if not missing_packages():
        print("nothing is missing")
        return 0
    command = fix_command()
    print(shlex.join(command), flush=True)
    return subprocess.run(command, check=False).returncode
