"""AlphaFold2's feature transforms as pure functions in torch, for any device."""
