"""The hidden layer of a transition's backward pass in Gluon for Hopper GPUs."""
