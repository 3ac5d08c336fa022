"""`nn.LSTM`, padded to sizes for which cuDNN is fast.

The computation is cuDNN's. It is several times slower for unaligned sizes, and its persistent
kernel (float16, weights kept on the chip) needs widths that are multiples of 128. Padding inputs,
states and weights with zeros is exact: a padded cell has gates of 1/2, a candidate tanh(0) = 0 and
a state that stays 0. Sizes are padded where measurements show that it pays (`tiles.lstm_padding`).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from evofeed.kernels.fused_module import Fused, drop_in
from evofeed.kernels.runtime.backend import autocast_type
from evofeed.kernels.runtime.tiles import LstmPadding, lstm_padding

State = tuple[Tensor, Tensor]


class FusedLSTM(Fused):
    """Forward of a swapped `nn.LSTM`."""

    def forward(self: Any, input: Any, hx: State | None = None) -> Any:  # noqa: A002
        """Runs padded; inputs without a batch, packed or projected run the original forward."""
        x, padding = input, _padding(self, input)
        if padding is None:
            return super().forward(x, hx)  # type: ignore[misc]
        self._update_flat_weights()  # they may have been replaced since the last call
        batch_axis, H = (0 if self.batch_first else 1), self.hidden_size
        batch, directions = x.shape[batch_axis], 2 if self.bidirectional else 1
        if hx is None:
            hx = (x.new_zeros(self.num_layers * directions, batch, H),) * 2
        self.check_forward_args(x, hx, None)
        wide, more = _round_up(H, padding.width), _round_up(batch, padding.batch) - batch
        states = [F.pad(state, (0, wide - H, 0, more)) for state in hx]
        widen = (0, _round_up(self.input_size, padding.width) - self.input_size)
        x = F.pad(x, (*widen, *((0, 0, 0, more) if self.batch_first else (0, more))))
        output, *states = torch.lstm(
            x, states, _padded_weights(self, padding.width), self.bias, self.num_layers, 0.0,
            self.training, self.bidirectional, self.batch_first,
        )  # fmt: skip
        output = output.narrow(batch_axis, 0, batch)
        output = output.view(*output.shape[:2], directions, wide)[..., :H].flatten(-2)
        return output, tuple(state[:, :batch, :H] for state in states)


def _padding(module: Any, x: Any) -> LstmPadding | None:
    """Multiples that the sizes are padded to, or None."""
    # Dropout between layers would draw another mask at another width.
    dropped = module.dropout > 0 and module.training and module.num_layers > 1
    if not isinstance(x, Tensor) or x.dim() != 3 or module.proj_size > 0 or dropped:
        return None
    dtype = autocast_type(x.device.type) or x.dtype
    batch, steps = x.shape[:2] if module.batch_first else (x.shape[1], x.shape[0])
    single = module.num_layers == 1 and not module.bidirectional
    sizes = module.hidden_size, module.input_size, steps, batch
    return lstm_padding(*sizes, dtype=dtype, device=x.device.type, single=single)


def _round_up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


def _padded_weights(module: Any, multiple: int) -> list[Tensor]:
    """The weights in `_flat_weights` order, padded, as views of one buffer in cuDNN's order.

    In one buffer, or cuDNN copies them into one at every call and warns.
    """
    H, flat = module.hidden_size, module._flat_weights
    wide, directions = _round_up(H, multiple), 2 if module.bidirectional else 1
    per_layer = 4 if module.bias else 2  # of a layer and direction

    def padded(index: int, weight: Tensor) -> Tensor:
        """The weight with its four gates and its input width padded."""
        reads_x = index % per_layer == 0 and index < directions * per_layer
        if weight.dim() == 1:
            return F.pad(weight.view(4, H), (0, wide - H)).flatten()
        inputs = module.input_size if reads_x else H
        gates, more = weight.view(4, H, -1, inputs), _round_up(inputs, multiple) - inputs
        return F.pad(gates, (0, more, 0, 0, 0, wide - H)).view(4 * wide, -1)

    weights = [padded(index, weight) for index, weight in enumerate(flat)]
    order = sorted(range(len(weights)), key=lambda index: weights[index].dim() == 1)  # biases last
    sizes = [weights[index].numel() for index in order]
    # cuDNN's buffer has space for biases even if there are none.
    missing_biases = [] if module.bias else [flat[0].new_zeros(8 * wide * (len(flat) // per_layer))]
    buffer = torch.cat([*(weights[index].flatten() for index in order), *missing_biases])
    parts = dict(zip(order, torch.split(buffer[: sum(sizes)], sizes), strict=True))
    return [parts[index].view(weight.shape) for index, weight in enumerate(weights)]


@drop_in
class LSTM(FusedLSTM, nn.LSTM):
    """`nn.LSTM`, padded to fast sizes of cuDNN: same arguments, parameters and results."""

    torch_class = nn.LSTM
    mixin = FusedLSTM


def rule(module: nn.Module) -> type[Fused] | str | None:
    """The fused class for a module, the reason to keep the module, or None."""
    if not isinstance(module, nn.LSTM):
        return None
    cls = type(module)
    if cls.forward is not nn.LSTM.forward:
        return f"{cls.__name__} overrides nn.LSTM.forward"
    return "has projections: left to cuDNN" if module.proj_size > 0 else FusedLSTM
