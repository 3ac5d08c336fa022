"""From a folder of mmCIF files to a training set: searched, clustered, divided, described."""
