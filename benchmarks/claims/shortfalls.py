"""What is not as good as it should be."""

from __future__ import annotations

import math

from benchmarks.claims.kernels import op
from benchmarks.claims.results import EARLIER, recorded_step, result


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
    before = result("train_step_h200_before")["cases"][0]
    now = recorded_step("initial_training")
    return [
        f"A recorded step of initial training takes {now['median_ms']:.0f} ms and "
        f"{now['peak_gb']:.0f} GiB, on another H200 "
        f"{before['step_ms']['median']:.0f} ms and {before['peak_memory_mb'] / 1024:.0f} GiB "
        "before kernels were removed to save code (ablation_h200, train_step_h200_before; "
        "[what each wins](../kernels/notes/ablation.md)).",
        "The recorded curve of Protenix' losses has 194 of 300 steps (af3_step_curves_h200).",
        f"Biased attention with its gradients is {flex[0]:.2f} to {flex[-1]:.2f} times as fast "
        "as compiled flex_attention, not twice in every case (kernels_h200).",
        f"A fused Evoformer block called eagerly takes {wall:.1f} ms of wall time and "
        f"{eager['gpu_ms']:.1f} of GPU time: it is bound by the host. `evofeed train` records CUDA "
        "graphs; in your own loop use `to_fused(model, cuda_graphs=True)` (eager_block_h200).",
        "Layer norm with its gradients takes "
        f"{norm_shares('bfloat16')} of torch.compile's time in bf16 and "
        f"{norm_shares('float32')} in float32 from four million elements on, where it is bound by "
        "memory (kernels_h200).",
        "Layer norm's forward pass for a few hundred rows in float32 uses PyTorch's own kernel, "
        f"which takes {small:.2f} times the GPU time of torch.compile's (kernels_h200).",
        "Called eagerly, a layer norm and its backward pass take "
        f"{walls[0]:.0f} to {walls[-1]:.0f} us of wall time, whatever the GPU time: "
        f"{shares[0]:.2f} to {shares[-1]:.2f} of the faster of eager and compiled PyTorch "
        "(kernels_h200).",
        f"Overfitting one real chain reaches lDDT-Ca {lddt[375]:.2f} in 375 steps and "
        f"{lddt[425]:.2f} in 425, but only {other:.2f} from other rows of its alignment: the model "
        "memorises the batch (overfit_h200_recipe).",
        f"Two samples a card at once are {two - 1:.0%} faster than one after the other; four and "
        "eight, with recomputed activations, are slower. Four with stored activations were not "
        "tried (trainer_batches_h200).",
        "Not measured on a GPU: chains longer than 8,192 residues, all blocks of a chain longer "
        "than 4,096, and OpenFold's predictions of chains longer than 2,048; a sample shared by "
        "GPUs of which one is slower; `evofeed tune` on several GPUs; anything on four GPUs with "
        "these kernels. "
        "[At scale](scale.md#never-run-on-these-gpus-and-how-to) has the command for each.",
        "No model was trained to completion, so nothing here shows better structure predictions.",
        f"Figures marked *{EARLIER}* are from another run on the same kind of card; for "
        "OpenFold's the spread was not recorded.",
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
