"""The gradient's way from rank to rank: one all-reduce, or less over the wires between hosts."""
