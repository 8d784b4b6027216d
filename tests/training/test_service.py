"""The mathematics of services, on cases small enough to check by hand."""

from __future__ import annotations

import math

import pytest
import torch

import udjfl
from udjfl.errors import NotDefinedError, SettingsError
from udjfl.training import service as services
from udjfl.training.service import (
    Checkpoints,
    PriorAll,
    PriorEgalitarian,
    PriorRawls,
    check_service,
    choose_checkpoints,
    class_term,
    keep_checkpoint,
    keep_every,
    mean_prior,
    parse_service,
    prior_offset,
    service_text,
    service_theories,
    targets,
)

NAN = math.nan


def column(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


# --- the setting


@pytest.mark.parametrize(
    ("text", "service"),
    [
        ("none", None),
        ("prior-rawls", PriorRawls(1.0)),
        ("prior-rawls:strength=0.5", PriorRawls(0.5)),
        ("prior-egalitarian:strength=0", PriorEgalitarian(0.0)),
        ("prior-all", PriorAll()),
        ("checkpoints", Checkpoints(0.7)),
        ("checkpoints:rho=1", Checkpoints(1.0)),
    ],
)
def test_the_setting_is_read(text: str, service: object) -> None:
    read = parse_service(text)
    assert read == service
    assert type(read) is type(service)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("prior", "service: unknown value 'prior'. Did you mean 'prior-all'?"),
        ("none:rho=1", "service: unknown value 'none:rho=1'"),
        ("checkpoints:0.5", "service: unknown value 'checkpoints:0.5'"),
        ("checkpoints:rho=0", "service: rho is '0'; give a number above 0, at most 1"),
        ("prior-all:strength=1.1", "service: strength is '1.1'; give a number from 0 to 1"),
        ("prior-all:strength=nan", "service: strength is 'nan'; give a number from 0 to 1"),
        ("prior-all:strength=much", "service: strength is 'much'"),
        ("prior-all:rho=1", "service: prior-all has no option 'rho'. Known: strength."),
    ],
)
def test_mistakes_are_explained(text: str, sentence: str) -> None:
    with pytest.raises(SettingsError) as caught:
        parse_service(text)
    assert str(caught.value).startswith(sentence)


def test_a_service_is_written_without_defaults() -> None:
    assert service_text(PriorRawls()) == "prior-rawls"
    assert service_text(Checkpoints(0.25)) == "checkpoints:rho=0.25"


def test_theories() -> None:
    assert service_theories("none") == service_theories("prior-all") == ()
    assert service_theories("prior-egalitarian:strength=0.5") == ("egalitarian",)
    assert service_theories("checkpoints") == ("desert",)


@pytest.mark.parametrize("name", ["cffl", "focus"])
def test_methods_with_models_of_their_own_are_refused(name: str) -> None:
    method = udjfl.method(name)
    with pytest.raises(NotDefinedError, match=f"^{name}: serves clients models of its own, and "):
        check_service(PriorRawls(), method)
    check_service(None, method)


def test_methods_with_one_common_model_are_not() -> None:
    for name in ("fedavg", "rawls", "e2fl"):
        check_service(Checkpoints(), udjfl.method(name))


# --- prior


def test_the_offsets_of_two_clients_by_hand() -> None:
    """Labels 0, 0, 1 and labels 1, 1, 1, 1, 1: pi = (3, 2) / 5 and (1, 6) / 7.

    The terms are 3 pi = (9, 6) / 5 and 5 pi = (5, 30) / 7; their sum is (88, 192) / 35, and
    pibar = (88, 192) / 280 = (11, 24) / 35.
    """
    first = class_term(torch.tensor([0, 0, 1]), 2)
    second = class_term(torch.tensor([1] * 5), 2)
    torch.testing.assert_close(first, column(9 / 5, 6 / 5))
    torch.testing.assert_close(second, column(5 / 7, 30 / 7))
    prior = mean_prior(torch.stack([first, second]))
    torch.testing.assert_close(prior, column(11 / 35, 24 / 35))
    expected = column(math.log(3 / 5 * 35 / 11), math.log(2 / 5 * 35 / 24))
    torch.testing.assert_close(prior_offset(first, prior, 1.0), expected)
    torch.testing.assert_close(prior_offset(first, prior, 0.5), expected / 2)
    assert not prior_offset(second, prior, 0.0).any()


def test_one_client_is_where_the_mean_is() -> None:
    term = class_term(torch.tensor([0, 2, 2]), 3)
    offset = prior_offset(term, mean_prior(term[None]), 1.0)
    torch.testing.assert_close(offset, torch.zeros(3, dtype=torch.float64), atol=1e-15, rtol=0)


def test_a_client_of_one_class_has_a_finite_offset_towards_it() -> None:
    own, other = class_term(torch.tensor([1] * 50), 3), class_term(torch.tensor([0, 1, 2]), 3)
    offset = prior_offset(own, mean_prior(torch.stack([own, other])), 1.0)
    assert torch.isfinite(offset).all()
    assert (offset > 0).tolist() == [False, True, False]


