"""Recurrent layers in operations that vmap has rules for; it has none for those of nn.LSTM, nn.GRU, nn.RNN and their cells.

Each step of a sequence is then some operations of its own rather than a part of one: slower for one client, not for many.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, linear
from torch.overrides import TorchFunctionMode

State = tuple[Tensor, ...]
# From products of weights with the input and with the state, and the state, to the next state, whose first part is the output.
Cell = Callable[[Tensor, Tensor, State], State]


def _lstm(of_input: Tensor, of_state: Tensor, state: State) -> State:
    i, f, g, o = (of_input + of_state).chunk(4, dim=-1)
    memory = f.sigmoid() * state[1] + i.sigmoid() * g.tanh()
    return o.sigmoid() * memory.tanh(), memory


def _gru(of_input: Tensor, of_state: Tensor, state: State) -> State:
    reset, keep, new = of_input.chunk(3, dim=-1)
    reset_h, keep_h, new_h = of_state.chunk(3, dim=-1)
    candidate = (new + (reset + reset_h).sigmoid() * new_h).tanh()
    return (candidate + (keep + keep_h).sigmoid() * (state[0] - candidate),)


CELLS: dict[str, Cell] = {
    "lstm": _lstm,
    "gru": _gru,
    "rnn_tanh": lambda of_input, of_state, _: ((of_input + of_state).tanh(),),
    "rnn_relu": lambda of_input, of_state, _: ((of_input + of_state).relu(),),
}
LAYERS = {getattr(torch, name): cell for name, cell in CELLS.items()}
SINGLE = {getattr(torch, f"{name}_cell"): cell for name, cell in CELLS.items()}


class _WrittenOut(TorchFunctionMode):
    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func in LAYERS and _is_plain(args):
            return _layers(LAYERS[func], *args)
        if func in SINGLE:
            return _single(SINGLE[func], *args)
        return func(*args, **(kwargs or {}))


def written_out(network: nn.Module) -> contextlib.AbstractContextManager[object]:
    """Inside it the network's recurrent layers, if it has some, can be mapped; packed sequences and projections cannot."""
    recurrent = any(isinstance(part, nn.RNNBase | nn.RNNCellBase) for part in network.modules())
    return _WrittenOut() if recurrent else contextlib.nullcontext()


def _is_plain(args: Sequence[Any]) -> bool:
    """Whether a layer is given plain tensors, not packed sequences (whose weights come later), and has no projections."""
    _, _, weights, biases, depth, _, _, both_ways, _ = args
    return isinstance(weights, list) and len(weights) == depth * (1 + both_ways) * (
        4 if biases else 2
    )


def _layers(
    cell: Cell,
    x: Tensor,
    state: Tensor | State,
    weights: list[Tensor],
    biases: bool,
    depth: int,
    p: float,
    training: bool,
    both_ways: bool,
    batch_first: bool,
) -> tuple[Tensor, ...]:
    """What torch.lstm and its kin return: the outputs, and the parts of the last state."""
    parts = (state,) if isinstance(state, Tensor) else state
    h = x.transpose(0, 1) if batch_first else x
    last: list[State] = []
    for layer in range(depth):
        outputs = []
        for backwards in (False, True)[: 1 + both_ways]:
            place, each = len(last), 4 if biases else 2
            of_input, of_state, *shifts = weights[place * each : (place + 1) * each]
            now = tuple(part[place] for part in parts)
            found = []
            steps = linear(h, of_input, shifts[0] if biases else None).unbind(0)
            for step in reversed(steps) if backwards else steps:
                now = cell(step, linear(now[0], of_state, shifts[1] if biases else None), now)
                found.append(now[0])
            outputs.append(torch.stack(found[::-1] if backwards else found))
            last.append(now)
        h = torch.cat(outputs, dim=-1)
        if p and layer < depth - 1:
            h = dropout(h, p, training)
    return (
        h.transpose(0, 1) if batch_first else h,
        *(torch.stack(part) for part in zip(*last, strict=True)),
    )


def _single(
    cell: Cell,
    x: Tensor,
    state: Any,
    of_input: Tensor,
    of_state: Tensor,
    shift: Tensor | None,
    shift_h: Tensor | None,
) -> Tensor | State:
    """What torch.lstm_cell and its kin return: the next state."""
    parts = (state,) if isinstance(state, Tensor) else tuple(state)
    found = cell(linear(x, of_input, shift), linear(parts[0], of_state, shift_h), parts)
    return found[0] if isinstance(state, Tensor) else found
