"""What is not as good as it should be."""

from __future__ import annotations

import math

from benchmarks.claims.kernels import op
from benchmarks.claims.results import EARLIER, result


def falls_short() -> list[str]:
    """What is not as good as it should be, a sentence each."""
    attention = both_us("attention").values()
    flex = sorted(
        us["flex_attention"] / us["evofeed"] for us in attention if "flex_attention" in us
    )
    eager = result("eager_block_h200")["blocks"]["evoformer 128x256"]
    wall = eager["ms"]["eager"]["median"]
    curve = result("overfit_h200_recipe")
    lddt = {line["step"]: line["lddt_ca"] for line in curve["metrics"]}
    other = curve["predicted_from_other_rows"]["lddt_ca"]
    small = max(
        op("layer_norm", case, "evofeed")["forward"]["us"]
        / op("layer_norm", case, "torch.compile")["forward"]["us"]
        for case in both_us("layer_norm")
        if "float32" in case and not is_large(case)
    )
    batches = result("trainer_batches_h200")["cells"]
    two = batches[1]["samples_per_second"] / batches[0]["samples_per_second"]
    norms = both_us("layer_norm", "both_wall").values()
    walls = sorted(who["evofeed"] for who in norms)
    shares = sorted(w["evofeed"] / min(w["torch eager"], w["torch.compile"]) for w in norms)
    before, now = (result(f"train_step_h200_{name}")["cases"][0] for name in ("before", "now"))
    was, is_now = before["step_ms"]["median"], now["step_ms"]["median"]
    (alone,) = (
        row["median_ms"]
        for row in result("ablation_h200")["rows"]
        if (row["candidate"], row["part"]) == ("full", "initial_training")
    )
    ahead, masks = (
        [row["step_ms"]["median"] for row in result(f"step_{name}_h200")["rows"]]
        for name in ("ahead", "masks")
    )
    return [
        f"A recorded step took {was:.0f} ms before kernels and devices were taken out for their "
        f"size, and {is_now:.0f} ms, {now['peak_memory_mb'] / 1024:.0f} GiB instead of "
        f"{before['peak_memory_mb'] / 1024:.0f}, after, on two H200s: 178 was wanted "
        "(train_step_h200_before, train_step_h200_now). Two kernels more went after that "
        f"([notes](../kernels/notes/ablation.md)): {alone:.1f} ms on a third (ablation_h200); "
        f"products that cuBLAS schedules ahead, and TF32, made {ahead[0]:.1f} {ahead[1]:.1f} ms on "
        "a fourth (step_ahead_h200); dropout masks drawn together, attention to templates compiled "
        f"and weights cast by one launch {masks[0]:.1f} {masks[2]:.1f} ms on a fifth "
        "(step_masks_h200).",
        "The curve of Protenix' losses ends after 194 of 300 steps (af3_step_curves_h200).",
        f"Biased attention with its gradients is {flex[0]:.2f} to {flex[-1]:.2f} times as fast "
        "as compiled flex_attention, not twice everywhere (kernels_h200).",
        f"A fused Evoformer block called eagerly takes {wall:.1f} ms by the wall clock, of which "
        f"the GPU works {eager['gpu_ms']:.1f}: its host binds it. Training records CUDA graphs by "
        "itself; in your own loop `to_fused(model, cuda_graphs=True)` does (eager_block_h200).",
        "Layer norm with its gradients takes "
        f"{norm_shares('bfloat16')} of torch.compile's time in bf16 and "
        f"{norm_shares('float32')} in float32 from four million elements on, where memory "
        "is the limit (kernels_h200).",
        f"The forward pass alone of a few hundred rows in float32 is PyTorch's own kernel: "
        f"{small:.2f} times the GPU's time of torch.compile's (kernels_h200).",
        "Called eagerly, a layer norm and its backward pass take "
        f"{walls[0]:.0f} to {walls[-1]:.0f} us by the wall clock, whatever the GPU's time: "
        f"{shares[0]:.2f} to {shares[-1]:.2f} of the faster of eager and compiled PyTorch "
        "(kernels_h200).",
        f"One real chain learnt by heart reaches lDDT-Ca {lddt[375]:.2f} in 375 steps and "
        f"{lddt[425]:.2f} in 425, and {other:.2f} from other rows of its alignment: what was "
        "learnt is the batch (overfit_h200_recipe).",
        f"Two samples a card at once are {two - 1:.0%} faster than one after the other; four and "
        "eight, whose activations are recomputed, are slower. Four with activations kept were not "
        "tried (trainer_batches_h200).",
        "Not measured on a GPU: chains longer than 8,192 residues, all blocks of one longer than "
        "4,096, and OpenFold's predictions of chains longer than 2,048; a "
        "sample shared by GPUs of which one is slower; `evofeed tune` on several GPUs; anything on "
        "four GPUs with these kernels. "
        "[At scale](scale.md#never-run-on-these-gpus-and-how-to) has the command for each.",
        "No protein has been folded better than before: nothing here was trained to the end.",
        f"Figures marked *{EARLIER}* are of another run on the same kind of card; of "
        "OpenFold's the spread was not kept.",
    ]


def both_us(section: str, clock: str = "both") -> dict[str, dict[str, float]]:
    """Forward and backward of each case, by who ran it; `clock`: the GPU's or "both_wall"."""
    found: dict[str, dict[str, float]] = {}
    for row in result("kernels_h200")["sections"][section]["rows"]:
        if "both" in row:
            us = row["both"]["us"] if clock == "both" else row[clock]
            found.setdefault(row["case"], {})[row["who"]] = us
    return found


def is_large(case: str) -> bool:
    """Whether `[1, 256, 384] bfloat16` has four million elements."""
    sizes = case[1 : case.index("]")].split(",")
    return math.prod(map(int, sizes)) >= 1 << 22


def norm_shares(kind: str) -> str:
    """The range of layer norm's share of torch.compile's time, where memory is the limit."""
    shares = sorted(
        us["evofeed"] / us["torch.compile"]
        for case, us in both_us("layer_norm").items()
        if kind in case and is_large(case)
    )
    return f"{shares[0]:.2f} to {shares[-1]:.2f}"
