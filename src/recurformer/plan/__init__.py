"""What a run of the workflow would do, before it starts: its jobs, the reason of each, and what each of them takes, by
what it took before or by formula.
"""
