"""Training of any causal language model, converted or not: learning-rate schedules, and one resumable run."""
