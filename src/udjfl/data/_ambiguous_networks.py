"""The networks behind the ambiguous images: a variational autoencoder that draws, and small classifiers that judge."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from udjfl.seeds import stream_seed, torch_stream

if TYPE_CHECKING:
    from udjfl.data.ambiguous import AmbiguousSettings, Progress


class Autoencoder(nn.Module):
    """A fully connected variational autoencoder over flattened images."""

    def __init__(self, pixels: int, hidden: tuple[int, ...], latents: int) -> None:
        super().__init__()
        self.encoder = _perceptron([pixels, *hidden, 2 * latents])
        self.decoder = _perceptron([latents, *reversed(hidden), pixels])

    def encode(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log-variance of the latents."""
        mean, log_variance = self.encoder(images.flatten(1)).chunk(2, dim=1)
        return mean, log_variance


def _perceptron(widths: list[int]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for before, after in zip(widths, widths[1:], strict=False):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def _lenet(channels: int, height: int, width: int, classes: int) -> nn.Sequential:
    """LeNet-5 with padded convolutions, so that images of 8x8 still have 2x2 features after two halvings."""
    features = 16 * (height // 4) * (width // 4)
    convolutions = (nn.Conv2d(channels, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2))
    convolutions += (nn.Conv2d(6, 16, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2))
    return nn.Sequential(*convolutions, nn.Flatten(), *_perceptron([features, 120, 84, classes]))


def _train(
    network: nn.Module,
    sources: int,
    epochs: int,
    shuffle: torch.Generator,
    settings: AmbiguousSettings,
    loss: Callable[[Tensor], Tensor],
    after_epoch: Callable[[int], None],
) -> None:
    """Minimise `loss(indices of a batch)` with AdamW; the learning rate falls to 0 along a cosine."""
    optimiser = torch.optim.AdamW(network.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, epochs)
    for epoch in range(epochs):
        for batch in torch.randperm(sources, generator=shuffle).split(settings.batch_size):
            optimiser.zero_grad()
            loss(batch).backward()
            optimiser.step()
        schedule.step()
        after_epoch(epoch + 1)


def train_autoencoder(images: Tensor, seed: int, settings: AmbiguousSettings, report: Progress) -> Autoencoder:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stream_seed(seed, "ambiguous autoencoder"))
        network = Autoencoder(images[0].numel(), settings.hidden, settings.latents)
    stream = torch_stream(seed, "ambiguous autoencoder training")

    def loss(batch: Tensor) -> Tensor:
        target = images[batch].flatten(1)
        mean, log_variance = network.encode(target)
        noise = torch.randn(mean.shape, generator=stream)
        decoded = network.decoder(mean + noise * (log_variance / 2).exp())
        misfit = F.binary_cross_entropy_with_logits(decoded, target, reduction="sum")
        divergence = 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).sum()
        return (misfit + settings.kl_weight * divergence) / len(batch)

    epochs = settings.autoencoder_epochs
    _train(network, len(images), epochs, stream, settings, loss, lambda done: report("autoencoder", done, epochs))
    return network


def train_classifier(
    images: Tensor, labels: Tensor, number: int, seed: int, settings: AmbiguousSettings, report: Progress
) -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stream_seed(seed, "ambiguous classifier", number))
        channels, height, width = images.shape[1:]
        network = _lenet(channels, height, width, int(labels.max()) + 1)
    stream = torch_stream(seed, "ambiguous classifier training", number)

    def loss(batch: Tensor) -> Tensor:
        return F.cross_entropy(network(_shifted(images[batch], settings.jitter, stream)), labels[batch])

    epochs, total = settings.classifier_epochs, settings.classifier_epochs * settings.members
    _train(
        network,
        len(images),
        epochs,
        stream,
        settings,
        loss,
        lambda d: report("classifiers", number * epochs + d, total),
    )
    return network


def _shifted(images: Tensor, jitter: float, stream: torch.Generator) -> Tensor:
    """Each image moved by its own random fraction of `jitter` pixels along both axes; black comes in at the edges."""
    if jitter == 0:
        return images
    height, width = images.shape[-2:]
    pixels = (2 * torch.rand(len(images), 2, 1, generator=stream) - 1) * jitter
    move = torch.eye(2).expand(len(images), 2, 2), pixels * torch.tensor([[2 / width], [2 / height]])
    grid = F.affine_grid(torch.cat(move, dim=2), list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, align_corners=False)
