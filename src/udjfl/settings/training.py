"""Training of one method: the model, local steps, the server, uncertainties and devices."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from udjfl.settings.base import (
    MOST,
    Device,
    FunctionOrName,
    ModelName,
    Rounds,
    Settings,
    TaskChoice,
    Workers,
)

OLDER_NAMES = {"entropy": "paper"}  # of measures of uncertainty, in older run folders


class TrainingSettings(Settings):
    """Training of one method on one federation."""

    model: ModelName = "mlp"
    hidden: Annotated[int, Field(ge=1, le=1_000_000, description="hidden units of the mlp")] = 64
    weight_norm: Annotated[
        bool, Field(description="normalise the weights of the mlp's output layer")
    ] = True
    task: TaskChoice = "auto"
    loss: Annotated[
        FunctionOrName,
        Field(
            description="what clients minimise: cross-entropy; squared-error, absolute-error, "
            "huber or gaussian for regression; package.module:function of outputs and labels; "
            "auto: that of the task"
        ),
    ] = "auto"
    score: Annotated[
        FunctionOrName,
        Field(
            description="what is judged, client by client: accuracy, balanced-accuracy, auroc, "
            "auprc, f1 or log-loss; r2 or rmse for regression; package.module:function of labels "
            "and predictions; auto: accuracy or r2"
        ),
    ] = "auto"
    rounds: Rounds = 100
    optimiser: Annotated[
        Literal["sgd", "adam", "adamw"],
        Field(description="the clients' optimiser; adam and adamw mostly want an lr near 0.001"),
    ] = "sgd"
    lr: Annotated[float, Field(gt=0, le=1e38, description="learning rate of the clients")] = 0.1
    lr_schedule: Annotated[
        str,
        Field(
            description="learning rate over rounds: constant, cosine[:to=0], "
            "step[:every=30:factor=0.1] or exponential[:factor=0.99]"
        ),
    ] = "constant"
    momentum: Annotated[float, Field(ge=0, lt=1, description="momentum of the clients' SGD")] = 0.9
    nesterov: Annotated[bool, Field(description="Nesterov's momentum")] = False
    weight_decay: Annotated[
        float, Field(ge=0, description="decay of the weights in every local step")
    ] = 0.0
    clip_norm: Annotated[
        float, Field(ge=0, description="longest gradient of a local step; 0: not clipped")
    ] = 0.0
    class_weights: Annotated[
        str,
        Field(
            description="weights of the classes in what clients minimise: none, balanced (by each "
            "client's own frequencies), or a number per class: 1,5"
        ),
    ] = "none"
    batch_size: Annotated[int, Field(ge=1, le=MOST, description="examples per optimiser step")] = (
        128
    )
    local_epochs: Annotated[
        int, Field(ge=1, le=10_000, description="passes over a client's data per round")
    ] = 1
    local_steps: Annotated[
        int, Field(ge=0, le=MOST, description="optimiser steps per round instead; 0: epochs")
    ] = 0
    loss_at: Annotated[
        Literal["auto", "received", "running", "final"],
        Field(
            description="the loss a client reports: of the received model, the mean while "
            "training, or of the trained model; auto: received if the method uses losses, else "
            "running, which costs nothing"
        ),
    ] = "auto"
    participation: Annotated[
        float, Field(gt=0, le=1, description="share of the clients asked in each round")
    ] = 1.0
    drop_out: Annotated[
        float, Field(ge=0, lt=1, description="probability that an asked client does not answer")
    ] = 0.0
    holdout: Annotated[
        float,
        Field(
            ge=0,
            le=0.5,
            description="share of each client's train part that is kept to score models on while "
            "they train, for methods with a budget; 0: scores are those of the train part",
        ),
    ] = 0.0
    on_bad_report: Annotated[
        Literal["fail", "exclude"],
        Field(description="stop at an unusable report, or continue without that client"),
    ] = "fail"
    uncertainty: Annotated[
        Literal["crossfit", "paper", "confidence", "ensemble"],
        Field(
            description="measure of a client's uncertainty: crossfit, from examples that a model "
            "did and did not see; paper (older name: entropy), confidence and ensemble, from a "
            "fixed number of epochs"
        ),
    ] = "crossfit"
    uncertainty_epochs: Annotated[
        int,
        Field(
            ge=0,
            le=1_000_000,
            description="epochs each client trains alone for that measure (0: 30, for crossfit "
            "100); crossfit stops at the best number up to this",
        ),
    ] = 0
    uncertainty_lr: Annotated[
        float, Field(gt=0, le=1e38, description="learning rate of that training")
    ] = 0.1
    uncertainty_optimiser: Annotated[
        Literal["sgd", "adam"],
        Field(description="optimiser of that training; the authors' code uses adam"),
    ] = "sgd"
    uncertainty_folds: Annotated[
        int, Field(ge=2, le=1_000, description="folds of crossfit: models trained for each client")
    ] = 5
    uncertainty_models: Annotated[
        int, Field(ge=2, le=1_000, description="number of models in an ensemble")
    ] = 5
    server_optimizer: Annotated[
        str,
        Field(
            description="what the server makes of each method's step: sgd, momentum, adam, yogi "
            "or adagrad, with options as in adam:lr=0.1:b1=0.9:b2=0.99:tau=0.001"
        ),
    ] = "sgd"
    service: Annotated[
        str,
        Field(
            description="what clients are served of the common model: none, prior-rawls, "
            "prior-egalitarian or prior-all[:strength=1], moved to their own class frequencies; "
            "checkpoints[:rho=0.7], earlier models for uncertain clients"
        ),
    ] = "none"
    eval_every: Annotated[
        int,
        Field(
            ge=1,
            le=MOST,
            description="rounds between evaluations; the last round is always evaluated",
        ),
    ] = 1
    checkpoint_every: Annotated[
        int, Field(ge=1, le=MOST, description="rounds between checkpoints")
    ] = 10
    engine: Annotated[
        Literal["auto", "serial", "stacked", "mapped"],
        Field(
            description="how local training is computed: serial, one client at a time; stacked, "
            "all at once, for linear layers; mapped, all at once, for any model on a GPU; "
            "auto: the fastest that suits the model"
        ),
    ] = "auto"
    device: Device = "cpu"
    workers: Workers = 0

    @field_validator("class_weights", mode="before")
    @classmethod
    def _numbers_to_text(cls, value: Any) -> Any:
        return ",".join(map(str, value)) if isinstance(value, list | tuple) else value

    @field_validator("class_weights")
    @classmethod
    def _class_weights_are_positive(cls, value: str) -> str:
        if value in ("none", "balanced"):
            return value
        try:
            is_positive = all(0 < float(part) < math.inf for part in value.split(","))
        except ValueError:
            is_positive = False
        if not is_positive:
            raise ValueError(f"is {value!r}; write none, balanced, or a number above 0 per class")
        return value

    @model_validator(mode="after")
    def _nesterov_has_momentum(self) -> TrainingSettings:
        if self.nesterov and (self.momentum == 0 or self.optimiser != "sgd"):
            raise ValueError("nesterov: needs optimiser=sgd and momentum above 0")
        return self

    @field_validator("uncertainty", mode="before")
    @classmethod
    def _current_name(cls, value: Any) -> Any:
        return OLDER_NAMES.get(value, value) if isinstance(value, str) else value
