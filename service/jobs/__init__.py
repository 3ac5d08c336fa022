"""Featurize jobs: their queue, the thread that starts them and the process that runs one."""
