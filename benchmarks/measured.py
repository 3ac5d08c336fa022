"""Every claim of speed in the README and in docs/measured.md, printed from the results.

    python benchmarks/measured.py > docs/measured.md

No figure is typed: each is a value of a file in results/, rounded. A row that is also in the
README is there word by word.
"""

from __future__ import annotations

import json
import math
from functools import cache
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent / "results"
EARLIER = "recorded earlier"  # the peer's part: another run on the same kind of card

Row = tuple[str, str, str, str]
"""What, evofeed, beside it, the files of results/ it comes from."""


@cache
def result(name: str) -> Any:
    """A file of results/."""
    return json.loads((RESULTS / f"{name}.json").read_text())


def store() -> list[Row]:
    """Bytes, and time to read a crop, beside other formats."""
    found = result("store")
    ratio = {name: f"{value:.2f}" for name, value in found["ratio"].items()}
    times = result("store_crop")["crop_us"]
    ms = {name: f"{one['cpu_mean'] / 1e3:.2f}" for name, one in times.items()}
    return [
        (
            f"dataset size, {found['workload']['chains']:,} chains",
            f"{ratio['evofeed']} of the raw arrays ({ratio['evofeed zstd']} with zstd)",
            f"Arrow zstd {ratio['Arrow IPC zstd']}, lz4 {ratio['Arrow IPC lz4']}",
            "store",
        ),
        (
            "one crop of 1152 x 256 with templates by `Dataset.read`, CPU",
            f"{ms['evofeed']} ms, checksum included (training on a GPU decodes there instead)",
            f"raw Arrow {ms['Arrow IPC raw']}, MosaicML MDS {ms['MosaicML MDS']}, "
            f"Arrow lz4 {ms['Arrow IPC lz4']}, zstd {ms['Arrow IPC zstd']}, "
            f"Lance {ms['Lance']} ms, same run",
            "store_crop",
        ),
    ]


def featurize() -> list[Row]:
    """Text to arrays."""
    found = result("featurize")
    every = found["alignments"].values()
    # One small file pays a fixed cost; it is kept apart.
    large = [each for each in every if each["characters"] > 100_000]
    small = [each for each in every if each["characters"] < 10_000]
    ours = sorted(each["ours_ns_per_character"] for each in large)
    fixed = sorted(each["ours_ns_per_character"] for each in small)
    theirs = sorted(each["openfold_parse_only_ns_per_character"] for each in every)
    structures = found["structures"].values()
    times = sorted(each["times_biopython"] for each in structures if "times_biopython" in each)
    return [
        (
            "alignments to unique rows and profile, CPU",
            f"{ours[0]:.0f}-{ours[-1]:.0f} ns a character; {fixed[0]:.0f}-{fixed[-1]:.0f} for a "
            "file of 20 sequences",
            f"OpenFold's parser alone {theirs[0]:.0f}-{theirs[-1]:.0f}, same run",
            "featurize",
        ),
        (
            "mmCIF to atom37, CPU",
            f"{times[0]:.0f}x to {times[-1]:.0f}x Biopython's parser",
            "same run",
            "featurize",
        ),
    ]


