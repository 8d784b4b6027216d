"""What each method needs of clients, and what it says about each step, by the names in records."""

from __future__ import annotations

import pytest
from test_contract import Case, build_reports, random_values, setup_of

# A method with its parameters: what it needs; what it says of each client; of the whole step.
TABLE = """
fedavg: sizes; weight;
fedavg weights=uniform: ; weight;
rawls step=paper: losses uncertainties; weight step_share curvature floored capped; step_scale
rawls: losses steps uncertainties; weight step_share curvature floored capped; step_scale
rawls budget=2.0: score_sizes scores sizes uncertainties; weight direction client_price capped; \
price violation
qffl: losses steps; weight curvature; step_scale
qffl lipschitz=paper: losses; weight curvature; step_scale
qffl weights=size: losses sizes steps; weight curvature; step_scale
afl: losses sizes; weight lambda;
afl start=uniform: losses; weight lambda;
term: losses sizes; weight;
term weights=uniform: losses; weight;
term step=official: losses sizes; weight; step_scale estimate
propfair: sizes; weight;
fedmgda: ; weight update_length; common_length
fedmgda l0=size: sizes; weight update_length; common_length
fedfv: losses; weight kept conflicts alignment; rescale
adafed: losses; weight coefficient slope; step_length
mfairfl: losses; weight conflicts alignment lam group_gap; step_scale
adafedadam: gradient_norms losses sizes; weight relative_loss certainty; certainty_used
effl: losses; weight; stage direction_length loss_spread_excess
fedfa: accuracies; weight accuracy_information participation_information participations;
e2fl: model; weight group mask_overlap;
fedfair3: sizes squared_losses; weight utility participations;
fedeba: first_deltas losses; weight; angle aligns_gradients
fedeba prior=size: first_deltas losses sizes; weight; angle aligns_gradients
corefed: losses; weight utility clamped; step_scale
corefed weights=size: losses sizes; weight utility clamped; step_scale
focus: losses_of_each; weight expected_loss share_of_model_1 share_of_model_2;
cffl: sizes validation_accuracies; weight reputation reputable downloaded; threshold
cffl theta=0.3: model sizes validation_accuracies; weight reputation reputable downloaded; \
threshold
fedprox: sizes; weight;
fedprox weights=uniform: ; weight;
scaffold: sizes steps; weight;
scaffold weights=uniform: steps; weight;
feddyn: ; ; history_norm
fednova: sizes steps; weight; step_scale
fednova weights=uniform: steps; weight; step_scale
ditto: personal_deltas sizes; weight;
ditto weights=uniform: personal_deltas; weight;
fine-tuning: model sizes; weight; alone
fine-tuning weights=uniform: model; weight; alone
"""
ROWS = [tuple(line.split(": ", 1)) for line in TABLE.strip().splitlines()]


def parse(text: str) -> Case:
    name, *parameters = text.split()
    given = (parameter.split("=") for parameter in parameters)
    return Case(name, {key: float(v) if v[0].isdigit() else v for key, v in given})


@pytest.mark.parametrize(("text", "declared"), ROWS)
def test_needs_and_diagnostics(text: str, declared: str) -> None:
    needs, by_client, of_step = (set(part.split()) for part in declared.split(";"))
    rule = parse(text).build()
    assert rule.needs == needs
    reports = build_reports(rule, random_values(3, 4))
    diagnostics = rule.aggregate(dict(rule.init(setup_of(rule, reports))), reports)[2]
    assert {name for name, value in diagnostics.items() if value.ndim} == by_client
    assert {name for name, value in diagnostics.items() if not value.ndim} == of_step
    assert all(len(value) == 3 for value in diagnostics.values() if value.ndim)
