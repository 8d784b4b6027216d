"""A run: what is chosen for it, and what stays the same from round to round."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from udjfl.engine import (
    PROBES,
    Correction,
    Demands,
    LocalTraining,
    LossAt,
    TrainJob,
    check_device,
    training_options,
)
from udjfl.errors import SettingsError
from udjfl.methods import Method, Plan, State
from udjfl.methods.reports import EXTRAS
from udjfl.models import ModelChoice, build, check_fit, to_inputs
from udjfl.seeds import numpy_stream, torch_stream
from udjfl.settings import TrainingSettings
from udjfl.tasks import Task, check_loss
from udjfl.training.federation_info import FederationInfo
from udjfl.training.schedule import learning_rate, parse_schedule
from udjfl.training.server_optimizer import ServerOptimizer, parse_server_optimizer
from udjfl.training.service import Checkpoints, PriorService, Service, check_service, parse_service


@dataclass(frozen=True)
class RunSpec:
    """Everything that is chosen for one run.

    model                 as in `udjfl.simulate`; None: the one that the settings name
    report_uncertainties  whether clients report their uncertainty if the method does not need it
    quorum                fewest usable reports for a round to count
    max_update_norm       a longer update is unusable; None: any finite update is used
    max_update_ratio      the same, as a multiple of the median length of the round's updates
    record_scores         whether clients' scores are recorded if the method does not need them,
                          so that the run can be the reference of a budget
    """

    method: Method
    settings: TrainingSettings
    seed: int = 0
    model: ModelChoice | None = None
    report_uncertainties: bool = True
    quorum: int = 0
    max_update_norm: float | None = None
    record_scores: bool = False
    max_update_ratio: float | None = None

    @property
    def needs_uncertainties(self) -> bool:
        """Tell whether clients report their uncertainty."""
        needed = "uncertainties" in self.method.needs or self.service is not None
        return self.report_uncertainties or needed

    @functools.cached_property
    def service(self) -> Service | None:
        """The service around the method; None: clients are served what the method gives them."""
        return parse_service(self.settings.service)

    @functools.cached_property
    def server_optimizer(self) -> ServerOptimizer:
        """The optimiser that turns the method's step into the one that is taken."""
        return parse_server_optimizer(self.settings.server_optimizer)

    def task(self, federation: FederationInfo) -> Task:
        """Return what is predicted, and how that is measured."""
        s = self.settings
        numbers = federation.labels_are_numbers
        return Task.of(s.task, s.loss, federation.n_classes, numbers, s.score)

    def demands(self, federation: FederationInfo) -> Demands:
        """Return what an engine for this run must be able to do."""
        return Demands.of(self.settings, self.task(federation).criterion)

    def build_model(self, federation: FederationInfo, purpose: str = "model") -> nn.Module:
        """Build the initial model, and check that it fits the data, the loss and the device."""
        settings, task = self.settings, self.task(federation)
        check_device(settings.device)
        module = build(
            self.model or settings.model,
            federation.input_shape,
            task.n_outputs,
            self.seed,
            hidden=settings.hidden,
            weight_norm=settings.weight_norm,
            purpose=purpose,
            one_logit=task.one_logit,
        )
        x, is_regression = federation.sample, task.criterion.is_regression
        check_fit(module, x, task.n_outputs, is_regression)
        if not task.criterion.is_plain:
            labels = torch.zeros(len(x), dtype=torch.float32 if is_regression else torch.int64)
            with torch.no_grad():
                check_loss(task.criterion, module(to_inputs(x, module)), labels)
        n_weights = settings.class_weights.count(",") + 1
        named = settings.class_weights in ("none", "balanced")
        if not named and n_weights != federation.n_classes:
            raise SettingsError(
                f"class_weights: has {n_weights} numbers, and there are {federation.n_classes} "
                "classes"
            )
        if is_regression and settings.class_weights != "none":
            raise SettingsError("class_weights: a regression has no classes; leave them out")
        return module

    def adapt_model(self, base_model: nn.Module, *address: int) -> nn.Module:
        """Return the network that the method trains in place of this one."""
        stream = torch_stream(self.seed, "adapt", self.method.name, *address)
        return self.method.adapt(base_model, stream)


