"""The generator of ambiguous images."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.datasets import load_digits
from torch import Tensor

from udjfl.data.sources._ambiguous_digits import AmbiguousImages, make_ambiguous, select_evenly
from udjfl.data.sources._ambiguous_settings import AmbiguousSettings
from udjfl.errors import DataError, SettingsError

SCRIPT = Path(__file__).parents[3] / "scripts" / "make_dirty_digits.py"

# Few epochs make an unsure, divided ensemble, so the thresholds are wide; the filter is the same
# code.
TINY = AmbiguousSettings(
    max_mutual_information=0.3,
    min_entropy=0.2,
    max_entropy=1.3,
    entropy_bins=4,
    levels=17,
    hidden=(32,),
    latents=6,
    kl_weight=0.3,
    autoencoder_epochs=25,
    members=3,
    classifier_epochs=20,
    jitter=0.25,
    batch_size=32,
    learning_rate=0.01,
)


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Use one thread: the networks are so small that a second one only waits."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@cache
def digits() -> tuple[Tensor, Tensor]:
    """Load 300 clean digits; more would only make training slower."""
    loaded = load_digits()
    return torch.from_numpy(loaded.images[:300] / 16).float(), torch.from_numpy(loaded.target[:300])


@cache
def generated() -> AmbiguousImages:
    return make_ambiguous(*digits(), 200, seed=3, settings=TINY)


def entropy_of(probabilities: Tensor) -> Tensor:
    return -(probabilities * probabilities.log()).sum(1)


def noise(count: int, *shape: int, classes: int = 5) -> tuple[Tensor, Tensor]:
    """Make noisy images in which the brightest row depends on the class."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(count) % classes
    images = torch.rand(count, *shape, generator=generator) * 0.3
    for label in range(classes):
        images[labels == label, ..., 1 + label, :] += 0.6
    return images, labels


