"""The contract of a method, checked on every method of the registry from one table.

A new method needs one line in CASES; `test_the_table_has_every_method` fails until it has one.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, get_args

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from method_helpers import EXAMPLES
from safetensors.torch import load, save

from udjfl.errors import DivergedError, ReportError, SettingsError
from udjfl.methods import ALIASES, METHODS, UDJ, Method, Reports, Setup, method
from udjfl.methods.base import EXTRAS
from udjfl.methods.udj import StepRule

STEP_RULES = get_args(StepRule)
THEORIES = ("rawls", "egalitarian", "utilitarian", "desert")
# What a client sends. Indices, lr and momentum are the server's own knowledge, so no method has
# to declare them.
SENT = ("losses", "sizes", "uncertainties", "steps")


@dataclass(frozen=True)
class Case:
    """One point of one method, and what a caller must not expect of it.

    can_turn   a rule that is no bound: it may refuse, or step against its clients
    overshoots its step may lead past what every client asks for
    own_way    its step is not along the updates, even where all clients send the same: it clips
               them, votes, or rescales every parameter by itself
    """

    name: str
    params: Mapping[str, Any] = field(default_factory=dict)
    can_turn: bool = False
    overshoots: bool = False
    own_way: bool = False

    def __str__(self) -> str:
        return ":".join([self.name, *(f"{key}={value}" for key, value in self.params.items())])

    def build(self) -> Method:
        return method(self.name, **self.params)


CASES = [
    Case("fedavg"),
    Case("fedavg", {"weights": "uniform"}),
    *(Case("rawls", {"step": step}) for step in STEP_RULES),
    *(
        Case("egalitarian", {"step": step}) for step in STEP_RULES if step != "authors"
    ),  # which divides by 0 at p = 1
    *(Case("utilitarian", {"step": step}) for step in STEP_RULES if step != "authors"),
    Case("utilitarian", {"beta": 0.1, "step": "authors"}),
    *(Case("desert", {"step": step}, can_turn=step in ("paper", "authors")) for step in STEP_RULES),
    Case("udj", {"beta": 2.0, "gamma": -0.5}),
    Case("udj", {"theory": "rawls", "beta": 1000.0, "gamma": 2.5, "step": "paper"}),
    Case("udj", {"beta": 0.5, "gamma": 0.0, "r": -3.0, "step": "safe"}),
    Case("udj", {"theory": "rawls", "beta": 1000.0, "cap": 0.7}),
    Case("udj", {"theory": "desert", "cap": 1.0}),
    *(Case("udj", {"theory": theory, "budget": 2.0}) for theory in THEORIES),
    Case("udj", {"theory": "egalitarian", "budget": 0.0, "limit": 99.0, "cap": 1.0}),
    Case(
        "udj",
        {
            "theory": "rawls",
            "budget": 1.0,
            "client_budget": 0.5,
            "floor": "alone",
            "advantage": "alone",
            "caution": 0.0,
        },
    ),
    Case("qffl"),
    Case("qffl", {"q": 0.0}),
    Case("qffl", {"q": 5.0, "lipschitz": "paper"}),
    Case("qffl", {"q": 0.1, "lipschitz": 2.0, "weights": "size"}),
    Case("afl"),
    Case("afl", {"order": "step_first", "start": "uniform"}),
    Case("term"),
    Case("term", {"t": -2.0, "weights": "uniform"}),
    Case("term", {"step": "official"}, overshoots=True),  # twice the update in round 1
    Case("propfair"),
    Case("propfair", {"M": 2.0, "huber": True}),
    Case("fedmgda", overshoots=True),  # its step has a length of its own
    Case("fedmgda", {"epsilon": 1.0, "l0": "size", "decay": 0.5}, overshoots=True),
    Case("fedfv"),
    Case("fedfv", {"alpha": 0.0, "tau": 3}),
    Case("adafed"),
    Case("adafed", {"step": "paper", "ridge": 0.0, "gamma": 2.0}, overshoots=True),
    Case("adafed", {"step": "mean", "normalise": True}),
    Case("mfairfl"),
    Case("mfairfl", {"similarity_rate": 0.0}),
    Case("mfairfl", {"similarity_rate": 1.0}),
    Case("adafedadam", own_way=True),
    Case("adafedadam", {"weights": "code", "alpha": 2.0, "warm_up": 6}, own_way=True),
    Case("effl"),
    Case("effl", {"eps_vl": 100.0}),
    Case("fedfa"),
    Case("fedfa", {"server_momentum": "flgo", "beta": 0.2}),
    Case("e2fl", own_way=True),
    Case("e2fl", {"groups": 1}, own_way=True),
    Case("fedfair3"),
    Case("fedeba"),
    Case("fedeba", {"alpha": 0.0, "prior": "size"}),
    Case("corefed"),
    Case("corefed", {"step": "paper"}, overshoots=True),
    Case("corefed", {"weights": "size"}),
    Case("focus"),
    Case("focus", {"models": 1}),
    Case("cffl", own_way=True),
    Case("cffl", {"clip": 100.0}),
    Case("cffl", {"aggregation": "reputation"}, own_way=True),
    Case(
        "cffl",
        {"theta": 0.3, "aggregation": "mean", "download": "topk", "alpha": 5.0, "coef": 0.5},
        own_way=True,
    ),
    Case("fedprox"),
    Case("fedprox", {"mu": 0.0, "weights": "uniform"}),
    Case("scaffold"),
    Case("scaffold", {"weights": "uniform"}),
    Case("feddyn", overshoots=True),  # twice the update in round 1
    Case("fednova"),
    Case("fednova", {"weights": "uniform"}),
    Case("ditto"),
    Case("ditto", {"lam": 0.0, "weights": "uniform"}),
    Case("fine-tuning"),
    Case("fine-tuning", {"weights": "uniform"}),
]
every_case = pytest.mark.parametrize("case", CASES, ids=str)


def build_reports(
    rule: Method, values: Mapping[str, Any], rows: list[int] | None = None, **changes: Any
) -> Reports:
    """Return reports of the given rows in that order, with all that the method declares.

    None leaves a field out.
    """
    values = {**values, **changes}
    rows = list(range(len(values["ids"]))) if rows is None else rows
    shape = (len(values["ids"]), len(values["deltas"][0]))
    shape = (shape[0], shape[1] * rule.n_models)
    values["deltas"] = [
        row * rule.n_models for row in values["deltas"]
    ]  # one model, or as many as it trains side by side
    extras = {
        name: example_extra(name, rule, *shape)[rows]
        for name in sorted(rule.needs.intersection(EXTRAS))
    }
    per_client = ("ids", "deltas", *SENT)
    picked = {
        k: v if v is None or k not in per_client else [v[row] for row in rows]
        for k, v in values.items()
    }
    picked["deltas"] = torch.tensor(picked["deltas"], dtype=values.get("dtype", torch.float64))
    picked.pop("dtype", None)
    model = torch.linspace(-1, 1, picked["deltas"].shape[1], dtype=picked["deltas"].dtype)
    if "first_deltas" in extras:  # on the way to the delta
        extras["first_deltas"] = picked["deltas"] / 2
    return Reports(**picked, model=model, extras=extras)


def example_extra(name: str, rule: Method, n: int, d: int) -> torch.Tensor:
    """A plausible value of an extra for each of n clients."""
    shape = (
        EXTRAS[name]
        .partition("]")[0]
        .strip("[")
        .replace("D", str(d))
        .replace("M", str(rule.n_models))
    )
    sizes = [n, *(int(size) for size in shape.split(", ")[1:])]
    return torch.linspace(0.2, 0.9, math.prod(sizes), dtype=torch.float64).reshape(sizes)


def random_values(n: int, d: int, seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {
        "ids": [f"client-{i + 1}" for i in range(n)],
        "deltas": rng.normal(size=(n, d)).astype(np.float32).tolist(),
        "losses": rng.uniform(0.1, 3, size=n).tolist(),
        "sizes": rng.integers(1, 100, size=n).tolist(),
        "uncertainties": rng.uniform(0.05, 1, size=n).tolist(),
        "steps": rng.integers(1, 9, size=n).tolist(),
        "lr": 0.1,
        "momentum": 0.5,
    }


@st.composite
def client_values(draw: st.DrawFn) -> dict[str, Any]:
    n, d = draw(st.integers(1, 8)), draw(st.integers(1, 6))

    def column(values: st.SearchStrategy[Any]) -> list[Any]:
        return draw(st.lists(values, min_size=n, max_size=n))

    number = st.floats(-3, 3, width=32, allow_subnormal=False)
    return {
        # From 8 on, so that counting as people do ('client-9' before 'client-10') is not the order
        # of the alphabet.
        "ids": [f"client-{i + 8}" for i in range(n)],
        "deltas": column(st.lists(number, min_size=d, max_size=d)),
        "losses": column(st.floats(1e-6, 50)),
        "sizes": column(st.integers(1, 1000)),
        "uncertainties": column(st.floats(1e-4, 5)),
        "steps": column(st.integers(1, 50)),
        "lr": draw(st.sampled_from([0.001, 0.1, 1.0])),
        "momentum": draw(st.sampled_from([0.0, 0.9])),
    }


def setup_of(rule: Method, reports: Reports) -> Setup:
    """Return the setup of a federation of these clients, with the scores that the method reads."""
    n, setup = len(reports), Setup.of(reports)
    if rule.needs_reference:
        table = torch.linspace(0.3, 0.9, 2 * n, dtype=torch.float64).reshape(2, n)
        setup = replace(setup, reference=table)
    if rule.needs_alone:
        setup = replace(setup, alone=torch.linspace(0.8, 0.4, n, dtype=torch.float64))
    return setup


def run(case: Case, reports: Reports) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Step and diagnostics of a first round."""
    rule = case.build()
    _, step, diagnostics = rule.aggregate(rule.init(setup_of(rule, reports)), reports)
    return step, diagnostics


