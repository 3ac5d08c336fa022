"""`evofeed assemblies`: the complexes of an input, beside the chains of a dataset."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evofeed.base.counts import counted
from evofeed.base.options import Json

if TYPE_CHECKING:
    from evofeed.featurize.config import FeaturizeConfig


def assemblies(
    input_uri: Annotated[
        str, typer.Argument(metavar="INPUT", help="The INPUT of `evofeed featurize`.")
    ],
    dataset_uri: Annotated[str, typer.Argument(metavar="DATASET", help="Dataset with the chains.")],
    ref: Annotated[str, typer.Option(help="Ref to point at the snapshot.")] = "main",
    preset: Annotated[str, typer.Option(help="Preset of the chains: `default`, `openfold`.")] = (
        "default"
    ),
    structures: Annotated[str, typer.Option(help="Folder of mmCIF or PDB files.")] = "",
    as_json: Json = False,
) -> None:
    """Add the complexes of INPUT to the snapshot of DATASET that holds its chains.

    A complex is an mmCIF or PDB entry of several chains, ColabFold's a3m of a complex, a job of
    AlphaFold 3, Protenix or Boltz, or a FASTA file of several sequences. One that lacks a chain is
    left out and listed, in the manifest too.
    Featurizing the chains again keeps those whose chains are still there, and lists the others.

    Example: evofeed assemblies raw/ data/
    """
    from evofeed.featurize.config import FeaturizeConfig

    if preset not in ("default", "openfold"):
        raise typer.BadParameter(f"no preset {preset!r}: default or openfold")
    config = FeaturizeConfig.openfold() if preset == "openfold" else FeaturizeConfig()
    report = add_complexes(input_uri, dataset_uri, config, ref, structures, quiet=as_json)
    made, alone, dropped = report["assemblies"], report["alone"], report["dropped"]
    if as_json:
        print(json.dumps(report))
        return
    print(
        f"{counted(made, 'complex', 'complexes')} in snapshot {report['snapshot'][:12]}, "
        f"{len(dropped)} left out"
    )
    if alone:
        of_one = counted(alone, "entry", "entries")
        print(f"  {of_one} of one chain: samples of their own, and no complexes")
    for one in dropped:
        print(f"  {one['assembly_id']}: {one['reason']}")
    for fault in report["faults"]:
        print(f"  broken input: {fault}")
    for other in report["left_out"]:
        print(f"  left out: {other}")


def add_complexes(
    input_uri: str,
    dataset_uri: str,
    config: FeaturizeConfig,
    ref: str = "main",
    structures: str = "",
    *,
    quiet: bool = False,
) -> dict[str, Any]:
    """The complexes of an input added to the snapshot that holds its chains; what came of them.

    Raises:
        InputError: none can be used.
    """
    from rich.console import Console
    from rich.progress import track

    from evofeed.base.errors import ChainMissing, InputError, LoneChain, NoProtein, UnusedInput
    from evofeed.featurize.formats.fasta import SUFFIXES as FASTA
    from evofeed.featurize.inputs.assembly_inputs import assembly_sources
    from evofeed.featurize.inputs.discovery import discover
    from evofeed.featurize.records.assemblies import featurize_assembly
    from evofeed.protein.chain_record import ChainRecord
    from evofeed.store import Dataset, add_assemblies

    dataset = Dataset.open(dataset_uri, ref)
    problems: list[InputError] = []
    found = discover(input_uri, structure_dir=structures or None, problems=problems)
    fasta = input_uri if Path(input_uri).suffix in FASTA else ""
    sources = assembly_sources(found, fasta, problems)
    dropped: list[dict[str, Any]] = []

    made = alone = 0
    why = {one.get("chain_id"): one.get("reason", "") for one in dataset.manifest.dropped}

    def record_of(chain_id: str) -> ChainRecord:
        if chain_id not in dataset and chain_id in why:
            raise ChainMissing(f"it was left out when the chains were made: {why[chain_id]}")
        return dataset[chain_id]

    def records() -> Any:
        nonlocal made, alone
        console = Console(stderr=True)
        shown = console.is_terminal and not quiet
        for source in track(sources, "complexes", console=console, disable=not shown):
            try:
                yield featurize_assembly(source, record_of, config)
                made += 1
            except LoneChain:
                alone += 1
            except (InputError, KeyError) as error:
                dropped.append({"assembly_id": source.assembly_id, "reason": str(error)})
        if not made:
            first = f": {dropped[0]['reason']}" if dropped else ": every entry has one chain"
            raise InputError(f"no complex in it can be used{first}", path=input_uri)

    snapshot = add_assemblies(dataset, records(), ref=ref, dropped=dropped)
    return {
        "snapshot": snapshot.digest,
        "assemblies": made,
        "alone": alone,
        "dropped": dropped,
        "faults": [str(p) for p in problems if not isinstance(p, NoProtein | UnusedInput)],
        "left_out": [str(p) for p in problems if isinstance(p, NoProtein | UnusedInput)],
    }
