import json
import pathlib

import pytest

from tffcl.errors import UserError
from tffcl.lab.tasks import resolve, task_file

BASE = """description = "base"
[dataset]
name = "digits"
[partition]
name = "iid"
clients = 4
[model]
name = "mlp"
hidden = 8
[train]
rounds = 3
momentum = 0.5

[algorithms.pacfl]
num_clusters = 2
[algorithms.fedavg]
momentum = 0.9
"""


def write(tmp_path, text, name="base"):
    path = tmp_path / f"{name}.toml"
    path.write_text(text)
    return path


def test_the_methods_own_values_win_and_the_command_line_wins_over_all(tmp_path):
    path = write(tmp_path, BASE)
    assert resolve.resolve(path, "pacfl").train.momentum == 0.5
    assert resolve.resolve(path, "fedavg").train.momentum == 0.9
    assert resolve.resolve(path, "pacfl").method.num_clusters == 2
    everyone = resolve.parse_overrides(["train.momentum=0.1", "train.rounds=7"])
    assert resolve.resolve(path, "fedavg", overrides=everyone).train.momentum == 0.1
    own = resolve.parse_overrides(["algorithms.fedavg.momentum=0.2"])
    assert resolve.resolve(path, "fedavg", overrides=own).train.momentum == 0.2
    assert resolve.resolve(path, "pacfl", overrides=own).train.momentum == 0.5


def test_extends(tmp_path):
    write(tmp_path, BASE)
    child = write(tmp_path, 'extends = "base.toml"\n[train]\nrounds = 1\n[partition]\nclients = 9\n', "child")
    resolved = resolve.resolve(child, "fedavg")
    assert (resolved.task, resolved.train.rounds, resolved.train.momentum) == ("child", 1, 0.9)
    assert resolved.partition == {"name": "iid", "clients": 9}
    other = write(
        tmp_path, 'extends = "child.toml"\n[partition]\nname = "rotated"\nrotations = 4\nclients = 8\n', "other"
    )
    assert resolve.resolve(other, "solo").partition == {"name": "rotated", "rotations": 4, "clients": 8}
    itself = write(tmp_path, 'extends = "itself.toml"\n', "itself")
    with pytest.raises(UserError, match="itself.toml extends itself"):
        task_file.load_task(itself)


def test_a_threshold_takes_the_place_of_the_number_of_clusters_of_the_task_that_is_extended(tmp_path):
    write(tmp_path, BASE)
    cut = write(tmp_path, 'extends = "base.toml"\n[algorithms.pacfl]\nthreshold = 9.0\n', "cut")
    write(tmp_path, 'extends = "cut.toml"\n[algorithms.pacfl]\nnum_clusters = 3\n', "again")
    for name, expected in (("base", (None, 2)), ("cut", (9, None)), ("again", (None, 3)), ("base", (None, 2))):
        method = resolve.resolve(tmp_path / f"{name}.toml", "pacfl").method
        assert (method.threshold, method.num_clusters) == expected
    unset = resolve.resolve(
        tmp_path / "base.toml", "pacfl", overrides=resolve.parse_overrides(["algorithms.pacfl.threshold="])
    )
    assert unset.method.num_clusters == 2, "nothing has taken its place"
    of_study = task_file.overridden(
        *({"algorithms": {"pacfl": each}} for each in ({"threshold": 9.0}, {"num_clusters": 3}))
    )
    assert resolve.resolve(tmp_path / "base.toml", "pacfl", overrides=of_study).method.num_clusters == 3
    mine = write(tmp_path, 'extends = "base.toml"\n[algorithms.mine]\nmethod = "pacfl"\n', "mine")
    set_twice = ({"algorithms": {"mine": each}} for each in ({"threshold": 9.0}, {"num_clusters": 3}))
    assert resolve.resolve(mine, "mine", overrides=task_file.overridden(*set_twice, mine)).method.num_clusters == 3
    cut.write_text(f"{cut.read_text()}num_clusters = 3\n")
    with pytest.raises(UserError, match="give threshold or num_clusters, not both"):
        resolve.resolve(cut, "pacfl")


