"""Folds: every example is held out once, and nothing that was held out was seen."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from udjfl.data.federation import Client, Examples
from udjfl.uncertainty.folds import Fold, make_folds


def make_client(labels: list[int], x: torch.Tensor | None = None, name: str = "a") -> Client:
    features = torch.arange(2.0 * len(labels)).view(-1, 2) if x is None else x
    examples = Examples(features, torch.tensor(labels))
    return Client(name, examples, examples)


def folds_of(client: Client, n_folds: int = 5, batch_size: int = 100, seed: int = 0) -> list[Fold]:
    return make_folds(client, n_folds, batch_size, seed)


@pytest.mark.parametrize("n", [3, 4, 5, 17, 50])
def test_each_example_is_held_out_once_and_seen_by_all_other_models(n: int) -> None:
    folds = folds_of(make_client([i % 3 for i in range(n)]))
    assert len(folds) == min(5, n)
    assert sorted(np.concatenate([fold.held_out for fold in folds])) == list(range(n))
    for fold in folds:
        assert sorted([*fold.train, *fold.held_out]) == list(range(n))


def test_classes_are_dealt_evenly() -> None:
    labels = [0] * 10 + [1] * 25 + [2] * 5
    for fold in folds_of(make_client(labels)):
        assert np.bincount(np.array(labels)[fold.held_out]).tolist() == [2, 5, 1]


def test_folds_depend_on_seed_and_client() -> None:
    labels = [0, 1] * 10

    def held_out(seed: int, name: str) -> list[list[int]]:
        folds = folds_of(make_client(labels, name=name), seed=seed)
        return [fold.held_out.tolist() for fold in folds]

    assert held_out(0, "a") == held_out(0, "a")
    assert held_out(0, "a") != held_out(1, "a")
    assert held_out(0, "a") != held_out(0, "b")


def test_equal_images_are_in_one_fold() -> None:
    images = torch.arange(10.0).repeat_interleave(3).view(30, 1, 1, 1).expand(30, 1, 2, 2)
    for fold in folds_of(make_client([0, 1, 2] * 10, images)):
        seen = {int(i) // 3 for i in fold.train}
        assert seen.isdisjoint(int(i) // 3 for i in fold.held_out)


def test_examples_that_belong_together_are_in_one_fold() -> None:
    """The frames of a track are not equal, but a model that saw one knows the others."""
    client = make_client([0, 1] * 15)
    tracks = torch.arange(10).repeat(3)
    client = replace(client, train=replace(client.train, together=tracks))
    folds = folds_of(client)
    assert len(folds) == 5
    for fold in folds:
        assert not set(tracks[fold.train].tolist()) & set(tracks[fold.held_out].tolist())


def test_equal_rows_of_a_table_are_different_examples() -> None:
    rows = torch.tensor([[0.0], [1.0]]).repeat(10, 1)
    folds = folds_of(make_client([0, 1] * 10, rows))
    assert len(folds) == 5
    assert all(set(fold.train % 2) == {0, 1} for fold in folds)


@pytest.mark.parametrize("labels", [[1], [0, 1]])
def test_with_too_few_examples_nothing_is_held_out(labels: list[int]) -> None:
    (fold,) = folds_of(make_client(labels))
    assert fold.train.tolist() == fold.held_out.tolist() == list(range(len(labels)))


def test_copies_of_one_image_are_too_few() -> None:
    assert len(folds_of(make_client([0, 1] * 5, torch.ones(10, 1, 2, 2)))) == 1


def test_no_batch_has_a_single_example() -> None:
    # 11 examples: a fold of 3, two of 2 and so on; 8 or 9 are left, and 9 = 2 * 4 + 1.
    folds = folds_of(make_client([0] * 11), batch_size=4)
    assert {len(fold.train) for fold in folds} == {8}
    assert sorted(np.concatenate([fold.held_out for fold in folds])) == list(range(11))
