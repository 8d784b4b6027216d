"""Services: what each client is served of one common model, after its training.

A service leaves the common model and its training alone, so it goes around any method that has
one common model.

    none                           every client is served the common model
    prior-rawls[:strength=1]       the least advantaged client (the most uncertain one; of more
                                   than 20 clients the tenth) is served the common model moved to
                                   its own class frequencies
    prior-egalitarian[:strength=1] every client is, by as much as it is uncertain
    prior-all[:strength=1]         every client is, fully: the control that favours nobody
    checkpoints[:rho=0.7]          desert: earlier models of the run for the more uncertain clients

"prior": client i adds to its logits, with n_ic examples of class c among its n_i, of C classes,

    kappa_i (ln pi_ic - ln pibar_c)    pi_ic = (n_ic + 1) / (n_i + C)
                                       pibar = sum_i n_i pi_i / sum_i n_i
    kappa_i = strength for the least advantaged, else 0; or strength u_i / max u; or strength

"checkpoints" lowers what clients are served, on purpose. With a_i(t) the score that client i
reports of the common model after round t, and a_i its score of the final one,

    target_i = a_best - b (u_i - u_best)       b such that target_worst = rho a_worst

where best and worst are the least and the most uncertain client. Client i is served the model after
the round t for which a_i(t) is nearest to its target, the latest of several; the least uncertain
client is served the final model.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import ClassVar

import torch
from torch import Tensor

from udjfl._spec import parse_spec
from udjfl.errors import NotDefinedError, SettingsError, did_you_mean
from udjfl.methods import Method, State
from udjfl.methods.budget import least_advantaged

# Models of earlier rounds are kept up to this size in all; of longer runs, every second, third, ...
KEPT_BYTES = 256_000_000


@dataclass(frozen=True)
class PriorService:
    """The common model moved to clients' own class frequencies; `strength` from 0 to 1."""

    kind: ClassVar[str]
    whom: ClassVar[str]
    theories: ClassVar[tuple[str, ...]] = ()
    sends: ClassVar[str] = "after the last round, how many examples of each class they have"
    strength: float = 1.0

    def kappas(self, uncertainties: Tensor) -> Tensor:
        """Return how far each client is moved [N], from 0 to `strength`."""
        raise NotImplementedError


class PriorRawls(PriorService):
    """All of it for the least advantaged, nothing for the others."""

    kind, theories = "prior-rawls", ("rawls",)
    whom = "the most uncertain client (of more than 20, the tenth) gets"

    def kappas(self, uncertainties: Tensor) -> Tensor:
        chosen = torch.zeros_like(uncertainties)
        if uncertainties.isfinite().any():
            chosen[least_advantaged(uncertainties)] = self.strength
        return torch.where(uncertainties.isfinite(), chosen, 0.0)


class PriorEgalitarian(PriorService):
    """By a client's share of the largest uncertainty."""

    kind, theories = "prior-egalitarian", ("egalitarian",)
    whom = "every client, by as much as it is uncertain, gets"

    def kappas(self, uncertainties: Tensor) -> Tensor:
        known = uncertainties.nan_to_num(nan=0.0)
        return self.strength * known / known.max().clamp_min(torch.finfo(known.dtype).tiny)


class PriorAll(PriorService):
    """The same for every client."""

    kind, whom = "prior-all", "every client gets"

    def kappas(self, uncertainties: Tensor) -> Tensor:
        return torch.full_like(uncertainties, self.strength)


@dataclass(frozen=True)
class Checkpoints:
    """Earlier models for the more uncertain clients; `rho` above 0, at most 1."""

    kind: ClassVar[str] = "checkpoints"
    theories: ClassVar[tuple[str, ...]] = ("desert",)
    sends: ClassVar[str] = "in each round, their score of the received model"
    rho: float = 0.7


Service = PriorService | Checkpoints
SERVICES: dict[str, type[PriorService] | type[Checkpoints]] = {
    cls.kind: cls for cls in (PriorRawls, PriorEgalitarian, PriorAll, Checkpoints)
}


def parse_service(text: str) -> Service | None:
    """Read the setting `service`; None for `none`."""
    spec = parse_spec(text, "service")
    if spec.name == "none" and not spec.options:
        return None
    if spec.name not in SERVICES:
        raise SettingsError(
            f"service: unknown value {text!r}.{did_you_mean(spec.name, [*SERVICES, 'none'])}"
        )
    cls = SERVICES[spec.name]
    known = [field.name for field in fields(cls)]
    mistakes, values = [], {}
    for key, value in spec.options.items():
        if key not in known:
            hint = did_you_mean(key, known)
            mistakes.append(f"service: {spec.name} has no option {key!r}.{hint}")
            continue
        number = _as_number(value)
        if not 0 <= number <= 1 or (key == "rho" and number == 0):
            allowed = "above 0, at most 1" if key == "rho" else "from 0 to 1"
            mistakes.append(f"service: {key} is {value!r}; give a number {allowed}")
        values[key] = number
    if mistakes:
        raise SettingsError(mistakes)
    return cls(**values)


