"""Other people's files: OpenFold's and AF2's weights."""
