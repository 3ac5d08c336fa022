"""The AlphaFold2 models of chains and complexes: a module per block, `alphafold.py` on top."""
