"""What both packages share and no framework is needed for: NumPy, xarray and the standard library.

Nothing here imports torch, JAX or a host. Users import what they need from ``pyro_ext`` or
``numpyro_ext``, which name it again.
"""
