"""`evofeed synth`: a raw dataset of simulated protein families."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from evofeed.base.counts import counted
from evofeed.base.options import Json, share_bar


def synth(
    out: Annotated[Path, typer.Argument(help="Folder to write to.")],
    chains: Annotated[int, typer.Option(min=1, help="Chains to simulate.")] = 64,
    complexes: Annotated[
        int, typer.Option(min=0, help="Complexes to simulate, in place of chains.")
    ] = 0,
    stoichiometry: Annotated[
        list[str] | None, typer.Option(help="Of complexes, in turn [A2, AB, A2B2, A3].")
    ] = None,
    seed: Annotated[int, typer.Option(help="The same seed gives the same bytes.", min=0)] = 0,
    mean_length: Annotated[int, typer.Option(min=30, max=9999, help="Residues a chain.")] = 100,
    mean_depth: Annotated[int, typer.Option(min=16, help="Homologs of a typical family.")] = 120,
    mean_members: Annotated[
        int, typer.Option(min=1, help="Chains with a structure in a typical family.")
    ] = 6,
    as_json: Json = False,
) -> None:
    """Write a synthetic raw dataset in the OpenProteinSet layout.

    Example: evofeed synth raw/ --chains 64 --seed 1

    Complexes: evofeed synth raw/ --complexes 40 --stoichiometry A2B2 --stoichiometry AB
    """
    from evofeed.synth.complexes import STOICHIOMETRIES
    from evofeed.synth.write import write_synthetic

    if stoichiometry and not complexes:
        raise typer.BadParameter("--stoichiometry is for complexes: give --complexes N")
    if (out / "alignments").exists():
        raise typer.BadParameter(f"{out} already holds alignments; choose an empty folder")
    with share_bar("simulating", quiet=as_json) as show:
        report = write_synthetic(
            out,
            complexes or chains,
            seed,
            mean_length=mean_length,
            mean_depth=mean_depth,
            mean_members=mean_members,
            stoichiometries=(stoichiometry or STOICHIOMETRIES) if complexes else (),
            progress=lambda share: show(share, f"{share * (complexes or chains):.0f}"),
        )
    if as_json:
        print(json.dumps(asdict(report)))
        return
    prefix = f"{counted(report.num_complexes, 'complex', 'complexes')}, " if complexes else ""
    print(
        f"{prefix}{counted(report.num_chains, 'chain')} in "
        f"{counted(report.num_families, 'family', 'families')}, "
        f"{report.num_bytes / 1e6:.1f} MB in {report.out_dir}"
    )
    print(f"next: evofeed featurize {out} DATASET")
    if complexes:
        print(f"then: evofeed assemblies {out} DATASET")
