"""What a user sets, against the types that are declared for it."""

import copy
import dataclasses
import datetime
import enum
import pathlib
import pickle
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
import pytest

from tffcl import LocalTraining, validation
from tffcl.aggregators.parameters import DPParameters, RobustParameters
from tffcl.algorithms.each_round_parameters import IFCAParameters, RRClusterParameters, StoCFLParameters
from tffcl.algorithms.parameters import PACFLParameters
from tffcl.errors import UserError
from tffcl.validation import (
    Count,
    Fraction,
    NonNegative,
    Parameters,
    Positive,
    Whole,
    check_options,
    check_value,
    describe,
    from_table,
    one_of,
    validated,
    wrong,
)

METRICS = {"loss": "of the training", "accuracy": "on the test images"}
Way = enum.Enum("Way", {"UP": "up", "DOWN": "down"})
COSINE = Annotated[float, msgspec.Meta(ge=-1, le=1, description="a cosine, from -1 to 1")]


@dataclasses.dataclass(frozen=True)
class Settings(Parameters):
    """One field of each kind."""

    rounds: Count = 10
    rate: Positive = 0.1
    momentum: Fraction = 0.0
    metric: one_of(METRICS) = "loss"
    clusters: Count | None = None
    threshold: COSINE | None = None
    soft: bool = False

    def check(self):
        if self.clusters is not None and self.clusters > self.rounds:
            raise wrong("clusters", self.clusters, f"it must be at most rounds, {self.rounds}")
        if self.clusters is not None and self.threshold is not None:
            raise UserError("give threshold or clusters, not both")


def refused(call, *arguments, **options):
    """The one line with which a call is refused, and the error."""
    with pytest.raises(UserError) as caught:
        call(*arguments, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value), caught.value


@pytest.mark.parametrize(
    "value, kind, expected",
    [
        (3, Count, 3),
        (np.int64(3), Count, 3),
        (np.uint8(3), Whole, 3),
        (0, Whole, 0),
        (10**400, Count, 10**400),
        (2, Positive, 2.0),
        (np.int32(2), Positive, 2.0),
        (np.float32(0.5), Positive, 0.5),
        (0, Fraction, 0.0),
        (0, NonNegative, 0.0),
        (None, Count | None, None),
        (3, Count | None, 3),
        (None, one_of(METRICS) | None, None),
        ("accuracy", one_of(METRICS) | None, "accuracy"),
        (np.str_("loss"), one_of(METRICS), "loss"),
        (np.bool_(True), bool, True),
        (np.int64(4), Literal[4, 2], 4),
        ((1, np.int64(2)), Sequence[Count], [1, 2]),
        ([1, 2], tuple[Count, ...], (1, 2)),
        ([[0, 1], (2,)], Sequence[Sequence[Whole]], [[0, 1], [2]]),
        ([[0, 1], None], Sequence[Sequence[Whole] | None], [[0, 1], None]),
        (pathlib.Path("a") / "b", str, "a/b"),
        (pathlib.Path("a"), str | None, "a"),
        ("paper", Literal["paper", "code"] | Sequence[Count], "paper"),
        ([3], Literal["paper", "code"] | Sequence[Count], [3]),
        ({"a": 1}, Any, {"a": 1}),
    ],
)
def test_what_is_taken_and_becomes_the_declared_type(value, kind, expected):
    found = check_value("key", value, kind)
    assert found == expected and type(found) is type(expected)


A_NUMBER = "a number above 0"


