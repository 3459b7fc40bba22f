"""Networks as programs: parameters by name, and the priors that are ready for them."""
