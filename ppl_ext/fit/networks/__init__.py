"""Networks, whose fits are judged by their outputs."""