def loader() -> list[Row]:
    """A sample on its way to the GPU."""
    here = result("loader_h200")["presets"]["initial_training"]
    tuning = result("loader_h200")["presets"]["finetuning"]
    complexes = result("complexes_loader_h200")
    waits, work = complexes["waits"]["large"], complexes["work"]
    cpu = result("complexes_cpu")["rows"]
    kernels, plain = work["large, kernels"], work["large, plain torch"]
    ours, peer = here["step_50_ms"], here["step_50_ms_openfold_dataloader"]
    wait, peer_wait = ours["data_wait_ms"], peer["data_wait_ms"]
    tensors = tuning["step_50_ms_openfold_dataloader"]["mb_per_sample"]
    busy = here["featurize"]["queued"]["device_busy_ms_a_sample"]
    return [
        (
            "sample to the GPU",
            f"{ours['mb_per_sample']:.1f} MB",
            f"{peer['mb_per_sample']:.0f} MB as padded tensors ({tensors:.0f} MB for finetuning)",
            "loader_h200",
        ),
        (
            "wait for data at a 50 ms step",
            f"{wait['p50']:.2f} ms p50, {wait['p99']:.2f} ms p99, {ours['cores']:.2f} core",
            f"{peer['workers']} DataLoader workers with OpenFold's transforms: "
            f"{peer_wait['p50']:.1f} ms p50, {peer_wait['p99']:.0f} ms p99, "
            f"{peer['cores']:.1f} cores",
            "loader_h200",
        ),
        (
            "features of a sample",
            f"{busy:.2f} ms of the GPU, {ours['cpu_ms_a_sample']:.1f} ms of CPU with everything "
            "else the loader does",
            f"{peer['cpu_ms_a_sample']:.0f} ms of CPU in OpenFold's transforms, same run",
            "loader_h200",
        ),
        (
            "wait for a complex (crop 640, 508 + 2,048 rows) at a "
            f"{1e3 * waits['step_seconds']:.0f} ms step",
            f"{waits['data_wait_ms']['p50']:.2f} ms p50, {waits['data_wait_ms']['p99']:.2f} ms p99",
            "",
            "complexes_loader_h200",
        ),
        (
            "... its CPU in the reader, two real entries",
            ", ".join(f"{row['evofeed_read_ms']['median']:.1f}" for row in cpu) + " ms",
            "OpenFold's multimer data path "
            + ", ".join(f"{row['openfold_cpu_ms']['median'] / 1e3:.1f}" for row in cpu)
            + " s, parsing included, same run",
            "complexes_cpu",
        ),
        (
            "... its features",
            f"{kernels['device_busy_ms_a_sample']:.1f} ms of the GPU, "
            f"{kernels['kernels_a_sample']:.0f} kernels",
            f"the same in plain torch {plain['device_busy_ms_a_sample']:.1f} ms, "
            f"{plain['kernels_a_sample']:.0f} kernels, same run",
            "complexes_loader_h200",
        ),
    ]


def op(section: str, case: str, who: str) -> dict[str, Any]:
    """A row of kernels_h200.json."""
    rows = result("kernels_h200")["sections"][section]["rows"]
    (found,) = (row for row in rows if row["case"] == case and row["who"] == who)
    return dict(found)


def both_ms(section: str, case: str, who: str) -> str:
    """Forward and backward of an op."""
    return f"{op(section, case, who)['both']['us'] / 1e3:.2f}"


def openfold_block(case: str, how: str) -> str:
    """OpenFold's block, as recorded earlier."""
    rows = result("openfold_blocks_h200")["cases"]
    (found,) = (row["ms"] for row in rows if row["case"] == case and row["how"] == how)
    return f"{found:.1f}"


