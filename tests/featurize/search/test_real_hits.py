"""pyhmmer compared with HMMER's programs, on recorded sequences.

A separate file, since tests that read the recorded pack run again with the small one.
"""

from __future__ import annotations

from pathlib import Path

from tests.featurize.golden import INPUTS
from tests.featurize.search.family import fasta, require_programs
from tests.featurize.search.test_programs import jackhmmer

from evofeed.featurize.formats.reading import file_ref, read_bytes
from evofeed.featurize.search import hmmer, read_any


def test_hits_have_the_names_and_rows_of_jackhmmers_on_real_sequences(
    tmp_path: Path, golden: Path
) -> None:
    require_programs()
    files = (("ofquery", "uniref90_hits.sto"), ("P61626", "mgnify_hits.sto"))
    real: dict[str, str] = {}
    queries = []
    for name, file in files:
        (packed,) = (Path(INPUTS[0]) / "alignments" / name).glob(f"{file}*")
        rows = read_any(read_bytes(file_ref(packed)))
        sequences = [row.letters.replace("-", "").upper() for row in rows]
        queries.append(sequences[0])
        for number, sequence in enumerate(sequences):
            real.setdefault(sequence, f"{name}_{number}")
    db = fasta(tmp_path / "real.fasta", [(name, sequence) for sequence, name in real.items()])
    for sequence in queries:
        text = hmmer.jackhmmer(sequence, db, threads=1, e_value=1e-4, iterations=1)
        expected = jackhmmer(tmp_path, sequence, db)
        aligned = [
            [(r.name, r.letters) for r in read_any(alignment)] for alignment in (text, expected)
        ]
        assert aligned[0] == aligned[1] and len(aligned[0]) > 20
