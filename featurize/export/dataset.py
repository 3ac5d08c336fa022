"""A dataset's chains, complexes and entries, written for another program."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
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
    count, missing = 0, set(ids)
    default = ("entries",) if len(dataset.entries) else ("complexes", "chains")
    jobs = _jobs(dataset, kinds or default, ids)
    for read in jobs:
        job = read()
        write(job, folder)
        folder.leave_out(job, *job.left_out)
        if job.structure:
            folder.write(f"structures/{job.name}.cif", job.structure)
        missing.discard(job.name)
        count += 1
        if progress:
            progress(count, len(jobs))
    if folder.finish is not None:
        folder.finish(folder)
    if missing or not count:
        message = f"no {' or '.join(kinds or KINDS)} {', '.join(sorted(missing))}".rstrip()
        raise InputError(f"{message} in it", path=dataset.uri)
    return count, {name: reasons for name, reasons in folder.left_out.items() if reasons}


def _jobs(dataset: Dataset, kinds: Sequence[str], ids: Sequence[str]) -> list[Callable[[], Job]]:
    """Functions that read one job each, as a dataset may be larger than memory."""

    def of_entry(name: str) -> Job:
        return job_of_entry(name, dataset.entries[name], dataset.entries.alignment)

    def of_complex(name: str) -> Job:
        return job_of_complex(dataset.assemblies[name])

    def of_chain(name: str) -> Job:
        return job_of_chain(dataset[name])

    names: list[tuple[Callable[[str], Job], Iterable[str]]] = []
    if "entries" in kinds:
        names.append((of_entry, dataset.entries))
    in_complexes: set[str] = set()
    if "complexes" in kinds:
        rows = dataset.assemblies.table
        in_complexes = {chain for chains in rows["chain_ids"].to_pylist() for chain in chains}
        names.append((of_complex, dataset.assemblies))
    if "chains" in kinds:
        names.append((of_chain, (n for n in dataset if n not in in_complexes or n in ids)))
    return [
        partial(read, name) for read, of_kind in names for name in of_kind if not ids or name in ids
    ]