def kernels() -> list[Row]:
    """Single ops, blocks and the optimizer."""
    triangles = [f"triangle {n}" for n in (256, 384, 512)]
    ours, flex = (
        " / ".join(both_ms("attention", case, who) for case in triangles)
        for who in ("evofeed", "flex_attention")
    )
    multiplied = {
        who: " / ".join(both_ms("triangle", f"outgoing {n}", who) for n in (256, 384))
        for who in ("evofeed", "torch.compile", "torch eager")
    }
    small, large, extra = "evoformer 128x256", "evoformer 512x384", "extra MSA 1024x256"
    block = {case: op("blocks", case, "evofeed bf16") for case in (small, large, extra)}
    eager = {case: op("blocks", case, "torch eager bf16") for case in (small, large, extra)}
    files = "kernels_h200 openfold_blocks_h200"
    step = {
        row["case"] + row["who"]: f"{row['gpu']['us'] / 1e3:.2f}"
        for row in result("optimizers_h200")["rows"]
    }
    many = f"{float(step['clip + Adam + averagetorch, 5,044 tensors']):.0f}"
    return [
        (
            "biased attention, forward and backward, triangle 256 / 384 / 512",
            f"{ours} ms",
            f"compiled flex_attention {flex}, same run",
            "kernels_h200",
        ),
        (
            "Evoformer block, forward and backward",
            f"{block[small]['graph_ms']:.2f} ms in a CUDA graph, "
            f"{block[small]['saved_mb_per_block']:.0f} MB kept",
            f"PyTorch eager {eager[small]['ms']:.1f} ms, "
            f"{eager[small]['saved_mb_per_block']:,.0f} MB, same run; compiled OpenFold "
            f"{openfold_block(small, 'compiled')} ms ({EARLIER})",
            files,
        ),
        (
            "... 512 sequences, 384 residues",
            f"{block[large]['graph_ms']:.1f} ms",
            f"PyTorch eager {eager[large]['ms']:.1f}, same run; compiled OpenFold "
            f"{openfold_block(large, 'compiled')} ({EARLIER})",
            files,
        ),
        (
            "... extra MSA of 1,024 sequences, 256 residues",
            f"{block[extra]['graph_ms']:.1f} ms",
            f"PyTorch eager {eager[extra]['ms']:.1f}, same run; OpenFold with DS4Sci attention "
            f"{openfold_block(extra, 'DS4Sci attention')}, compiled "
            f"{openfold_block(extra, 'compiled')} ({EARLIER})",
            files,
        ),
        (
            "triangle multiplication, forward and backward, 256 / 384 residues",
            f"{multiplied['evofeed']} ms",
            f"torch.compile {multiplied['torch.compile']}, eager {multiplied['torch eager']}, "
            "same run",
            "kernels_h200",
        ),
        (
            "clip + Adam + EMA, 93.2 M parameters",
            f"{step['clip + Adam + average + bf16 copy, gradient float32evofeed']} ms",
            f"fused PyTorch {many} over the 5,044 tensors, "
            f"{step['clip + Adam + averagetorch, one flat tensor']} over one flat tensor",
            "optimizers_h200",
        ),
    ]


def drop_in(section: str, who: str, **wanted: str) -> dict[str, Any]:
    """A row of drop_ins_h200.json."""
    rows = result("drop_ins_h200")["sections"][section]["rows"]
    (found,) = (
        row
        for row in rows
        if row["who"] == who and all(row.get(name) == value for name, value in wanted.items())
    )
    return dict(found)


def drop_ins() -> list[Row]:
    """PyTorch's modules and OpenFold's block, before and after."""
    attention = {
        "case": "attention [200, 256, 1024], 16 heads, batch_first",
        "kind": "bfloat16",
        "mode": "training",
    }
    lstm = {"case": "LSTM 985, batch 4, 1000 steps", "kind": "float16", "mode": "training"}
    pairs = [
        ", ".join(
            f"{drop_in(section, who, **case)['both']['us'] / 1e3:.1f}"
            for section, case in (("attention", attention), ("lstm", lstm))
        )
        for who in ("evofeed", "torch")
    ]
    case = "OpenFold Evoformer block 128 x 256"
    recorded = {
        who: f"{drop_in('openfold', who, case=case, how='CUDA graph')['ms']:.1f}"
        for who in ("OpenFold", "to_fused(OpenFold)")
    }
    own_loop = {
        who: f"{drop_in('openfold', who, case=case, how=how)['wall_ms']:.1f}"
        for who, how in (
            ("to_fused(OpenFold, cuda_graphs=True)", "eager"), ("OpenFold", "eager"),
        )
    }  # fmt: skip
    compiled = drop_in("openfold", "OpenFold", case=case, how="compiled")["wall_ms"]
    return [
        (
            "`nn.MultiheadAttention` 200 x 256 x 1024, `nn.LSTM` 985 wide in float16",
            f"{pairs[0]} ms",
            f"PyTorch {pairs[1]}, same run",
            "drop_ins_h200",
        ),
        (
            "OpenFold's own Evoformer block, in a CUDA graph",
            f"{recorded['to_fused(OpenFold)']} ms after `to_fused`",
            f"{recorded['OpenFold']} before, same run",
            "drop_ins_h200",
        ),
        (
            "... in an eager loop, wall time",
            f"{own_loop['to_fused(OpenFold, cuda_graphs=True)']} ms after "
            "`to_fused(model, cuda_graphs=True)`",
            f"{own_loop['OpenFold']} before, compiled {compiled:.1f}, same run",
            "drop_ins_h200",
        ),
    ]