@pytest.mark.parametrize(
    "before, after, message",
    [
        ("rounds = 3", "round = 3", r"base.toml, line 11: unknown key in \[train\] 'round'; did you mean 'rounds'"),
        ("rounds = 3", "rounds = 2.5", r"line 11: train.rounds is 2.5; it must be a whole number from 1"),
        ("hidden = 8", "hiden = 8", r"line 9: unknown option of model mlp 'hiden'; did you mean 'hidden'"),
        ('name = "mlp"', 'name = "mpl"', r"line 8: unknown model 'mpl'; did you mean 'mlp'"),
        ("num_clusters = 2", "num_cluster = 2", r"line 15: unknown key in \[algorithms.pacfl\] 'num_cluster'"),
        (
            "num_clusters = 2",
            'num_clusters = "2"',
            r"line 15: algorithms.pacfl.num_clusters is '2'; it must be a whole number",
        ),
        ("hidden = 8", "hidden = 0", r"line 9: model.hidden is 0; it must be a whole number from 1"),
        (
            "[train]",
            "[drift]\nclients = 1\n[train]",
            r"line 11: drift.clients is 1; it must be 0 or a whole number from 2",
        ),
        (
            "num_clusters = 2",
            "momentum = 1.5",
            r"line 15: train.momentum is 1.5; it must be a number from 0 to below 1",
        ),
        ("[algorithms.fedavg]", "[algorithms.fedavgg]", r"line 16: unknown algorithm in \[algorithms\] 'fedavgg'"),
    ],
)
def test_the_line_of_a_wrong_key(tmp_path, before, after, message):
    assert before in BASE
    with pytest.raises(UserError, match=message):
        resolve.resolve(write(tmp_path, BASE.replace(before, after)), "pacfl")


@pytest.mark.parametrize(
    "pairs, message",
    [
        (["train.rounds=0"], "in overrides: train.rounds is 0; it must be a whole number from 1"),
        (["algorithms.fedavg.momentum=2"], "in overrides: train.momentum is 2; it must be a number from 0 to below 1"),
        (["train.round=3"], r"in overrides: unknown key in \[train\] 'round'; did you mean 'rounds'"),
        (["model.hidden=0"], "in overrides: model.hidden is 0"),
        (["algorithms.fedavgg.momentum=0.5"], r"in overrides: unknown algorithm in \[algorithms\] 'fedavgg'"),
        (["drift.clients=1"], "in overrides: drift.clients is 1; it must be 0 or a whole number from 2"),
    ],
)
def test_a_wrong_value_in_overrides(tmp_path, pairs, message):
    with pytest.raises(UserError, match=f"^{message}"):
        resolve.resolve(write(tmp_path, BASE), "fedavg", overrides=resolve.parse_overrides(pairs))


@pytest.mark.parametrize(
    "label",
    [
        "../../evil",
        "..",
        ".",
        "",
        " ",
        "/abs",
        "a/b",
        "a\\b",
        ".hidden",
        " a",
        "a ",
        "a\nb",
        "a\x00b",
        "a\x1b[31m",
        "a\u202eb",
        "x" * 101,
    ],
)
def test_a_label_that_cannot_be_the_name_of_a_directory_is_refused_before_anything_runs(tmp_path, label):
    task = 'extends = "demo_digits"\n[algorithms.fedavg]\n'
    (tmp_path / "t.toml").write_text(f'{task}[algorithms.{json.dumps(label)}]\nmethod = "fedavg"\n')
    for asked in (label, "fedavg"):
        with pytest.raises(UserError, match="cannot be a label of .algorithms., which results are in") as told:
            resolve.resolve(tmp_path / "t.toml", asked)
        assert str(told.value).isprintable()


def test_labels_that_differ_by_case_alone_are_refused(tmp_path):
    (tmp_path / "t.toml").write_text('extends = "demo_digits"\n[algorithms.PACFL]\nmethod = "pacfl"\n')
    with pytest.raises(UserError, match="'(PACFL' and 'pacfl|pacfl' and 'PACFL)' differ by case alone"):
        resolve.resolve(tmp_path / "t.toml", "pacfl")


def test_a_key_that_another_file_has_is_told_without_a_line(tmp_path):
    write(tmp_path, BASE.replace("rounds = 3", "rounds = 0"))
    child = write(tmp_path, 'extends = "base.toml"\n[evaluation]\nevery = 1\n', "child")
    with pytest.raises(UserError, match="^train.rounds is 0"):
        resolve.resolve(child, "fedavg")


def test_every_task_resolves_for_every_method_it_names():
    assert "demo_digits" in task_file.task_names()
    for name in task_file.task_names():
        loaded = task_file.load_task(name)
        assert loaded.contents["description"] and loaded.contents["source"], name
        for algorithm in task_file.named_algorithms(name):
            found = resolve.resolve(name, algorithm)
            assert found.algorithm == algorithm and found.train.rounds >= 1


@pytest.mark.parametrize(
    "base, over, size",
    [
        ("clients_per_round = 3", "participation = 0.25", 10),
        ("participation = 0.25", "clients_per_round = 3", 3),
        ("participation = 0.25", "", 10),
        ("", "participation = 1", 40),
    ],
)
def test_the_size_of_a_cohort_is_what_was_said_last(tmp_path, base, over, size):
    write(tmp_path, BASE.replace("momentum = 0.5", base))
    child = write(tmp_path, f'extends = "base.toml"\n[train]\n{over}\n', "child")
    assert resolve.resolve(child, "pacfl").train.cohort_size(40) == size
    own = write(tmp_path, f'extends = "base.toml"\n[algorithms.pacfl]\n{over}\n', "own")
    assert resolve.resolve(own, "pacfl").train.cohort_size(40) == size
    if over:
        said = resolve.parse_overrides([f"train.{over.replace(' ', '')}"])
        assert resolve.resolve(tmp_path / "base.toml", "fedavg", overrides=said).train.cohort_size(40) == size