def refuses(case: Case, reports: Reports) -> bool:
    """Return True if a rule that is no bound met a zero denominator; raise if another refuses."""
    try:
        run(case, reports)
    except SettingsError:
        if case.can_turn:
            return True
        raise
    return False


def same(a: Mapping[str, torch.Tensor], b: Mapping[str, torch.Tensor]) -> bool:
    """True if the names and all bits are the same; NaN, in a state, is a number not known yet."""
    return a.keys() == b.keys() and all(
        a[name].dtype == b[name].dtype
        and a[name].shape == b[name].shape
        and torch.equal(a[name].isnan(), b[name].isnan())
        and torch.equal(a[name].nan_to_num(), b[name].nan_to_num())
        for name in a
    )


def still_usable(state: Mapping[str, torch.Tensor], start: Mapping[str, torch.Tensor]) -> bool:
    """True if all numbers are finite, but for those that were not known at the start."""
    return all(bool((state[name].isfinite() | start[name].isnan()).all()) for name in start)


def test_the_table_has_every_method():
    assert {case.name for case in CASES} == {*METHODS, *ALIASES}


def test_the_table_has_every_step_rule_of_every_theory():
    points = {
        (rule.theory, rule.step)
        for rule in (case.build() for case in CASES)
        if isinstance(rule, UDJ)
    }
    wanted = {(theory, step) for theory in ALIASES for step in STEP_RULES} - {
        ("egalitarian", "authors")
    }
    assert wanted <= points


