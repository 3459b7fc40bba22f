"""The Laplace approximation without a framework: options, checks, formulas of its Gaussians."""
