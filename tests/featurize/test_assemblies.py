"""Complexes from raw files: equal to OpenFold's recordings, and clear about what they lack."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from tests.conftest import golden_files
from tests.featurize.test_readers import write

from evofeed.base.errors import InputError, LoneChain
from evofeed.featurize import (
    ChainSource,
    FeaturizeConfig,
    assembly_sources,
    discover,
    featurize_assembly,
    featurize_chain,
)
from evofeed.featurize.formats.species import pairing_species
from evofeed.featurize.records.assemblies import pairing_record, pairing_ref
from evofeed.protein.assembly_record import AssemblyRecord
from evofeed.protein.chain_record import ChainRecord
from evofeed.protein.residues import RESTYPE_TO_HHBLITS, RESTYPES

CHAINS = golden_files("multimer/data/golden/*.chain.*.npz")
ASSEMBLIES = golden_files("multimer/data/golden/*.assembly.npz")
INPUTS = golden_files("multimer/data/inputs")
OPENFOLD = FeaturizeConfig.openfold(require_release_date=False)


@functools.cache
def sources() -> dict[str, ChainSource]:
    templates = INPUTS[0] / "template_mmcif"
    folder = templates if templates.exists() else None
    found = discover(INPUTS[0], template_mmcif_dir=folder, problems=[])
    return {source.chain_id: source for source in found}


@functools.cache
def record(chain_id: str) -> ChainRecord:
    return featurize_chain(sources()[chain_id], OPENFOLD)


def meta_of(path: Path) -> dict[str, str]:
    with np.load(path) as arrays:
        found: dict[str, str] = json.loads(str(arrays["meta"]))
        return found


@pytest.mark.parametrize("path", CHAINS, ids=lambda path: path.name)
def test_a_chain_and_its_rows_to_pair_are_the_recorded_ones(path: Path, golden: Path) -> None:
    want, name = dict(np.load(path)), meta_of(path)["ali"]
    chain = record(name)
    assert np.array_equal(RESTYPE_TO_HHBLITS[chain.msa], want["raw.msa"])
    assert np.array_equal(chain.deletion_matrix(), want["raw.deletion_matrix_int"])
    assert [s.encode() for s in chain.msa_species] == want["raw.msa_species_identifiers"].tolist()
    if "raw.msa_all_seq" not in want:
        return
    ref = pairing_ref(sources()[name], OPENFOLD)
    assert ref is not None
    rows = pairing_record(chain, ref, OPENFOLD)
    assert np.array_equal(RESTYPE_TO_HHBLITS[rows.msa], want["raw.msa_all_seq"])
    assert np.array_equal(rows.deletion_matrix(), want["raw.deletion_matrix_int_all_seq"])
    species = want["raw.msa_species_identifiers_all_seq"].tolist()
    assert [s.encode() for s in rows.msa_species] == species
    ours = pairing_record(chain, ref, FeaturizeConfig())
    assert all(a == b or not b for a, b in zip(ours.msa_species, rows.msa_species, strict=True))


def entries() -> list[str]:
    """Recorded complexes that are the chains of one mmCIF file as they lie."""
    found = []
    for path in ASSEMBLIES:
        meta = meta_of(path)
        if meta["mode"] == "mmcif" and not any("R" in c for c in meta["chains"]):  # type: ignore[comparison-overlap]
            found.append(meta["name"])
    return found


@pytest.mark.parametrize("name", entries())
def test_an_entry_is_the_recorded_complex(name: str, golden: Path) -> None:
    (source,) = [a for a in assembly_sources(sources().values()) if a.assembly_id == name]
    made = featurize_assembly(source, record, OPENFOLD)
    home = INPUTS[0].parent / "golden"
    example = dict(np.load(home / f"{name}.np_example.npz"))
    steps = dict(np.load(home / f"{name}.assembly.npz"))
    keys = json.loads(str(steps["meta"]))["keys"]
    assert np.array_equal(made.all_atom_positions, example["fixed.all_atom_positions"])
    assert np.array_equal(made.all_atom_mask, example["fixed.all_atom_mask"])
    assert np.array_equal(made.asym_id(), example["np.asym_id"])
    copies = [sum(key.split("_")[0] == letter for key in keys) for letter in _letters(keys)]
    assert [len(names) for names in made.copies] == copies
    aatype = np.concatenate(
        [c.aatype for c, names in zip(made.chains, made.copies, strict=True) for _ in names]
    )
    assert np.array_equal(aatype, example["np.aatype"])
    assert made.resolution == pytest.approx(float(example["np.resolution"]))
    assert (made.num_interface > 0) and made.num_chains == len(keys)


def _letters(keys: list[str]) -> list[str]:
    return list(dict.fromkeys(key.split("_")[0] for key in keys))


QUERY_A, QUERY_B = "MKVLAAGICD", "GSTWYRRKLE"


def fasta_folder(tmp_path: Path, **alignments: str) -> Path:
    rows = {f"{name}/uniref90_hits.a3m": f">q\n{text}\n" for name, text in alignments.items()}
    pair = f">one\n{QUERY_A}\n>two\n{QUERY_B}\n>three\n{QUERY_A}\n"
    return write(tmp_path, rows | {"pair.fasta": pair}) / "pair.fasta"


def featurized(
    path: Path, fasta: str = "", problems: list[InputError] | None = None
) -> AssemblyRecord:
    """The one complex of an input; faults go to `problems` if it is given."""
    found = discover(path, problems=problems)
    (assembly,) = assembly_sources(found, fasta, problems or ())
    records = {source.chain_id: featurize_chain(source) for source in found}
    return featurize_assembly(assembly, records.__getitem__)


COMPLEXES = yaml.safe_load(Path(__file__).with_name("data").joinpath("complexes.yaml").read_text())


@pytest.mark.parametrize("case", COMPLEXES)
def test_files_of_a_folder_are_this_complex_with_these_rows_to_pair(
    case: str, tmp_path: Path
) -> None:
    row = COMPLEXES[case]
    texts = {name: text for name, text in row["files"].items() if isinstance(text, str)}
    write(tmp_path, texts)
    for name in row["files"].keys() - texts.keys():
        pq.write_table(pa.table(row["files"][name]), tmp_path / name)
    path = tmp_path / row.get("given", "")
    made = featurized(path, str(path) if path.suffix == ".fasta" else "")
    assert (made.assembly_id, made.stoichiometry) == (row["name"], row["stoichiometry"])
    assert [list(names) for names in made.copies] == row["copies"]
    assert [list(rows.msa_species) for rows in made.pairing if rows] == row["species"]
    depths = [chain.num_alignments for chain in made.chains]
    assert depths == row.get("rows", depths)
    letters = [
        ["".join((RESTYPES + "X-")[code] for code in one) for one in rows.msa]
        for rows in made.pairing
        if rows
    ]
    assert letters == row.get("letters", letters)
    said = " ".join(
        [*made.dropped, *(note for rows in made.pairing if rows for note in rows.dropped)]
    )
    assert all(words in said for words in row.get("said", []))
    assert made.all_atom_positions is None


@pytest.mark.parametrize(
    ("header", "species"),
    [
        ("tr|A0A146SKV9|A0A146SKV9_FUNHE/1-148", "FUNHE"),
        ("tr|A0A146SKV9|A0A146SKV9_FUNHE OS=x OX=8078 GN=y", "FUNHE"),
        ("UniRef90_P61626 Lysozyme n=1 Tax=Homo sapiens TaxID=9606 RepID=x", "9606"),
        ("UniRef100_UPI00186459A6_118141/\t154\t0.287", "118141"),
        ("UniRef100_A0A009", ""),
        ("query", ""),
        ("", ""),
    ],
)
def test_species_are_read_from_headers(header: str, species: str) -> None:
    assert pairing_species(header) == species


def of_chains(*ids: list[str]) -> str:
    """A job of AlphaFold 3 whose chains are called so."""
    letters = zip(ids, (QUERY_A, QUERY_B), strict=True)
    chains = [{"protein": {"id": own, "sequence": sequence}} for own, sequence in letters]
    return json.dumps({"name": "x", "sequences": chains})


def of_copies(count: int) -> str:
    """A job of Protenix with so many copies of a chain."""
    chain = {"proteinChain": {"sequence": QUERY_A, "count": count}}
    return json.dumps([{"name": "x", "sequences": [chain]}])


@pytest.mark.parametrize(
    ("text", "match"),
    [
        (of_chains(["A", "B"], ["B"]), "x: several chains are called B"),
        (of_chains(["A"], ["A"]), "x_A is broken: there twice"),
        (of_chains(["A"], ["?"]), "one chain of it|is not a chain id"),
        (of_chains([f"A{n}" for n in range(600)], ["B"]), "601 chains, more than 512"),
        *((of_copies(count), f"count {count}: must be 1 to") for count in (0, -3, 10**9)),
        *((f"#10\t{n}\n>q\n{QUERY_A}\n", f"{n} chains, more than 512") for n in (10**9, 10**30)),
        (f">one\n{QUERY_A}\n", "x: .*sample of its own"),
    ],
    ids=lambda text: text[:40],
)
def test_a_complex_with_too_few_or_too_many_chains_is_refused_without_allocating(
    tmp_path: Path, text: str, match: str
) -> None:
    suffix = {"#": "a3m", ">": "fasta"}.get(text[0], "json")
    path = write(tmp_path, {f"x.{suffix}": text}) / f"x.{suffix}"
    with pytest.raises(LoneChain if text[0] == ">" else InputError, match=match):
        featurized(path, str(path) if text[0] == ">" else "", None if "count" in text else [])
