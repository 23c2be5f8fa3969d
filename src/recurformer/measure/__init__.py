"""Measurements of models: cache, memory, parameters, contributions, attention maps and influence."""
