"""What a causal language model can do, from perplexity to needles and lm-eval's tasks, as tidy rows."""
