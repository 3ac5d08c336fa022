"""Recorded draws replayed on a GPU, in plain torch and through the kernels: integers exact, floats
to 1e-5. Needs the golden pack.

PYTHONPATH=src python benchmarks/loader_golden_gpu.py --golden DIR --out golden_gpu.json
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from tests.loader.recorded import RecordedDraws, load_case
from tests.loader.replayed import replay_fused

from evofeed.loader.batch import empty_batch, put
from evofeed.loader.features import constant_features, recycle_features, sample_msa
from evofeed.loader.transforms.clusters import summarize_clusters

MASKS = {
    "chi_angles_sin_cos": "chi_mask",
    "template_torsion_angles_sin_cos": "template_torsion_angles_mask",
    "template_alt_torsion_angles_sin_cos": "template_torsion_angles_mask",
}


def difference(got: torch.Tensor, want: np.ndarray, known: np.ndarray | None) -> float:
    """Largest difference beyond 1e-5 relative; integers must be equal."""
    value = got.cpu()
    expected = torch.from_numpy(want)
    assert value.shape == expected.shape
    if known is not None:
        value, expected = value[torch.from_numpy(known)], expected[torch.from_numpy(known)]
    if not expected.is_floating_point():
        assert torch.equal(value.long(), expected.long())
        return 0.0
    if not expected.numel():
        return 0.0
    return float(((value - expected).abs() - 1e-5 * expected.abs()).max().clamp(min=0))


def replay(path: Path, device: str) -> dict[str, float]:
    case = load_case(path, device)
    draws = RecordedDraws(case.draws, case.config, device)
    sample = sample_msa(case.chain, draws, case.config)
    profile, mean = summarize_clusters(
        sample.masked_msa,
        sample.deletions,
        sample.extra_msa,
        sample.extra_deletions,
        sample.cluster,
    )
    middle = {
        "masked_msa": sample.masked_msa,
        "full_extra_msa": sample.extra_msa,
        "extra_cluster_assignment": sample.cluster,
        "cluster_profile": profile,
        "cluster_deletion_mean": mean,
    }
    errors = {n: difference(v, case.draws[f"mid.{n}"], None) for n, v in middle.items()}
    num_res = case.config.crop_size or case.chain.num_res
    batch = empty_batch(
        case.config, num_res=num_res, batch_size=1, recycles=1, device=torch.device(device)
    )
    put(batch, constant_features(case.chain, case.crop, case.config), 0)
    put(batch, recycle_features(case.chain, case.crop, draws, case.config), 0, 0)
    batch["seq_length"][:] = case.crop.length
    batch["resolution"][:] = case.chain.resolution
    return errors | differences(path, case.final, batch)


def replay_kernels(path: Path, device: str) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        case, kernels, batch = replay_fused(path, Path(folder) / "d", device)
    want = case.draws["mid.extra_cluster_assignment"]
    errors = {"extra_cluster_assignment": difference(kernels.cluster[: len(want)], want, None)}
    return errors | differences(path, case.final, batch)


def differences(
    path: Path, final: dict[str, np.ndarray], batch: dict[str, torch.Tensor]
) -> dict[str, float]:
    errors = {}
    for name, want in final.items():
        got = batch[name][0]
        got = got[0] if batch[name].dim() == want.ndim + 2 else got
        known = final[MASKS[name]] == 1 if name in MASKS else None
        errors[name] = difference(got, want, known)
        assert errors[name] <= (1e-4 if name in MASKS else 1e-5), (path.name, name, errors[name])
    return errors


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--golden", type=Path, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = True  # must not matter
    paths = sorted(args.golden.glob("data/golden/*.draws.npz"))
    result: dict[str, Any] = {
        "command": "python benchmarks/loader_golden_gpu.py --golden GOLDEN",
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "device": torch.cuda.get_device_name() if args.device == "cuda" else "cpu",
        "torch": torch.__version__,
        "recordings": len(paths),
        "integers": "all equal",
    }
    ways = {"plain torch": replay}
    if args.device == "cuda":
        ways["kernels"] = replay_kernels
    for way, run in ways.items():
        worst: dict[str, float] = {}
        for path in paths:
            for name, error in run(path, args.device).items():
                worst[name] = max(worst.get(name, 0.0), error)
        result[way] = {"features": len(worst), "largest_difference_beyond_1e-5_relative": worst}
    assert paths, "no recordings there"
    args.out.write_text(json.dumps(result, indent=1))
    print(json.dumps(result))


if __name__ == "__main__":
    main()
