"""Credible retrieval: a query's posterior decides how many results it gets, on real vector engines."""

from aureole.retrieval.conformal import ConformalMass
from aureole.retrieval.credible import cap_cosine, too_wide, union_cosines
from aureole.retrieval.index import CredibleIndex, Hits, Recall
from aureole.retrieval.scores import class_entropy, latent_in_cap, positive_probability

__all__ = [
    "ConformalMass",
    "CredibleIndex",
    "Hits",
    "Recall",
    "cap_cosine",
    "class_entropy",
    "latent_in_cap",
    "positive_probability",
    "too_wide",
    "union_cosines",
]
