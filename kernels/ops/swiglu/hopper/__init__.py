"""The weights' gradients of a SwiGLU transition in Gluon for Hopper GPUs."""
