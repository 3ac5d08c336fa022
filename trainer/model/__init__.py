"""The AlphaFold2 monomer model: one module per block of the supplement, `alphafold.py` on top."""
