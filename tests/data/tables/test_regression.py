"""Numbers as targets: read, scaled by all train parts together, and their problems."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
import torch

from udjfl import DataError, Federation, SettingsError, load
from udjfl.data.tables.preprocessing import LabelScale, Preprocessing


def make_homes(rows: int = 60) -> dict[str, pd.DataFrame]:
    """Draw homes with prices, in two towns."""
    rng = np.random.default_rng(0)
    frames = {}
    for town, level in (("bath", 3e5), ("york", 2e5)):
        area = rng.normal(90, 20, rows)
        price = level + 2000 * (area - 90) + 5000 * rng.normal(size=rows)
        frames[town] = pd.DataFrame({"area": area, "price": price})
    return frames


def test_labels_are_scaled_by_all_train_parts_together() -> None:
    federation = Federation.from_frames(make_homes(), target="price", task="regression")
    assert federation.labels_are_numbers
    assert federation.class_names == ()
    train = torch.cat([client.train.y for client in federation.clients]).double()
    assert float(train.mean()) == pytest.approx(0, abs=1e-6)
    assert float(train.std(correction=0)) == pytest.approx(1, abs=1e-6)
    assert federation.clients[0].train.y.mean() > federation.clients[1].train.y.mean() + 1
    for client in federation.clients:
        own = np.sort(make_homes()[client.id]["price"])
        labels = torch.cat([client.train.y, client.test.y]).double().numpy()
        np.testing.assert_allclose(np.sort(federation.restore_labels(labels)), own, rtol=1e-6)


def test_the_scale_is_kept() -> None:
    done = Federation.from_frames(make_homes(), "price", task="regression").preprocessing
    assert done is not None
    again = Preprocessing.from_dict(json.loads(json.dumps(done.as_dict())))
    assert again.labels == done.labels
    # Of 1, 3, 5: mean 3, deviation sqrt(8 / 3).
    scale = LabelScale.fit([np.array([1.0]), np.array([3.0, 5.0])])
    assert (scale.mean, scale.scale) == pytest.approx((3.0, np.sqrt(8 / 3)))
    assert scale.undo(scale.apply(np.array([7.0]))) == pytest.approx([7.0])


def test_labels_stay_as_they_are_without_scaling() -> None:
    federation = Federation.from_frames(
        make_homes(), target="price", task="regression", scaling="none"
    )
    assert float(federation.test.y.mean()) > 1e5


def test_rows_without_a_label_are_left_out() -> None:
    homes = make_homes()
    homes["bath"].loc[:4, "price"] = np.nan
    homes["york"].loc[0, "price"] = np.inf
    federation = Federation.from_frames(homes, target="price", task="regression")
    sizes = [len(c.train) + len(c.test) for c in federation.clients]
    assert sizes == [55, 59]
    assert any("5 of 60 rows have no label" in problem for problem in federation.problems)


@pytest.mark.parametrize(
    ("change", "target", "message"),
    [
        ({}, "price>3", "is a comparison, which makes classes; a regression needs the column"),
        ({"price": "dear"}, "price", r"client 'york', column 'price': 60 of 60 .*'dear'"),
    ],
)
def test_mistakes(change: dict[str, str], target: str, message: str) -> None:
    homes = make_homes()
    homes["york"] = homes["york"].assign(**change)
    with pytest.raises(DataError, match=message):
        Federation.from_frames(homes, target=target, task="regression")


def test_a_constant_target_and_a_quantity_as_classes() -> None:
    constant = {name: frame.assign(price=1.0) for name, frame in make_homes().items()}
    with pytest.raises(DataError, match="there is only 1 in the whole federation"):
        Federation.from_frames(constant, target="price", task="regression")
    with pytest.raises(DataError, match="to predict the number choose task=regression"):
        Federation.from_frames(make_homes(), target="price")


def test_problems_name_the_column() -> None:
    homes = {name: frame.assign(tax=frame["price"] * 0.1) for name, frame in make_homes().items()}
    homes["york"] = homes["york"].assign(price=7.0)
    federation = Federation.from_frames(homes, target="price", task="regression")
    assert any("'york', column 'price': one number only" in p for p in federation.problems)
    homes = {name: frame.assign(tax=frame["price"] * 0.1) for name, frame in make_homes().items()}
    federation = Federation.from_frames(homes, target="price", task="regression")
    (leak,) = (problem for problem in federation.problems if "alone predicts" in problem)
    assert leak.startswith("column 'tax' alone predicts 100.0% of 'price'")


def test_equal_features_with_other_labels_are_no_copies() -> None:
    homes = make_homes()
    frames = {name: frame.assign(area=1.0 * (frame.index % 3)) for name, frame in homes.items()}
    federation = Federation.from_frames(frames, target="price", task="regression")
    assert not any("also train rows" in problem for problem in federation.problems)


def test_a_file_can_be_cut_into_clients_but_not_by_class(tmp_path: object) -> None:
    path = f"{tmp_path}/homes.csv"
    pd.concat(make_homes().values()).to_csv(path, index=False)
    options = {"target": "price", "task": "regression"}
    assert len(load(path, 4, "iid", options=options).clients) == 4
    with pytest.raises(SettingsError, match="dirichlet cuts by class, and the labels are numbers"):
        load(path, 4, "dirichlet:0.3", options=options)
