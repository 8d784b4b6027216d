"""The parameters of UDJ-FL that bound what a theory may do: the cap, and those of a budget."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

Cap = Annotated[
    float | None,
    Field(
        ge=0.5,
        le=1,
        description="largest share of the step for one client; default: 0.5 (2/N of fewer than "
        "4 clients), 1 for the published step rules",
    ),
]
Budget = Annotated[
    float | None,
    Field(
        ge=0,
        le=100,
        description="points that the clients' mean score may end below FedAvg's; makes the "
        "method pursue the theory within this limit, in place of beta, gamma and step",
    ),
]
ClientBudget = Annotated[
    float | None,
    Field(ge=0, le=100, description="points that each client's score may end below FedAvg's"),
]
Floor = Annotated[
    Literal["alone"] | None,
    Field(description="alone: no client ends below its own model, trained alone"),
]
Limit = Annotated[
    float | None,
    Field(
        gt=0,
        lt=100,
        description="mean score to keep, in percent, where there is no FedAvg to compare with",
    ),
]
Advantage = Annotated[
    Literal["uncertainty", "alone", "fedavg"] | None,
    Field(
        description="who is least advantaged: the client with the most uncertain data "
        "(default), or with the lowest score alone, or under FedAvg"
    ),
]
Caution = Annotated[
    float | None,
    Field(
        ge=0,
        le=10,
        description="standard errors of the mean score by which the budget is kept; default: 2",
    ),
]

WITH_BUDGET = ("client_budget", "floor", "limit", "advantage", "caution")
WITHOUT_BUDGET = ("beta", "gamma", "r")


def without_meaning(given: Mapping[str, Any]) -> set[str]:
    """Return the names of parameters that have no meaning beside those given."""
    if given.get("budget") is None:
        return set(WITH_BUDGET)
    others = given.get("theory") not in (None, "rawls")
    return {*WITHOUT_BUDGET, "step", *(("advantage",) if others else ())}


def check_budget(params: Mapping[str, Any], default_step: str) -> None:
    """Raise a ValueError for parameters that have no meaning with, or without, a budget."""
    if params["budget"] is None:
        stray = [name for name in WITH_BUDGET if params[name] is not None]
        if stray:
            raise ValueError(f"{stray[0]} applies to a budget; give one, as in budget=2")
        return
    if params["theory"] is None:
        raise ValueError("a budget needs a theory, as in theory=rawls")
    stray = [name for name in WITHOUT_BUDGET if params[name] is not None]
    if stray or params["step"] != default_step:
        raise ValueError(
            f"{(stray or ['step'])[0]} has no effect with a budget, which has directions and "
            "prices in its place; leave one of them out"
        )
    if params["advantage"] is not None and params["theory"] != "rawls":
        raise ValueError("advantage is a choice of rawls; leave it out")
