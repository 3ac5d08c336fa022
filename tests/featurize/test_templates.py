"""Template hits as files have them, which of them become templates, and where residues go."""

from __future__ import annotations

import dataclasses
import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from tests.conftest import golden_files
from tests.featurize.golden import INPUTS, openfold_record, sources

from evofeed.base.errors import TemplateError
from evofeed.featurize import FeaturizeConfig, featurize_chain
from evofeed.featurize.formats.hits import TemplateHit, parse_hhr, parse_hmmsearch
from evofeed.featurize.formats.reading import file_ref, read_bytes
from evofeed.featurize.records.template_library import TemplateLibrary
from evofeed.featurize.records.template_match import match_hit
from evofeed.featurize.records.templates import (
    TemplateQuery,
    featurize_templates,
    prefilter,
    template_cutoff,
)
from evofeed.featurize.structures.structure import Chain, Structure
from evofeed.synth import write_synthetic

QUERY = "MKTAYIAKQRQISFVKSHFSRQ"
CONFIG = FeaturizeConfig()


def hit(
    name: str = "1abc_A",
    query: str = QUERY[2:16],
    letters: str = "TAYIGKQRQISFVK",
    start: int = 2,
    sum_probs: float = 9.0,
) -> TemplateHit:
    pieces = ((query, start),), ((letters, 5),)
    return TemplateHit(1, name, len(letters), sum_probs, query, letters, *pieces)


def structure(sequences: dict[str, str], date: str = "2001-01-01") -> Structure:
    def place(name: str) -> Chain:
        size = len(sequences[name])
        positions = np.zeros([size, 37, 3], np.float32)
        positions[:, :5] = np.arange(size, dtype=np.float32)[:, None, None]
        mask = np.zeros([size, 37], np.uint8)
        mask[:, :5] = 1
        return Chain(name, sequences[name], positions, mask, np.ones(size, bool))

    return Structure("1abc", "x-ray", date, 1.0, sequences, place)


class Shelf(TemplateLibrary):
    """A library of structures that need no files."""

    def __init__(self, entries: dict[str, Structure]) -> None:
        super().__init__("/nowhere", CONFIG)
        self.entries = entries

    def structure(self, pdb_id: str) -> Structure:
        if pdb_id not in self.entries:
            raise TemplateError("no structure file")
        return self.entries[pdb_id]


PIECE = "TAYIGKQRQISFVK"


@pytest.mark.parametrize(
    ("chains", "chain", "offset"),
    [
        ({"A": "GG" + PIECE, "B": PIECE}, "A", 2),
        ({"B": "G" + PIECE}, "B", 1),
        ({"A": "GGG", "C": "GG" + PIECE.replace("Q", "X")}, "C", 2),
    ],
)
def test_a_hit_is_found_in_its_chain_in_any_chain_and_through_unknown_letters(
    chains: dict[str, str], chain: str, offset: int
) -> None:
    match = match_hit(hit(), "A", QUERY, structure(chains), CONFIG)
    assert match.chain_id == chain
    assert match.query.tolist() == list(range(2, 16))
    assert match.template.tolist() == list(range(offset, offset + 14))
    assert match.letters == PIECE


def test_a_changed_sequence_is_realigned_if_it_is_nearly_the_same() -> None:
    changed = "GGGG" + PIECE[:7] + "W" + PIECE[7:]  # one residue more
    match = match_hit(hit(), "A", QUERY, structure({"A": changed}), CONFIG)
    assert match.letters == PIECE
    assert match.template.tolist() == [*range(4, 11), *range(12, 19)]
    shorter = structure({"A": "GGGG" + PIECE[:7] + PIECE[8:]})  # one residue less
    match = match_hit(hit(), "A", QUERY, shorter, CONFIG)
    assert match.letters == PIECE[:7] + PIECE[8:] and len(match.query) == 13
    theirs = match_hit(hit(), "A", QUERY, shorter, FeaturizeConfig.openfold())
    assert theirs.letters == PIECE[:7] + PIECE[-1] + PIECE[8:] and theirs.template[7] == -1
    other = structure({"A": "GWGWGWGWGWGWGWGWGWGW"})
    with pytest.raises(TemplateError, match="identical"):
        match_hit(hit(), "A", QUERY, other, CONFIG)
    with pytest.raises(TemplateError, match="no protein chain"):
        match_hit(hit(), "Z", QUERY, structure({"A": "GG", "B": "WW"}), CONFIG)
    alone = structure({"A": changed})
    assert match_hit(hit(), "Z", QUERY, alone, CONFIG).chain_id == "A"
    with pytest.raises(TemplateError, match="no protein chain"):
        match_hit(hit(), "Z", QUERY, alone, FeaturizeConfig.openfold())


