"""A SwiGLU transition conditioned on another tensor: `conditioned_transition`."""