@pytest.mark.parametrize(
    "value, kind, message",
    [
        (True, Count, "key is True; it must be a whole number from 1"),
        (np.bool_(True), Count, "key is True; it must be a whole number from 1"),
        (False, Whole, "key is False; it must be a whole number from 0"),
        (True, Positive, "key is True; it must be a number above 0"),
        (1, bool, "key is 1; it must be true or false"),
        (None, Count, "key is None; it must be a whole number from 1"),
        (0, Count, "key is 0; it must be a whole number from 1"),
        (2.0, Count, "key is 2.0; it must be a whole number from 1"),
        (np.float64(2), Count, "key is 2.0; it must be a whole number from 1"),
        ("2", Count, "key is '2'; it must be a whole number from 1"),
        ("2", Positive, "key is '2'; it must be a number above 0"),
        (-1, Whole, "key is -1; it must be a whole number from 0"),
        (0, Positive, "key is 0; it must be a number above 0"),
        (-0.5, NonNegative, "key is -0.5; it must be a number from 0"),
        (1, Fraction, "key is 1; it must be a number from 0 to below 1"),
        (float("nan"), Positive, f"key is nan; it must be {A_NUMBER}"),
        (np.float32("nan"), Positive, f"key is nan; it must be {A_NUMBER}"),
        (float("nan"), float, "key is nan; it must be a number, and finite"),
        (float("inf"), Positive, f"key is inf; it must be {A_NUMBER}, and finite"),
        (float("-inf"), float | None, "key is -inf; it must be a number, and finite"),
        ([1.0, float("inf")], Sequence[float], "key is [1.0, inf]; it must be a list of numbers, and finite"),
        (3, str, "key is 3; it must be text"),
        (0, Count | None, "key is 0; it must be a whole number from 1"),
        ("x", Sequence[str], "key is 'x'; it must be a list of texts"),
        ([0, True], Sequence[Whole], "key is [0, True]; it must be a list of whole numbers from 0"),
        (
            [[1], [0]],
            Sequence[Sequence[Count]],
            "key is [[1], [0]]; it must be a list of lists of whole numbers from 1",
        ),
        (2, COSINE, "key is 2; it must be a cosine, from -1 to 1"),
        (2, COSINE | None, "key is 2; it must be a cosine, from -1 to 1"),
        (3, Literal[4, 2], "key is 3; it must be one of 2, 4"),
        (4.0, Literal[4, 2], "key is 4.0; it must be one of 2, 4"),
        (True, Literal[1, 2], "key is True; it must be one of 1, 2"),
        (["loss"], one_of(METRICS), "key is ['loss']; it must be one of accuracy, loss"),
        ("losss", one_of(METRICS), "unknown key 'losss'; did you mean 'loss'? (allowed: accuracy, loss)"),
        ("losss", one_of(METRICS) | None, "unknown key 'losss'; did you mean 'loss'? (allowed: accuracy, loss)"),
        ("zzz", one_of(METRICS), "unknown key 'zzz' (allowed: accuracy, loss)"),
        (
            "papr",
            Literal["paper"] | Sequence[Count],
            "unknown key 'papr'; did you mean 'paper'? (allowed: paper; or a list of whole numbers from 1)",
        ),
        ("dwn", Way | None, "unknown key 'dwn'; did you mean 'down'? (allowed: down, up)"),
        ([1], tuple[int, int], "key is [1]; it must be a list of 2: a whole number, a whole number"),
        ([0], Literal["paper"] | Sequence[Count], "key is [0]; it must be paper or a list of whole numbers from 1"),
    ],
)
def test_what_is_refused_in_one_line(value, kind, message):
    line, error = refused(check_value, "key", value, kind)
    assert line == message
    assert (error.table, error.key) == (None, "key")


def test_a_whole_number_that_no_float_can_hold():
    line, _ = refused(check_value, "key", 10**400, Positive)
    assert line.startswith("key is 1000") and line.endswith("...; it must be a number above 0") and len(line) < 160
    # Python does not even write this one out.
    assert refused(check_value, "key", 10**5000, Positive)[0].startswith("key is a number of too many digits; it must")


