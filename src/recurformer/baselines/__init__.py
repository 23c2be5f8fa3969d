"""What RecurFormer is compared with: other ways to a smaller cache."""
