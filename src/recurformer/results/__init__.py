"""What measurements say, before anybody draws or judges it: frames, scores, the cells of the paper's tables, words.

`render` shows it and `claims` judges it; neither knows the other.
"""
