"""With several seeds, what is compared is compared within a seed and then over the seeds: pooled rows say otherwise."""

import pandas as pd
from mutated_worlds import found, ideal, recurformer_rows


def test_equal_bytes_are_compared_at_the_seeds_that_both_have():
    """The window was trained at seed 1 alone, where it is nearer; the state's other seed would pull its mean below."""
    recovery = ideal()["recovery"]
    window, state = (recovery["arm"] == f"bytes_{name}" for name in ("window", "mamba"))
    seed = recovery["seed"] == 1
    nats = recovery["divergence"] + 1.0 * window + 1.3 * (state & seed)
    shown = recovery.assign(divergence=nats)[~window | seed]
    assert nats[state].mean() < nats[window].mean()
    assert found("reviewer/equal_bytes", recovery=shown.reset_index(drop=True)).holds is False


def test_an_original_as_it_came_is_that_of_every_seed():
    """One of two converted models is far away from it: two seeds bound their mean hardly at all."""
    recovery = ideal()["recovery"]
    lost = (recovery["arm"] == "plus") & (recovery["seed"] == 1) & (recovery["tokens"] > 0)
    nats = recovery["negative_log_likelihood"] + 0.5 * lost
    shown = recovery.assign(negative_log_likelihood=nats)[(recovery["arm"] != "original") | (recovery["seed"] == 0)]
    finding = found("reviewer/recovery", recovery=shown.reset_index(drop=True))
    assert "1.284 [0.0" in finding.ours and not finding.holds


def test_a_loss_grows_beside_that_of_the_original_of_its_seed():
    """The loss of the original of another seed grows by more."""
    one = ideal()["continuation"]
    late, original = one["position"] > 0, one["family"] == "original"
    tokens = one["tokens"]
    nats = one["negative_log_likelihood"]
    ours = one[recurformer_rows(one) | original].assign(
        seed=1, negative_log_likelihood=nats + 0.5 * tokens * (late & ~original)
    )
    other = one[original].assign(negative_log_likelihood=nats + 1.0 * tokens * late)
    finding = found("reviewer/length", continuation=pd.concat([ours, other], ignore_index=True))
    assert "at most 0.500" in finding.ours and not finding.holds


def test_one_seed_of_three_does_not_decide_a_task():
    """Its mean is far below the original's, but two trainings are above it."""
    rows = ideal()["ablation_lm_eval"]
    ours = recurformer_rows(rows) & (rows["task"] == "hellaswag")
    seeds = [
        rows.assign(seed=seed, value=rows["value"].mask(ours, value)) for seed, value in enumerate((0.95, 0.95, 0.3))
    ]
    finding = found("reviewer/lm-eval", ablation_lm_eval=pd.concat(seeds, ignore_index=True))
    assert not finding.holds and not finding.decided
