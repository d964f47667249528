"""Runs the steps of the Containerfile in a clean root where no image can be built, as root:
`python tests/container/run_steps.py ROOT -- COMMAND`.

ROOT is a directory with a system that has Python 3.11 and pip, e.g. of debootstrap (whose pip wants
PIP_BREAK_SYSTEM_PACKAGES=1); COMMAND runs in it at the end, as the image's user, in the place of the entry point.
"""

import os
import pathlib
import shlex
import shutil
import subprocess
import sys

CHECKOUT = pathlib.Path(__file__).parents[2]
STEPS = CHECKOUT / "tffcl" / "install" / "Containerfile"


def main(root: pathlib.Path, command: list[str]) -> int:
    place, user, last = pathlib.Path("/"), 0, []
    for line in STEPS.read_text(encoding="utf-8").splitlines():
        step, _, rest = line.partition(" ")
        if step in ("#", "", "FROM", "EXPOSE"):
            continue
        print(line, flush=True)
        if step == "WORKDIR":
            place = pathlib.Path(rest)
            inside(root).joinpath(rest.lstrip("/")).mkdir(parents=True, exist_ok=True)
        elif step == "COPY":
            *files, to = rest.split()
            for each in files:
                copy = root / str(place).lstrip("/") / to / (each if to == "./" else "")
                put = shutil.copytree if (CHECKOUT / each).is_dir() else shutil.copy
                put(CHECKOUT / each, copy, **({"dirs_exist_ok": True} if put is shutil.copytree else {}))
        elif step == "RUN":
            run(root, place, user, ["sh", "-c", rest]).check_returncode()
        elif step == "USER":
            user = int(rest)
        elif step in ("ENTRYPOINT", "CMD"):
            last += shlex.split(rest.strip("[]").replace(",", " "))
        else:
            raise SystemExit(f"this script does not know {step}")
    return run(root, place, user, command or last).returncode


def inside(root: pathlib.Path) -> pathlib.Path:
    return root.resolve(strict=True)


def run(root: pathlib.Path, place: pathlib.Path, user: int, command: list[str]) -> subprocess.CompletedProcess:
    """Runs a command in the root with an environment of its own."""
    clean = {"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "HOME": str(place), "LANG": "C.UTF-8"}
    clean |= {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
    who = ["--userspec", f"{user}:{user}"] if user else []
    text = f"cd {shlex.quote(str(place))} && exec {shlex.join(command)}"
    return subprocess.run(["chroot", *who, str(inside(root)), "sh", "-c", text], env=clean)


if __name__ == "__main__":
    given, _, asked = " ".join(sys.argv[1:]).partition(" -- ")
    sys.exit(main(pathlib.Path(given), shlex.split(asked)))
