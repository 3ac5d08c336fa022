"""What was said to be measured on two and four GPUs and was not, with the command for each."""

from __future__ import annotations

# What, what was wanted, on how many GPUs, and the command; `CARDS` stands for their number.
UNMEASURED = (
    (
        "one sample on four: loss, outputs and every gradient against one card in float64",
        "equal",
        "4",
        "torchrun --nproc-per-node CARDS benchmarks/axial.py --parts equal --out equal.json",
    ),
    (
        "one sample on four: step at both shapes, memory of a card, what exchanges expose",
        "2.3 and 3.2 times one card; finetuning within 40 GB",
        "4",
        "torchrun --nproc-per-node CARDS benchmarks/axial.py --parts time --out time.json",
    ),
    (
        "two samples on two cards each",
        "the losses of one card with `accumulate: 2`",
        "4",
        "torchrun --nproc-per-node CARDS -m evofeed.cli train shared.yaml --dataset data/ "
        "--out runs/shared",
    ),
    (
        "the same step with one card slower",
        "what a sample shared with it loses",
        "2, 4",
        "torchrun --nproc-per-node CARDS benchmarks/slowed_card.py --parts axial --out slowed.json",
    ),
    (
        "chains of 4,096 residues on four cards, of 8,192 on two and four",
        "the first in three minutes; 8,000 at all",
        "2, 4",
        "python benchmarks/long_chains.py --sizes 4096 8192 --cards CARDS --limit 900 "
        "--out long.json",
    ),
    (
        "what the gradient's average exposes, 200 steps of real chains",
        "0.5 % of a step, 99 % of linear scaling",
        "2, 4",
        "torchrun --nproc-per-node CARDS -m evofeed.cli bench comm initial_training "
        "--dataset data/ --steps 200 --out comm.json",
    ),
    (
        "two hosts of two cards with 10 Gbit/s between them, every mode",
        "time of a step",
        "4",
        "torchrun --nproc-per-node CARDS -m evofeed.cli bench comm initial_training "
        "--dataset data/ --mode all --hosts 2 --gbit 10 --gbit-steps 24 --out hosts.json",
    ),
    (
        "`evofeed tune` where cards may share samples, and its regret",
        "3 % at most",
        "2, 4",
        "python benchmarks/tune_gpu.py --ranks CARDS --all --blocks 8 --limit 1800 --out tune.json",
    ),
    (
        "`evofeed train` with these kernels, for the simulation",
        "predicted within 5 %",
        "2, 4",
        "torchrun --nproc-per-node CARDS benchmarks/trainer_gpu.py --out CARDS/ --steps 32 "
        "--recycles 0",
    ),
)


def unmeasured() -> list[str]:
    """The section of docs/scale.md."""
    rows = [
        f"| {what} | {wanted} | {cards} | `{command}` |"
        for what, wanted, cards, command in UNMEASURED
    ]
    return [
        "## Never run on these GPUs, and how to",
        "",
        "On two GPUs of one host what [decision 0011](decisions/0011-axial-parallelism.md) and "
        "[training](training.md#slow-wires-between-hosts) say was measured, on four nothing with "
        "today's kernels. Each of these ran through on as many CPU ranks, with the tiny preset "
        "(`tiny` instead of `initial_training`; `--preset tiny --device cpu`, of "
        "`long_chains.py` `--model tiny --sizes 16 24`). `CARDS` is the number of GPUs, `data/` a "
        "dataset of real chains, `shared.yaml` holds `preset: initial_training`, `axial: 2` and "
        "`steps: 32`.",
        "",
        "| what | wanted | GPUs | command |",
        "| --- | --- | --- | --- |",
        *rows,
        "",
    ]
