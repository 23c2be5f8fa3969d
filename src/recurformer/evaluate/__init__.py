"""What a causal language model can do: perplexity, HashHop, MQAR and lm-eval's tasks, as tidy rows."""