# The next tests go through the table inside each example: drawing an example costs far more than
# running it.


@EXAMPLES
@given(values=client_values(), data=st.data())
def test_the_order_of_clients_changes_no_bit(values, data):
    shuffled = list(data.draw(st.permutations(range(len(values["ids"])))))
    for case in CASES:
        reports = build_reports(case.build(), values)
        if refuses(case, reports):
            continue
        step, diagnostics = run(case, reports)
        step_shuffled, diagnostics_shuffled = run(
            case, build_reports(case.build(), values, rows=shuffled)
        )
        assert torch.equal(step, step_shuffled), case
        assert same(diagnostics, diagnostics_shuffled), case


@EXAMPLES
@given(values=client_values(), dtype=st.sampled_from([torch.float32, torch.float64]))
def test_the_step_is_finite_and_in_the_dtype_of_the_model(values, dtype):
    for case in CASES:
        reports = build_reports(case.build(), values, dtype=dtype)
        if refuses(case, reports):
            continue
        step, diagnostics = run(case, reports)
        assert step.dtype == dtype, case
        assert step.shape == reports.deltas.shape[1:], case
        assert torch.isfinite(step).all(), case
        for name, value in diagnostics.items():
            assert value.shape in ((), (len(reports),)), (case, name)
            assert torch.isfinite(value).all(), (case, name)


@EXAMPLES
@given(values=client_values())
def test_no_update_no_step(values):
    """Updates of zero leave the model where it is."""
    still = [[0.0] * len(row) for row in values["deltas"]]
    for case in CASES:
        step, _ = run(case, build_reports(case.build(), values, deltas=still))
        assert torch.equal(step, torch.zeros_like(step)), case


