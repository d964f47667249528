"""Tasks that are named after a paper's table have the settings that the paper prints for it."""

import pytest

from tffcl.lab.batches import study_plan
from tffcl.lab.batches.study_file import load_study
from tffcl.lab.tasks import resolve, task_file

WHOLE = [name for name in task_file.task_names() if not name.endswith("_small")]


def of(prefix, part=""):
    return [name for name in WHOLE if name.startswith(prefix) and part in name]


def resolved(name, label="pacfl"):
    return resolve.resolve(name, label)


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
        assert task_file.load_task(name).contents["partition"]["test"] == "all", name


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
        assert task_file.load_task(name).contents["partition"]["examples_per_client"] == examples


@pytest.mark.parametrize(
    ("table", "images", "others"),
    [
        (1, 10_000, {"CIFAR-10/PCA+kM+HC"}),
        (2, 10_000, set()),
        (3, 3432, set()),
        (4, 18_800, {"CNN/FedSEM", "CNN/FLT"}),
        (5, 10_000, set()),
    ],
)
def test_flts_standard_errors_are_those_of_one_pooled_test(table, images, others):
    found = load_study(f"flt_table_{table}")
    assert f"{images:,} test images together" in found.published_is
    printed = {cell.name: cell.published for cell in found.cells if cell.published[1] is not None}
    apart = {
        name.split(", ")[-1]
        for name, (mean, error) in printed.items()
        if abs((mean * (100 - mean) / images) ** 0.5 - error) > 0.015
    }
    assert len(printed) > 5 and apart == others


def test_flt_on_cifar_10_has_the_papers_encoders_and_the_number_of_classes_as_k():
    for table in (1, 2, 5):
        for cell in load_study(f"flt_table_{table}").cells:
            if "flt_cifar10" in cell.task and cell.method == "flt":
                found = study_plan.resolve(cell, 0, 1, {}).method
                enc1 = "Enc1" in cell.name
                assert found.encoder == ("flt_cifar10_enc1" if enc1 else "flt_cifar10_enc2"), cell.name
                assert (found.fine_tune_epochs, found.num_centres, found.threshold) == (
                    0 if enc1 else 5,
                    "classes",
                    1.0,
                )


def test_figure_6_of_pacfl_is_by_equation_3_and_figure_2_by_equation_2():
    for figure, metric in ((6, "trace"), (2, "smallest_angle")):
        cells = load_study(f"pacfl_figure_{figure}").cells
        assert {study_plan.resolve(cell, 0, 1, {}).method.metric for cell in cells} == {metric}


def test_clusters_that_a_task_inherits_are_said_to_be():
    for name in of("pacfl_fmnist") + of("flis_fmnist"):
        if name != "pacfl_fmnist_label_skew_20":
            assert resolved(name).method.num_clusters == 4 and "4 clusters are inherited" in resolved(name).source, name
