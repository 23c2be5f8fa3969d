"""Tables and figures from tidy measurement files: pure functions of DataFrames.

Nothing here knows models or torch, and no number of the paper's stands here: those are in `recurformer.paper`.
"""
