"""Where runs start: quasi-Newton paths towards modes, and local Normals on their way."""