def test_repeats_are_placed_by_the_files_numbers_where_openfold_takes_the_first() -> None:
    query = "ACDEFGHIKLMN" * 2
    second = hit(query="ACDEFGHIKLMN", letters="ACDEFGHIKLMN", start=12)
    entry = structure({"A": "ACDEFGHIKLMN"})
    ours = match_hit(second, "A", query, entry, CONFIG)
    theirs = match_hit(second, "A", query, entry, FeaturizeConfig.openfold())
    assert ours.query.tolist() == list(range(12, 24))
    assert theirs.query.tolist() == list(range(12))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, ""),
        ({"name": "odd name"}, "<pdb id>_<chain>"),
        ({"name": "9que_B"}, "own entry"),
        ({"letters": QUERY[2:4] + "-" * 12}, "short"),
        ({"letters": QUERY, "query": QUERY, "start": 0}, "piece of the query"),
    ],
)
def test_the_prefilter_gives_its_reason(changes: dict[str, str], reason: str) -> None:
    made = hit(**changes)  # type: ignore[arg-type]
    query = TemplateQuery(QUERY, entry_id="9QUE")
    got = prefilter(made, query, Shelf({}), "2021-10-10", CONFIG)
    assert reason in got and bool(reason) == bool(got)
    few = dataclasses.replace(made, aligned_cols=1)
    if not reason:
        assert "aligned" in prefilter(few, query, Shelf({}), "2021-10-10", CONFIG)
    own = FeaturizeConfig.openfold()
    if "own" in reason:
        assert prefilter(made, query, Shelf({}), "2021-10-10", own) == ""


def test_templates_are_older_than_the_query_by_sixty_days() -> None:
    assert template_cutoff(TemplateQuery(QUERY, release_date="2000-03-01"), CONFIG) == "2000-01-01"
    assert template_cutoff(TemplateQuery(QUERY, release_date="2030-03-01"), CONFIG) == "2021-10-10"
    assert template_cutoff(TemplateQuery(QUERY), CONFIG) == "2021-10-10"
    openfold = FeaturizeConfig.openfold()
    assert (
        template_cutoff(TemplateQuery(QUERY, release_date="2000-03-01"), openfold) == "2021-10-10"
    )


def test_skipped_hits_are_counted_with_their_reason() -> None:
    entries = {
        "1abc": structure({"A": PIECE}),
        "2new": structure({"A": PIECE}, date="2022-01-01"),
        "3und": structure({"A": PIECE}, date=""),
        "4gap": structure({"A": PIECE}),
    }
    names = enumerate((*entries, "5not", "4gap"))
    hits = [hit(f"{name}_A", sum_probs=float(p)) for p, name in names]
    templates, dropped = featurize_templates(hits, TemplateQuery(QUERY), Shelf(entries), CONFIG)
    assert [t.name for t in templates] == ["4gap_A"]  # the best of equal sequences
    text = "\n".join(dropped)
    for reason in ("too late", "when it was released", "no structure file", "same aligned"):
        assert reason in text
    assert "2 template hits passed over" in text
    (template,) = templates
    assert template.sequence == "--" + PIECE + "-" * 6
    seen = template.mask > 0
    assert abs(template.positions[seen].mean()) < 1e-5  # centred on the whole chain
    assert template.center.tolist() == [6.5, 6.5, 6.5]


def test_a_deposition_date_does_not_pass_a_cut_off_on_release_dates() -> None:
    entry = dataclasses.replace(structure({"A": PIECE}), is_deposition=True)
    shelf = Shelf({"1abc": entry})

    def found() -> tuple[list[str], str]:
        templates, dropped = featurize_templates([hit()], TemplateQuery(QUERY), shelf, CONFIG)
        return [template.release_date for template in templates], "\n".join(dropped)

    dates, why = found()
    assert not dates and "only when it was deposited; mmcif_cache.json" in why
    shelf.release_dates = {"1abc": "2001-09-01"}
    assert found() == (["2001-09-01"], "")
    shelf.release_dates = {"1abc": "2022-01-01"}
    dates, why = found()
    assert not dates and "released too late" in why