def _as_number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def service_theories(text: str) -> tuple[str, ...]:
    """Return the theories that a service serves."""
    service = parse_service(text)
    return () if service is None else service.theories


def service_text(service: Service) -> str:
    """Return a service as it is written in settings, without options at their defaults."""
    options = [
        f"{field.name}={getattr(service, field.name):g}"
        for field in fields(service)
        if getattr(service, field.name) != field.default
    ]
    return ":".join([service.kind, *options])


def check_service(service: Service | None, method: Method) -> None:
    """Raise an error for a method that has no common model, or serves models of its own."""
    own = type(method).served is not Method.served or not method.global_model
    if service is not None and own:
        raise NotDefinedError(
            f"{method.name}: serves clients models of its own, and service={service.kind} needs "
            "one common model; set service=none, or choose another method"
        )


# --- prior


def class_term(labels: Tensor, n_classes: int) -> Tensor:
    """Return n_i pi_i [C], a client's term of the sum that pibar comes from."""
    counts = torch.bincount(labels.cpu(), minlength=n_classes).to(torch.float64)
    return counts.sum() * (counts + 1) / (counts.sum() + n_classes)


def mean_prior(terms: Tensor) -> Tensor:
    """Return pibar [C] from the clients' terms [N, C]; rows with NaN are left out."""
    total = terms[~terms.isnan().any(dim=1)].sum(dim=0)
    return total / total.sum()


def prior_offset(term: Tensor, prior: Tensor, kappa: float) -> Tensor:
    """Return what a client adds to its logits [C], from its own term and pibar."""
    return kappa * ((term / term.sum()).log() - prior.log())


# --- checkpoints


def keep_every(rounds: int, model: Tensor) -> int:
    """Return of how many rounds one model is kept, so that all fit into `KEPT_BYTES`."""
    return max(1, math.ceil(rounds * model.numel() * model.element_size() / KEPT_BYTES))


def keep_checkpoint(
    kept: State, round: int, model: Tensor, scores: Tensor, client_indices: Tensor, n_clients: int
) -> State:
    """Return the kept models with one more: that after `round`, and the scores it got.

    `scores` are those of the clients at `client_indices`; of the others there is none, NaN.
    """
    row = torch.full((1, n_clients), torch.nan, dtype=torch.float64)
    row[0, client_indices] = scores.to(torch.float64)
    new = {"models": model[None], "rounds": torch.tensor([round]), "scores": row}
    return {name: torch.cat([kept[name], t]) if kept else t.clone() for name, t in new.items()}


def targets(rho: float, uncertainties: Tensor, scores: Tensor) -> Tensor:
    """Return the score that each client is to be served [N], from those of the final model.

    NaN where the uncertainty or the score is unknown; the scores themselves without two different
    uncertainties.
    """
    known = (uncertainties.isfinite() & scores.isfinite()).nonzero().flatten()
    if not len(known):
        return torch.full_like(scores, torch.nan)
    best = known[uncertainties[known].argmin()]
    worst = known[uncertainties[known].argmax()]
    spread = uncertainties[worst] - uncertainties[best]
    if spread == 0:
        return torch.where(uncertainties.isfinite(), scores, torch.nan)
    slope = (scores[best] - rho * scores[worst]) / spread
    line: Tensor = scores[best] - slope * (uncertainties - uncertainties[best])
    return torch.where(scores.isfinite(), line, torch.nan)


def choose_checkpoints(table: Tensor, wanted: Tensor, uncertainties: Tensor) -> Tensor:
    """Return the row of `table` that each client is served [N].

    `table` [K, N] has the clients' scores of the models, the final one last. The least uncertain
    client, and clients without a target, are served the last; of equally near ones the latest.
    """
    distances = (table - wanted).abs().nan_to_num(nan=math.inf)
    last = len(table) - 1
    rows = last - distances.flip(0).argmin(dim=0)
    rows[wanted.isnan()] = last
    known = uncertainties.isfinite() & wanted.isfinite()
    if known.any():
        rows[known & (uncertainties == uncertainties[known].min())] = last
    return rows
