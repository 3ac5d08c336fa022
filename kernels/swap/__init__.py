"""`to_fused` and `to_torch`: fused forms of modules, and the rules that find them."""
