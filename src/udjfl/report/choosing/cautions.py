"""When to be careful: what speaks against a choice, or against the numbers behind it.

Limits that the authors of UDJ-FL name themselves (Carey & Wu, FAccT 2025): a utilitarian model
where the quality of data differs severely, a theory that does not fit the situation, and noisy or
hostile data, whose uncertainty does not show what a client contributes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from udjfl.report.choosing.questions import ALONE, Answers

ALWAYS = "Always"
GROUPS = {
    "theory": "The theory and the situation",
    "budget": "What a budget does not promise",
    "uncertainty": "When not to trust uncertainty",
    "alternative": "Other ways",
}


@dataclass(frozen=True)
class Caution:
    """Something to know before a choice.

    group      a key of GROUPS
    when       the answers that it belongs to, in words
    sources    (page, words on it): where the numbers in the text are from
    """

    key: str
    group: str
    when: str
    text: str
    applies: Callable[[Answers], bool]
    sources: tuple[tuple[str, str], ...] = ()


def _always(_: Answers) -> bool:
    return True


JUSTICE, UNCERTAINTY = "experiments/JUSTICE.md", "experiments/UNCERTAINTY.md"
CAUTIONS = (
    Caution(
        "undecided",
        "theory",
        "Undecided between theories",
        "No computation says which theory is right: the comparison shows what each does to each "
        "client, and people answer for the choice. Only one can be pursued at a time. Where "
        "clients differ in nothing but their share of ambiguous data, Rawls and egalitarian pull "
        "the same way, and utilitarian and desert the other.",
        lambda answers: answers.theory is None,
    ),
    Caution(
        "utilitarian-gap",
        "theory",
        "Utilitarian, and a severe difference in quality",
        "The best model on the whole may then be of use to some clients only. On five scanners of "
        "falling quality the worst lost 9.6 points without a budget, for 1.6 points of global "
        "accuracy; with a budget of 2 it lost 2.6, for 0.7. Limit what a single client may lose, "
        "or consider whether it is Rawls or equality that you want.",
        lambda answers: answers.theory in ("utilitarian", None) and answers.gap == "severe",
        (
            (JUSTICE, "rises by 1.6 points"),
            (JUSTICE, "client-5 pays most (-9.6)"),
            (JUSTICE, "rises by 0.7 points"),
            (JUSTICE, "client-5 pays most (-2.6)"),
        ),
    ),
    Caution(
        "desert-gap",
        "theory",
        "Desert, and a severe difference in quality",
        "Nearly the whole price can fall on one client. On the scanners the worst lost 36.7 points "
        "without a budget, and the mean 11.5; with a budget of 2 they lost 3.6 and 0.6.",
        lambda answers: answers.theory in ("desert", None) and answers.gap == "severe",
        (
            (JUSTICE, "client-5 pays most (-36.7)"),
            (JUSTICE, "the mean loses 11.5"),
            (JUSTICE, "client-5 pays most (-3.6)"),
            (JUSTICE, "the mean loses 0.6"),
        ),
    ),
    Caution(
        "desert-not-chosen",
        "theory",
        "Desert, and clients that could not have better data",
        "Desert supposes that a client could have acted otherwise. Where means, place or the "
        "nature of the cases explain the difference, it takes from those who had no choice. "
        "Equality or Rawls may be nearer to what you mean.",
        lambda answers: (
            answers.theory == "desert" and answers.cause in ("means", "place", "nature")
        ),
    ),
    Caution(
        "desert-unknown",
        "theory",
        "Desert, and nobody knows why the data differ",
        "Find out first. Uncertainty shows that data are ambiguous, not that somebody was "
        "careless.",
        lambda answers: answers.theory == "desert" and answers.cause == "unknown",
    ),
    Caution(
        "help-for-careless",
        "theory",
        "Rawls or egalitarian, and clients that chose not to do better",
        "Those who took care pay for those who did not, and care is not encouraged. That can still "
        "be defended where the people whom a client serves cannot go elsewhere.",
        lambda answers: answers.theory in ("rawls", "egalitarian") and answers.cause == "choice",
    ),
    Caution(
        "no-budget",
        "budget",
        "No budget",
        "Nothing then limits what a theory takes from the clients. At the paper's beta and gamma, "
        "Rawls cost the mean 7.2 points on scanners and 2.9 on dirty-digits and helped the most "
        "uncertain client by 0.6 and 1.0, which is within chance: levelled down. On heart it was "
        "kept at a price.",
        lambda answers: not answers.has_budget,
        (
            (JUSTICE, "the mean loses 7.2"),
            (JUSTICE, "the mean loses 2.9 (global accuracy -4.2)"),
            (JUSTICE, "gains +0.6 points (95% interval -0.9 to 2.1)"),
            (JUSTICE, "gains +1.0 points (95% interval -0.7 to 2.7)"),
            (JUSTICE, "kept at a price: va gains +1.3 points"),
        ),
    ),
    Caution(
        "budget-kept-on-training-data",
        "budget",
        "Any budget",
        "It is kept on the scores of training data, and of the mean. Of 440 runs with a budget of "
        "2 points, 413 ended within it on test data; on traffic signs, where test parts are a few "
        "tracks and chance alone moves the mean by more than the budget, 27 of 40. A budget says "
        "what a theory may cost, not that it achieves its aim: on traffic signs no theory was "
        "decided either way, and on heart no weighting of the hospitals lifts the most uncertain "
        "one. With more seeds, egalitarian was levelled down on dirty-digits and heart, and Rawls "
        "on heart: within the budget, but those whom it should help did not clearly gain.",
        lambda answers: answers.has_budget,
        (
            (JUSTICE, "114 of 120"),
            (JUSTICE, "117 of 120"),
            (JUSTICE, "115 of 120"),
            (JUSTICE, "27 of 40"),
            (JUSTICE, "40 of 40"),
            (JUSTICE, "| signs | 10 | not decided | not decided | not decided | not decided |"),
            (JUSTICE, "no weighting and no method within the budget lifts it for certain"),
            (JUSTICE, "| dirty-digits-fresh | 120 | kept at a price | levelled down |"),
            (JUSTICE, "| heart-fresh | 1000 | levelled down | levelled down |"),
        ),
    ),
    Caution(
        "small-budget",
        "budget",
        "A budget of less than 1 point",
        "Scores of few examples are not known so exactly. The method then aims at FedAvg's own "
        "mean, and the theory has room only where it costs nothing.",
        lambda answers: answers.has_budget and float(answers.budget) < 1,
        (("docs/budgets.md", "the goal is FedAvg's mean itself"),),
    ),
    Caution(
        "large-budget",
        "budget",
        "A budget of more than 5 points",
        "The mean hides who pays: a loss of 5 points of the mean of five clients can be 25 points "
        "of one. Limit what a single client may lose.",
        lambda answers: answers.has_budget and float(answers.budget) > 5,
    ),
    Caution(
        "floor-alone",
        "budget",
        "No client below a model of its own",
        "A fifth of each client's training data is kept apart for this limit, so all models are "
        "trained on less. Where clients are better off alone than together the limit cannot be "
        "met; the run says so.",
        lambda answers: answers.client_limit == ALONE,
        (("docs/budgets.md", "`floor=alone` and `advantage=alone` work in the simulator"),),
    ),
    Caution(
        "uncertainty-is-not-quality",
        "uncertainty",
        ALWAYS,
        "Uncertainty says how ambiguous the labels are, given the rest of the data. Bad data need "
        "not be ambiguous: on scanners, where all labels are right, the order of the measured "
        "uncertainties agrees with the scanners' quality only in part (rank correlation 0.66). And "
        "data that are hard to learn look ambiguous without being so. Ask people who know the "
        "clients whether the measured order is right before a theory acts on it.",
        _always,
        (
            (UNCERTAINTY, "has rank correlation 0.66 with it"),
            (UNCERTAINTY, "it then\n  measures how hard the data are"),
        ),
    ),
    Caution(
        "scarce-is-not-uncertain",
        "uncertainty",
        "Rawls, and clients that see few cases",
        "A client with few examples need not have uncertain ones, and then it is not the client "
        "that Rawls helps here. See which client is the most uncertain. With a budget, "
        "`advantage=alone` or `advantage=fedavg` go by the lowest score alone or under FedAvg.",
        lambda answers: answers.theory == "rawls" and answers.cause == "place",
        (("docs/budgets.md", "| `alone` | the lowest score of a model trained alone"),),
    ),
    Caution(
        "hard-cases",
        "uncertainty",
        "Cases that are harder by nature",
        "A client with hard cases then looks like one with bad data. Utilitarian and desert would "
        "count its examples less because its work is harder; Rawls would take it for the least "
        "advantaged, which here may be what you want.",
        lambda answers: answers.cause == "nature",
    ),
    Caution(
        "few-examples",
        "uncertainty",
        "Fewer than 100 examples, or it is not known how many",
        "With 40 examples a client, the order of measured uncertainties agreed with the true one "
        "at a rank correlation of 0.81 in one study, and its intervals told 14 of 40 neighbours "
        "apart. Read the intervals, and take more seeds: small test parts make noisy accuracies. "
        "For Rawls with a budget the commands let the lowest score under FedAvg decide who is "
        "helped if examples are few (`advantage=fedavg`).",
        lambda answers: answers.examples in ("few", "unknown"),
        (
            (UNCERTAINTY, "with 40 examples 0.81"),
            (UNCERTAINTY, "| logistic, 40 each | 86% | 14 of 40 | 0 |"),
        ),
    ),
    Caution(
        "false-reports",
        "uncertainty",
        "False reports, wrong labels, or noise that comes to the same",
        "Do not let uncertainty decide. Random labels make a client look the least advantaged, "
        "and Rawls then follows it; a client that claims to be certain gains weight under "
        "utilitarian and desert. No client has more than half of a step (`cap`), which bounds the "
        "damage and detects nothing; scores can be false, too, and egalitarian goes by those. "
        "`--on-bad-report exclude` leaves out unusable reports, not untrue ones. Settle who may "
        "take part first.",
        lambda answers: answers.false_reports == "yes",
        (("docs/budgets.md", "No client has more than half of sum_i v_i"),),
    ),
    Caution(
        "reports-unknown",
        "uncertainty",
        "Not known whether reports can be false",
        "Uncertainties and scores are what the clients say they are. If you cannot rule out false "
        "ones, choose again with `--false-reports yes`.",
        lambda answers: answers.false_reports == "unknown",
    ),
    Caution(
        "service",
        "alternative",
        "Rawls or egalitarian, where clients differ in how frequent the classes are",
        "Then one model can be served differently in place of being trained differently: "
        "`--service prior-rawls` gave the most uncertain client of dirty-digits 2.4 points (95% "
        "interval 0.8 to 4.0, 30 seeds) and took nothing from anybody. But it could be given to "
        "all (`prior-all`), so keeping it from the others needs a reason.",
        lambda answers: answers.theory in ("rawls", "egalitarian", None),
        (("docs/service.md", "| | `prior-rawls` | +2.4 [0.8, 4.0] |"),),
    ),
    Caution(
        "no-federation",
        "alternative",
        ALWAYS,
        "Not to train together is a choice, too. A run shows what each client has alone: on the "
        "scanners of `udjfl demo` every client is better off with a model of its own.",
        _always,
    ),
)
