"""Settings: documented, refused when senseless, told apart by a digest, and what they choose."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from tests.featurize.test_readers import write

from evofeed.base.errors import InputError, MsaError
from evofeed.featurize import (
    ChainSource,
    CropConfig,
    FeaturizeConfig,
    discover,
    featurize_chain,
)
from evofeed.featurize.inputs.sources import role_of

ROOT = Path(__file__).resolve().parents[2]
OURS, THEIRS = FeaturizeConfig(), FeaturizeConfig.openfold()


def test_every_deviation_from_openfold_is_documented() -> None:
    page = (ROOT / "featurize" / "INPUTS.md").read_text()
    known = [field.name for field in dataclasses.fields(FeaturizeConfig)]
    differing = [name for name in known if getattr(OURS, name) != getattr(THEIRS, name)]
    assert len(differing) >= 16
    for name in differing:
        assert f"| `{name}` |" in page, f"{name} differs from OpenFold but INPUTS.md is silent"
    listed = [
        line.split("`")[1] for line in page.splitlines() if line.startswith("| `") and "|" in line
    ]
    assert set(differing) == set(known).intersection(listed)


@pytest.mark.parametrize(
    ("config", "changes"),
    [
        *((FeaturizeConfig, {"max_template_date": date}) for date in ("yesterday", "2021")),
        *((kind, {"max_templates": -1}) for kind in (FeaturizeConfig, CropConfig)),
        *((CropConfig, {name: 0}) for name in ("max_msa_rows", "msa_budget")),
    ],
)
def test_invalid_settings_raise_value_error(config: Any, changes: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        config(**changes)


def test_the_digest_depends_on_every_setting() -> None:
    digests = {one.digest for one in (OURS, THEIRS, FeaturizeConfig(max_templates=3))}
    assert len(digests) == 3 and FeaturizeConfig().digest in digests
    assert CropConfig().digest != CropConfig(seed=1).digest


@pytest.mark.parametrize(
    ("name", "in_db", "ours", "theirs"),
    [
        ("bfd_uniclust_hits.a3m", False, "a3m", "a3m"),
        ("uniref90_hits.sto", False, "stockholm", "stockholm"),
        ("uniprot_hits.sto", False, "other", "other"),
        ("pdb70_hits.hhr", True, "hhr", "hhr"),
        ("hmm_output.sto", False, "hmmsearch", "hmmsearch"),
        ("hmm_output.sto", True, "hmmsearch", "other"),
        ("hmmsearch_output.sto", False, "hmmsearch", "stockholm"),
        ("hmmsearch_output.sto", True, "hmmsearch", "hmmsearch"),
        ("pdb_hits.sto", False, "hmmsearch", "stockholm"),
        ("embedding.pt", False, "other", "other"),
    ],
)
def test_a_file_name_gives_its_role(name: str, in_db: bool, ours: str, theirs: str) -> None:
    assert (role_of(name, OURS, in_db), role_of(name, THEIRS, in_db)) == (ours, theirs)


def chain_folder(root: Path, **files: str) -> ChainSource:
    named = {n.replace("__", "/").replace("_a3m", ".a3m"): text for n, text in files.items()}
    write(root / "alignments" / "1abc_A", named)
    (source,) = discover(root)
    return source


def test_rows_come_in_order_of_file_names_whenever_the_files_were_made(tmp_path: Path) -> None:
    source = chain_folder(
        tmp_path, z_a3m=">q\nACDE\n>z\nACDF\n", b_a3m=">q\nACDE\n>b\nACDG\n", a_a3m=">q\nACDE\n"
    )
    record = featurize_chain(source)
    assert record.msa_sources == ("a.a3m", "b.a3m", "z.a3m")
    assert record.msa_source.tolist() == [0, 1, 2]  # the query once, from the first file
    assert [row[-1] for row in record.msa.tolist()] == [6, 7, 13]  # E, G, F


def test_openproteinsets_folders_are_empty_to_openfold(tmp_path: Path) -> None:
    source = chain_folder(tmp_path, a3m__x_a3m=">q\nACDE\n>r\nACDF\n")
    assert len(featurize_chain(source).msa) == 2
    with pytest.raises(InputError, match="nothing to featurize"):
        featurize_chain(source, THEIRS)


def test_an_alignment_of_another_protein_is_refused_and_of_a_variant_noted(tmp_path: Path) -> None:
    source = chain_folder(tmp_path, x_a3m=">q\nACDE\n")
    fasta = tmp_path / "q.fasta"
    for sequence, why in (("ACDEF", "do not belong together"), ("ACDW", "")):
        fasta.write_text(f">1abc_A\n{sequence}\n")
        other = ChainSource("1abc_A", alignment_dir=source.alignment_dir, fasta=str(fasta))
        if why:
            with pytest.raises(MsaError, match=why):
                featurize_chain(other)
        else:
            assert "x.a3m: the query differs from the chain in 1 letters" in (
                featurize_chain(other).dropped
            )
