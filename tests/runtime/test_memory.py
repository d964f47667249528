"""The memory budget: how it is written, what it is by default."""

import pytest

from tffcl.clients.simulation_context import current
from tffcl.errors import UserError
from tffcl.lab.cli.main import main
from tffcl.runtime import memory


@pytest.mark.parametrize(
    "text, size", [("4GB", 4 * 10**9), ("500 mb", 5 * 10**8), ("2GiB", 2**31), ("1.5 GB", 15 * 10**8), (1000, 1000)]
)
def test_sizes_are_read(text, size):
    assert memory.parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "much", "4 gigs", "-1GB", "GB", "nan", "0", "0GB", "1e3", "9" * 40])
def test_what_is_no_size_is_one_line(text):
    with pytest.raises(UserError, match="memory is "):
        memory.parse_bytes(text)


def test_the_command_line_refuses_it_before_anything_else(capsys):
    assert main(["run", "demo_digits", "--algorithm", "fedavg", "--memory", "lots"]) == 2
    assert capsys.readouterr().err == "tffcl: memory is 'lots'; it is written 4GB, 500MB or 2GiB\n"
    assert main(["run", "demo_digits", "--algorithm", "fedavg", "--shards", "-1"]) == 2
    assert capsys.readouterr().err == "tffcl: --shards is -1; it must be 0 or more\n"


def test_by_default_it_is_a_power_of_two_up_to_half_of_what_is_free(monkeypatch):
    for free, most in ((2**33, 2**32), (2**33 + 5, 2**32), (2**33 - 1, 2**31)):
        monkeypatch.setattr(memory, "free_bytes", lambda: free)
        assert current().memory_bytes == most


def test_what_is_free_is_at_most_what_the_machine_has():
    assert 0 < memory.free_bytes() < 2**50
    assert (
        memory.shown(1_500_000_000) == "1.5 GB"
        and memory.shown(35_000_000) == "35 MB"
        and memory.shown(10) == "10 bytes"
    )


@pytest.mark.parametrize(
    "line, group, limit, used, pages",
    [
        ("0::/job/step", "job", "memory.max", "memory.current", "inactive_file"),
        ("0::/", "", "memory.max", "memory.current", "inactive_file"),
        (
            "4:cpu,memory:/job/step",
            "memory/job/step",
            "memory.limit_in_bytes",
            "memory.usage_in_bytes",
            "total_inactive_file",
        ),
        # In a container, whose own group is the root.
        ("4:memory:/docker/5f", "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ],
)
def test_what_is_free_is_at_most_what_groups_of_processes_may_use(
    tmp_path, monkeypatch, line, group, limit, used, pages
):
    """As schedulers and containers set it; files that were read count as used, and are dropped for who needs room."""
    (tmp_path / "own").write_text(f"5:pids:/other\n{line}\n")
    directory = tmp_path / "control" / group
    directory.mkdir(parents=True)
    for name, text in {limit: "5000\n", used: "4000\n", "memory.stat": f"cache 1900\n{pages} 1500\n"}.items():
        (directory / name).write_text(text)
    monkeypatch.setattr(memory, "_GROUPS", tmp_path / "own")
    monkeypatch.setattr(memory, "_CONTROL", tmp_path / "control")
    assert memory.free_bytes() == 2500
    (directory / limit).write_text("max\n")
    assert memory.free_bytes() > 2500
