"""A dataset's chains, complexes and entries, written for another program."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from evofeed.base.errors import InputError
from evofeed.featurize.export.entries import job_of_entry
from evofeed.featurize.export.formats import FORMATS, ExportFolder
from evofeed.featurize.export.jobs import Job, job_of_chain, job_of_complex
from evofeed.store import Dataset

KINDS: Final = ("chains", "complexes", "entries")


def export_dataset(
    dataset: Dataset, to_dir: str, form: str, *, kinds: Sequence[str] = (), ids: Sequence[str] = ()
) -> tuple[int, dict[str, list[str]]]:
    """Write records as the inputs of another program.

    Args:
        kinds: of `KINDS`; by default entries if there are any, else complexes and the chains that
            are in no complex.
        ids: of chains, complexes or entries; all of the kinds if empty.

    Returns:
        The number of jobs written, and the reasons of what was left out, by job.

    Raises:
        InputError: the dataset has nothing of these kinds or ids.
    """
    write, folder = FORMATS[form], ExportFolder(Path(to_dir))
    count, missing = 0, set(ids)
    default = ("entries",) if len(dataset.entries) else ("complexes", "chains")
    for job in _jobs(dataset, kinds or default, ids):
        write(job, folder)
        folder.leave_out(job, *job.left_out)
        if job.structure:
            folder.write(f"structures/{job.name}.cif", job.structure)
        missing.discard(job.name)
        count += 1
    if folder.finish is not None:
        folder.finish(folder)
    if missing or not count:
        message = f"no {' or '.join(kinds or KINDS)} {', '.join(sorted(missing))}".rstrip()
        raise InputError(f"{message} in it", path=dataset.uri)
    return count, {name: reasons for name, reasons in folder.left_out.items() if reasons}


def _jobs(dataset: Dataset, kinds: Sequence[str], ids: Sequence[str]) -> Iterator[Job]:
    """Yields jobs one by one, as a dataset may be larger than memory."""

    def requested(name: str) -> bool:
        return not ids or name in ids

    if "entries" in kinds:
        for name in filter(requested, dataset.entries):
            yield job_of_entry(name, dataset.entries[name], dataset.entries.alignment)
    in_complexes: set[str] = set()
    if "complexes" in kinds:
        rows = dataset.assemblies.table
        in_complexes = {chain for chains in rows["chain_ids"].to_pylist() for chain in chains}
        for name in filter(requested, dataset.assemblies):
            yield job_of_complex(dataset.assemblies[name])
    if "chains" in kinds:
        for name in filter(requested, dataset):
            if name not in in_complexes or name in ids:
                yield job_of_chain(dataset[name])
