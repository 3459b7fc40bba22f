"""From a program to draws that may be trusted, or to a clear no."""
