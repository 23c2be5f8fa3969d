# Models that recover by other recipes than the paper's.
def recovered(file, arms=""):
    """A file of every recipe other than the paper's, or of those whose names begin with `arms`."""
    return [
        f"<results>/recovered/{backbone}/{arm}/beta-{beta}/seed-{seed}/{file}"
        for backbone in config["language"]["backbones"]
        for arm, recipe in (RECOVERY["arms"] if RECOVERY else {}).items()
        if arm.startswith(arms)
        for beta in recipe["betas"] or filter(None, config["language"]["betas"])
        for seed in seeds_of(arm)
    ]


def seeds_of(arm):
    """The first is that of the model that is measured on other tasks."""
    return RECOVERY["arms"][arm]["seeds"] or [config["seed"]]


def recovered_subjects(shown=False):
    """What every other recipe than the paper's gave, at the shares of heads at which mixers are trained; `shown`:
    without those that are compared with each other alone, at equal bytes.
    """
    betas = ABLATIONS["language"]["trained_betas"] or ABLATIONS["betas"]
    for arm, recipe in (RECOVERY["arms"] if RECOVERY else {}).items():
        own = recipe["betas"] or config["language"]["betas"]
        if shown and arm.startswith(EQUAL_BYTES):
            continue
        yield from (
            Subject("recovered", arm, beta=beta)
            for beta in betas
            if beta in own and beta
        )


def of_recovered(file):
    """A file of what recovers by any recipe, and of the original before and after the same training."""
    betas = ABLATIONS["language"]["trained_betas"] or ABLATIONS["betas"]
    by, unit = config["selection"]["by"], config["selection"]["unit"]
    return measurements_of(
        "language",
        file,
        *([Subject("original"), Subject("original_trained")] if RECOVERY else []),
        *(Subject("heads", "mamba", by, unit, beta=beta) for beta in betas if RECOVERY),
        *recovered_subjects(),
    )
