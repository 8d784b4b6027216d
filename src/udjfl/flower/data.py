"""The values that a user's data functions return, on a client and on the server."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from udjfl.data import Client, Examples, Federation, validation
from udjfl.data.tables.preprocessing import Preprocessing
from udjfl.data.validation import Numbers, Part
from udjfl.errors import DataError

Given = Sequence[Numbers] | Examples
AnyData = TypeVar("AnyData")


@dataclass(frozen=True, eq=False)
class ClientData:
    """One client's own data, which stay with it.

    id             its name, unique and the same in every run and after every restart
    train, test    (x, y), as arrays, tensors or lists, or `udjfl.Examples` (which may have a
                   sensitive attribute)
    n_classes      the number of classes in the whole federation, whether or not all occur here; 0:
                   a regression, whose labels are numbers
    preprocessing  what was done to the columns of a table, if something was: scores are in the
                   units of its labels
    """

    id: str
    train: Given
    test: Given
    n_classes: int
    allow_duplicates: bool = False
    preprocessing: Preprocessing | None = None

    federation: Federation = field(init=False, repr=False)
    """The federation of which this is the only client."""

    def __post_init__(self) -> None:
        client = str(self.id)
        given = {"train": self.train, "test": self.test}
        parts, mistakes = _convert(
            given, self.n_classes, f"client {client!r}", client, self.allow_duplicates
        )
        if mistakes:
            raise DataError("\n".join(mistakes))
        names = tuple(str(number) for number in range(self.n_classes))
        clients = (Client(client, parts["train"], parts["test"]),)
        # Duplicates were searched for above.
        federation = Federation(
            client,
            clients,
            parts["test"],
            names,
            allow_duplicates=True,
            preprocessing=self.preprocessing,
        )
        for name, value in {"id": client, **parts, "federation": federation}.items():
            object.__setattr__(self, name, value)


@dataclass(frozen=True, eq=False)
class ServerData:
    """The server's own data, and the shape of the clients'.

    test           (x, y) for the global accuracy; None: there is none
    validation     (x, y) for methods that score clients' models; None: such a method is refused
    input_shape    the shape of one example
    n_classes      how many classes there are; 0: labels are numbers
    preprocessing  what was done to the columns of a table, as in `ClientData`
    """

    test: Given | None
    validation: Given | None
    input_shape: tuple[int, ...]
    n_classes: int
    preprocessing: Preprocessing | None = None

    def __post_init__(self) -> None:
        shape = tuple(int(size) for size in self.input_shape)
        given = {"test": self.test, "validation": self.validation}
        parts, mistakes = _convert(
            {side: part for side, part in given.items() if part is not None},
            self.n_classes,
            "the server's data",
        )
        shapes = {side: tuple(part.x.shape[1:]) for side, part in parts.items() if part.x.ndim > 1}
        mistakes += [
            f"{validation.part_name(None, side)}: one example has shape {own}, input_shape is "
            f"{shape}: make them agree"
            for side, own in shapes.items()
            if own != shape
        ]
        if mistakes:
            raise DataError("\n".join(mistakes))
        for name, value in {"input_shape": shape, **parts}.items():
            object.__setattr__(self, name, value)


def _convert(
    given: Mapping[str, object],
    n_classes: object,
    where: str,
    client: str | None = None,
    allow_duplicates: bool = True,
) -> tuple[dict[str, Examples], list[str]]:
    """Convert the parts that a user gave; return those that could be, and every mistake."""
    mistakes: list[str] = []
    whole = n_classes != 0
    converted = {
        side: _examples(client, side, part, mistakes, whole) for side, part in given.items()
    }
    parts = {side: part for side, part in converted.items() if part is not None}
    if (
        isinstance(n_classes, bool)
        or not isinstance(n_classes, int)
        or not 0 <= n_classes <= validation.MOST_CLASSES
    ):
        mistakes.append(
            f"{where}: n_classes is {n_classes!r}: give the number of classes, 0 for a regression"
        )
    elif not mistakes:
        checked = [Part(client, side, part.x, part.y) for side, part in parts.items()]
        mistakes += validation.find_part_mistakes(checked, n_classes, allow_duplicates)
    return parts, mistakes


def _examples(
    client: str | None, side: str, given: object, mistakes: list[str], whole: bool
) -> Examples | None:
    if isinstance(given, Examples):
        return given
    arrays = tuple(given) if isinstance(given, list) else given
    if not isinstance(arrays, tuple) or len(arrays) != 2:
        got = f"{len(arrays)} values" if isinstance(arrays, tuple) else type(given).__name__
        mistakes.append(f"{validation.part_name(client, side)}: give a tuple (x, y); got {got}")
        return None
    found = validation.convert_parts(client, (side,), arrays, mistakes, whole)
    return Examples(found[0].x, found[0].y) if found else None


def check_returned(given: object, cls: type[AnyData], where: str) -> AnyData:
    """Return what a user's data function gave, if it is of this class."""
    if not isinstance(given, cls):
        raise DataError(
            f"the {where}'s data function returned {type(given).__name__}; "
            f"it must return udjfl.flower.{cls.__name__}"
        )
    return given
