"""Triangle multiplication, outgoing and incoming: `triangle_multiplication`."""
