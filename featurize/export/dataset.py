"""A dataset's chains, complexes and entries, written for another program."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from evofeed.base.counts import ReportDone
from evofeed.base.errors import InputError
from evofeed.featurize.export.entries import job_of_entry
from evofeed.featurize.export.formats import FORMATS, ExportFolder
from evofeed.featurize.export.jobs import Job, job_of_chain, job_of_complex
from evofeed.store import Dataset

KINDS: Final = ("chains", "complexes", "entries")


def export_dataset(
    dataset: Dataset,
    to_dir: str,
    form: str,
    *,
    kinds: Sequence[str] = (),
    ids: Sequence[str] = (),
    progress: ReportDone | None = None,
) -> tuple[int, dict[str, list[str]]]:
    """Write records as the inputs of another program.

    Args:
        kinds: of `KINDS`; by default entries if there are any, else complexes and the chains that
            are in no complex.
        ids: of chains, complexes or entries; all of the kinds if empty.
        progress: called with the number of jobs written so far, and of all.

    Returns:
        The number of jobs written, and the reasons of what was left out, by job.

    Raises:
        InputError: the dataset has nothing of these kinds or ids.
    """
    write, folder = FORMATS[form], ExportFolder(Path(to_dir))
    missing = set(ids)
    default = ("entries",) if len(dataset.entries) else ("complexes", "chains")
    selected = _selected(dataset, kinds or default, ids)
    for count, (kind, name) in enumerate(selected, 1):
        job = _job(dataset, kind, name)
        write(job, folder)
        folder.leave_out(job, *job.left_out)
        if job.structure:
            folder.write(f"structures/{job.name}.cif", job.structure)
        missing.discard(job.name)
        if progress:
            progress(count, len(selected))
    if folder.finish is not None:
        folder.finish(folder)
    if missing or not selected:
        message = f"no {' or '.join(kinds or KINDS)} {', '.join(sorted(missing))}".rstrip()
        raise InputError(f"{message} in it", path=dataset.uri)
    left_out = {name: reasons for name, reasons in folder.left_out.items() if reasons}
    return len(selected), left_out


def _selected(dataset: Dataset, kinds: Sequence[str], ids: Sequence[str]) -> list[tuple[str, str]]:
    """Kind and name of every job to write."""
    names: list[tuple[str, str]] = []
    if "entries" in kinds:
        names += [("entries", name) for name in dataset.entries]
    in_complexes: set[str] = set()
    if "complexes" in kinds:
        rows = dataset.assemblies.table
        in_complexes = {chain for chains in rows["chain_ids"].to_pylist() for chain in chains}
        names += [("complexes", name) for name in dataset.assemblies]
    if "chains" in kinds:
        names += [("chains", n) for n in dataset if n not in in_complexes or n in ids]
    return [(kind, name) for kind, name in names if not ids or name in ids]


def _job(dataset: Dataset, kind: str, name: str) -> Job:
    if kind == "entries":
        return job_of_entry(name, dataset.entries[name], dataset.entries.alignment)
    if kind == "complexes":
        return job_of_complex(dataset.assemblies[name])
    return job_of_chain(dataset[name])