class TestResult:
    def test_shapes_and_ranges(self) -> None:
        result = generated()
        assert len(result.images) == 200
        assert result.images.shape == (200, 1, 8, 8)
        assert result.images.dtype == torch.float32
        assert float(result.images.min()) >= 0
        assert float(result.images.max()) <= 1
        assert result.probabilities.shape == (200, 10)
        assert torch.allclose(result.probabilities.sum(1), torch.ones(200, dtype=torch.float64))
        assert result.labels.shape == (200, 10)
        assert result.parents.shape == (200, 4)

    def test_every_image_is_within_the_thresholds(self) -> None:
        result = generated()
        assert torch.allclose(entropy_of(result.probabilities), result.entropy)
        assert float(result.entropy.min()) >= TINY.min_entropy
        assert float(result.entropy.max()) <= TINY.max_entropy
        assert float(result.mutual_information.min()) >= 0
        assert float(result.mutual_information.max()) <= TINY.max_mutual_information
        assert float(result.mutual_information.max()) > TINY.max_mutual_information / 2, (
            "the threshold was never near"
        )

    def test_parents_are_two_to_four_sources_of_different_classes(self) -> None:
        parents, (_, labels) = generated().parents, digits()
        present = parents >= 0
        assert set(present.sum(1).tolist()) == {2, 3, 4}
        assert bool((present[:, :-1] >= present[:, 1:]).all()), "padding comes last"
        assert int(parents.max()) < len(labels)
        # Absent parents get classes of their own, so that a repeated class can only come from two
        # present parents.
        classes = torch.where(present, labels[parents.clamp_min(0)], 100 + torch.arange(4))
        ordered = classes.sort(1).values
        assert bool((ordered[:, 1:] != ordered[:, :-1]).all())

    def test_entropies_are_spread_evenly(self) -> None:
        edges = torch.linspace(TINY.min_entropy, TINY.max_entropy, TINY.entropy_bins + 1).double()
        inner = edges[1:-1].contiguous()
        assert torch.bucketize(generated().entropy, inner).bincount().tolist() == [50] * 4

    def test_rare_entropies_are_found_and_the_order_is_random(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("udjfl.data.sources._ambiguous_digits.MIXTURES_AT_ONCE", 40)
        filled: list[int] = []
        result = make_ambiguous(
            *digits(),
            80,
            seed=3,
            settings=TINY,
            on_progress=lambda stage, done, _: filled.append(done) if stage == "mixtures" else None,
        )
        assert len(filled) > 2
        assert filled[0] < filled[-1] == 80
        quarter = (
            (result.entropy - TINY.min_entropy) / (TINY.max_entropy - TINY.min_entropy) * 4
        ).long()
        assert quarter.bincount().tolist() == [20] * 4
        # What is drawn last is of the rarest entropies: unshuffled, positions differ with the
        # quarter (p = 0.00005).
        positions = [(quarter == part).nonzero().flatten().numpy() for part in range(4)]
        assert stats.kruskal(*positions).pvalue > 0.001

    def test_images_are_distinct_and_have_the_requested_grey_levels(
        self,
    ) -> None:
        scaled = generated().images * 16
        assert torch.equal(scaled, scaled.round())
        everything = torch.cat([generated().images[:, 0], digits()[0]]).flatten(1)
        assert len(torch.unique(generated().images, dim=0)) == 200
        assert len(torch.unique(everything, dim=0)) == 200 + len(torch.unique(digits()[0], dim=0))

    def test_an_image_looks_like_a_mixture_of_its_parents(self) -> None:
        """Most images are nearer to their parents' mean than to that of other parents."""
        result, (sources, _) = generated(), digits()
        present = (result.parents >= 0).float()
        means = (
            torch.einsum("np,nphw->nhw", present, sources[result.parents.clamp_min(0)])
            / present.sum(1)[:, None, None]
        )
        own = (result.images[:, 0] - means).square().mean((1, 2))
        foreign = (result.images[:, 0] - means.roll(1, 0)).square().mean((1, 2))
        assert float((own < foreign).float().mean()) > 0.7

    def test_labels_follow_the_probabilities(self) -> None:
        settings = dataclasses.replace(TINY, labels_per_image=400)
        result = make_ambiguous(*digits(), 20, seed=3, settings=settings)
        expected = result.probabilities.sum(0).numpy() * 400
        pooled = stats.chisquare(
            np.bincount(result.labels.flatten().numpy(), minlength=10), expected
        )
        assert pooled.pvalue > 0.001
        likeliest = result.probabilities.argmax(1)
        hits = (result.labels == likeliest[:, None]).double().mean(1)
        top = result.probabilities.max(1).values
        errors = (hits - top) / (top * (1 - top) / 400).sqrt()
        assert float(errors.square().sum()) < stats.chi2.ppf(0.999, 20)


class TestDeterminism:
    QUICK = dataclasses.replace(TINY, autoencoder_epochs=3, classifier_epochs=3, max_entropy=2.3)

    def test_equal_seeds_give_equal_images_independent_of_the_global_generator(self) -> None:
        before = torch.random.get_rng_state()
        first = make_ambiguous(*digits(), 30, seed=1, settings=self.QUICK)
        assert torch.equal(torch.random.get_rng_state(), before), "the global generator was used"
        torch.rand(7)
        second = make_ambiguous(*digits(), 30, seed=1, settings=self.QUICK)
        for field in dataclasses.fields(AmbiguousImages):
            assert torch.equal(getattr(first, field.name), getattr(second, field.name)), field.name

    def test_another_seed_gives_other_images(self) -> None:
        first = make_ambiguous(*digits(), 30, seed=1, settings=self.QUICK)
        second = make_ambiguous(*digits(), 30, seed=2, settings=self.QUICK)
        assert not torch.equal(first.images, second.images)
        assert not torch.equal(first.parents, second.parents)

    def test_works_inside_no_grad_and_does_not_change_the_sources(self) -> None:
        images, labels = digits()[0].clone(), digits()[1].clone()
        with torch.no_grad():
            make_ambiguous(images, labels, 5, seed=1, settings=self.QUICK)
        assert torch.equal(images, digits()[0])
        assert torch.equal(labels, digits()[1])


class TestProgress:
    def test_stages_come_in_order_and_count_up_to_their_totals(self) -> None:
        calls: list[tuple[str, int, int]] = []
        settings = dataclasses.replace(
            TINY, autoencoder_epochs=2, classifier_epochs=2, max_entropy=2.3
        )
        make_ambiguous(
            *digits(), 30, seed=1, settings=settings, on_progress=lambda *call: calls.append(call)
        )
        assert calls[:2] == [("autoencoder", 1, 2), ("autoencoder", 2, 2)]
        assert calls[2:8] == [("classifiers", done, 6) for done in range(1, 7)]
        assert {stage for stage, _, _ in calls[8:]} == {"mixtures"}
        assert all(total == 30 for _, _, total in calls[8:])
        assert [done for _, done, _ in calls[8:]] == sorted(done for _, done, _ in calls[8:])


class TestOtherImages:
    @pytest.mark.parametrize("shape", [(28, 28), (1, 28, 28), (3, 28, 28), (3, 9, 14)])
    def test_sizes_and_colours(self, shape: tuple[int, ...]) -> None:
        settings = AmbiguousSettings(
            min_entropy=0.01,
            max_entropy=2.0,
            max_mutual_information=1.0,
            hidden=(32, 16),
            latents=4,
            autoencoder_epochs=2,
            members=2,
            classifier_epochs=1,
            entropy_bins=1,
            candidates_per_image=20,
        )
        images, labels = noise(100, *shape)
        result = make_ambiguous(images, labels, 6, seed=0, settings=settings)
        assert result.images.shape == (6, *(shape if len(shape) == 3 else (1, *shape)))
        assert bool(torch.isfinite(result.images).all())

    def test_two_classes_leave_no_part_of_the_entropy_range_empty(self) -> None:
        """No entropy exceeds log 2, so the bins must not reach up to max_entropy."""
        images, labels = digits()
        two = labels < 2
        longer = {"autoencoder_epochs": 150, "classifier_epochs": 40, "max_mutual_information": 0.6}
        settings = dataclasses.replace(
            TINY, max_parents=2, min_entropy=0.0, max_entropy=1.6, **longer
        )
        result = make_ambiguous(images[two], labels[two], 20, seed=0, settings=settings)
        quarters = (result.entropy / math.log(2) * 4).long().bincount(minlength=4)
        assert quarters.tolist() == [5, 5, 5, 5]

    def test_a_class_without_sources_gets_almost_no_probability(self) -> None:
        images, labels = digits()
        without = labels != 4
        result = make_ambiguous(images[without], labels[without], 20, seed=0, settings=TINY)
        assert result.probabilities.shape == (20, 10)
        assert float(result.probabilities[:, 4].max()) < 0.2


class TestSelectEvenly:
    def test_strata_first_then_groups_then_order(self) -> None:
        strata = torch.tensor([0, 0, 0, 0, 1, 1, 1])
        groups = torch.tensor([0, 0, 0, 1, 2, 2, 2])
        # Two from each stratum; in stratum 0 one of each group, although group 1 comes last.
        assert select_evenly(strata, groups, 4).tolist() == [0, 3, 4, 5]

    def test_a_short_stratum_is_filled_up_from_the_others(self) -> None:
        strata = torch.tensor([0, 1, 1, 1, 2, 2])
        assert select_evenly(strata, torch.zeros(6, dtype=torch.int64), 5).tolist() == [
            0,
            1,
            2,
            4,
            5,
        ]

    def test_all_items_are_selected_if_there_are_too_few(self) -> None:
        assert select_evenly(torch.tensor([3, 0]), torch.tensor([1, 1]), 9).tolist() == [0, 1]
        assert (
            select_evenly(
                torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.int64), 9
            ).tolist()
            == []
        )

    def test_selecting_in_two_steps_equals_selecting_at_once(self) -> None:
        """The generator relies on this when it drops the surplus early."""
        generator = torch.Generator().manual_seed(0)
        strata = torch.randint(0, 4, (300,), generator=generator)
        groups = torch.randint(0, 5, (300,), generator=generator)
        early = select_evenly(strata[:150], groups[:150], 40)
        rest = torch.cat([early, torch.arange(150, 300)])
        assert torch.equal(
            rest[select_evenly(strata[rest], groups[rest], 40)], select_evenly(strata, groups, 40)
        )


