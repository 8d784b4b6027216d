"""Dirty-MNIST: MNIST's digits and ambiguous ones, the paper's first data set.

Clean: LeCun, Bottou, Bengio, Haffner, "Gradient-based learning applied to document recognition", 1998; the four original
files, gzipped or not. Ambiguous: Ambiguous-MNIST (Mukhoti, Kirsch, van Amersfoort, Torr, Gal, "Deep Deterministic
Uncertainty", CVPR 2023), 12,000 images with ten labels each, drawn from how an ensemble reads them.

Where the release of Ambiguous-MNIST cannot be had, `udjfl data prepare dirty-mnist --regenerate` makes as many images by the
published recipe (`ambiguous.py`). They are called regenerated wherever they appear, and are not the authors' images.
"""

from __future__ import annotations

import gzip
import io
import json
import struct
import zipfile
import zlib
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field

from udjfl._files import write_atomic
from udjfl.data.download import Remote, fetch_all
from udjfl.data.federation import Examples, Pools
from udjfl.data.source import Preparation, Request, Source, not_found
from udjfl.data.sources._ambiguous_digits import AmbiguousSettings, make_ambiguous
from udjfl.errors import DataError
from udjfl.seeds import numpy_stream
from udjfl.settings import Settings

Images = npt.NDArray[np.uint8]
Pixels = npt.NDArray[np.float32]

FOLDERS = ("", "dirty-mnist", "mnist", "MNIST/raw", "AmbiguousMNIST")
FILES = {
    "train images": "train-images-idx3-ubyte",
    "train labels": "train-labels-idx1-ubyte",
    "test images": "t10k-images-idx3-ubyte",
    "test labels": "t10k-labels-idx1-ubyte",
}
MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)
CHECKSUMS = {
    "train images": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "train labels": "d53e105ee54ea40749a09fcbcd1e9432",
    "test images": "9fb629c4189551a2d022fa330f9573f3",
    "test labels": "ec29112dd5afa0611ce80d1b7f02629c",
}
RELEASE = "https://github.com/BlackHC/ddu_dirty_mnist/releases/download/data-v1.0.0/"
AMBIGUOUS = (
    Remote(
        "amnist_samples.pt", (RELEASE + "amnist_samples.pt",), "4f7865093b1d28e34019847fab917722"
    ),
    Remote("amnist_labels.pt", (RELEASE + "amnist_labels.pt",), "3bfc055a9f91a76d8d493e8b898c3c95"),
)
REGENERATED = "ambiguous-regenerated.npz"

MEAN, STD = 0.1307, 0.3081  # MNIST's usual constants, which the authors use too
COUNT, SOURCES, RECIPE_SEED = 12_000, 30_000, 0
RECIPE = AmbiguousSettings(levels=256)
PAIRS = 30_000
VALIDATION = 5_000


class MnistOptions(Settings):
    """Which ambiguous digits, and how they are held apart."""

    ambiguous: Annotated[
        Literal["auto", "release", "regenerated"],
        Field(
            description="the released images, or regenerated ones; auto: the release if it is there"
        ),
    ] = "auto"
    split: Annotated[
        Literal["images", "pairs"],
        Field(
            description="what is kept on one side of train and test: an image with all its labels, or, as in the authors' "
            "code, only a pair of image and label, so that an image can be on both sides"
        ),
    ] = "images"


