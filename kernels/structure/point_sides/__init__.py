"""From projections of a residue to what invariant point attention multiplies."""
