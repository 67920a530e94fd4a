"""Credible retrieval: a query's posterior decides how many results it gets, on real vector engines."""
