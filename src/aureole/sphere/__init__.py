"""Pure functions on the unit sphere in R^D: Bessel functions, normalisers, the law of the cosine, geometry."""

from aureole.sphere._angle import (
    gauss_legendre,
    log_area_ratio,
)
from aureole.sphere._bessel import (
    bessel_ratios,
    log_bessel_i,
    log_hyp0f1,
    log_hyp0f1_of_square,
    log_hyp0f1_scaled,
)
from aureole.sphere._cosine import (
    cap_angle,
    cap_height,
    cap_mass,
    cap_mass_slope,
    cosine_cdf,
    cosine_log_pdf,
    cosine_quantile,
)
from aureole.sphere._geometry import (
    align,
    normalize,
    place,
    reflect,
    unit_cosine,
    unit_tolerance,
    wrap,
)
from aureole.sphere._interpolation import (
    interpolated_log_positivity,
)
from aureole.sphere._native import (
    has_native,
    native_instructions,
)
from aureole.sphere._normalizer import (
    entropy,
    information,
    inverse_mean_resultant_length,
    log_normalizer,
    log_scaled_normalizer,
    log_sphere_area,
    mean_resultant_complement,
    mean_resultant_length,
    mean_resultant_slope,
    transverse_variance,
)
from aureole.sphere._positivity import (
    MAX_TERMS,
    log_coefficients,
    log_pair_likelihood,
    log_positivity,
    log_positivity_by_integral,
    log_series,
    n_terms,
    pairwise_from_ratios,
    pairwise_positivity,
    positive_terms,
    unit_coefficients,
)
from aureole.sphere._predictive import (
    predictive_angle,
    predictive_log_pdf,
    predictive_mass,
)
from aureole.sphere._row_sums import (
    has_row_sums,
    row_sums,
)
from aureole.sphere._sampling import (
    random_height,
)
from aureole.sphere._zonal import (
    zonal_basis,
    zonal_envelope,
    zonal_sizes,
    zonal_sum,
)

__all__ = [
    "align",
    "bessel_ratios",
    "cap_angle",
    "cap_height",
    "cap_mass",
    "cap_mass_slope",
    "cosine_cdf",
    "cosine_log_pdf",
    "cosine_quantile",
    "entropy",
    "information",
    "inverse_mean_resultant_length",
    "log_bessel_i",
    "log_normalizer",
    "log_pair_likelihood",
    "log_positivity",
    "log_scaled_normalizer",
    "log_sphere_area",
    "mean_resultant_complement",
    "mean_resultant_length",
    "mean_resultant_slope",
    "normalize",
    "pairwise_positivity",
    "predictive_angle",
    "predictive_log_pdf",
    "predictive_mass",
    "reflect",
    "transverse_variance",
    "unit_cosine",
    "unit_tolerance",
    "wrap",
]
