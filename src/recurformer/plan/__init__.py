"""A run of the workflow before it starts: its jobs, the reason of each, and the cost of each, by
what it took before or by formula.
"""
