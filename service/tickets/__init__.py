"""Searches by the protocol of ColabFold's MSA server: asked for now, fetched later."""
