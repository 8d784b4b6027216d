"""The networks of the generator: a variational autoencoder, and classifiers that judge images."""

from collections.abc import Callable, Iterator
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from udjfl.data.source import OnProgress
from udjfl.data.sources._ambiguous_settings import AmbiguousSettings
from udjfl.seeds import stream_seed, torch_stream

# Larger batches are slower: their activations no longer fit the processor's cache.
JUDGED_AT_ONCE = 256


class Autoencoder(nn.Module):
    """A fully connected variational autoencoder over flattened images."""

    def __init__(self, pixels: int, hidden: tuple[int, ...], latents: int) -> None:
        super().__init__()
        self.encoder = _perceptron([pixels, *hidden, 2 * latents])
        self.decoder = _perceptron([latents, *reversed(hidden), pixels])

    def encode(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and log-variance of the latents, each [n, latents]."""
        mean, log_variance = self.encoder(images.flatten(1)).chunk(2, dim=1)
        return mean, log_variance


def train_autoencoder(
    images: Tensor, seed: int, settings: AmbiguousSettings, on_progress: OnProgress
) -> Autoencoder:
    """Train an autoencoder on `images` [n, channels, height, width]."""
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
    for done in _train(network, len(images), epochs, stream, settings, loss):
        on_progress("autoencoder", done, epochs)
    return network


def train_classifier(
    images: Tensor,
    labels: Tensor,
    number: int,
    seed: int,
    settings: AmbiguousSettings,
    on_progress: OnProgress,
) -> nn.Sequential:
    """Train member `number` of the ensemble.

    Members differ in their initial weights, batches and shifts, not in their data.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stream_seed(seed, "ambiguous classifier", number))
        network = _lenet(images.shape[1:], int(labels.max()) + 1)
    stream = torch_stream(seed, "ambiguous classifier training", number)
    epochs = settings.classifier_epochs

    def loss(batch: Tensor) -> Tensor:
        return F.cross_entropy(
            network(_shift(images[batch], settings.jitter, stream)), labels[batch]
        )

    for done in _train(network, len(images), epochs, stream, settings, loss):
        on_progress("classifiers", number * epochs + done, settings.members * epochs)
    return network


def judge(classifiers: list[nn.Sequential], images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the ensemble's mean softmax [n, classes], its entropy and mutual information [n]."""
    slices = images.tensor_split(max(1, -(-len(images) // JUDGED_AT_ONCE)))
    votes = torch.stack(
        [
            torch.cat([classifier(part) for part in slices]).double().softmax(1)
            for classifier in classifiers
        ]
    )
    probabilities = votes.mean(0)
    entropy = torch.special.entr(probabilities).sum(1)
    return probabilities, entropy, (entropy - torch.special.entr(votes).sum(2).mean(0)).clamp_min(0)


def _perceptron(widths: list[int]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def _lenet(shape: torch.Size, classes: int) -> nn.Sequential:
    """Build LeNet-5 with padding, so that 8x8 images have 2x2 features after two poolings."""
    channels, height, width = shape
    first = [nn.Conv2d(channels, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)]
    second = [nn.Conv2d(6, 16, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()]
    return nn.Sequential(
        *first, *second, *_perceptron([16 * (height // 4) * (width // 4), 120, 84, classes])
    )


def _train(
    network: nn.Module,
    sources: int,
    epochs: int,
    shuffle: torch.Generator,
    settings: AmbiguousSettings,
    loss: Callable[[Tensor], Tensor],
) -> Iterator[int]:
    """Minimise `loss(batch indices)` with AdamW and a learning rate that falls along a cosine.

    Yields the number of epochs done after each.
    """
    optimiser = torch.optim.AdamW(
        network.parameters(),
        lr=settings.learning_rate,
        weight_decay=settings.weight_decay,
        fused=True,
    )
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, epochs)
    for epoch in range(epochs):
        order = torch.randperm(sources, generator=shuffle)
        for batch in torch.split(order, settings.batch_size):
            optimiser.zero_grad()
            torch.autograd.backward(loss(batch))
            optimiser.step()
        schedule.step()
        yield epoch + 1


def _shift(images: Tensor, jitter: float, stream: torch.Generator) -> Tensor:
    """Shift each image by up to `jitter` pixels along each axis, at random; pad with black."""
    if jitter == 0:
        return images
    height, width = images.shape[-2:]
    pixels = (2 * torch.rand(len(images), 2, 1, generator=stream) - 1) * jitter
    offsets = pixels * torch.tensor([[2 / width], [2 / height]])
    moves = torch.cat([torch.eye(2).expand(len(images), 2, 2), offsets], dim=2)
    grid = F.affine_grid(moves, list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, align_corners=False)
