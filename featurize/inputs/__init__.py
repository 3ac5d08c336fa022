"""What an input holds: layouts, the files of each chain, and where they lie."""
