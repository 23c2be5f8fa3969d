"""The stages of the command: arguments, files in, files out, run records. It does not know the workflow."""
