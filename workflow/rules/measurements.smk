# What a study measures, and what its tables and figures are made from.
LANGUAGE = collect(
    "<results>/language/{backbone}/beta-{beta}/seed-{seed}/{{file}}",
    backbone=config["language"]["backbones"],
    beta=config["language"]["betas"],
    seed=config["seed"],
)
HASHHOP = collect(
    "<results>/hashhop/{backbone}/beta-{beta}/seed-{seed}/{{file}}",
    backbone=config["hashhop"]["backbones"],
    beta=config["betas"],
    seed=config["seed"],
)
PROFILED = collect(
    "<results>/language/{backbone}/{{file}}", backbone=config["language"]["backbones"]
)
CACHES = collect(
    "<results>/caches/{backbone}/{{file}}", backbone=config["caches"]["backbones"]
)
LONGEST = collect(
    "<results>/caches/{backbone}/longest/beta-{beta}/{protocol}/memory.csv",
    backbone=config["caches"]["measured"],
    beta=config["betas"],
    protocol=["one_shot", "chunked"],
)
MEASUREMENTS = {
    "cache": collect(CACHES, file="cache.csv"),
    "memory": collect(CACHES, file="memory.csv") + LONGEST,
    "cache_peak": collect(
        "<results>/device/{backbone}/cache_peak.csv", backbone=DEVICE["backbones"]
    ),
    "bench": collect("<results>/device/{topic}/bench.csv", topic=DEVICE["speed"]),
    "tests": ["<results>/device/tests.csv"] if DEVICE["tests"] else [],
    "pyramidinfer": ["<results>/caches/pyramidinfer.csv"],
    "complexity": ["<results>/caches/complexity.csv"],
    "hashhop": collect(HASHHOP, file="hashhop.csv"),
    "baseline": collect(
        "<results>/hashhop/{backbone}/baseline.csv",
        backbone=config["hashhop"]["backbones"],
    ),
    "perplexity": collect(LANGUAGE, file="perplexity.csv"),
    "recovery": (
        collect(LANGUAGE, file="recovery.csv") + recovered("recovery.csv")
        if RECOVERY
        else []
    ),
    "layer_errors": recovered("layer_errors.csv", EQUAL_BYTES),
    "recovered_needle": of_recovered("needle.csv"),
    "recovered_continuation": of_recovered("continuation.csv"),
    "metrics": collect(LANGUAGE, file="metrics.jsonl"),
    "lm_eval": collect(LANGUAGE, file="lm_eval.csv"),
    "profile": collect(PROFILED, file="profile.parquet"),
    "sink": collect(PROFILED, file="sink.parquet"),
    "contribution": collect(PROFILED, file="contribution.csv"),
    "attention_map": collect(PROFILED, file="attention_map.parquet"),
    "influence": collect(PROFILED, file="influence.parquet"),
    "mqar": collect(
        "<results>/mqar/beta-{beta}/lr-{learning_rate}/seed-{seed}/mqar.csv",
        beta=config["betas"],
        learning_rate=config["mqar"]["learning_rates"],
        seed=config["mqar"]["seeds"],
    ),
    "needle": measured_on("language", "needle.csv"),
    "continuation": measured_on("language", "continuation.csv"),
    "ablation_hashhop": measured_on("hashhop", "ablation_hashhop.csv"),
    "hashhop_sizes": other_sizes(),
    "ablation_lm_eval": trained_on_text("ablation_lm_eval.csv"),
    "head_scores": scored("language"),
    "ra_i_settings": collect(
        "<results>/ablations/language/{backbone}/ra_i_settings.csv",
        backbone=ABLATIONS["language"]["backbones"],
    ),
}
TABLES = {
    "table1": ["complexity"],
    "table2": ["cache", "hashhop", "baseline", "memory", "pyramidinfer"],
    "table3": ["perplexity"],
    "table4": ["cache", "hashhop", "baseline", "memory"],
    "table5": ["contribution"],
}
FIGURES = {
    "figure1": ["influence"],
    "figure2": ["sink"],
    "figure3": ["metrics"],
    "figure4": ["mqar"],
    "figure5": ["attention_map"],
    "figure6": ["profile"],
}
RECOVERY_FIGURES = {"recovery": ["recovery"]} if RECOVERY else {}
if RECOVERY and any(arm.startswith(EQUAL_BYTES) for arm in RECOVERY["arms"]):
    RECOVERY_FIGURES["equal_bytes"] = ["recovery", "layer_errors"]
RECOVERY_TABLES = (
    {"recovery": ["recovery", "recovered_needle", "recovered_continuation"]}
    if RECOVERY
    else {}
)
ABLATION_FIGURES = {
    "ablation_pareto": ["ablation_hashhop", "needle", "continuation"],
    "ablation_granularity": ["ablation_hashhop", "needle", "continuation"],
    "ablation_selectors": ["head_scores", "needle", "continuation"],
    "ablation_head_maps": ["head_scores"],
    "ablation_mixers": ["ablation_hashhop", "needle", "continuation"],
    "ablation_length": ["ablation_hashhop", "continuation"],
    "ablation_sizes": ["hashhop_sizes"],
    "ablation_needle": ["needle"],
    "ablation_ra_i": ["ra_i_settings"],
}
ABLATION_TABLES = {
    "reviewer_questions": [
        "ablation_hashhop",
        "hashhop_sizes",
        "needle",
        "continuation",
        "ablation_lm_eval",
        "ra_i_settings",
        "head_scores",
        "recovery",
    ],
}
LABELS = {
    "table1": "growth of the cache",
    "table2": "quality and cache by method",
    "table3": "perplexity",
    "table4": "quality and cache by β",
    "table5": "first-token contributions",
    "figure1": "head and Mamba block",
    "figure2": "first-token values",
    "figure3": "training loss",
    "figure4": "associative recall by β",
    "figure5": "attention by RA-I",
    "figure6": "RA-I of every head",
    "ablation_pareto": "quality against cache, all methods",
    "ablation_granularity": "heads, layers, key-value heads",
    "ablation_selectors": "other choices of heads",
    "ablation_head_maps": "where the chosen heads lie",
    "ablation_mixers": "other mixers on the same heads",
    "ablation_length": "quality against generated length",
    "ablation_sizes": "HashHop at other lengths and hops",
    "ablation_needle": "needles in a haystack",
    "ablation_ra_i": "RA-I at other k and α",
    "reviewer_questions": "what the reviewers asked",
    "recovery": "recovery by recipe, over tokens",
    "equal_bytes": "mixers at equal bytes",
}


def files_of(kinds):
    return [file for kind in kinds for file in MEASUREMENTS[kind]]


def used_by(*shown):
    """What several tables and figures rest on."""
    used = {kind for one in shown for kinds in one.values() for kind in kinds}
    return files_of(sorted(used))


def table_measurements(wildcards):
    return files_of({**TABLES, **RECOVERY_TABLES, **ABLATION_TABLES}[wildcards.table])


def figure_measurements(wildcards):
    return files_of(
        {**FIGURES, **RECOVERY_FIGURES, **ABLATION_FIGURES}[wildcards.figure]
    )


def report_labels(wildcards):
    """How the report lists a table or figure: by the number that the paper gives it, with its subject."""
    (name,) = wildcards
    return {
        "Number": re.sub(r"(?=\d)", " ", name).capitalize(),
        "Subject": LABELS[name],
    }
