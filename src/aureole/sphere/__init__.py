"""Pure functions on the unit sphere in R^D: Bessel functions, normalisers, the law of the cosine, geometry."""

from aureole.sphere._bessel import log_bessel_i
from aureole.sphere._cosine import cap_angle, cap_mass, cosine_cdf, cosine_log_pdf, cosine_quantile
from aureole.sphere._geometry import align, normalize
from aureole.sphere._normalizer import (
    entropy,
    information,
    inverse_mean_resultant_length,
    log_normalizer,
    log_scaled_normalizer,
    log_sphere_area,
    mean_resultant_length,
    mean_resultant_slope,
)
from aureole.sphere._positivity import log_positivity
from aureole.sphere._positivity_table import log_positivity_matrix
from aureole.sphere._predictive import predictive_angle, predictive_mass

__all__ = [
    "align",
    "cap_angle",
    "cap_mass",
    "cosine_cdf",
    "cosine_log_pdf",
    "cosine_quantile",
    "entropy",
    "information",
    "inverse_mean_resultant_length",
    "log_bessel_i",
    "log_normalizer",
    "log_positivity",
    "log_positivity_matrix",
    "log_scaled_normalizer",
    "log_sphere_area",
    "mean_resultant_length",
    "mean_resultant_slope",
    "normalize",
    "predictive_angle",
    "predictive_mass",
]
