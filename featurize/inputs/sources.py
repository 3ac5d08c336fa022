"""`ChainSource`: the input files of one chain, and the role of each."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal

from evofeed.base.errors import InputError
from evofeed.featurize.config import FeaturizeConfig
from evofeed.featurize.formats.reading import FileRef, entry_kind, file_ref, is_text

Role = Literal["a3m", "stockholm", "hhr", "hmmsearch", "other"]

_HMMSEARCH_STEMS: Final = ("hmm_output", "hmmsearch_output", "pdb_hits")
_PAIRING: Final = ("uniprot_hits.sto",)
_PAIRING_ELSEWHERE: Final = ("uniprot_hits.a3m", "uniprot.sto", "uniprot.a3m")
"""Alignments for pairing chains of a complex; never part of a monomer's MSA."""
_HITS_AS_A3M: Final = ("hmmsearch.a3m",)
"""Template hits as Protenix writes them: neither an alignment of homologs nor a table of hits."""
_UNREAD: Final = {
    **dict.fromkeys(_PAIRING + _PAIRING_ELSEWHERE, "for pairing the chains of a complex, not read"),
    **dict.fromkeys(_HITS_AS_A3M, "template hits in a form that is not read"),
}
SUBFOLDERS: Final = ("a3m", "hhr", "msas")
"""Folders inside a chain's folder: OpenProteinSet's two, and AlphaFold's."""
_ALIGNMENT_SUFFIXES: Final = (".a3m", ".sto", ".hhr")


def is_alignment(name: str) -> bool:
    """True for the name of an alignment or of template hits, compressed or not."""
    return file_ref(name).plain_name.endswith(_ALIGNMENT_SUFFIXES)


def why_unread(name: str) -> str:
    """Reason why an alignment of this name, without compression suffix, is not read; else empty."""
    return _UNREAD.get(name, "")


@dataclass(frozen=True, slots=True)
class ChainSource:
    """One chain to featurize, as `discover` returns it. Small, picklable, JSON-ready.

    Attributes:
        chain_id: name of the record, usually `<entry>_<author's chain id>`.
        alignment_dir: folder of its alignments and template hits.
        fasta: file with its sequence, where there is no structure.
        template_mmcif_dir: folder of `<pdb id>.cif` for its template hits.
        release_dates: `mmcif_cache.json`: dates of template entries without parsing them.
        obsolete_pdbs: the PDB's `obsolete.dat`.
        alignments: instead of a folder: files or spans of a db.
        structure_chain: author's chain id; the part of `chain_id` after the last `_` if empty.
        is_distillation: the structure is a prediction; its B factors are pLDDT.
        assembly: file of the job with the chain's complex.
        copies: chain ids of its copies in the complex.
        notes: a line on each part of its input that is left out; they are stored in the record.
    """

    chain_id: str
    alignment_dir: str | None = None
    structure: str | None = None
    fasta: str | None = None
    template_mmcif_dir: str | None = None
    release_dates: str | None = None
    obsolete_pdbs: str | None = None
    alignments: tuple[FileRef, ...] = ()
    structure_chain: str = ""
    sequence: str = ""
    description: str = ""
    is_distillation: bool = False
    assembly: str = ""
    copies: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def entry_id(self) -> str:
        """The part of `chain_id` before the last `_`."""
        return self.chain_id.rpartition("_")[0] or self.chain_id

    @property
    def author_chain(self) -> str:
        """Its chain id in the structure."""
        return self.structure_chain or self.chain_id.rpartition("_")[2]

    def structure_ref(self) -> FileRef | None:
        """The structure as an input to read."""
        return None if self.structure is None else file_ref(self.structure)

    def alignment_files(self, config: FeaturizeConfig | None = None) -> list[tuple[Role, FileRef]]:
        """Its alignments and hits by file name, which is independent of the file system's order."""
        config = config or FeaturizeConfig()
        refs = list(self.alignments) or list(self._files_in_dir(config.subfolders))
        in_db = bool(self.alignments)
        refs.sort(key=lambda ref: (ref.name, ref.path, ref.offset, ref.part))
        return [(role_of(ref.plain_name, config, in_db), ref) for ref in refs]

    def _files_in_dir(self, subfolders: bool) -> Iterator[FileRef]:
        if self.alignment_dir is None:
            return
        for entry in self._entries(self.alignment_dir):
            if subfolders and entry.name in SUBFOLDERS and entry_kind(entry) == "dir":
                yield from (file_ref(e.path) for e in self._entries(entry.path) if self._is_file(e))
            elif self._is_file(entry):
                yield file_ref(entry.path)

    def _entries(self, folder: str) -> list[os.DirEntry[str]]:
        try:
            return list(os.scandir(folder))
        except OSError as error:
            raise InputError(
                f"alignment folder cannot be listed: {error.strerror}",
                path=folder,
                item=self.chain_id,
            ) from None

    def _is_file(self, entry: os.DirEntry[str]) -> bool:
        """True for a file with a UTF-8 name; raises for an alignment that is not one."""
        if not is_text(entry.name) and is_alignment(entry.name):
            name = entry.path.encode(errors="replace").decode()
            raise InputError("not UTF-8: rename it", path=name, item=self.chain_id)
        if (kind := entry_kind(entry)) == "file":
            return is_text(entry.name)
        if is_alignment(entry.name) and kind != "dir":
            fault = "a link to nothing" if entry.is_symlink() else "not a regular file"
            raise InputError(f"{fault}: fix or remove it", path=entry.path, item=self.chain_id)
        return False

    def nbytes(self) -> int:
        """Bytes of its inputs on disk: a cheap estimate of its work."""
        total = sum(ref.nbytes() for role, ref in self.alignment_files() if role != "other")
        structure = self.structure_ref()
        return total + (structure.nbytes() if structure else 0)

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON-ready values."""
        return dataclasses.asdict(self)


def role_of(name: str, config: FeaturizeConfig, in_db: bool = False) -> Role:
    """Role of a file of a chain's folder, by its name without compression suffix."""
    stem, _, suffix = name.rpartition(".")
    unread = _PAIRING if config.hit_names == "openfold" else tuple(_UNREAD)
    if name in unread:
        return "other"
    if suffix == "a3m":
        return "a3m"
    if suffix == "hhr":
        return "hhr"
    if suffix != "sto":
        return "other"
    if config.hit_names == "any":
        return "hmmsearch" if stem in _HMMSEARCH_STEMS else "stockholm"
    if stem == ("hmmsearch_output" if in_db else "hmm_output"):
        return "hmmsearch"
    return "other" if stem == "hmm_output" else "stockholm"
