"""One case of the golden pack: its arrays in a chosen precision, and the pack's comparison rule."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

F64_TOLERANCE = 1e-9


@dataclass
class Case:
    """A golden file for one precision (`""` float32, `"64"` float64), read when it is needed."""

    path: Path
    suffix: str

    @property
    def name(self) -> str:
        return self.path.stem

    @cached_property
    def meta(self) -> dict[str, Any]:
        with np.load(self.path) as file:
            meta: dict[str, Any] = json.loads(str(file["meta"]))
        return meta

    @cached_property
    def arrays(self) -> dict[str, np.ndarray]:
        with np.load(self.path) as file:
            return {key: file[key] for key in file.files if key != "meta"}

    @property
    def dtype(self) -> torch.dtype:
        return torch.float64 if self.suffix else torch.float32

    @property
    def has_reference(self) -> bool:
        """Whether results of this precision are stored."""
        with np.load(self.path) as file:
            return any(key.startswith(f"out{self.suffix}.") for key in file.files)

    def group(self, prefix: str) -> dict[str, np.ndarray]:
        start = prefix + "."
        return {k[len(start) :]: v for k, v in self.arrays.items() if k.startswith(start)}

    def tensors(self, prefix: str) -> dict[str, Tensor]:
        """Arrays of a prefix as tensors; floats in this case's precision."""
        tensors = {}
        for name, array in self.group(prefix).items():
            tensor = torch.from_numpy(np.array(array))
            tensors[name] = tensor.to(self.dtype) if tensor.is_floating_point() else tensor
        return tensors

    def inputs(self) -> dict[str, Tensor]:
        tensors = self.tensors("in")
        for name in self.meta.get("diff_inputs") or ():
            tensors[name].requires_grad_()
        return tensors

    def recorded(self, group: str) -> float:
        """The pack's own float32 error of `out`, `gin` or `gparam`."""
        return float(self.meta.get("f32_vs_f64_maxrel", {}).get(group, 0.0))

    def compare_outputs(
        self, got: Mapping[str, Tensor], tolerance: float | None = None
    ) -> dict[str, float]:
        """Every stored output against ours; returns those that are off, with their error."""
        if tolerance is None:
            tolerance = F64_TOLERANCE if self.suffix else max(1e-5, 10 * self.recorded("out"))
        off = {}
        for name, want in self.group(f"out{self.suffix}").items():
            error = _relative(got[name].detach().numpy(), want, self.arrays.get(f"valid.{name}"))
            if not error <= tolerance:
                off[name] = error
        return off

    def compare_gradients(self, group: str, got: Mapping[str, Tensor]) -> dict[str, float]:
        """Every stored gradient of `gin` or `gparam` against ours; returns those that are off."""
        stored = self.group(group + self.suffix)
        if not stored:
            return {}
        largest = max(float(np.abs(want).max(initial=0)) for want in stored.values())
        tolerance = F64_TOLERANCE if self.suffix else max(1e-4, 10 * self.recorded(group))
        off = {}
        for name, want in stored.items():
            ours = got[name].detach().numpy()
            if name in self.meta.get("analytic_zero_grads", ()):
                error = float(np.abs(ours).max()) / largest
                wrong = error > 1e-5
            else:
                scale = max(float(np.abs(want).max(initial=0)), 1e-3 * largest, 1e-9)
                error = float(np.abs(ours - want).max(initial=0)) / scale
                wrong = not error <= tolerance
            if wrong:
                off[name] = error
        return off


def _relative(ours: np.ndarray, want: np.ndarray, valid: np.ndarray | None) -> float:
    if valid is not None:
        if valid.shape == want.shape[: valid.ndim]:  # or it has all the axes already
            valid = valid.reshape(valid.shape + (1,) * (want.ndim - valid.ndim))
        keep = np.broadcast_to(valid.astype(bool), want.shape)
        ours, want = ours[keep], want[keep]
    if not want.size:
        return 0.0
    scale = max(float(np.abs(want).max()), 1e-300)
    error = float(np.abs(ours.astype(np.float64) - want).max())
    return 0.0 if error == 0 else error / scale


def backward(case: Case, outputs: Mapping[str, Tensor]) -> None:
    """Backward of the case's scalar: the sum of outputs times their stored cotangents."""
    total = torch.zeros([], dtype=case.dtype)
    for name, cotangent in case.tensors("cot").items():
        total = total + (outputs[name] * cotangent).sum()
    if total.requires_grad:
        total.backward()


def grad_or_zero(tensor: Tensor) -> Tensor:
    return torch.zeros_like(tensor) if tensor.grad is None else tensor.grad


def wrong_parts(case: Case, run: Callable[[Case, dict[str, Tensor]], Any]) -> list[str]:
    """Outputs and gradients of a case that are off, with their errors."""
    inputs = case.inputs()
    module, outputs = run(case, inputs)
    off = {f"out.{k}": v for k, v in case.compare_outputs(outputs).items()}
    backward(case, outputs)
    gin = {name: grad_or_zero(inputs[name]) for name in case.meta["diff_inputs"]}
    off |= {f"gin.{k}": v for k, v in case.compare_gradients("gin", gin).items()}
    if module is not None:
        gparam = {name: grad_or_zero(p) for name, p in module.named_parameters()}
        assert set(gparam) == set(case.group("gparam" + case.suffix))
        off |= {f"gparam.{k}": v for k, v in case.compare_gradients("gparam", gparam).items()}
    return [f"{name} off by {error:.1e}" for name, error in off.items()]
