"""Single ops, blocks and the optimizer, and PyTorch's and OpenFold's modules with them."""

from __future__ import annotations

from typing import Any

from benchmarks.claims.results import EARLIER, Row, age, result


def op(section: str, case: str, who: str) -> dict[str, Any]:
    """A row of kernels_h200.json."""
    rows = result("kernels_h200")["sections"][section]["rows"]
    (found,) = (row for row in rows if row["case"] == case and row["who"] == who)
    return dict(found)


def both_ms(section: str, case: str, who: str) -> str:
    """Forward and backward of an op."""
    return f"{op(section, case, who)['both']['us'] / 1e3:.2f}"


def age_of(section: str) -> str:
    """Of a section's run, if its kernels are older."""
    return age(result("kernels_h200")["sections"][section]["environment"]["date"])


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
            f"{ours} ms{age_of('attention')}",
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
            f"{multiplied['evofeed']} ms{age_of('triangle')}",
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