def other_models() -> list[Row]:
    """AF3-class models: OpenFold3's pair block, and the projects' own trunks."""
    name = "af3_pair_blocks_h200"
    blocks: dict[str, dict[int, float]] = {}
    for row in result(name)["rows"]:
        if row["part"] == "block":
            blocks.setdefault(row["how"], {})[row["size"]] = row["both_ms"][0]
    sizes = sorted(blocks["fused"])
    ms = {how: " / ".join(f"{of[n]:.1f}" for n in sizes) for how, of in blocks.items()}
    return [
        (
            f"OpenFold3's pair block, forward and backward, {' / '.join(map(str, sizes))} residues",
            f"{ms['fused']} ms",
            f"cuEquivariance {ms['cuequivariance']}, torch.compile {ms['compiled']}, same run",
            name,
        ),
        *(row for name in TRUNKS for row in trunks(name)),
        inference_of_trunks(),
    ]


def inference_of_trunks() -> Row:
    """A forward pass of 1,024 residues."""
    name = "af3_infer_h200"
    rows = [row for run in result(name)["runs"] for row in run["rows"] if row["length"] == 1024]
    seconds = {
        how: " / ".join(f"{r['step_ms'][0] / 1e3:.2f}" for r in rows if r["how"] == how)
        for how in ("fused", "cuequivariance")
    }
    projects = dict.fromkeys(PROJECTS[row["project"]] for row in rows)
    return (
        f"... in inference, 1,024 residues: {', '.join(projects)}",
        f"{seconds['fused']} s",
        f"cuEquivariance {seconds['cuequivariance']}, same run",
        name,
    )


TRUNKS = ("af3_trunks_h200", "af3_trunk_h200")
PROJECTS = {"openfold3": "OpenFold3", "boltz2": "Boltz-2", "protenix": "Protenix"}


def trunks(name: str) -> list[Row]:
    """A training step of each trunk of one run."""
    found: dict[str, dict[str, Any]] = {}
    for run in result(name).get("runs", [result(name)]):
        for row in run["rows"]:
            found.setdefault(row["project"], {})[row["how"]] = row
    return [
        (
            f"{PROJECTS[project]}'s own trunk at a crop of 384, random weights, a training step",
            f"{ways['fused']['step_ms'][0]:.0f} ms, {ways['fused']['peak_mb'] / 1e3:.0f} GB "
            "after `to_fused`, activations kept",
            f"{ways['eager']['step_ms'][0]:,.0f} ms, {ways['eager']['peak_mb'] / 1e3:.0f} GB "
            "before, recomputing activations, same run",
            name,
        )
        for project, ways in found.items()
    ]


def age(date: str) -> str:
    """A word on runs from before the kernels of the newest recorded step."""
    newest = result("train_step_h200_recorded")["machine"]["date"]
    return ", earlier kernels" if date[:10] < newest else ""


def step_ms(name: str, how: str, recycles: int, recomputed: bool = False) -> str:
    """Median of a training step."""
    ms = [
        case["step_ms"]["median"]
        for case in result(name)["cases"]
        if (case["how"], case["recycles"], case["checkpointing"]) == (how, recycles, recomputed)
        and case["precision"].startswith("bf16")
    ]
    assert len(ms) == 1, f"{name}: {len(ms)} cases are {how}, {recycles}, {recomputed}"
    return f"{ms[0]:.0f} ms" if ms[0] < 1000 and how == "graph" else f"{ms[0] / 1e3:.2f} s"


