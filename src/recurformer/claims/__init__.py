"""The claims ledger: the paper's statements, the test that decides each, and the verdict on the evidence."""
