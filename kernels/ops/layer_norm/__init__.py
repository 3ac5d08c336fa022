"""Layer norm over the last axis: `layer_norm`."""
