"""Stan programs compiled by BridgeStan, as functions of NumPy arrays."""
