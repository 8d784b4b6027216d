"""Synthetic(a, b): clients whose models and inputs differ as much as is asked for.

T. Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020, section 5.1; the data
that LEAF and FedProx made a standard. For client k:

    y = argmax(W_k x + c_k)      W_k [10, 60] and c_k [10] from N(u_k, 1),     u_k from N(0, a)
    x from N(v_k, S)             v_k [60] from N(B_k, 1),                      B_k from N(0, b)
    S diagonal with S_jj = j^-1.2

a and b are standard deviations, as in the authors' code. `a` lets models differ from client to
client, `b` inputs. `iid` gives all clients one model and one distribution of inputs. Sizes are
lognormal(4, 2) + 50, of very unequal clients; at most `largest` examples.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
import torch
from pydantic import Field

from udjfl.data.examples import Examples
from udjfl.data.source import Pools, Request, Source
from udjfl.seeds import numpy_stream
from udjfl.settings import Settings

FEATURES, CLASSES = 60, 10
CLIENTS = 30


class Options(Settings):
    """The differences between clients."""

    a: Annotated[float, Field(ge=0, description="spread of the clients' models")] = 1.0
    b: Annotated[float, Field(ge=0, description="spread of the clients' inputs")] = 1.0
    iid: Annotated[bool, Field(description="one model and one distribution for all")] = False
    largest: Annotated[int, Field(ge=50, description="most examples of a client")] = 20_000


def load_pools(request: Request) -> Pools:
    """Draw every client from a stream of its own: more clients do not change the others."""
    options: Options = request.options
    numbers = range(request.clients or CLIENTS)
    clients = [_draw_client(request.seed, number, options) for number in numbers]
    sizes = [len(y) for _, y in clients]
    owners = [f"client-{number + 1}" for number, size in enumerate(sizes) for _ in range(size)]
    x = np.concatenate([x for x, _ in clients]).astype(np.float32)
    y = np.concatenate([y for _, y in clients])
    return Pools(
        clean=Examples(torch.from_numpy(x), torch.from_numpy(y)),
        ambiguous=None,
        test=None,
        class_names=tuple(str(number) for number in range(CLASSES)),
        clean_groups=np.arange(len(y)),
        ambiguous_groups=np.empty(0, dtype=np.int64),
        owners=owners,
        title=f"synthetic({options.a:g}, {options.b:g})" if not options.iid else "synthetic(iid)",
    )


def _draw_client(
    seed: int, number: int, options: Options
) -> tuple[
    np.ndarray[tuple[int, ...], np.dtype[np.float64]],
    np.ndarray[tuple[int, ...], np.dtype[np.int64]],
]:
    rng = numpy_stream(seed, "synthetic", number)
    size = min(int(rng.lognormal(4, 2)) + 50, options.largest)
    shared = numpy_stream(seed, "synthetic", "iid")
    own = shared if options.iid else rng
    u, b = (0.0, 0.0) if options.iid else (own.normal(0, options.a), own.normal(0, options.b))
    weights = own.normal(u, 1, (CLASSES, FEATURES))
    offsets = own.normal(u, 1, CLASSES)
    means = own.normal(b, 1, FEATURES)
    deviations = np.arange(1, FEATURES + 1) ** -0.6  # the square root of j^-1.2
    x = means + deviations * rng.normal(size=(size, FEATURES))
    return x, (x @ weights.T + offsets).argmax(axis=1)


SOURCE = Source(
    name="synthetic",
    summary="Synthetic(a, b) of LEAF and FedProx: linear models and inputs that differ by client",
    how_to_get="It is generated.",
    load_pools=load_pools,
    options=Options,
    clients=CLIENTS,
    partition="natural",
)
