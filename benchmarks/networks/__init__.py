"""Networks as programs: linearised Laplace against draws of all weights, and sparse inputs."""