def training() -> list[Row]:
    """Whole steps."""
    fused, plain, peer = "train_step_h200", "train_step_h200_plain", "openfold_step_h200"
    recorded, recorded_tuning = "train_step_h200_recorded", "train_step_h200_finetuning_recorded"
    tuning, plain_tuning, peer_tuning = (
        "train_step_h200_finetuning",
        "train_step_h200_finetuning_plain",
        "openfold_step_h200_finetuning",
    )
    ds4sci = step_ms(peer_tuning, "eager, DS4Sci attention", 0, True)
    return [
        (
            "full training step, no recycling",
            f"{step_ms(recorded, 'graph', 0)} (fused, CUDA graph), {step_ms(fused, 'eager', 0)} "
            f"(fused, eager{age(result(fused)['machine']['date'])}), "
            f"{step_ms(plain, 'eager', 0)} (plain)",
            f"OpenFold {step_ms(peer, 'eager', 0)}, compiled blocks "
            f"{step_ms(peer, 'compiled', 0)} ({EARLIER})",
            f"{recorded} {fused} {plain} {peer}",
        ),
        (
            "... three recycles",
            f"{step_ms(recorded, 'graph', 3)}, {step_ms(plain, 'eager', 3)} (plain)",
            f"OpenFold {step_ms(peer, 'eager', 3, True)}, compiled blocks "
            f"{step_ms(peer, 'compiled', 3, True)}, both recomputing activations ({EARLIER})",
            f"{recorded} {plain} {peer}",
        ),
        (
            "... finetuning shapes, no recycling",
            f"{step_ms(recorded_tuning, 'graph', 0)}, {step_ms(tuning, 'eager', 0, True)} "
            f"recomputing activations{age(result(tuning)['machine']['date'])}, "
            f"{step_ms(plain_tuning, 'eager', 0, True)} (plain)",
            f"OpenFold {step_ms(peer_tuning, 'eager', 0, True)}, {ds4sci} with DS4Sci attention, "
            f"recomputing ({EARLIER})",
            f"{recorded_tuning} {tuning} {plain_tuning} {peer_tuning}",
        ),
        *(real_runs(ranks) for ranks in (1, 2, 4)),
        *pieces(),
    ]


def long_chains() -> Row:
    """The longest chain that was timed."""
    shared, alone = result("long_chains_h200_x2")["runs"]
    (row,) = shared["rows"]
    one = next(r for r in alone["rows"] if r["residues"] == row["residues"])
    before = next(r for r in result("long_chains_h200")["rows"] if r["residues"] == row["residues"])
    return (
        f"a pass over {row['residues']:,} residues with templates, {shared['cards']} GPUs",
        f"{row['seconds']:.1f} s, {row['peak_gib']:.1f} GiB a GPU ({one['peak_gib']:.1f} on one)",
        f"one GPU, before predictions were made in parts, {before['seconds']:.1f} s, "
        f"{before['peak_gib']:.0f} GiB ({EARLIER})",
        "long_chains_h200_x2 long_chains_h200",
    )


def pieces() -> list[Row]:
    """The step in another precision, piece by piece, and that of complexes."""
    cells = {cell["cell"]: cell for cell in result("trainer_cells_h200")["cells"]}
    ms, memory = (
        {name: cell[key] for name, cell in cells.items()} for key in ("step_ms", "peak_gib")
    )
    ladder = result("ladder_h200")
    climbed, first = (
        ", ".join(f"{r['name']} {r['step_ms']['median']:.0f}" for r in rows)
        for rows in (ladder["recorded"][1:], ladder.get("eager", []))
    )
    batches = {cell["samples_a_step"]: cell for cell in result("trainer_batches_h200")["cells"]}
    of_complexes = result("complexes_step_h200")["step"]
    waits = sorted(of_complexes["data_wait_ms"][2:])
    return [
        (
            "... `precision: fp16`",
            f"{ms['fp16:fused']['median']:.1f} ms, {memory['fp16:fused']:.1f} GiB",
            f"bf16 {ms['bf16:fused']['median']:.1f} ms, {memory['bf16:fused']:.1f} GiB, same run",
            "trainer_cells_h200",
        ),
        *(
            (
                f"... {n} samples a card at once, `evofeed train`"
                + (", recomputing activations" if ":ckpt" in batches[n]["cell"] else ""),
                f"{batches[n]['samples_per_second']:.2f} samples/s, "
                f"{batches[n]['peak_gib']:.0f} GiB",
                f"one at a time {batches[1]['samples_per_second']:.2f}, "
                f"{batches[1]['peak_gib']:.0f} GiB, same run",
                "trainer_batches_h200",
            )
            for n in sorted(batches)
            if n > 1
        ),
        (
            "... piece by piece, activations kept, in CUDA graphs",
            f"{climbed} ms",
            f"plain PyTorch in a CUDA graph {ladder['recorded'][0]['step_ms']['median']:.0f} ms"
            + (f" ({first} ms eager)" if first else "")
            + ", same run",
            "ladder_h200",
        ),
        (
            "step of a complex (crop 640, 508 + 2,048 rows), recomputing, behind the loader",
            f"{of_complexes['step_ms']['median'] / 1e3:.2f} s, "
            f"{waits[len(waits) // 2]:.2f} ms of waiting for data",
            "",
            "complexes_step_h200",
        ),
        long_chains(),
    ]


