"""Experiments: each table or figure of the paper, and ours, from one command."""
