"""`nn.LSTM` at sizes cuDNN is fast at.

The computation is cuDNN's. It is several times slower where a size is not aligned,
and its persistent kernel (float16, weights kept on the chip) wants widths that are
multiples of 128. Padding inputs, states and weights with zeros is exact: a padded
cell has gates of 1/2, a candidate tanh(0) = 0 and a state that stays 0. So a
size that cuDNN dislikes is padded to one it likes, where measurements say that
pays (`tiles.lstm_padding`); everything else is cuDNN's as before.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from evofeed.kernels.fused_module import Fused, drop_in
from evofeed.kernels.runtime.tiles import LstmPadding, lstm_padding

State = tuple[Tensor, Tensor]


class FusedLSTM(Fused):
    """Forward of a swapped `nn.LSTM`."""

    def forward(self: Any, input: Any, hx: State | None = None) -> Any:  # noqa: A002
        """As the original's; a packed sequence or a projection goes to the original."""
        x, padding = input, _padding(self, input)
        if padding is None:
            return super().forward(x, hx)  # type: ignore[misc]
        self._update_flat_weights()  # they may have been replaced since the last call
        batched = x.dim() == 3
        if not batched:
            x = x.unsqueeze(0 if self.batch_first else 1)
            hx = None if hx is None else (hx[0].unsqueeze(1), hx[1].unsqueeze(1))
        if hx is None:
            directions = 2 if self.bidirectional else 1
            batch = x.shape[0 if self.batch_first else 1]
            zeros = x.new_zeros(self.num_layers * directions, batch, self.hidden_size)
            hx = (zeros, zeros)
        self.check_forward_args(x, hx, None)
        output, *states = _padded_lstm(self, x, hx, padding)
        if not batched:
            output = output.squeeze(0 if self.batch_first else 1)
            states = [state.squeeze(1) for state in states]
        return output, tuple(states)


def _padding(module: Any, x: Any) -> LstmPadding | None:
    """What the sizes are padded to, None for nothing."""
    # Dropout between layers would draw another mask at another width.
    dropped = module.dropout > 0 and module.training and module.num_layers > 1
    if not isinstance(x, Tensor) or x.dim() not in (2, 3) or module.proj_size > 0 or dropped:
        return None
    device = x.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype
    steps = x.shape[1 if module.batch_first and x.dim() == 3 else 0]
    batch = x.numel() // max(1, steps * x.shape[-1])
    single = module.num_layers == 1 and not module.bidirectional
    sizes = module.hidden_size, module.input_size, steps, batch
    return lstm_padding(*sizes, dtype=dtype, device=device, single=single)


def _up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


def _padded_lstm(module: Any, x: Tensor, hx: State, padding: LstmPadding) -> tuple[Tensor, ...]:
    """Output and last states, computed at padded sizes and cut back."""
    H, directions, batch = module.hidden_size, 2 if module.bidirectional else 1, hx[0].shape[1]
    wide, more = _up(H, padding.width), _up(batch, padding.batch) - batch
    states = [F.pad(state, (0, wide - H, 0, more)) for state in hx]
    widen = (0, _up(module.input_size, padding.width) - module.input_size)
    x = F.pad(x, (*widen, *((0, 0, 0, more) if module.batch_first else (0, more))))
    output, *states = torch.lstm(
        x, states, _padded_weights(module, padding.width), module.bias, module.num_layers, 0.0,
        module.training, module.bidirectional, module.batch_first,
    )  # fmt: skip
    output = output.narrow(0 if module.batch_first else 1, 0, batch)
    output = output.view(*output.shape[:2], directions, wide)[..., :H].flatten(-2)
    return output, *(state[:, :batch, :H] for state in states)


def _padded_weights(module: Any, multiple: int) -> list[Tensor]:
    """The weights in `_flat_weights` order, padded, as views of one buffer in cuDNN's order.

    In one buffer, or cuDNN copies them into one at every call and warns.
    """
    H = module.hidden_size
    wide = _up(H, multiple)
    each = 4 if module.bias else 2
    flat = module._flat_weights
    groups = [flat[n : n + each] for n in range(0, len(flat), each)]  # one per layer and direction
    directions = 2 if module.bidirectional else 1
    matrices: list[Tensor] = []
    biases: list[Tensor] = []
    for index, group in enumerate(groups):
        segments = 1 if index < directions else directions  # a layer's input, by its widths
        width = module.input_size if index < directions else H
        to = _up(width, multiple)
        first = group[0].view(4, H, segments, width)
        matrices.append(F.pad(first, (0, to - width, 0, 0, 0, wide - H)).reshape(4 * wide, -1))
        again = F.pad(group[1].view(4, H, H), (0, wide - H, 0, wide - H))
        matrices.append(again.reshape(4 * wide, wide))
        biases += [F.pad(b.view(4, H), (0, wide - H)).reshape(-1) for b in group[2:]]
    if not module.bias:  # cuDNN's buffer has room for them all the same
        biases = [flat[0].new_zeros(8 * wide * len(groups))]
    parts = matrices + biases
    buffer = torch.cat([part.reshape(-1) for part in parts])
    pieces = torch.split(buffer, [part.numel() for part in parts])
    views = [piece.view(part.shape) for piece, part in zip(pieces, parts, strict=True)]
    ordered: list[Tensor] = []
    for index in range(len(groups)):
        at = len(matrices) + (each - 2) * index
        ordered += views[2 * index : 2 * index + 2] + views[at : at + each - 2]
    return ordered


@drop_in
class LSTM(FusedLSTM, nn.LSTM):
    """`nn.LSTM`, padded to sizes cuDNN is fast at: same arguments, parameters and results."""

    torch_class = nn.LSTM
    mixin = FusedLSTM


def rule(module: nn.Module) -> type[Fused] | str | None:
    """Which modules are swapped for these."""
    if not isinstance(module, nn.LSTM):
        return None
    cls = type(module)
    if cls.forward is not nn.LSTM.forward:
        return f"{cls.__name__} overrides nn.LSTM.forward"
    return "has projections: left to cuDNN" if module.proj_size > 0 else FusedLSTM
