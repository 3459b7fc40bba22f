"""Methods of the comparison."""

from __future__ import annotations

from benchmarks.variance_reduction.methods import Method

METHODS = {
    "SVGD": Method(),
    "SVGD, reset": Method(reset=True),
    "SVGD, equal gradients": Method(equal_budget=True),
    "SVRG, point estimate": Method(reduced=True, point=True),
    "SVGD-VR": Method(reduced=True),
    "SVGD-VR, reset": Method(reduced=True, reset=True),
}
