"""The messages of a service, after the last round: what clients report, and what they are served.

A client evaluates the common model as after any round, and adds what the service needs to know of
it: its class term or its score. The server chooses, and those that are served something else than
the common model evaluate that.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from udjfl.data import Client
from udjfl.engine import Engine
from udjfl.errors import ReportError
from udjfl.flower.messages import Reply
from udjfl.flower.tensors import TensorLimit
from udjfl.training.service import PriorService, Service, class_term, prior_offset
from udjfl.training.serving import Serving

CLASS_TERM, SCORE = "class-term", "score"
PRIOR, KAPPA = "prior", "kappa"


def make_fact(
    service: Service, engine: Engine, n_classes: int, model: Tensor, buffers: Tensor
) -> dict[str, Tensor]:
    """Return what a client reports for the service, given the final model."""
    if isinstance(service, PriorService):
        return {CLASS_TERM: class_term(engine.clients[0].train.y, n_classes)}
    return {SCORE: engine.evaluate(model, buffers, engine.score_set([0]))[1]}


def fact_limits(service: Service, n_classes: int) -> dict[str, TensorLimit]:
    """Return the tensor that a client reports for the service, and what it may be."""
    is_prior = isinstance(service, PriorService)
    name, size = (CLASS_TERM, n_classes) if is_prior else (SCORE, 1)
    return {name: TensorLimit(torch.float64, size)}


def read_fact(service: Service, n_classes: int, reply: Reply, round: int) -> Tensor:
    """Return what a client reported for the service, or raise `ReportError`."""
    is_prior = isinstance(service, PriorService)
    ((name, limit),) = fact_limits(service, n_classes).items()
    size = limit.numbers
    fact = reply.tensor(name, torch.float64)
    if fact is None or fact.shape != (size,):
        problem = f"must have {size} numbers; does the client run the same udjfl?"
    elif not torch.isfinite(fact).all():
        problem = "has values that are NaN or infinite"
    elif is_prior and (fact <= 0).any():
        problem = "must be above zero for every class"
    elif not is_prior and not 0 <= float(fact) <= 1:
        problem = f"is {float(fact):g}; it must be from 0 to 1"
    else:
        return fact
    raise ReportError(reply.id, name, problem, round)


def served_tensors(serving: Serving, client: str, client_index: int) -> dict[str, Tensor]:
    """Return what one client is sent to evaluate."""
    shares = serving.models.shares[client_index]
    used = shares > 0
    tensors = {"model": serving.models.models[used], "shares": shares[used]}
    if serving.prior is not None:
        kappa = torch.tensor(serving.facts["kappa"][client], dtype=torch.float64)
        tensors |= {PRIOR: serving.prior, KAPPA: kappa}
    return tensors


def own_offset(tensors: Mapping[str, Tensor], client: Client, n_classes: int) -> Tensor | None:
    """Return what a client adds to its logits, from its own labels; None if nothing."""
    if PRIOR not in tensors:
        return None
    term = class_term(client.train.y, n_classes)
    return prior_offset(term, tensors[PRIOR], float(tensors[KAPPA]))