def test_types_in_words():
    assert describe(Annotated[int, msgspec.Meta(ge=8, le=178)]) == "a whole number from 8 to 178"
    assert describe(Annotated[float, msgspec.Meta(gt=0, le=1)]) == "a number above 0, at most 1"
    assert describe(Annotated[float, msgspec.Meta(gt=0, lt=1)]) == "a number above 0 and below 1"
    assert describe(Annotated[float, msgspec.Meta(lt=1)]) == "a number below 1"
    assert describe(Annotated[int, msgspec.Meta(le=9)]) == "a whole number of at most 9"
    assert describe(one_of(("a", "b")) | Count | None) == "a, b or a whole number from 1"
    assert describe(Annotated[Sequence[str], msgspec.Meta(min_length=2)]) == "a list of 2 or more texts"
    assert describe(Any) == ""
    assert describe(tuple[int, str] | None) == "a list of 2: a whole number, text"
    assert describe(list[tuple[Count, Count]]) == "a list of lists of 2: a whole number from 1, a whole number from 1"
    assert describe(tuple[()]) == "a list of 0" and describe(frozenset[str]) == "a list of texts"
    assert describe(Way | None) == "one of up, down" and describe(list[Way]) == "a list of some of up, down"
    assert (
        describe(datetime.date) == "of type date" and describe(list[np.ndarray]) == "a list of values of type ndarray"
    )


def test_fields_are_converted_and_checked_when_an_instance_is_made():
    made = Settings(rounds=np.int64(3), rate=2, threshold=1)
    assert made == Settings(rounds=3, rate=2.0, threshold=1.0)
    assert [type(value) for value in (made.rounds, made.rate, made.threshold)] == [int, float, float]
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.rounds = 4
    assert refused(Settings, rounds=0)[0] == "rounds is 0; it must be a whole number from 1"
    assert (
        refused(dataclasses.replace, made, momentum=1.0)[0] == "momentum is 1.0; it must be a number from 0 to below 1"
    )
    assert refused(Settings, clusters=11)[0] == "clusters is 11; it must be at most rounds, 10"
    assert refused(Settings, clusters=2, threshold=0.5)[0] == "give threshold or clusters, not both"


@pytest.mark.parametrize(
    "values, message, key",
    [
        ({"rounds": 0}, "train.rounds is 0; it must be a whole number from 1", "rounds"),
        ({"metric": "los"}, "unknown train.metric 'los'; did you mean 'loss'? (allowed: accuracy, loss)", "metric"),
        ({"clusters": 11}, "train.clusters is 11; it must be at most rounds, 10", "clusters"),
        ({"round": 3}, "unknown key in [train] 'round'; did you mean 'rounds'? (allowed: clusters, metric, ", "round"),
        ({"check": 3}, "unknown key in [train] 'check'", "check"),
        ({"metric": 3}, "train.metric is 3; it must be one of accuracy, loss", "metric"),
    ],
)
def test_a_table_with_a_mistake(values, message, key):
    line, error = refused(from_table, Settings, values, "train")
    assert line.startswith(message)
    assert (error.table, error.key) == ("train", key)


def test_a_rule_that_is_about_no_single_key_has_no_table():
    line, error = refused(from_table, Settings, {"clusters": 2, "threshold": 0.5}, "train")
    assert line == "give threshold or clusters, not both" and (error.table, error.key) == (None, None)


def test_a_dataclass_that_checks_itself_is_taken_from_a_table_too():
    @dataclasses.dataclass(frozen=True)
    class Plain:
        number: int
        share: float = 0.5

        def __post_init__(self):
            if self.number > 9:
                raise UserError("number must be small")

    assert from_table(Plain, {"number": 3, "share": 1}, "plain") == Plain(3, 1.0)
    assert refused(from_table, Plain, {"number": "3"}, "plain")[0] == "plain.number is '3'; it must be a whole number"
    assert refused(from_table, Plain, {"number": 10}, "plain")[0] == "number must be small"
    assert refused(from_table, Plain, {}, "plain")[0] == "[plain] needs 'number' (its keys: number, share)"


def rule(data, *, seed: Whole, clients: Count, share: bool = False, anything=None):
    return data, seed, clients, share, anything


