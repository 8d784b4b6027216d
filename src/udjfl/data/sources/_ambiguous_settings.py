"""The settings of the generator of ambiguous images."""

from dataclasses import dataclass, fields

from udjfl.errors import SettingsError


@dataclass(frozen=True)
class AmbiguousSettings:
    """The recipe for ambiguous images. The defaults are published for MNIST; entropies in nats.

    levels                number of evenly spaced values that pixels are rounded to before the
                          ensemble judges them; None: not rounded
    kl_weight             below 1 makes the decoded images sharper, which small images need
    jitter                pixels by which the classifiers' training images are shifted at most,
                          which small data sets need
    candidates_per_image  mixtures that are tried at most, for each image requested
    """

    labels_per_image: int = 10
    min_parents: int = 2
    max_parents: int = 4
    max_mutual_information: float = 0.05
    min_entropy: float = 0.05
    max_entropy: float = 1.6
    entropy_bins: int = 10
    levels: int | None = None
    hidden: tuple[int, ...] = (512, 256)
    latents: int = 32
    kl_weight: float = 1.0
    autoencoder_epochs: int = 20
    members: int = 5
    classifier_epochs: int = 5
    jitter: float = 0.0
    weight_decay: float = 0.01
    batch_size: int = 128
    learning_rate: float = 0.001
    candidates_per_image: int = 50

    def __post_init__(self) -> None:
        at_least = {"members": 2, "min_parents": 2, "max_parents": self.min_parents, "levels": 2}
        at_least |= dict.fromkeys(("min_entropy", "kl_weight", "jitter", "weight_decay"), 0)
        at_least |= dict.fromkeys(("labels_per_image", "entropy_bins", "latents", "batch_size"), 1)
        at_least |= dict.fromkeys(
            ("autoencoder_epochs", "classifier_epochs", "candidates_per_image"), 1
        )
        above = {"max_entropy": self.min_entropy, "max_mutual_information": 0, "learning_rate": 0}
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        # `not a >= b` instead of `a < b`, so that NaN is a mistake too. Only `levels` may be None.
        mistakes = [
            f"{name} must be at least {least}; it is {given[name]}"
            for name, least in at_least.items()
            if given[name] is not None and not given[name] >= least
        ]
        mistakes += [
            f"{name} must be above {bound}; it is {given[name]}"
            for name, bound in above.items()
            if not given[name] > bound
        ]
        if not self.hidden or min(self.hidden) < 1:
            mistakes.append(
                f"hidden must name one width or more, each at least 1; it is {self.hidden}"
            )
        if mistakes:
            raise SettingsError(mistakes)
