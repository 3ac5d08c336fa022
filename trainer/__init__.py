"""The AlphaFold2 monomer model and its DDP trainer."""

__all__: list[str] = []