def test_clients_without_a_term_are_left_out_of_the_mean() -> None:
    terms = torch.stack([column(1, 3), column(NAN, NAN), column(2, 2)])
    torch.testing.assert_close(mean_prior(terms), column(3 / 8, 5 / 8))


def test_rawls_moves_the_most_uncertain_client() -> None:
    service = PriorRawls(0.5)
    assert service.kappas(column(0.1, 0.4, 0.2)).tolist() == [0, 0.5, 0]
    assert service.kappas(column(0.1, NAN, 0.2)).tolist() == [0, 0, 0.5]
    assert service.kappas(column(NAN, NAN)).tolist() == [0, 0]
    assert service.kappas(column(0.3)).tolist() == [0.5]


def test_rawls_moves_a_tenth_of_many_clients() -> None:
    values = torch.arange(1, 31, dtype=torch.float64)
    assert PriorRawls().kappas(values).nonzero().flatten().tolist() == [27, 28, 29]
    assert int(PriorRawls().kappas(values[:20]).sum()) == 1


def test_egalitarian_moves_by_uncertainty() -> None:
    kappas = PriorEgalitarian(0.5).kappas(column(0.1, 0.4, NAN))
    torch.testing.assert_close(kappas, column(0.125, 0.5, 0.0))
    assert PriorEgalitarian().kappas(column(NAN, NAN)).tolist() == [0, 0]


def test_all_moves_everybody() -> None:
    assert PriorAll(0.5).kappas(column(0.1, NAN)).tolist() == [0.5, 0.5]


# --- checkpoints


def test_targets_are_on_a_line() -> None:
    """Best: u = 0.1, score 0.9; worst: u = 0.5, score 0.6, target 0.5 * 0.6 = 0.3.

    b = (0.9 - 0.3) / 0.4 = 1.5, so the client at u = 0.3 is to have 0.9 - 1.5 * 0.2 = 0.6.
    """
    wanted = targets(0.5, column(0.3, 0.1, 0.5), column(0.8, 0.9, 0.6))
    torch.testing.assert_close(wanted, column(0.6, 0.9, 0.3))


def test_targets_at_the_ends() -> None:
    scores = column(0.8, 0.9)
    assert targets(0.5, column(0.2, 0.2), scores).tolist() == scores.tolist()  # no difference in u
    assert targets(0.5, column(0.2), column(0.8)).tolist() == [0.8]
    torch.testing.assert_close(targets(1.0, column(0.1, 0.2), scores), scores)
    assert targets(0.5, column(NAN, NAN), scores).isnan().all()
    wanted = targets(0.5, column(0.1, NAN, 0.5, 0.9), column(0.9, 0.8, 0.6, NAN))
    assert wanted.isnan().tolist() == [False, True, False, True]
    torch.testing.assert_close(wanted[[0, 2]], column(0.9, 0.3))


def test_the_nearest_checkpoint_is_served_and_of_several_the_latest() -> None:
    table = torch.stack(
        [
            column(0.2, 0.30, 0.3),
            column(0.5, 0.62, 0.3),
            column(0.7, 0.58, 0.5),
            column(0.9, 0.80, 0.6),
        ]
    )
    rows = choose_checkpoints(table, column(0.9, 0.6, 0.3), column(0.1, 0.3, 0.5))
    assert rows.tolist() == [3, 2, 1]


def test_the_least_uncertain_client_is_served_the_final_model() -> None:
    """Even if an earlier model scored the same, and whatever an unknown client has."""
    table = torch.stack([column(0.9, 0.1, 0.2), column(0.9, 0.8, 0.7)])
    assert choose_checkpoints(table, column(0.9, 0.1, NAN), column(0.1, 0.3, 0.2)).tolist() == [
        1,
        0,
        1,
    ]
    unscored = torch.stack([column(NAN, NAN, 0.2), column(0.9, 0.8, 0.7)])
    assert choose_checkpoints(unscored, column(0.9, 0.1, 0.7), column(0.1, 0.3, 0.2)).tolist() == [
        1,
        1,
        1,
    ]


def test_kept_models_grow_by_one_row() -> None:
    one = keep_checkpoint({}, 1, torch.ones(2), column(0.5), torch.tensor([1]), 2)
    two = keep_checkpoint(one, 3, torch.zeros(2), column(0.6, 0.7), torch.tensor([0, 1]), 2)
    assert two["models"].tolist() == [[1, 1], [0, 0]]
    assert two["rounds"].tolist() == [1, 3]
    assert math.isnan(two["scores"][0, 0])
    assert two["scores"][:, 1].tolist() == [0.5, 0.7]


def test_long_runs_keep_every_second_model(monkeypatch: pytest.MonkeyPatch) -> None:
    model = torch.zeros(10)  # 40 bytes
    monkeypatch.setattr(services, "KEPT_BYTES", 400)
    assert [keep_every(rounds, model) for rounds in (1, 10, 11, 20, 21)] == [1, 1, 2, 2, 3]