def test_a_structure_is_parsed_once_however_many_hits_it_has(golden: Path) -> None:
    source = next(s for s in sources().values() if openfold_record(s.chain_id).num_templates > 2)
    library = TemplateLibrary(str(INPUTS[0] / "template_mmcif"), CONFIG)
    first = featurize_chain(source, library=library)
    parsed = library.parsed
    again = featurize_chain(source, library=library)
    assert library.parsed == parsed > 0
    assert first.template_domain_names == again.template_domain_names
    assert np.array_equal(first.template_all_atom_positions, again.template_all_atom_positions)


def test_recently_used_structures_are_cached_within_a_cap_in_bytes(tmp_path: Path) -> None:
    write_synthetic(tmp_path / "raw", 3, seed=1, mean_length=40, mean_depth=16)
    folder = tmp_path / "raw" / "mmcif"
    sizes = {path.stem: path.stat().st_size for path in sorted(folder.glob("*.cif"))}
    first, second, third = list(sizes)[:3]
    cap = sizes[first] + sizes[second] + sizes[third] - 1
    library = TemplateLibrary(str(folder), CONFIG, cache_nbytes=cap)
    for name in (first, second, first, third, first):
        library.structure(name)
    assert library.parsed == 3
    library.structure(second)
    assert library.parsed == 4
    tiny = TemplateLibrary(str(folder), CONFIG, cache_nbytes=1)
    assert tiny.structure(first) is tiny.structure(first)


def test_broken_structures_are_skipped(tmp_path: Path, golden: Path) -> None:
    source = next(s for s in sources().values() if openfold_record(s.chain_id).num_templates > 2)
    best = openfold_record(source.chain_id).template_domain_names[0]
    for path in (INPUTS[0] / "template_mmcif").iterdir():
        data = path.read_bytes()
        broken = path.name.partition(".")[0] == best.partition("_")[0]
        (tmp_path / path.name).write_bytes(data[: len(data) // 3] if broken else data)
    any_entry = FeaturizeConfig(exclude_same_pdb=False, released_before_days=None)
    here = dataclasses.replace(source, template_mmcif_dir=str(tmp_path))
    record = featurize_chain(here, any_entry)
    assert best not in record.template_domain_names and record.num_templates > 1
    assert "broken structure file" in " ".join(record.dropped)


HITS = golden_files("data/golden/*.hits.*.json.gz")


@pytest.mark.parametrize("path", HITS, ids=lambda path: path.name)
def test_every_hit_equals_openfolds(path: Path, golden: Path) -> None:
    chain_id, _, file = path.name.removesuffix(".json.gz").partition(".hits.")
    (packed,) = (INPUTS[0] / "alignments" / chain_id).glob(f"{file}*")
    data = read_bytes(file_ref(packed))
    if file.endswith(".hhr"):
        hits = parse_hhr(data, old_hhr=False)
    else:
        hits = parse_hmmsearch(data, openfold_record(chain_id).sequence)
    want = json.loads(gzip.decompress(path.read_bytes()))
    assert want
    for hit, theirs in zip(hits, want, strict=True):
        assert {name: getattr(hit, name) for name in theirs} == theirs


HHR = Path(__file__).with_name("data").joinpath("old.hhr").read_bytes()


def test_old_hhr_files_without_neff_are_read_but_not_by_openfold() -> None:
    (hit,) = parse_hhr(HHR)
    assert (hit.aligned_cols, hit.sum_probs, hit.query) == (6, 5.5, "ACD-EFG")
    assert hit.indices_query == [2, 3, 4, -1, 5, 6, 7]
    assert hit.indices_hit == [10, 11, -1, 12, 13, 14, 15]
    with pytest.raises(TemplateError, match="Template_Neff"):
        parse_hhr(HHR, old_hhr=False)


def test_hits_that_are_not_proteins_are_skipped() -> None:
    text = b"""# STOCKHOLM 1.0
#=GS 1abc_A/3-6 DE [subseq from] mol:protein length:9 Thing
#=GS 2def_B/1-4 DE [subseq from] mol:na length:9 DNA
1abc_A/3-6  A.-CDx
2def_B/1-4  ACGT..
//
"""
    (hit,) = parse_hmmsearch(text, "ACCD")
    assert (hit.name, hit.hit_sequence, hit.aligned_cols) == ("1abc_A", "A-CDX", 3)
    assert hit.indices_hit == [2, -1, 3, 4]
