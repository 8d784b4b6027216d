"""A report's first section: what each choice did, in words made from the numbers.

No theory is called right. A sentence about a gain or a loss comes with its interval, and a change
that may be chance is called that.
"""

from __future__ import annotations

from dataclasses import dataclass

from udjfl._ids import printable
from udjfl.methods.base import format_parameters
from udjfl.report.cells import served
from udjfl.report.html.figure import interval, method_name, number
from udjfl.report.html.material import Material
from udjfl.report.html.score_text import ScoreText
from udjfl.simulation.method_summary import MethodSummary
from udjfl.statistics import FEWEST_SEEDS, correct_tests
from udjfl.tasks import ACCURACY, ScoreKind
from udjfl.verdicts import Verdict
from udjfl.verdicts.changes import Change
from udjfl.verdicts.evidence import compare_clients, compare_metric

MOST_NAMED = 6  # clients listed by name under a theory
PROMISES = {
    "rawls": "Rawls: the least advantaged client should have as much as possible.",
    "egalitarian": "Egalitarian: all clients should be served alike.",
    "utilitarian": "Utilitarian: the model should be as good as possible on the whole.",
    "desert": "Desert: clients that bring good data should be served better.",
}


def explain_measures(score: ScoreKind) -> dict[str, str]:
    """Say how each theory is measured, of the score that is judged."""
    per_unit = "less" if score.better > 0 else "more"
    return {
        "rawls": f"Measured by Psi: how much more, in {score.gain_basis}, the least advantaged "
        "client gains over FedAvg than the other clients do.",
        "egalitarian": f"Measured by STD: the standard deviation of {score.title} over clients"
        + (", without the part that small test sets explain." if score.is_share else "."),
        "utilitarian": f"Measured by global {score.title}: that on test data of no client alone. "
        "Where there are none, by the clients' mean.",
        "desert": f"Measured by the slope: how much {per_unit} {score.title} a client has for each "
        "unit of uncertainty more.",
    }


def explain_terms(score: ScoreKind) -> dict[str, str]:
    """Explain every term of the report."""
    own = {} if score == ACCURACY else {score.heading: _explain_score(score)}
    points = {"Points": "Differences of percentages: from 80% to 82% is 2 points."}
    return {
        **TERMS_OF_RUNS,
        **own,
        **(points if score.percent else {}),
        **_terms_of_verdicts(score),
    }


def _explain_score(score: ScoreKind) -> str:
    text = f"What is judged in this report; {score.direction}."
    if score.percent:
        return text
    return (
        f"{text} Gains and losses are in percent of FedAvg's mean {score.title}, and a gain is "
        f"always an improvement: {'more' if score.better > 0 else 'less'} of it."
    )


TERMS_OF_RUNS = {
    "FedAvg": "The plain average of the clients' models. Every change in this report is against "
    "it, on the same data, splits and seeds.",
    "Uncertainty": "How ambiguous a client's data are, in nats, estimated from its own data. 0: "
    "every label follows from the input. It is a measure of the labels' noise, not of worth.",
    "Seed": "One repetition with other random choices: splits, batches, initial model.",
    "95% interval": "From repetitions like these, about 19 of 20 such intervals contain the true "
    "mean.",
    "p": "How often chance alone would show a difference this large. Corrected (Holm): for the "
    "number of tests in the same table.",
}


def _terms_of_verdicts(score: ScoreKind) -> dict[str, str]:
    name = score.title
    falls = "falling" if score.better > 0 else "worsening"
    return {
        "Budget": f"How much of the clients' mean {name} a theory may cost, in {score.gain_basis}.",
        "Kept": "The measure moved as the theory wants, and the clients it should benefit gained. "
        "At a price: others lost, within the budget.",
        "Over budget": "The clients' mean lost more than the budget.",
        "Levelled down": "The measure improved only because other clients lost; the clients that "
        "should benefit did not gain.",
        "Opposite": "The measure moved against the theory.",
        "At its ceiling": "FedAvg already has nearly all that the measure can show.",
        "Not decided": "The seeds cannot tell the change from chance.",
        "Psi": "The gain of the least advantaged client minus the mean gain of the others.",
        "STD": f"Standard deviation of {name} over clients. 0: all alike.",
        "Slope and r": f"The line of {name} over uncertainty: {score.difference_unit} per unit, "
        f"and how closely clients lie to a line (Pearson's r, from -1 to 1; -1: exactly on a "
        f"{falls} line).",
        "Gap": f"How much better {name} is in the least uncertain third of the clients than in the "
        "most uncertain.",
    }


@dataclass(frozen=True)
class Account:
    """An account of one method, by the measure of one theory.

    kind     the verdict in one word or a few
    happened the reasons, in sentences
    gained   clients whose gain is not chance, with intervals
    paid     clients whose loss is not chance
    price    what the mean and the global score did, in the unit `price_unit`
    sure     how many seeds the numbers rest on
    """

    theory: str
    title: str
    kind: str
    promise: str
    measure: str
    happened: str
    gained: str
    paid: str
    price: str
    price_unit: str
    sure: str


def write_accounts(material: Material) -> list[Account]:
    """Write an account for each method and each theory that it serves; budgets come first."""
    comparison = material.comparison
    if comparison is None:
        return []
    pairs = [
        (row, verdict)
        for row, verdicts in zip(comparison.rows, comparison.verdicts, strict=True)
        for verdict in verdicts
    ]
    pairs.sort(key=lambda pair: pair[0].budget is None)
    changes = {id(row): compare_clients(row.runs) for row, _ in pairs}
    limit = comparison.margin if comparison.margin_for_all else None
    return [_write_account(row, verdict, changes[id(row)], limit) for row, verdict in pairs]


