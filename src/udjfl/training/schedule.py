"""Learning rates over rounds: `constant`, `cosine`, `step` and `exponential`.

    constant                      lr
    cosine:to=0                   from lr to `to` times lr along half a cosine (Loshchilov & Hutter,
                                  "SGDR", ICLR 2017, without restarts), the last round the lowest
    step:every=30:factor=0.1      lr times factor^(rounds before this one // every)
    exponential:factor=0.99       lr times factor^(rounds before this one)

The rate of a round is the same for all clients and for all of its local steps.
"""

from __future__ import annotations

import functools
import math

from udjfl._spec import parse_spec
from udjfl.errors import SettingsError, did_you_mean

OPTIONS: dict[str, dict[str, float]] = {
    "constant": {},
    "cosine": {"to": 0.0},
    "step": {"every": 30.0, "factor": 0.1},
    "exponential": {"factor": 0.99},
}
SMALLEST = 1e-6  # of the initial rate: a rate of 0 would train nothing, and methods divide by it


def learning_rate(schedule: str, lr: float, round: int, rounds: int) -> float:
    """Return the learning rate of a round, counted from 1.

    >>> [learning_rate("step:every=2", 1.0, round, 4) for round in (1, 2, 3, 4)]
    [1.0, 1.0, 0.1, 0.1]
    >>> [round(learning_rate("cosine", 1.0, number, 3), 6) for number in (1, 2, 3)]
    [1.0, 0.5, 1e-06]
    """
    name, options = parse_schedule(schedule)
    before = round - 1
    if name == "step":
        share = options["factor"] ** (before // int(options["every"]))
    elif name == "exponential":
        share = options["factor"] ** before
    elif name == "cosine":
        progress = before / max(1, rounds - 1)
        share = options["to"] + (1 - options["to"]) * (1 + math.cos(math.pi * progress)) / 2
    else:
        return lr
    return lr * max(SMALLEST, share)


@functools.lru_cache(maxsize=64)  # asked for in every round
def parse_schedule(text: str) -> tuple[str, dict[str, float]]:
    """Return the name and the options of a schedule."""
    spec = parse_spec(text, "lr_schedule", usual_option="")
    if spec.name not in OPTIONS:
        raise SettingsError(
            f"lr_schedule: unknown name {spec.name!r}.{did_you_mean(spec.name, OPTIONS)}"
        )
    options = dict(OPTIONS[spec.name])
    for key, value in spec.options.items():
        if key not in options:
            known = ", ".join(options) or "none"
            raise SettingsError(
                f"lr_schedule: {spec.name} has no option {key or value!r}; it has {known}"
            )
        try:
            options[key] = float(value)
        except ValueError:
            raise SettingsError(f"lr_schedule: {key} is {value!r}; give a number") from None
    every = options.get("every", 1.0)
    if every < 1 or not every.is_integer():
        raise SettingsError("lr_schedule: every must be at least one round, and a whole number")
    if not 0 < options.get("factor", 1) <= 1 or not 0 <= options.get("to", 0) <= 1:
        raise SettingsError("lr_schedule: the rate may not rise: give a number from 0 to 1")
    return spec.name, options
