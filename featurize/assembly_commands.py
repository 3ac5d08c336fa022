"""`evofeed assemblies`: the complexes of an input, added to a dataset with their chains."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evofeed.base.counts import counted
from evofeed.base.options import Json, tracked

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
    if as_json:
        print(json.dumps(report))
        return
    complexes = counted(report["assemblies"], "complex", "complexes")
    dropped = report["dropped"]
    print(f"{complexes} in snapshot {report['snapshot'][:12]}, {len(dropped)} left out")
    if report["alone"]:
        entries = counted(report["alone"], "entry", "entries")
        print(f"  {entries} of one chain, which are samples but not complexes")
    for item in dropped:
        print(f"  {item['assembly_id']}: {item['reason']}")
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
    """Adds the complexes of an input to the snapshot that has its chains; returns a report.

    Raises:
        InputError: no complex can be used.
    """
    from evofeed.base.errors import ChainMissing, InputError, LoneChain, NoProtein, UnusedInput
    from evofeed.featurize.formats.fasta import SUFFIXES as FASTA
    from evofeed.featurize.inputs.assembly_inputs import assembly_sources
    from evofeed.featurize.inputs.discovery import discover
    from evofeed.featurize.records.assemblies import featurize_assembly
    from evofeed.protein.chain_record import ChainRecord
    from evofeed.store import Dataset, add_assemblies

    dataset = Dataset.open(dataset_uri, ref)
    problems: list[InputError] = []
    chains = discover(input_uri, structure_dir=structures or None, problems=problems)
    fasta = input_uri if Path(input_uri).suffix in FASTA else ""
    sources = assembly_sources(chains, fasta, problems)
    dropped: list[dict[str, Any]] = []
    num_complexes = num_lone = 0
    reasons = {item.get("chain_id"): item.get("reason", "") for item in dataset.manifest.dropped}

    def record_of(chain_id: str) -> ChainRecord:
        if chain_id not in dataset and chain_id in reasons:
            raise ChainMissing(f"it was left out when the chains were made: {reasons[chain_id]}")
        return dataset[chain_id]

    def records() -> Any:
        nonlocal num_complexes, num_lone
        for source in tracked(sources, len(sources), "complexes", quiet, "entries"):
            try:
                yield featurize_assembly(source, record_of, config)
                num_complexes += 1
            except LoneChain:
                num_lone += 1
            except (InputError, KeyError) as error:
                dropped.append({"assembly_id": source.assembly_id, "reason": str(error)})
        if not num_complexes:
            reason = dropped[0]["reason"] if dropped else "every entry has one chain"
            raise InputError(f"no complex in it can be used: {reason}", path=input_uri)

    snapshot = add_assemblies(dataset, records(), ref=ref, dropped=dropped)
    return {
        "snapshot": snapshot.digest,
        "assemblies": num_complexes,
        "alone": num_lone,
        "dropped": dropped,
        "faults": [str(p) for p in problems if not isinstance(p, NoProtein | UnusedInput)],
        "left_out": [str(p) for p in problems if isinstance(p, NoProtein | UnusedInput)],
    }