@EXAMPLES
@given(values=client_values())
def test_identical_clients_step_along_fedavg(values):
    """All clients alike, so FedAvg's step is the delta they share."""
    delta = torch.tensor([1.0, *values["deltas"][0][1:]], dtype=torch.float64)
    alike = {name: [values[name][0]] * len(values["ids"]) for name in SENT}
    for case in CASES:
        reports = build_reports(
            case.build(), {**values, **alike, "deltas": [delta.tolist()] * len(values["ids"])}
        )
        if case.own_way or refuses(case, reports):
            continue
        step, _ = run(case, reports)
        scale = float(step[0])
        along = scale * reports.deltas[0]
        assert torch.allclose(step, along, rtol=1e-9, atol=abs(scale) * 1e-9), case
        assert scale != 0 if case.can_turn else scale > 0, case


@EXAMPLES
@given(values=client_values())
def test_undeclared_fields_may_be_left_out(values):
    for case in CASES:
        rule = case.build()
        reports = build_reports(rule, values)
        if refuses(case, reports):
            continue
        # Left out, a column is NaN (steps: 1); a method that read it would step elsewhere.
        undeclared = {name: None for name in SENT if name not in rule.needs}
        step, _ = run(case, reports)
        step_without, _ = run(case, build_reports(rule, values, **undeclared))
        assert torch.equal(step, step_without), case


@every_case
def test_declared_fields_cannot_be_left_out(case):
    rule = case.build()
    for name in sorted(rule.needs.intersection(("losses", "sizes", "uncertainties", "steps"))):
        with pytest.raises(ReportError, match=f"{name} was left out"):
            run(case, build_reports(rule, random_values(3, 2), **{name: None}))
    whole = build_reports(rule, random_values(3, 2))
    for name in sorted(rule.needs.intersection(EXTRAS)):
        without = replace(
            whole, extras={other: value for other, value in whole.extras.items() if other != name}
        )
        with pytest.raises(ReportError, match=f"{name} was left out"):
            run(case, without)


@every_case
def test_state_comes_back_from_a_file_as_it_was(case):
    rule = case.build()
    start = rule.init(setup_of(rule, build_reports(rule, random_values(3, 4))))
    assert all(
        isinstance(name, str) and isinstance(value, torch.Tensor) for name, value in start.items()
    )
    state, _, _ = rule.aggregate(start, build_reports(rule, random_values(3, 4, seed=1)))
    loaded = load(save(dict(state)))
    assert same(loaded, state)
    second = build_reports(rule, random_values(3, 4, seed=2), round=2)
    (after, step, diagnostics), (after_loaded, step_loaded, diagnostics_loaded) = (
        rule.aggregate(s, second) for s in (state, loaded)
    )
    assert torch.equal(step, step_loaded)
    assert same(diagnostics, diagnostics_loaded)
    assert same(after, after_loaded)


@every_case
def test_nothing_given_is_modified(case):
    rule = case.build()
    reports = build_reports(rule, random_values(3, 4), dtype=torch.float32)
    state = rule.init(setup_of(rule, reports))
    state_before = {name: value.clone() for name, value in state.items()}
    columns = ("deltas", *SENT, "client_indices")
    before = {name: getattr(reports, name).clone() for name in columns} | {
        k: v.clone() for k, v in reports.extras.items()
    }
    rule.aggregate(state, reports)
    assert same(state, state_before)
    assert same({name: getattr(reports, name) for name in columns} | dict(reports.extras), before)


@every_case
def test_the_step_and_the_state_share_no_memory(case):
    # Whoever subtracts the step in place, or scales it, must not change what the method remembers.
    rule = case.build()
    reports = build_reports(rule, random_values(3, 4))
    before = rule.init(setup_of(rule, reports))
    after, step, _ = rule.aggregate(before, reports)
    assert step.data_ptr() not in {
        value.data_ptr() for value in (*before.values(), *after.values(), reports.deltas)
    }


ATTENDANCE = (
    [0, 1],
    [1, 2, 5],
    [3],
    [0, 1, 2, 3, 4, 5],
    [4, 5],
    [0, 3],
    [5],
)  # of six; one after another, and all at once


@every_case
@pytest.mark.parametrize("index", [3, 2**62])
def test_an_index_beyond_the_federation_is_refused_where_it_is_used(case, index):
    rule = case.build()
    state = rule.init(setup_of(rule, build_reports(rule, random_values(3, 4))))
    reports = build_reports(rule, random_values(3, 4), client_indices=[0, 1, index])
    with contextlib.suppress(SettingsError, ReportError):
        rule.aggregate(state, reports)
    with contextlib.suppress(SettingsError, ReportError):
        rule.plan(state, reports)


def test_a_refused_index_is_named():
    rule = method("afl")
    state = rule.init(setup_of(rule, build_reports(rule, random_values(2, 4))))
    reports = build_reports(rule, random_values(2, 4), client_indices=[0, 7])
    with pytest.raises(SettingsError, match="client_indices: has 7, and the state of afl"):
        rule.aggregate(state, reports)