def count_selected(settings: TrainingSettings, n_clients: int) -> int:
    """Return how many of the clients are asked in a round."""
    return max(1, round(settings.participation * n_clients))


@dataclass(frozen=True)
class Run:
    """One run on one federation. Holds what stays the same from round to round."""

    spec: RunSpec
    federation: FederationInfo
    logged_warnings: set[object] = field(default_factory=set, compare=False)

    def __post_init__(self) -> None:
        method = self.method
        check_service(self.spec.service, method)
        parse_schedule(self.settings.lr_schedule)
        if self.federation.labels_are_numbers and isinstance(self.spec.service, PriorService):
            raise SettingsError("service: priors are class frequencies, a regression has none")
        if method.n_models > 1 and (method.probes or self.extras.intersection(PROBES)):
            raise SettingsError(
                f"{method.name}: trains {method.n_models} models side by side; of those only "
                "losses_of_each is known before training, not what it names in needs or probes"
            )

    @property
    def method(self) -> Method:
        return self.spec.method

    @property
    def settings(self) -> TrainingSettings:
        return self.spec.settings

    @property
    def seed(self) -> int:
        return self.spec.seed

    @property
    def ids(self) -> tuple[str, ...]:
        return self.federation.ids

    @functools.cached_property
    def is_regression(self) -> bool:
        """True if labels are numbers, not classes."""
        return self.spec.task(self.federation).criterion.is_regression

    @functools.cached_property
    def extras(self) -> frozenset[str]:
        """The extras of `Reports` that the method reads on this federation."""
        groups = self.method.needs_groups if self.federation.has_groups else frozenset()
        scored = self.spec.record_scores or isinstance(self.spec.service, Checkpoints)
        scores = {"scores", "score_sizes"} if scored else set()
        return (self.method.needs | groups | scores).intersection(EXTRAS)

    @functools.cached_property
    def _loss_at(self) -> LossAt:
        if self.settings.loss_at != "auto":
            return self.settings.loss_at
        reads_losses = {"losses", "losses_of_each"}.intersection(self.method.needs)
        return self.method.loss_at if reads_losses else "running"

    def lr(self, round: int) -> float:
        """Return the clients' learning rate in a round."""
        s = self.settings
        return learning_rate(s.lr_schedule, s.lr, round, s.rounds)

    def local_training(
        self, plan: Plan, client_indices: Sequence[int], round: int = 1
    ) -> LocalTraining:
        """Return how these clients train in a round under a plan."""
        s, method = self.settings, self.method
        # Without an objective of its own the engine can take its fast path.
        has_objective = type(method).objective is not Method.objective
        multipliers, rows = plan.multipliers, torch.tensor(client_indices)
        correction = None
        if plan.corrects_gradients:
            tensors = (_rows_of(tensor, rows) for tensor in (plan.anchor, plan.shift))
            correction = Correction(plan.gradient_share, plan.mu, *tensors)
        training = LocalTraining(
            self.lr(round),
            s.momentum,
            s.batch_size,
            s.local_epochs,
            self._loss_at,
            objective=method.objective if has_objective else None,
            multipliers=None if multipliers is None else multipliers[rows],
            correction=correction,
            first_step="first_deltas" in self.extras,
            **training_options(s),
        )
        if plan.one_full_step:
            whole = int(max(size for size in self.federation.sizes if not math.isnan(size)))
            # Plain: a method divides the step by lr to get the gradient.
            training = replace(training, momentum=0.0, epochs=1, batch_size=whole, steps=0)
            training = replace(
                training, optimiser="sgd", nesterov=False, weight_decay=0.0, clip_norm=0.0
            )
        return training

    def training_jobs(
        self,
        plan: Plan,
        client_indices: Sequence[int],
        models: Sequence[Tensor],
        buffers: Tensor,
        round: int,
    ) -> list[TrainJob]:
        """Return the jobs of a round: one for each model, then one for the personal models."""
        indices, address = list(client_indices), (self.seed, "batches", round)
        training = self.local_training(plan, indices, round)
        jobs = [TrainJob(model, buffers, indices, training, address) for model in models]
        if plan.personal is not None:
            own = replace(plan, gradient_share=1.0, mu=0.0, anchor=None, shift=None)
            training = replace(self.local_training(own, indices, round), first_step=False)
            if plan.personal_mu:
                correction = Correction(mu=plan.personal_mu, anchor=models[0])
                training = replace(training, correction=correction)
            # The losses of the personal models are not reported, and these cost least.
            training = replace(training, loss_at="running")
            personal = plan.personal[torch.tensor(indices)]
            jobs.append(TrainJob(personal, buffers, indices, training, address))
        return jobs

    def check_plan(self, plan: Plan, n_parameters: int) -> None:
        """Raise SettingsError if a tensor of a plan has the wrong shape."""
        n, own = len(self.ids), [len(self.ids), n_parameters]
        allowed = {
            "multipliers": (plan.multipliers, [[n]]),
            "anchor": (plan.anchor, [[n_parameters], own]),
            "shift": (plan.shift, [[n_parameters], own]),
            "personal": (plan.personal, [own]),
        }
        for name, (tensor, shapes) in allowed.items():
            if tensor is not None and list(tensor.shape) not in shapes:
                raise SettingsError(
                    f"{self.method.name}: plan has {name} of shape {list(tensor.shape)}; it must "
                    f"be {' or '.join(map(str, shapes))}"
                )

    def is_evaluated(self, round: int) -> bool:
        """Tell whether the model is evaluated after this round."""
        return round % self.settings.eval_every == 0 or round == self.settings.rounds

    def momentum(self, plan: Plan) -> float:
        """Return the momentum of the clients' SGD under a plan; Adam counts as without."""
        is_plain = plan.one_full_step or self.settings.optimiser != "sgd"
        return 0.0 if is_plain else self.settings.momentum

    def select_clients(self, round: int, state: State) -> list[int]:
        """Return the indices of the clients that are asked in this round, sorted."""
        n = len(self.ids)
        if self.settings.participation == 1:
            return list(range(n))
        count = count_selected(self.settings, n)
        stream = numpy_stream(self.seed, "participation", round)
        indices = sorted(self.method.select(state, n, count, stream))
        distinct = len(set(indices)) == len(indices) > 0
        if not distinct or not 0 <= indices[0] <= indices[-1] < n:
            raise SettingsError(
                f"{self.method.name}: select returned the indices {indices}; return some of 0 to "
                f"{n - 1}, each once"
            )
        return indices

    def models_to_send(
        self, model: Tensor, state: State, client_indices: Sequence[int]
    ) -> list[Tensor]:
        """Return the models that clients start from.

        One model [D] for all, or one for each client [K, D]; or several [D] for all, where the
        method trains several side by side.
        """
        own = None
        if type(self.method).initial_models is not Method.initial_models:
            own = self.method.initial_models(state, torch.tensor(client_indices))
        if own is None:
            return list(model.view(self.method.n_models, -1))
        expected = [len(client_indices), len(model)]
        if list(own.shape) != expected:
            raise SettingsError(
                f"{self.method.name}: initial_models returned shape {list(own.shape)}; return one "
                f"model for each of these clients, {expected}"
            )
        return [own]


def _rows_of(tensor: Tensor | None, rows: Tensor) -> Tensor | None:
    """Return the rows of some clients, or the vector that all share."""
    return tensor if tensor is None or tensor.ndim == 1 else tensor[rows]
