"""Contrastive losses over posteriors, all with the signature ``loss(anchor, positive, negative=None)``."""

from aureole.losses.closed_form import ClosedFormInfoNCE, closed_form_infonce
from aureole.losses.contrastive import ContrastiveLoss, profile_kappa_pos
from aureole.losses.elk import ELK, elk
from aureole.losses.hedged import HedgedInstance, hedged_instance
from aureole.losses.infonce import InfoNCE, infonce
from aureole.losses.mcinfonce import MCInfoNCE, mcinfonce
from aureole.losses.negatives import Negatives, gather_posteriors, resolve_negatives

__all__ = [
    "ELK",
    "ClosedFormInfoNCE",
    "ContrastiveLoss",
    "HedgedInstance",
    "InfoNCE",
    "MCInfoNCE",
    "Negatives",
    "closed_form_infonce",
    "elk",
    "gather_posteriors",
    "hedged_instance",
    "infonce",
    "mcinfonce",
    "profile_kappa_pos",
    "resolve_negatives",
]
