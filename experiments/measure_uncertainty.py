"""Measure how long a client should train alone for a good estimate of its uncertainty.

    python experiments/measure_uncertainty.py --seeds 10

On the embedded digits the label entropy is known. For each learning rate and number of epochs the
table has the mean absolute difference between the measured uncertainty of a client and the mean
entropy of the distributions its training labels were drawn from (0 for a clean digit), and the
correlation of the two over the five clients, both averaged over seeds; then the measured values of
the five clients.
"""

from __future__ import annotations

import argparse

import numpy as np

import udjfl
from udjfl.data.sources import dirty_digits as digits
from udjfl.engine import make_engine, one_thread
from udjfl.models import build
from udjfl.uncertainty import measure


def true_entropies(federation: udjfl.Federation) -> np.ndarray:
    """Return each client's mean label entropy over its training examples.

    Its images are looked up in the stored file.
    """
    stored, (images, _) = digits.load_stored(), digits.load_handwritten()
    p = stored["probabilities"].astype(np.float64)
    p /= p.sum(axis=1, keepdims=True)
    entropy = -(p * np.log(np.maximum(p, 1e-12))).sum(axis=1)
    by_image = {
        image.tobytes(): value for image, value in zip(stored["images"], entropy, strict=True)
    }
    scaled = images[stored["sources"]] / digits.BRIGHTEST
    entropies = []
    for client in federation.clients:
        pixels = np.rint(
            (client.train.x.numpy()[:, 0] * scaled.std() + scaled.mean()) * digits.BRIGHTEST
        ).astype(np.uint8)
        entropies.append(np.mean([by_image.get(image.tobytes(), 0.0) for image in pixels]))
    return np.array(entropies)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=10)
    seeds = range(parser.parse_args().seeds)
    federations = [udjfl.load("dirty-digits", seed=seed) for seed in seeds]
    truths = [true_entropies(federation) for federation in federations]
    print("| learning rate | epochs | difference | correlation | measured, client 1 to 5 |")
    print("|---|---|---|---|---|")
    with one_thread():
        for lr in (0.1, 0.01):
            for epochs in (10, 20, 30, 50, 100):
                settings = udjfl.TrainingSettings(uncertainty_epochs=epochs, uncertainty_lr=lr)
                measured = []
                for seed, federation in zip(seeds, federations, strict=True):
                    engine = make_engine(
                        build("mlp", federation.input_shape, federation.n_classes, seed),
                        federation.clients,
                    )
                    measured.append(
                        np.array(list(measure(federation, engine, settings, seed).values.values()))
                    )
                difference = np.mean(
                    [np.abs(u - t).mean() for u, t in zip(measured, truths, strict=True)]
                )
                correlation = np.mean(
                    [np.corrcoef(u, t)[0, 1] for u, t in zip(measured, truths, strict=True)]
                )
                shown = " ".join(f"{value:.3f}" for value in np.mean(measured, axis=0))
                print(f"| {lr} | {epochs} | {difference:.3f} | {correlation:.3f} | {shown} |")
    print(
        "| label entropy | | 0 | 1 | "
        + " ".join(f"{value:.3f}" for value in np.mean(truths, axis=0))
        + " |"
    )


if __name__ == "__main__":
    main()
