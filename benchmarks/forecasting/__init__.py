"""Bayesian forecasting of multivariate series: a compact network by variational methods.

In the spirit of section 5.4 of M. Kim, "Large-scale Score-based Variational Posterior Inference
for Bayesian Deep Neural Networks", with a smaller forecaster of this project's own. Each channel
of a window is split by a Fourier filter into a time-invariant part, whose latent moves by one
learned linear map for all windows, and a time-variant rest, whose latent moves by a linear map
fitted to the window itself by least squares. Both are decoded and added. The idea of the two
dynamics is that of Y. Liu et al., "Koopa: Learning Non-stationary Time Series Dynamics with
Koopman Predictors", 2023.

A point estimate, the hosts' ELBO (ADVI) and ProximalScoreVI fit it on both backends; a smaller
one also with a planar flow (section 5.5). Records and a table are written to
``out/forecasting``.
"""

from __future__ import annotations

import argparse

from benchmarks.arguments import add_common, add_resume, count

#: What runs the command.
RUN = "benchmarks.forecasting.experiment:main"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `python -m benchmarks forecasting`."""
    parser.add_argument("--series", nargs="+", help="names of the series' files")
    parser.add_argument("--flow-series", nargs="*", help="series that flows are fitted to")
    parser.add_argument("--full", action="store_true", help="larger network, all windows, 10 seeds")
    parser.add_argument("--epochs", type=count, help="epochs at most")
    parser.add_argument("--most-steps", type=count, help="steps at most")
    parser.add_argument("--seeds", type=count, help="number of seeds")
    parser.add_argument("--rates", type=float, nargs="+", help="learning rates to try")
    parser.add_argument("--temperature", type=float, help="of the likelihood")
    parser.add_argument("--init-scale", type=float, help="standard deviation of q at the start")
    add_common(parser, out="out/forecasting")
    add_resume(parser)
