"""Fingerprints: what only some data have is part of them where it is there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from data_helpers import make_client, make_federation

from udjfl.data import Federation


def make(
    together: Sequence[int] | None = None, test_groups: Sequence[int] | None = None
) -> Federation:
    """Make two clients with three train and two test examples each."""
    numbers = None if together is None else torch.tensor(together)
    groups = None if test_groups is None else torch.tensor(test_groups)
    clients = [
        replace(
            client,
            train=replace(client.train, together=numbers),
            test=replace(client.test, group=groups),
        )
        for client in (make_client("a", 100), make_client("b", 200))
    ]
    return make_federation(*clients)


def test_groups_of_test_examples_change_it() -> None:
    federations = [make(), make(test_groups=[0, 0]), make(test_groups=[0, 1])]
    assert len({each.fingerprint for each in federations}) == 3
    assert len({each.older_fingerprint for each in federations}) == 1


def test_examples_that_stay_together_change_it_whatever_their_numbers_are() -> None:
    prints = [make(each).fingerprint for each in (None, [0, 0, 1], [7, 7, 3], [0, 1, 1])]
    assert prints[1] == prints[2]
    assert len(set(prints)) == 3


def test_data_without_either_keep_the_fingerprint_of_earlier_versions() -> None:
    assert make().fingerprint == make().older_fingerprint
