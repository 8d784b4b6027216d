"""Federations from a user's own data: frames, files, folders of images, data sets."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from udjfl.data.split import TEST_SHARE
from udjfl.data.tables.preprocessing import Scaling
from udjfl.errors import DataError
from udjfl.settings import TableSettings, validate_settings

if TYPE_CHECKING:
    from udjfl.data.federation import Federation
    from udjfl.data.source import Pools


class OwnData:
    """The ways to make a `Federation` of data that are not arrays yet."""

    @staticmethod
    def from_frames(
        frames: Mapping[Any, Any] | Any,
        target: str,
        *,
        client: str | None = None,
        group: str | None = None,
        sensitive: str | None = None,
        drop: Sequence[str] = (),
        categories: Sequence[str] = (),
        scaling: Scaling = "own",
        task: Literal["classification", "regression"] = "classification",
        test: Any = None,
        test_share: float = TEST_SHARE,
        seed: int = 0,
        name: str = "own data",
    ) -> Federation:
        """Make a federation from frames by client, or from one frame with a column `client`.

        Each client's rows are split into a train and a test part. Missing values are filled,
        numbers scaled and categories encoded by the train parts; columns that cannot be used are
        left out. `preprocessing` has what was done, `problems` what a reader should know.

        target      the column of the labels (texts, numbers or true/false), or a comparison such
                    as "delay>15"
        group       a column of groups, such as patients, that no split may cut
        sensitive   a column of a sensitive attribute; it stays a feature unless it is in `drop`
        drop        columns to leave out
        categories  columns whose numbers are codes of categories; texts always are
        scaling     "own": by each client's train part; "shared": by means and variances added up
                    over clients; "none"
        task        "regression": the target is a number to predict; it is scaled by the mean and
                    deviation of all clients' train labels, unless scaling is "none"
        test        a frame of examples of no client, the global test set; None: the clients' test
                    parts together. It is scaled by all clients' means and variances.
        """
        from udjfl.data.tables.frames import make_pools

        settings = validate_settings(
            TableSettings,
            {
                "target": target,
                "client": client,
                "group": group,
                "sensitive": sensitive,
                "drop": list(drop),
                "categories": list(categories),
                "scaling": scaling,
                "task": task,
                "test_share": test_share,
            },
        )
        by_client = frames if isinstance(frames, Mapping) else {name: frames}
        if client is None and not isinstance(frames, Mapping):
            raise DataError(
                "client: name the column that says which client a row belongs to, or give frames "
                "by client"
            )
        return _federate(name, make_pools(by_client, settings, test), seed)

    @staticmethod
    def from_csv(
        files: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        target: str,
        *,
        client: str | None = None,
        group: str | None = None,
        sensitive: str | None = None,
        drop: Sequence[str] = (),
        categories: Sequence[str] = (),
        scaling: Scaling = "own",
        task: Literal["classification", "regression"] = "classification",
        test: str | os.PathLike[str] | None = None,
        test_share: float = TEST_SHARE,
        seed: int = 0,
        name: str | None = None,
    ) -> Federation:
        """Make a federation from CSV or parquet files: one for each client, named by the file.

        `files` is a pattern such as "hospitals/*.csv", a folder, or a list of them; with a column
        `client`, rows of any file may belong to any client. `test` is a file of its own. Everything
        else is as in `from_frames`.
        """
        from udjfl.data.tables.files import describe_files, read_table, read_tables

        return OwnData.from_frames(
            read_tables(files, has_client_column=client is not None),
            target,
            client=client,
            group=group,
            sensitive=sensitive,
            drop=drop,
            categories=categories,
            scaling=scaling,
            task=task,
            test=None if test is None else read_table(Path(test)),
            test_share=test_share,
            seed=seed,
            name=name or describe_files(files),
        )

    @staticmethod
    def from_image_folders(
        root: str | os.PathLike[str],
        *,
        size: int | tuple[int, int] | None = None,
        colour: bool = True,
        test_share: float = TEST_SHARE,
        seed: int = 0,
        name: str | None = None,
    ) -> Federation:
        """Make a federation from images in folders `root/client/class/image`.

        Images are decoded one by one into one array of bytes [n, channels, height, width], uint8,
        and become numbers from 0 to 1 only when a batch is made.

        size     height and width (or one number for both) that images are resized to; None: all
                 must have the size of the first
        colour   red, green and blue; False: one channel of grey
        """
        from udjfl.data.image_folders import read_image_folders

        pools = read_image_folders(Path(root), size, colour, test_share)
        return _federate(name or Path(root).resolve().name, pools, seed)

    @staticmethod
    def from_datasets(
        datasets: Mapping[Any, Any],
        *,
        test: Any = None,
        x: str | None = None,
        y: str | None = None,
        class_names: Sequence[str] | None = None,
        test_share: float = TEST_SHARE,
        seed: int = 0,
        name: str = "own data",
        allow_duplicates: bool = False,
    ) -> Federation:
        """Make a federation from data sets by client: torch's or Hugging Face's.

        A client is a data set, which is split into a train and a test part, or a pair (train, test)
        of them. Items are pairs (features, label), or dicts: `x` and `y` then name the columns
        (default: the first of "image", "img", "x", "features" and the first of "label",
        "labels", "y", "target"). Features may be tensors, arrays, numbers or images; integers stay
        integers until a batch is made.

        test         a data set of examples of no client, the global test set; None: the clients'
                     test parts together
        class_names  default: those of the data sets, if they have some; else the numbers
        """
        from udjfl.data.datasets import read_datasets

        given = read_datasets(datasets, test, x, y, class_names, test_share, seed)
        return given.federate(name, allow_duplicates)


def _federate(name: str, pools: Pools, seed: int) -> Federation:
    """Make a federation of the owners of examples, and log its problems as warnings."""
    from udjfl.data.federate import federate
    from udjfl.data.partition import Partition
    from udjfl.data.problems import log_problems

    federation = federate(name, pools, None, Partition("natural"), seed)
    log_problems(federation)
    return federation
