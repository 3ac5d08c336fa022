"""A SwiGLU transition that another tensor conditions: `conditioned_transition`."""