def test_an_index_error_of_another_cause_is_not_explained_away():
    class Careless(Method):
        name = title = "careless"
        paper, grade = "none", "recalled"

        def aggregate(self, state, reports):
            return state, reports.deltas[len(reports)], {}

    with pytest.raises(IndexError):
        Careless().aggregate(
            {"counts": torch.zeros(3)}, build_reports(method("fedavg"), random_values(3, 4))
        )


@every_case
def test_clients_may_be_absent(case):
    rule = case.build()
    everyone = build_reports(rule, random_values(6, 4), round=1)
    state = start = rule.init(setup_of(rule, everyone))
    for t, rows in enumerate(ATTENDANCE, start=1):
        if case.name == "effl":  # which is defined for all clients only
            rows = list(range(6))
        reports = build_reports(
            rule, random_values(6, 4, seed=t), rows=rows, client_indices=rows, round=t
        )
        try:
            state, step, diagnostics = rule.aggregate(state, reports)
        except SettingsError:
            assert case.can_turn, "only a rule that is no bound may refuse"
            continue
        assert state.keys() == start.keys()
        for name, value in state.items():
            assert (value.shape, value.dtype) == (start[name].shape, start[name].dtype), name
        assert still_usable(state, start)
        assert torch.isfinite(step).all()
        for name, value in diagnostics.items():
            assert value.shape in ((), (len(rows),)), name
            assert torch.isfinite(value).all(), name
        assert same(load(save({name: value.contiguous() for name, value in state.items()})), state)


@every_case
def test_updates_too_long_to_be_squared_are_refused_in_words(case):
    rule = case.build()
    values = random_values(3, 4)
    values["deltas"] = [[1e160 * number for number in row] for row in values["deltas"]]
    reports = build_reports(rule, values)
    try:
        start = rule.init(setup_of(rule, reports))
        state, step, diagnostics = rule.aggregate(start, reports)
    except DivergedError:
        with pytest.raises(DivergedError, match="too long to be squared"):
            run(case, reports)
        return
    assert still_usable(state, start)
    assert all(torch.isfinite(value).all() for value in (step, *diagnostics.values()))


NUMBERS = [
    (name, parameter)
    for name in sorted({*METHODS, *ALIASES} - {"udj"})
    for parameter, value in method(name).params.items()
    if (value is None or type(value) in (int, float))
    and parameter not in ("models", "groups")  # many models take memory
]


@pytest.mark.parametrize(("name", "parameter"), NUMBERS)
def test_an_absurd_parameter_is_refused_or_does_no_harm(name, parameter):
    for value in (1e308, -1e308, 1e30, 1e-308, 1e-310, 10**9):
        try:
            rule = method(name, **{parameter: value})
            reports = build_reports(rule, random_values(4, 5))
            start = rule.init(setup_of(rule, reports))
            state, step, diagnostics = rule.aggregate(start, reports)
        except SettingsError:
            continue
        assert still_usable(state, start), value
        assert all(torch.isfinite(found).all() for found in (step, *diagnostics.values())), value


@every_case
def test_one_client_alone_is_followed(case):
    # The step lies on the line of the only update and, but for the rules that are no bound, never
    # leads past the client.
    reports = build_reports(case.build(), random_values(1, 3))
    step, _ = run(case, reports)
    delta = reports.deltas[0]
    scale = float(step @ delta / (delta @ delta))
    if (
        case.own_way
    ):  # not on the line, but not away from the client either; a vote may leave everything as it is
        assert scale > 0 or (case.name == "e2fl" and not step.any())
        return
    torch.testing.assert_close(step, scale * delta)
    assert scale != 0
    if not case.can_turn:
        assert 0 < scale <= (torch.inf if case.overshoots else 1 + 1e-9)


@every_case
def test_single_precision_is_double_precision_rounded(case):
    values = random_values(4, 5)
    rule = case.build()
    double, _ = run(case, build_reports(rule, values))
    single, _ = run(case, build_reports(rule, values, dtype=torch.float32))
    # The updates are float32 numbers in both, and sums are in float64: only the last rounding
    # differs.
    assert torch.equal(single, double.to(torch.float32))


@every_case
def test_parameters_build_the_same_method_again(case):
    rule = case.build()
    assert method(rule.name, **rule.params) == rule
    assert method(rule.name, **json.loads(json.dumps(rule.params))) == rule
