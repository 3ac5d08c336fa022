"""From a chain and a checkpoint to a structure, its confidence and a picture."""
