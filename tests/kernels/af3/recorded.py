"""The recorded cases of `golden/af3` as modules of ours with their parameters and inputs."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tests.conftest import golden_folder
from tests.kernels.af3 import boltz, maths, openfold3, protenix
from torch import Tensor, nn

FOLDER = golden_folder("af3")
PROJECTS = {"boltz2": boltz, "openfold3": openfold3, "protenix": protenix}


@dataclass
class Recorded:
    """One case.

    Attributes:
        module: with the recorded parameters, in float64.
        arguments: of its call, by name.
        active: the inputs that have gradients.
        arrays, meta: as they were recorded.
    """

    module: nn.Module
    arguments: dict[str, Any]
    active: dict[str, Tensor]
    arrays: dict[str, np.ndarray]
    meta: dict[str, Any]

    def run(self, module: nn.Module | None = None) -> dict[str, Tensor]:
        """Outputs, and gradients of inputs and parameters, by the names they were recorded by."""
        module = module or self.module
        leaf = next(iter(self.active.values()))
        drops = [n for n in self.arrays if n.startswith("drop.")]
        drops.sort(key=lambda n: int(n[5:]))
        maths.Drawn.masks = [torch.from_numpy(self.arrays[n]).to(leaf) for n in drops]
        outs = module(**self.arguments)
        outs = [outs] if isinstance(outs, Tensor) else list(outs)
        named = {n: o for n, o in zip(self.meta["outs"], outs, strict=True) if n}
        loss = sum(
            (o * torch.from_numpy(self.arrays[f"cotangent.{n}"]).to(o)).sum()
            for n, o in named.items()
        )
        parameters = dict(module.named_parameters())
        leaves = {f"in.{n}": t for n, t in self.active.items()}
        leaves |= {f"param.{n}": t for n, t in parameters.items()}
        assert isinstance(loss, Tensor)
        grads = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
        found = {f"out.{n}": o.detach() for n, o in named.items()}
        return found | {f"grad.{n}": g for n, g in zip(leaves, grads, strict=True) if g is not None}

    def error(self, name: str, value: Tensor) -> float:
        """Relative error of one result against the record, where that is valid."""
        exact = torch.from_numpy(self.arrays[name].astype(np.float64))
        value = value.double().cpu()
        assert value.shape == exact.shape
        valid = self.arrays.get(f"valid.{name[4:]}")
        if name.startswith("out.") and valid is not None:
            keep = torch.from_numpy(valid)[..., None]
            value, exact = value * keep, exact * keep
        return float((value - exact).norm() / exact.norm().clamp_min(1e-30))


def paths() -> list[Path]:
    """Every recorded case."""
    return sorted(FOLDER.glob("*/*.npz"))


def whole(path: Path) -> bool:
    """True if a module here replaces the case's; not for attention in windows of atoms."""
    with np.load(path) as file:
        ctor = json.loads(str(file["meta"]))["ctor"]
    return not any(ctor.get(local) for local in ("n_query", "cross_attention_mode"))


def quick(path: Path) -> bool:
    """True if the interpreter takes seconds for the case: up to a block of pairs."""
    with np.load(path) as file:
        return sum(name.startswith("param.") for name in file.files) < 46


def load(path: Path, dtype: torch.dtype = torch.float64, device: str = "cpu") -> Recorded:
    """The case, with one of our modules."""
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files}
    meta = json.loads(str(arrays.pop("meta")))
    package, name = meta["cls"].split(":")
    if package == "boltz.model.layers.attention" and name == "AttentionPairBias":
        name = "AttentionPairBiasV1"
    cls = getattr(PROJECTS[path.parent.name], name)
    module: nn.Module = cls(**meta["ctor"]).double()
    state = {
        n[6:]: torch.from_numpy(a.astype(np.float64))
        for n, a in arrays.items()
        if n.startswith("param.")
    }
    missing, unexpected = module.load_state_dict(state, strict=False)
    assert not unexpected and set(missing) <= set(meta["aliases"]), (missing, unexpected)
    module.train(meta["training"]).to(device, dtype)
    inputs = {
        n[3:]: torch.from_numpy(a.astype(np.float64)).to(device, dtype)
        for n, a in arrays.items() if n.startswith("in.")
    }  # fmt: skip
    active = {n: t.requires_grad_() for n, t in inputs.items() if n not in meta["masks"]}
    arguments = {
        n: inputs[v[1:]] if isinstance(v, str) and v.startswith("@") else v
        for n, v in meta["call"].items()
    }
    return Recorded(module, arguments, active, arrays, meta)