def test_options_of_a_function():
    given = {"given": ("seed",), "also": ("name",)}
    assert check_options("partition rule", rule, {"clients": np.int64(3), "anything": {}}, **given) == {
        "clients": 3,
        "anything": {},
    }
    for options, message, key in (
        (
            {"client": 3},
            "unknown option of partition rule 'client'; did you mean 'clients'? (allowed: anything, c",
            "client",
        ),
        ({"clients": 3, "seed": 1}, "unknown option of partition rule 'seed'", "seed"),
        ({"clients": 3, "nam": 1}, "unknown option of partition rule 'nam'; did you mean 'name'?", "nam"),
        ({"share": True}, "partition rule needs 'clients' (its options: anything, clients, name, share)", None),
        ({"clients": 0}, "partition.clients is 0; it must be a whole number from 1", "clients"),
        ({"clients": 3, "share": 1}, "partition.share is 1; it must be true or false", "share"),
    ):
        line, error = refused(check_options, "partition rule", rule, options, **given)
        assert line.startswith(message)
        assert (error.table, error.key) == ("partition", key)


def test_a_validated_function_checks_its_own_keyword_arguments():
    checked = validated(rule)
    assert checked("data", seed=0, clients=np.int32(2), anything=True) == ("data", 0, 2, False, True)
    assert type(checked("data", seed=0, clients=np.int32(2))[2]) is int
    assert refused(checked, "data", seed=-1, clients=2)[0] == "seed is -1; it must be a whole number from 0"
    with pytest.raises(TypeError, match="unexpected keyword argument 'client'"):
        checked("data", seed=0, client=2)
    assert refused(check_options, "partition rule", checked, {"clients": 0}, given=("seed",))[1].key == "clients"
    assert list(validation.keys_of(checked)) == ["seed", "clients", "share", "anything"]


def test_a_parameter_that_there_is_not_is_told_with_the_nearest():
    with pytest.raises(
        UserError, match=r"^unknown parameter of LocalTraining 'epoch'; did you mean 'epochs'\? \(the nearest of \d+"
    ):
        LocalTraining(epoch=2)
    with pytest.raises(UserError, match="unknown parameter of Settings"):
        dataclasses.replace(Settings(), nothing=1)
    assert (
        pickle.loads(pickle.dumps(LocalTraining(epochs=2)))
        == copy.deepcopy(LocalTraining(epochs=2))
        == LocalTraining(epochs=2)
    )


@pytest.mark.parametrize(
    ("kind", "values", "message"),
    [
        (RobustParameters, {"zeroing": 3}, "zeroing is 3.0; it is for rule 'clipping', and rule is 'median'"),
        (DPParameters, {"quantile": 0.3}, "quantile is 0.3; it is for clipping 'adaptive', and clipping is 'fixed'"),
        (IFCAParameters, {"fedavg_rounds": 9}, "fedavg_rounds is 9; it is for start 'fedavg'"),
        (RRClusterParameters, {"warm_up_rounds": 9, "start": "attracting"}, "it is for start 'warm_up'"),
        (StoCFLParameters, {"anchor_epochs": 1}, "it is for form 'displacement', and form is 'gradient'"),
        (PACFLParameters, {"max_classes": 3}, "it is for per_class True, and per_class is False"),
    ],
)
def test_a_key_that_another_keeps_from_meaning_anything_is_refused(kind, values, message):
    with pytest.raises(UserError, match=message):
        kind(**values)
    key, (other, meant, *_) = next((key, also) for key, also in kind.only_with.items() if key in values)
    assert getattr(kind(**{**values, other: meant}), key) == values[key]
    assert kind(**{key: getattr(kind(), key)}) == kind()  # as by default it may be written down


def test_a_value_that_cannot_be_compared_may_be_a_users_parameter():
    @dataclasses.dataclass(frozen=True)
    class Own(RobustParameters):
        weights: object = None

    assert Own(weights=np.arange(3), rule="clipping", zeroing=3).zeroing == 3
    with pytest.raises(UserError, match="zeroing is 3.0; it is for rule 'clipping'"):
        Own(weights=np.arange(3), zeroing=3)
