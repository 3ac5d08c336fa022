"""Linear layers of a few hundred rows, in float32."""
