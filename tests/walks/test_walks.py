"""Three users' ways through README and docs, as they would type them."""

import os
import pathlib
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).parent


@pytest.mark.slow
@pytest.mark.parametrize("walk", ["researcher.sh", "data_scientist.py", "engineer.sh"])
def test_a_users_way_ends_well(walk, tmp_path):
    if walk == "researcher.sh" and "TFFCL_DATA_DIR" not in os.environ:
        pytest.skip("TFFCL_DATA_DIR is not set")
    tools = {"PATH": f"{pathlib.Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    program = "sh" if walk.endswith(".sh") else sys.executable
    ended = subprocess.run([program, HERE / walk], cwd=tmp_path, env={**os.environ, **tools}, check=False)
    assert ended.returncode == 0
