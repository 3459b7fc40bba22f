"""Stochastic gradient Markov chain Monte Carlo: step sizes by number, options of kernels."""
