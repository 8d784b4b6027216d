"""The values that a user's data functions return, on a client and on the server."""

from collections.abc import Sequence
from dataclasses import dataclass

from udjfl.data import Client, Examples, Federation, validation
from udjfl.data.validation import Numbers, Part
from udjfl.errors import DataError

Given = Sequence[Numbers] | Examples


@dataclass(frozen=True, eq=False)
class ClientData:
    """One client's own data, which stay with it.

    id             its name, unique and the same in every run and after every restart
    train, test    (x, y), as arrays, tensors or lists, or `udjfl.Examples` (which may have a
                   sensitive attribute)
    n_classes      the number of classes in the whole federation, whether or not all occur here
    """

    id: str
    train: Given
    test: Given
    n_classes: int
    allow_duplicates: bool = False

    def __post_init__(self) -> None:
        mistakes: list[str] = []
        object.__setattr__(self, "id", str(self.id))
        _check_classes(self.n_classes, f"client {self.id!r}", mistakes)
        for side in ("train", "test"):
            object.__setattr__(self, side, _examples(self.id, side, getattr(self, side), mistakes))
        if mistakes:
            raise DataError("\n".join(mistakes))
        object.__setattr__(self, "_federation", self._make_federation())

    @property
    def federation(self) -> Federation:
        """The federation of which this is the only client."""
        return self._federation  # type: ignore[attr-defined, no-any-return]  # set when it is made

    def _make_federation(self) -> Federation:
        assert isinstance(self.train, Examples)  # they were converted
        assert isinstance(self.test, Examples)
        names = tuple(str(number) for number in range(self.n_classes))
        sides = (("train", self.train), ("test", self.test))
        parts = [Part(self.id, side, part.x, part.y) for side, part in sides]
        mistakes = validation.find_part_mistakes(parts, self.n_classes, self.allow_duplicates)
        if mistakes:  # the federation would name the test part twice
            raise DataError("\n".join(mistakes))
        clients = (Client(self.id, self.train, self.test),)
        # Duplicates were searched for above.
        return Federation(self.id, clients, self.test, names, allow_duplicates=True)


@dataclass(frozen=True, eq=False)
class ServerData:
    """The server's own data, and the shape of the clients'.

    test           (x, y) for the global accuracy; None: there is none
    validation     (x, y) for methods that score clients' models; None: such a method is refused
    input_shape    the shape of one example
    n_classes      how many classes there are
    """

    test: Given | None
    validation: Given | None
    input_shape: tuple[int, ...]
    n_classes: int

    def __post_init__(self) -> None:
        mistakes: list[str] = []
        object.__setattr__(self, "input_shape", tuple(int(size) for size in self.input_shape))
        _check_classes(self.n_classes, "the server's data", mistakes)
        parts: list[Part] = []
        for side in ("test", "validation"):
            given = getattr(self, side)
            if given is not None:
                examples = _examples(None, side, given, mistakes)
                object.__setattr__(self, side, examples)
                if examples is not None:
                    parts.append(Part(None, side, examples.x, examples.y))
        if not mistakes:
            mistakes += validation.find_part_mistakes(parts, self.n_classes, allow_duplicates=True)
            mistakes += [
                f"{part.where}: one example has shape {part.example_shape}, input_shape is "
                f"{self.input_shape}: make them agree"
                for part in parts
                if part.x.ndim > 1 and part.example_shape != self.input_shape
            ]
        if mistakes:
            raise DataError("\n".join(mistakes))


def _check_classes(n_classes: object, where: str, mistakes: list[str]) -> None:
    if (
        isinstance(n_classes, bool)
        or not isinstance(n_classes, int)
        or not 1 <= n_classes <= validation.MOST_CLASSES
    ):
        mistakes.append(f"{where}: n_classes is {n_classes!r}: give the number of classes")


def _examples(client: str | None, side: str, given: object, mistakes: list[str]) -> Examples | None:
    if isinstance(given, Examples):
        return given
    arrays = tuple(given) if isinstance(given, list) else given
    if not isinstance(arrays, tuple) or len(arrays) != 2:
        got = f"{len(arrays)} values" if isinstance(arrays, tuple) else type(given).__name__
        mistakes.append(f"{validation.part_name(client, side)}: give a tuple (x, y); got {got}")
        return None
    found = validation.convert_parts(client, (side,), arrays, mistakes)
    return Examples(found[0].x, found[0].y) if found else None
