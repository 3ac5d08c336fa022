"""Recording calls as CUDA graphs and replaying them."""
