"""The least error that a conditional linear model can have on one draw of the synthetic data."""

from models.statistics.noise_floor import covariance_floor, least_squares_floor
from silos.data_params import DataParams
from silos.errors import UserError
from silos.sources.source_params import Synthetic
from silos.sources.synthetic import coefficients


def floor_of(data: DataParams, statistic: str) -> float:
    """Given clients' cov(x, y), with a constant or not, or their own least squares; UserError for other data."""
    source = data.source
    if not isinstance(source, Synthetic) or source.task != "linear":
        raise UserError(f"a floor of {statistic} is of synthetic data with the task linear, and the cell has others.")
    if statistic == "least squares":
        return least_squares_floor(source.features, source.rows, source.noise)
    thetas = coefficients(source, data.seed)
    return covariance_floor(thetas, source.rows, source.noise, constant=statistic == "covariance with a constant")
