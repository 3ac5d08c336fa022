"""What clients send: bytes received and checked, and the snapshots made of them."""
