"""The paper's statements on the parameters that it tried and chose, as orderings to test."""

from udjfl.paper.profiles import PROFILES
from udjfl.paper.search_choice import LEARNING_RATES, SearchRange, search_ranges
from udjfl.paper.verdicts import Claim, Order, Point
from udjfl.statistics import metric_of

WHERE = "Appendix E"
BEST_RATE = LEARNING_RATES[0]
# The values that the paper chose, of those it says it tried; the same for both data sets. Where it
# chose several for different theories, its main table has each in the section of its theory.
CHOSEN: dict[tuple[str, str], tuple[float, ...]] = {
    ("utilitarian", "PropFair"): (3,),
    ("utilitarian", "q-FFL"): (0, 0.1),
    ("egalitarian", "TERM"): (0.01,),
    ("egalitarian", "FedMGDA+"): (0.5,),
    ("rawls", "PropFair"): (2,),
    ("rawls", "q-FFL"): (5,),
    ("desert", "CFFL"): (2,),
}


def _rate_orders(ranges: list[SearchRange]) -> tuple[Order, ...]:
    """Return that each candidate has a higher accuracy at the best rate than at the others."""
    names = dict.fromkeys(
        (each.row_name(value, BEST_RATE), each.row_name(value, lr))
        for each in ranges
        for value in each.values
        for lr in LEARNING_RATES
        if lr != BEST_RATE
    )
    key = "global_accuracy"
    return tuple(Order(Point(best, key), Point(other, key)) for best, other in names)


def _value_claim(searched: SearchRange, chosen: tuple[float, ...]) -> Claim:
    """Return that each chosen value is better by the theory's measure than those not chosen."""
    metric = metric_of(searched.theory)
    points = {
        value: Point(searched.row_name(value, BEST_RATE), metric.key) for value in searched.values
    }
    pairs = [
        (points[own], points[other])
        for own in chosen
        for other in searched.values
        if other not in chosen
    ]
    values = " or ".join(f"{value:g}" for value in chosen)
    return Claim(
        id=f"{searched.theory}-{searched.title.lower()}-value",
        theory=searched.theory,
        where=WHERE,
        says=f"{searched.title} is best for the {searched.theory} section with "
        f"{searched.parameter} = {values}.",
        test=f"{metric.title} is better than with any other value that was tried, at a learning "
        f"rate of {BEST_RATE:g}, on held-out data.",
        orders=tuple(Order(*(pair if metric.better > 0 else pair[::-1])) for pair in pairs),
    )


_RANGES = search_ranges(PROFILES["paper"])
SEARCH_CLAIMS = (
    Claim(
        id="rate-best",
        theory="none",
        where=WHERE,
        says="Of the learning rates 0.1, 0.01 and 0.001 the first gave the best results in all "
        "settings.",
        test="Every method with every value that was tried has a higher global accuracy at 0.1 "
        "than at both others, on held-out data.",
        orders=_rate_orders(_RANGES),
    ),
    *(
        _value_claim(each, CHOSEN[each.theory, each.title])
        for each in _RANGES
        if (each.theory, each.title) in CHOSEN
    ),
)