def pools(request: Request) -> Pools:
    """Clean digits, ambiguous ones with a label each, MNIST's own test set.

    An ambiguous image comes with up to ten labels, each a pair of its own; the seed draws 30,000 of the pairs. With
    regenerated images, the 30,000 digits that went into mixtures are in nobody's data, so no mixture is across a split from
    its sources. The server's validation set are 5,000 digits that no client has (of those sources, if there are some).
    """
    stream = numpy_stream(request.seed, "dirty-mnist")
    digits = {part: _digits(request, part) for part in ("train", "test")}
    images, labels = digits["train"]
    vague, answers, sources, regenerated = _ambiguous(request, len(labels))
    if sources is None:
        held_back = np.sort(stream.permutation(len(labels))[: min(VALIDATION, len(labels) // 10)])
        clean = np.setdiff1d(np.arange(len(labels)), held_back)
    else:
        held_back = np.sort(stream.permutation(sources)[:VALIDATION])
        clean = np.setdiff1d(np.arange(len(labels)), sources)
    pairs = np.sort(stream.permutation(answers.size)[:PAIRS])
    image_of, label_of = np.divmod(pairs, answers.shape[1])
    by_image = request.options.split == "images"
    return Pools(
        clean=_examples(_scaled(images[clean]), labels[clean]),
        ambiguous=_examples(vague[image_of], answers[image_of, label_of]),
        test=_examples(_scaled(digits["test"][0]), digits["test"][1]),
        class_names=tuple("0123456789"),
        clean_groups=clean,
        ambiguous_groups=len(labels) + (image_of if by_image else pairs),
        validation=_examples(_scaled(images[held_back]), labels[held_back]),
        title="dirty-mnist"
        + (" (regenerated)" if regenerated else "")
        + ("" if by_image else " (split by pairs)"),
        tabular=not by_image,
    )


def _scaled(images: Images) -> Pixels:
    return images.astype(np.float32) / np.float32(255)


def _examples(pixels: Pixels, labels: npt.NDArray[Any]) -> Examples:
    features = torch.from_numpy(pixels).reshape(-1, 1, 28, 28).sub_(MEAN).div_(STD)
    return Examples(features, torch.from_numpy(labels.astype(np.int64)))


def to_pixels(features: torch.Tensor) -> torch.Tensor:
    """Brightness from 0 to 1, as in the files."""
    return (features * STD + MEAN).clamp(0, 1)


def _digits(request: Request, part: str) -> tuple[Images, Images]:
    found = [_located(request, f"{part} {kind}") for kind in ("images", "labels")]
    images, labels = (
        read_idx(path, dimensions) for path, dimensions in zip(found, (3, 1), strict=True)
    )
    if (
        images.shape[1:] != (28, 28)
        or len(images) != len(labels)
        or (len(labels) and labels.max() > 9)
    ):
        raise DataError(
            f"{found[0]} has {images.shape} images and {found[1]} {len(labels)} labels; they are not MNIST's"
        )
    return images, labels


def files(request: Request) -> list[Path]:
    """The folders MNIST's files are in, and the ambiguous digits that would be used."""
    digits = [_located(request, kind).parent for kind in FILES]
    ambiguous = _find_ambiguous(request)
    if not ambiguous:
        raise not_found(
            f"MNIST is in {digits[0]}, but ambiguous digits were", request, SOURCE.how_to_get
        )
    return [*dict.fromkeys(digits), ambiguous[0]]


def _located(request: Request, kind: str) -> Path:
    path = _find_digits(request, kind)
    if path is None:
        raise not_found(f"MNIST's file {FILES[kind]} (or .gz) was", request, SOURCE.how_to_get)
    return path


def _find_digits(request: Request, kind: str) -> Path | None:
    """One of MNIST's files, gzipped or not, under either of the names it goes by."""
    return request.find(
        (FILES[kind], FILES[kind] + ".gz", FILES[kind].replace("-idx", ".idx")), FOLDERS
    )


def _find_release(request: Request) -> list[Path]:
    """Images and labels of Ambiguous-MNIST; nothing unless both are there."""
    found = [request.find((remote.name,), FOLDERS) for remote in AMBIGUOUS]
    return [path for path in found if path is not None] if None not in found else []


def _find_ambiguous(request: Request) -> list[Path]:
    """As the options say, the two files of the release or the one of regenerated digits; nothing if that is not there."""
    wanted = request.options.ambiguous
    release = _find_release(request) if wanted != "regenerated" else []
    made = request.find((REGENERATED,), FOLDERS) if wanted != "release" else None
    return release or ([made] if made else [])


def read_idx(path: Path, dimensions: int) -> Images:
    """The numbers of one of MNIST's files, gzipped or not."""
    try:
        content = path.read_bytes()
        content = gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content
        zero, kind, found = struct.unpack(">HBB", content[:4])
        shape = struct.unpack(f">{found}I", content[4 : 4 + 4 * found])
        numbers = np.frombuffer(content, np.uint8, offset=4 + 4 * found)
    except (OSError, EOFError, struct.error, zlib.error, ValueError) as error:
        raise DataError(f"{path} cannot be read ({error}); get the file again") from None
    if zero or kind != 8 or found != dimensions or len(numbers) != int(np.prod(shape)):
        raise DataError(f"{path} is not one of MNIST's files, or not whole; get it again")
    return numbers.reshape(shape)


Ambiguous = tuple[Pixels, npt.NDArray[np.int64], npt.NDArray[np.int64] | None, bool]


def _ambiguous(request: Request, digits: int) -> Ambiguous:
    """Images [n, 28, 28] from 0 to 1, labels [n, L], those of the `digits` they were made of (None: unknown), regenerated?"""
    found = _find_ambiguous(request)
    if len(found) == len(AMBIGUOUS):
        return *_read_release(*found), None, False
    if found:
        return *_read_regenerated(found[0], digits), True
    what = {
        "release": "amnist_samples.pt and amnist_labels.pt were",
        "regenerated": "regenerated ambiguous digits were",
    }
    raise not_found(
        what.get(
            request.options.ambiguous, "the release of Ambiguous-MNIST, or a regenerated one, was"
        ),
        request,
        SOURCE.how_to_get,
    )


def _read_release(samples: Path, labels: Path) -> tuple[Pixels, npt.NDArray[np.int64]]:
    loaded = []
    for path in (samples, labels):
        try:
            loaded.append(torch.load(path, map_location="cpu", weights_only=True))
        except Exception as error:  # torch raises whatever the bytes provoke
            raise DataError(
                f"{path} cannot be read as tensors ({type(error).__name__}); get the file again"
            ) from None
    images, answers = loaded
    for path, value in ((samples, images), (labels, answers)):
        if not isinstance(value, torch.Tensor):
            raise DataError(
                f"{path} holds a {type(value).__name__}, not a tensor; get the file again"
            )
    images = (
        images.detach().to(torch.float32).reshape(-1, 28, 28)
        if images.numel() % 784 == 0
        else images
    )
    if images.ndim != 3 or answers.ndim != 2 or len(images) != len(answers) or answers.numel() == 0:
        raise DataError(
            f"{samples} and {labels} do not fit: shapes {tuple(images.shape)} and {tuple(answers.shape)}"
        )
    if not bool(((images >= 0) & (images <= 1)).all()) or not bool(
        ((answers >= 0) & (answers <= 9)).all()
    ):
        raise DataError(
            f"{samples} must have pixels from 0 to 1, {labels} labels from 0 to 9; get the files again"
        )
    return images.numpy(), answers.to(torch.int64).numpy()


def _read_regenerated(
    path: Path, digits: int
) -> tuple[Pixels, npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    try:
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as arrays:
            images, labels, sources = arrays["images"], arrays["labels"], arrays["sources"]
    except (
        OSError,
        TypeError,
        ValueError,
        KeyError,
        EOFError,
        zipfile.BadZipFile,
        zlib.error,
    ) as error:
        raise DataError(f"{path} is damaged ({error}); delete it and prepare it again") from None
    if (
        images.shape != (len(labels), 28, 28)
        or labels.ndim != 2
        or labels.size == 0
        or labels.max() > 9
    ):
        raise DataError(
            f"{path} has other images and labels than were made for it; delete it and prepare it again"
        )
    if sources.size == 0 or sources.max() >= digits:
        raise DataError(
            f"{path} was made of other digits than MNIST's files here, which have {digits}; use those it was made of"
        )
    return _scaled(images), labels.astype(np.int64), sources.astype(np.int64)


def prepare(preparation: Preparation) -> list[str]:
    """Get MNIST, and the release of Ambiguous-MNIST or, if so asked, regenerated digits. What is there already is kept."""
    request, folder = preparation.request, preparation.request.cache / "dirty-mnist"
    told = []
    for kind, name in FILES.items():
        found = _find_digits(request, kind)
        if found is None:
            gzipped = name + ".gz"
            remote = Remote(gzipped, tuple(mirror + gzipped for mirror in MIRRORS), CHECKSUMS[kind])
            (found,) = fetch_all([remote], folder, preparation.progress)
        told.append(f"{kind}: {found}")
    if preparation.regenerate:
        made = request.find((REGENERATED,), FOLDERS)
        return [
            *told,
            f"regenerated ambiguous digits: {made or regenerate(request, folder, preparation)}",
        ]
    release = _find_release(request)
    if not release:
        try:
            release = list(fetch_all(AMBIGUOUS, folder, preparation.progress))
        except DataError as error:
            raise DataError(
                f"{error}\nOr make ambiguous digits here: udjfl data prepare dirty-mnist --regenerate"
            ) from None
    return [*told, *(f"Ambiguous-MNIST: {path}" for path in release)]


def regenerate(request: Request, folder: Path, preparation: Preparation) -> Path:
    """Make 12,000 ambiguous digits with ten labels each out of 30,000 of MNIST's training digits, and keep them."""
    images, labels = _digits(request, "train")
    sources = np.sort(
        numpy_stream(RECIPE_SEED, "dirty-mnist", "sources").permutation(len(labels))[:SOURCES]
    )
    made = make_ambiguous(
        torch.from_numpy(_scaled(images[sources])),
        torch.from_numpy(labels[sources].astype(np.int64)),
        COUNT,
        seed=RECIPE_SEED,
        settings=RECIPE,
        progress=preparation.progress,
    )
    content = io.BytesIO()
    np.savez_compressed(
        content,
        images=(made.images[:, 0] * 255).round().to(torch.uint8).numpy(),
        labels=made.labels.to(torch.uint8).numpy(),
        sources=sources.astype(np.int32),
        parents=made.parents.to(torch.int32).numpy(),
        entropy=made.entropy.to(torch.float32).numpy(),
        mutual_information=made.mutual_information.to(torch.float32).numpy(),
        recipe=np.array(
            json.dumps({"seed": RECIPE_SEED, "sources": len(sources), **asdict(RECIPE)})
        ),
    )
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / REGENERATED, content.getvalue())
    return folder / REGENERATED


SOURCE = Source(
    name="dirty-mnist",
    line="MNIST and Ambiguous-MNIST, the paper's first data set",
    how_to_get="Get it with `udjfl data prepare dirty-mnist`, which downloads both; if the ambiguous digits cannot be had, "
    "make some with `udjfl data prepare dirty-mnist --regenerate`; or name a folder that has the files with --data-root "
    "or UDJFL_DATA",
    pools=pools,
    options=MnistOptions,
    partition="shards:size=300",
    files=files,
    prepare=prepare,
    regenerates=True,
    to_pixels=to_pixels,
)
