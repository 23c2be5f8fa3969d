"""Training of any causal language model, converted or not: data, learning-rate schedules, and one resumable run."""