class TestBadInputs:
    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            ({"images": torch.rand(300, 64)}, "shape is"),
            ({"images": torch.rand(300, 7, 8)}, "8 pixels or more"),
            ({"images": torch.zeros(300, 8, 8, dtype=torch.uint8)}, "floating-point"),
            ({"images": torch.full((300, 8, 8), 1.5)}, "from 0 to 1"),
            ({"images": torch.full((300, 8, 8), -0.1)}, "from 0 to 1"),
            ({"images": torch.full((300, 8, 8), math.nan)}, "finite"),
            ({"images": torch.full((300, 8, 8), math.inf)}, "finite"),
            ({"labels": torch.zeros(299, dtype=torch.int64)}, "300 whole numbers"),
            ({"labels": torch.zeros(300)}, "whole numbers"),
            ({"labels": torch.full((300,), -1)}, "from 0 up"),
            ({"labels": torch.zeros(300, dtype=torch.int64)}, "one class"),
            (
                {"labels": torch.arange(300) % 3},
                "max_parents is 4, but the labels hold only 3 classes",
            ),
            ({"count": 0}, "count must be at least 1"),
            (
                {"images": torch.rand(19, 8, 8), "labels": torch.arange(19) % 5},
                "19 sources are too few",
            ),
        ],
    )
    def test_unusable_sources_are_refused(self, changes: dict[str, object], words: str) -> None:
        given = {"images": digits()[0], "labels": digits()[1], "count": 5, **changes}
        with pytest.raises(DataError, match=words):
            make_ambiguous(given["images"], given["labels"], given["count"], seed=0, settings=TINY)

    def test_impossible_entropy_is_refused(self) -> None:
        images, labels = digits()
        settings = dataclasses.replace(TINY, max_parents=2, min_entropy=0.7)
        with pytest.raises(DataError, match=r"min_entropy must be below log\(2 classes\) = 0.693"):
            make_ambiguous(images[labels < 2], labels[labels < 2], 5, seed=0, settings=settings)

    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            ({"max_mutual_information": 1e-9}, "mutual information above max_mutual_information"),
            ({"min_entropy": 2.29, "max_entropy": 2.3}, "entropy below min_entropy"),
            ({"min_entropy": 0.0, "max_entropy": 0.0001}, "entropy above max_entropy"),
        ],
    )
    def test_most_frequent_reason_of_rejection_is_named(
        self, changes: dict[str, float], words: str
    ) -> None:
        settings = dataclasses.replace(TINY, candidates_per_image=3, classifier_epochs=6, **changes)
        with pytest.raises(
            DataError,
            match=rf"only \d+ of 50 .* out of 150 mixtures.*{words}.*candidates_per_image",
        ):
            make_ambiguous(*digits(), 50, seed=0, settings=settings)

    def test_equal_images_are_rejected(self) -> None:
        """With constant sources and two grey levels, every mixture equals the source."""
        settings = dataclasses.replace(
            TINY,
            levels=2,
            min_entropy=0.0,
            max_entropy=2.0,
            max_mutual_information=2.0,
            candidates_per_image=10,
        )
        with pytest.raises(DataError, match=r"only 0 of 5 .*an image equal to an earlier one"):
            make_ambiguous(torch.ones(40, 8, 8), torch.arange(40) % 5, 5, seed=0, settings=settings)

    def test_all_wrong_settings_are_listed(self) -> None:
        with pytest.raises(SettingsError) as caught:
            AmbiguousSettings(
                members=1, min_parents=3, max_parents=2, max_entropy=math.nan, levels=1, hidden=()
            )
        text = "\n".join(caught.value.mistakes)
        for name in ("members", "max_parents", "max_entropy", "levels", "hidden"):
            assert f"{name} must" in text
        assert len(caught.value.mistakes) == 5

    def test_the_defaults_are_the_published_recipe(self) -> None:
        settings = AmbiguousSettings()
        assert (settings.hidden, settings.latents) == ((512, 256), 32)
        assert (settings.min_parents, settings.max_parents) == (2, 4)
        assert (settings.max_mutual_information, settings.min_entropy, settings.max_entropy) == (
            0.05,
            0.05,
            1.6,
        )
        assert (settings.members, settings.labels_per_image, settings.levels) == (5, 10, None)
