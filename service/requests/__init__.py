"""What every request passes on its way to a route, and its answer on the way back."""
