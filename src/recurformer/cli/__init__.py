"""Floor 4: arguments, files in, files out, run records. It does not know the workflow."""
