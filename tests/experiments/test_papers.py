"""Tasks that are named after a paper's table have the settings that the paper prints for it."""

import pytest

from tffcl.experiments import config, tasks

WHOLE = [name for name in tasks.task_names() if not name.endswith("_small")]


def of(prefix, part=""):
    return [name for name in WHOLE if name.startswith(prefix) and part in name]


def resolved(name, label="pacfl"):
    return config.resolve(name, label, check_model=False)


def test_mix4_has_the_rounds_and_epochs_of_its_own_section():
    for method in ("pacfl", "fedavg", "ifca", "solo"):
        train = resolved("pacfl_mix4", method).train
        assert (train.rounds, train.local_epochs, train.batch_size) == (50, 5, 10), method
    assert resolved("pacfl_mix4").method.num_vectors == 3


@pytest.mark.parametrize("name", of("pacfl", "dirichlet"))
def test_table_7_of_pacfl_has_five_vectors_where_the_others_have_three(name):
    assert resolved(name).method.num_vectors == 5
    assert resolved(name.replace("dirichlet", "label_skew_20")).method.num_vectors == 3


@pytest.mark.parametrize("name", of("pacfl", "newcomers"))
def test_newcomer_tasks_train_as_the_papers_text_says_and_tell_what_its_code_has(name):
    found = resolved(name)
    assert (found.train.rounds, found.train.local_epochs, found.newcomers.epochs) == (50, 10, 5)
    assert "authors' code has 5" in found.source


@pytest.mark.parametrize("name", [name for name in of("pacfl") + of("flis") if name != "flis_rotated_mnist"])
@pytest.mark.parametrize(
    "method, momentum", [("fedavg", 0.9), ("fedprox", 0.9), ("fednova", 0.9), ("scaffold", 0.9), ("pacfl", 0.5)]
)
def test_table_12_of_pacfl(name, method, momentum):
    found = resolved(name, method)
    assert found.train.momentum == momentum
    if method == "fedprox":
        assert found.method.proximal_weight in (0.01, 0.001)


def test_clients_of_groups_are_tested_on_all_that_the_papers_test_them_on():
    for name in ["stocfl_pathological_mnist", *of("flt_emnist")]:
        assert tasks.load_task(name).contents["partition"]["test"] == "all", name


def test_scenario_4_takes_the_papers_five_local_epochs_and_scenario_3_its_clusters_for_ifca():
    for name in of("flt_emnist"):
        assert resolved(name, "flt").train.local_epochs == 5, name
    for name in of("flt_femnist"):
        assert resolved(name, "ifca").method.num_clusters == 3, name


def test_femnist_by_writer_takes_five_percent_of_the_writers_that_there_are():
    for method, writers in (("stocfl", 170), ("cfl", 3400)):
        found = resolved("stocfl_femnist", method)
        assert "clients" not in found.partition
        assert found.train.cohort_size(3400) == writers
    held = resolved("stocfl_femnist_unseen", "stocfl").newcomers
    assert (held.count(3400), held.count(3597), held.any) == (1020, 1079, True)


def test_shifted_tasks_have_as_many_examples_a_client_as_table_2():
    for name, examples in (("stocfl_shifted_mnist", 9600), ("stocfl_shifted_cifar10", 8000)):
        assert tasks.load_task(name).contents["partition"]["examples_per_client"] == examples