def real_runs(ranks: int) -> Row:
    """The whole step with real loaders, gradients averaged."""
    name = f"trainer_h200.initial_training.bf16_fused_graph.x{ranks}.r0"
    found = result(name)
    return (
        f"... no recycling, `evofeed train` on {ranks} GPU{'s' if ranks > 1 else ''}"
        f"{age(found['run']['date'])}",
        f"{found['figures']['step_seconds']['mean'] * 1e3:.0f} ms a step, "
        f"{found['speed']['samples_per_second']:.1f} samples/s",
        "",
        name,
    )


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


def falls_short() -> list[str]:
    """What is not as good as it should be, a sentence each."""
    attention = both_us("attention").values()
    flex = sorted(
        us["flex_attention"] / us["evofeed"] for us in attention if "flex_attention" in us
    )
    wall = op("blocks", "evoformer 128x256", "evofeed bf16")["wall_ms"]
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
    return [
        f"Biased attention with its gradients is {flex[0]:.2f} to {flex[-1]:.2f} times as fast "
        "as compiled flex_attention, not twice everywhere (kernels_h200).",
        f"A fused Evoformer block called eagerly takes {wall:.0f} ms by the wall clock: its "
        "host binds it. Training records CUDA graphs by itself; in your own loop "
        "`to_fused(model, cuda_graphs=True)` does (kernels_h200).",
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
        "Not measured on a GPU: chains longer than 4,096 residues, and OpenFold's predictions of "
        "long ones; steps with compressed gradients or with one card slower; what `evofeed tune` "
        "chooses; anything on four GPUs with these kernels.",
        "No protein has been folded better than before: nothing here was trained to the end.",
        f"Figures marked *{EARLIER}* are of another run on the same kind of card; of "
        "OpenFold's the spread was not kept.",
    ]


def rows() -> list[Row]:
    """The whole table, along the path."""
    return [
        *featurize(),
        *store(),
        *loader(),
        *kernels(),
        *drop_ins(),
        *other_models(),
        *training(),
    ]


def table(chosen: list[Row]) -> list[str]:
    """Rows without their files, as Markdown."""
    return [f"| {what} | {ours} | {beside} |" for what, ours, beside, _ in chosen]


def page() -> str:
    """docs/measured.md."""
    body = []
    for line, (*_, files) in zip(table(rows()), rows(), strict=True):
        links = ", ".join(
            f"[{i + 1 if ' ' in files else 'json'}](../benchmarks/results/{name}.json)"
            for i, name in enumerate(files.split())
        )
        body.append(f"{line} {links} |")
    return "\n".join(
        [
            "# Measured",
            "",
            "Printed from [benchmarks/results](../benchmarks/results) by "
            "`python benchmarks/measured.py > docs/measured.md`.",
            "",
            "Each file has command, machine, shapes, versions, date and spread; "
            "[benchmarks](../benchmarks/README.md) says how to repeat it. Inputs are recorded real "
            "chains where they are named, synthetic ones elsewhere. GPU: one H200, torch 2.11, "
            "bf16, initial-training shapes (256 residues, 128 + 1024 sequences, 4 templates) "
            "unless said otherwise. CPU times hold for their machine; read them as ratios.",
            "",
            "| what | evofeed | beside it | from |",
            "| --- | --- | --- | --- |",
            *body,
            "",
            "## What falls short",
            "",
            *(f"- {sentence}" for sentence in falls_short()),
        ]
    )


if __name__ == "__main__":
    print(page())