def test_who_joins_later_may_be_said_as_a_share_and_written_down(tmp_path):
    path = write(tmp_path, BASE + "[newcomers]\nclients = 2\n")
    share = resolve.parse_overrides(["newcomers.share=0.3"])
    found = resolve.resolve(path, "pacfl", overrides=share)
    assert (found.newcomers.count(10), found.as_dict()["newcomers"]["share"]) == (3, 0.3)
    with pytest.raises(UserError, match="newcomers.share is 0.3, which is none of 1 client; give a larger one, or 0"):
        found.newcomers.count(1)
    assert resolve.resolve(path, "pacfl").newcomers.count(10) == 2
    with pytest.raises(UserError, match="newcomers.share is 1.5; it must be"):
        resolve.resolve(path, "pacfl", overrides=resolve.parse_overrides(["newcomers.share=1.5"]))
    with pytest.raises(UserError, match="train.participation is 0; it must be"):
        resolve.resolve(path, "pacfl", overrides=resolve.parse_overrides(["train.participation=0"]))


def test_a_file_that_may_not_be_looked_at_is_not_said_to_be_missing(monkeypatch):
    stat = pathlib.Path.stat

    def closed(path, **how):
        if path.name == "mine.toml":
            raise PermissionError(13, "Permission denied", str(path))
        return stat(path, **how)

    monkeypatch.setattr(pathlib.Path, "stat", closed)
    with pytest.raises(PermissionError, match="nowhere/mine.toml"):
        task_file.load_task("nowhere/mine.toml")


@pytest.mark.parametrize("rule", ["dp", "secure_sum", "clipping", "median", "multi_krum", "compression"])
@pytest.mark.parametrize("method", ["stocfl", "fedsoft"])
def test_an_aggregation_that_a_method_cannot_have_is_refused_before_others_run(method, rule):
    refused = {"stocfl": ("dp", "secure_sum", "clipping"), "fedsoft": ("dp", "secure_sum", "median", "multi_krum")}
    name = {"name": rule} if rule in ("dp", "secure_sum", "compression") else {"name": "robust", "rule": rule}
    how = {"aggregation": name}
    if rule not in refused[method]:
        assert resolve.resolve("demo_digits", method, overrides=how).aggregation == name
        return
    with pytest.raises(UserError, match=f"{method} with .aggregation. {rule}: "):
        resolve.resolve("demo_digits", method, overrides=how)


def test_the_rule_that_robust_takes_by_itself_is_refused_too():
    with pytest.raises(UserError, match="fedsoft with .aggregation. median: its clusters' models are means by t"):
        resolve.resolve("demo_digits", "fedsoft", overrides={"aggregation": {"name": "robust"}})


@pytest.mark.parametrize("rule", ["dp", "secure_sum", "uniform_mean", "median", "clipping", "compression"])
def test_so_is_one_that_soft_groups_cannot_have(rule):
    name = {"name": "robust", "rule": rule} if rule in ("median", "clipping") else {"name": rule}
    how = {"aggregation": name, "algorithms": {"composed": {"grouping": "soft", "num_clusters": 2}}}
    if rule in ("clipping", "compression"):
        assert resolve.resolve("demo_digits", "composed", overrides=how).aggregation == name
        return
    with pytest.raises(UserError, match=f"composed with .aggregation. {rule}: "):
        resolve.resolve("demo_digits", "composed", overrides=how)


HISTOGRAM = {"name": "label_histogram", "noise_multiplier": 1.0}


@pytest.mark.parametrize(
    "method, table", [("pacfl", {"signature_noise_multiplier": 1.0}), ("composed", {"signature": HISTOGRAM})]
)
@pytest.mark.parametrize(
    "more, told",
    [
        ({"threshold": "self"}, 'threshold is "self", .* set threshold to a number'),
        ({"num_clusters": 4, "regroup_on": {"signal": "signature"}}, 'take signal = "loss"'),
        ({"num_clusters": 4, "regroup_on": {"signal": "loss"}}, None),
    ],
)
def test_what_needs_signatures_without_noise_is_refused_before_others_run(method, table, more, told):
    how = {"algorithms": {method: {**table, **more}}}
    if told is None:
        resolve.resolve("demo_digits", method, overrides=how)
        return
    with pytest.raises(UserError, match=told):
        resolve.resolve("demo_digits", method, overrides=how)