def _write_account(
    row: MethodSummary, verdict: Verdict, changes: dict[str, Change], limit: float | None
) -> Account:
    theory, score = verdict.theory, row.score
    happened = verdict.sentence.removeprefix(f"{verdict.kind}: ")
    corrected = correct_tests([change.test for change in changes.values()])
    tested = list(zip(changes.values(), corrected, strict=True))
    gained = [change for change, p in tested if change.test.shows_rise(p)]
    paid = [change for change, p in tested if change.test.shows_fall(p)]
    return Account(
        theory=theory,
        title=_title(row, theory, limit),
        kind=verdict.kind,
        promise=PROMISES[theory],
        measure=explain_measures(score)[theory],
        happened=printable(_begin_sentence(happened, list(changes))),
        gained=_name_clients(gained, score, "No client's gain can be told from chance."),
        paid=_name_clients(paid, score, "No client's loss can be told from chance."),
        price=_price(row),
        price_unit=score.gain_basis,
        sure=_sureness(row),
    )


def _begin_sentence(text: str, clients: list[str]) -> str:
    """Return a text with a capital letter at its beginning; a client's id stays as it is."""
    return text if text.startswith(tuple(clients)) else text[:1].upper() + text[1:]


def _title(row: MethodSummary, theory: str, limit: float | None) -> str:
    """Return a heading that no other account has: name, parameters, budget, service, theory."""
    name = method_name(row)
    if row.budget is not None and limit is None:
        changed = {key: value for key, value in row.method.changed.items() if key != "budget"}
        parts = [format_parameters(changed), served(row)]
        others = ", ".join(printable(part) for part in parts if part)
        amount = row.score.say_gain(f"{row.budget:g}")
        name = printable(row.method.short) + (f" ({others})" if others else "")
        name = f"{name}, for at most {amount} of the mean"
    return name if len(row.theories) == 1 else f"{name}, {theory}"


def _name_clients(changes: list[Change], score: ScoreKind, none: str) -> str:
    """List clients with their changes, the largest first."""
    if not changes:
        return none
    ordered = sorted(changes, key=lambda change: -abs(change.difference))
    sign = "" if score.percent else score.gain_unit
    named = [
        f"{printable(change.title)} {number(change.difference, sign='+')}{sign} "
        f"({interval(change.test.ci95)})"
        for change in ordered[:MOST_NAMED]
    ]
    more = len(ordered) - len(named)
    return ", ".join(named) + (f" and {more} more." if more else ".")


def _price(row: MethodSummary) -> str:
    mean = compare_metric("mean_accuracy", row.runs)
    shared = compare_metric("global_accuracy", row.runs)
    parts = [f"Mean of the clients {_change(mean)}"]
    if shared.differences:
        parts.append(f"global {row.score.title} {_change(shared)}")
    return "; ".join(parts) + "."


def _change(change: Change) -> str:
    ends = f" ({interval(change.test.ci95)})" if change.test.ci95 else ""
    return f"{number(change.difference, sign='+')}{ends}"


def _sureness(row: MethodSummary) -> str:
    n = len(row.runs.outcomes)
    if n < FEWEST_SEEDS:
        seeds = "1 seed" if n == 1 else f"{n} seeds"
        return f"From {seeds}: fewer than {FEWEST_SEEDS} decide nothing."
    return f"From {n} seeds, paired with FedAvg; 95% intervals in brackets."


def introduce(material: Material) -> str:
    """Say in a sentence or two what the report is about."""
    n_clients = len(material.client_ids)
    clients = "1 client" if n_clients == 1 else f"{n_clients} clients"
    if not material.rows and material.frontier is not None:
        points = len(material.frontier.points)
        n_seeds = len(material.frontier.seeds)
        return (
            f"{points} points of the family of rules and other methods on "
            f"{printable(material.data)}, {n_seeds} seeds: what each gives to some clients and "
            "takes from others."
        )
    if not material.rows:
        return f"{printable(material.data)}, {clients}. {material.no_comparison}"
    n = len(material.seeds)
    seeds = f"seed {material.seeds[0]}" if n == 1 else f"{n} seeds"
    methods = [row for row in material.rows if row is not material.reference]
    if material.reference is None:
        names = "1 method" if len(methods) == 1 else f"{len(methods)} methods"
        about = f"{names} on {printable(material.data)}: {clients}, {seeds}."
        return f"{about} {_range_of(material.rows[0])} {printable(material.no_comparison)}"
    count = "one method" if len(methods) == 1 else f"{len(methods)} methods"
    return (
        f"{clients.capitalize()} trained one model together on {printable(material.data)}. "
        f"This report shows what {count} did to each of them, against FedAvg, over {seeds}."
    )


def _range_of(row: MethodSummary) -> str:
    means = [s.mean for s in row.client_scores.values() if s.mean is not None]
    if not means:
        return ""
    text = ScoreText.for_values(row.score, means)
    low, high = text.number(min(means)), text.value(max(means))
    return (
        f"Under {method_name(row)} the clients' {row.score.title} goes from {low} to {high}, with "
        f"a mean of {text.value(sum(means) / len(means))}."
    )
