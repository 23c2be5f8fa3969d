"""Evaluations of a causal language model, from perplexity to needles and lm-eval's tasks, as tidy rows."""
