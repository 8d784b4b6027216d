"""The two readings of the paper's experiment."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from udjfl.paper.profiles import (
    PROFILES,
    ProfileName,
    profile_data,
    profile_uncertainties,
    training_settings,
)
from udjfl.paper.settings import ReproduceSettings


def settings_for(
    data: str = "dirty-mnist", profile: ProfileName = "paper", **more: Any
) -> ReproduceSettings:
    return ReproduceSettings(data=data, profile=profile, **more)


def test_the_profiles_are_those_that_settings_allow():
    allowed = get_args(ReproduceSettings.model_fields["profile"].annotation)
    assert tuple(PROFILES) == allowed == get_args(ProfileName)
    assert all(profile.name == name and profile.summary for name, profile in PROFILES.items())


def test_the_defaults_are_the_experiment_of_the_paper():
    settings = ReproduceSettings()
    assert (settings.data, settings.profile, settings.rounds, settings.epochs) == (
        "dirty-mnist",
        "paper",
        500,
        500,
    )


@pytest.mark.parametrize("profile", PROFILES)
def test_settings_that_both_profiles_take_from_the_paper(profile):
    training = training_settings(settings_for(profile=profile, rounds=70, epochs=30))
    assert (training.model, training.hidden, training.weight_norm) == ("mlp", 64, True)
    assert (training.lr, training.batch_size, training.local_epochs) == (0.1, 128, 1)
    assert (training.rounds, training.uncertainty_epochs, training.uncertainty) == (
        70,
        30,
        "paper",
    )
    assert training.participation == 1.0
    assert training.drop_out == 0.0


def test_settings_of_profile_paper():
    training = training_settings(settings_for(profile="paper"))
    assert (training.momentum, training.loss_at, training.uncertainty_optimiser) == (
        0.0,
        "received",
        "sgd",
    )
    assert training.uncertainty_lr == 0.001
    profile = PROFILES["paper"]
    assert (profile.step, profile.discards_fedmgda) == ("safe", False)
    assert not profile.data_options
    assert not profile.uncertainties


def test_settings_of_profile_authors():
    training = training_settings(settings_for(profile="authors"))
    assert (training.momentum, training.loss_at, training.uncertainty_optimiser) == (
        0.9,
        "running",
        "adam",
    )
    profile = PROFILES["authors"]
    assert (profile.step, profile.discards_fedmgda) == ("authors", True)
    assert profile.shard_options == {"dirty-mnist": "order=kept"}


@pytest.mark.parametrize(
    ("data", "rate"),
    [
        ("dirty-mnist", 0.001),
        ("cure-tsr", 0.001),
        ("signs:level=3", 0.005),
        ("dirty-digits", 0.0125),
        ("heart", 0.02),
    ],
)
def test_the_rate_of_plain_sgd_alone_is_larger_on_small_data(data, rate):
    assert training_settings(settings_for(data, "paper")).uncertainty_lr == rate
    assert training_settings(settings_for(data, "authors")).uncertainty_lr == 0.001


def test_changes_override_the_profile():
    training = training_settings(
        settings_for(device="cpu", workers=3, model="logistic"), {"lr": 0.01, "momentum": 0.5}
    )
    assert (training.lr, training.momentum, training.workers, training.model) == (
        0.01,
        0.5,
        3,
        "logistic",
    )


@pytest.mark.parametrize(("rounds", "every"), [(3, 3), (50, 50), (500, 50)])
def test_short_runs_are_evaluated_too(rounds, every):
    assert training_settings(settings_for(rounds=rounds)).eval_every == every


@pytest.mark.parametrize(
    ("profile", "data", "loaded"),
    [
        ("authors", "dirty-mnist", "dirty-mnist:split=pairs"),
        ("authors", "dirty-mnist:ambiguous=release", "dirty-mnist:ambiguous=release:split=pairs"),
        ("authors", "dirty-mnist:split=images", "dirty-mnist:split=images"),  # chosen
        ("authors", "dirty-mnist: split = images", "dirty-mnist: split = images"),
        ("authors", "dirty-digits", "dirty-digits"),
        ("authors", "cure-tsr:level=3", "cure-tsr:level=3"),
        ("paper", "dirty-mnist", "dirty-mnist"),
        ("paper", "dirty-mnist:split=pairs", "dirty-mnist:split=pairs"),
    ],
)
def test_profile_authors_splits_dirty_mnist_by_pairs_unless_chosen(profile, data, loaded):
    assert profile_data(settings_for(data, profile)) == loaded


def test_the_authors_uncertainties_are_given_from_the_cleanest_client_on():
    mnist = profile_uncertainties(settings_for("dirty-mnist:split=images", "authors"))
    assert mnist == {
        "client-1": 0.033,
        "client-2": 0.061,
        "client-3": 0.117,
        "client-4": 0.189,
        "client-5": 0.234,
    }
    signs = profile_uncertainties(settings_for("cure-tsr", "authors"))
    assert signs == {
        "client-1": 0.357,
        "client-2": 0.492,
        "client-3": 0.5,
        "client-4": 0.824,
        "client-5": 0.913,
    }


@pytest.mark.parametrize(
    ("profile", "data"),
    [
        ("paper", "dirty-mnist"),
        ("paper", "cure-tsr"),
        ("authors", "signs"),
        ("authors", "dirty-digits"),
    ],
)
def test_other_uncertainties_are_measured(profile, data):
    assert profile_uncertainties(settings_for(data, profile)) is None
