"""The experiments of the paper, their data sets and their reports; adds ``aureole reproduce``."""
