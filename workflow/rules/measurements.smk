# What a study measures, and what its tables and figures are made from.
from functools import partial


def papers_files(file, backbones=LANGUAGE):
    """A file of every run of the paper's method on text, and of the original trained likewise."""
    return [
        file_of("language", backbone, papers(beta, seed), file, seed)
        for backbone, block in LANGUAGE.items()
        if backbone in backbones
        for beta in block["betas"]
        for seed in seeds_of(block)
    ]


HASHHOP = [
    file_of("hashhop", backbone, papers(beta, seed), "hashhop.parquet", seed)
    for backbone in config["hashhop"]["backbones"]
    for beta in config["betas"]
    for seed in seeds_of(config["hashhop"])
]
PYRAMIDINFER = [
    file_of(
        "hashhop",
        backbone,
        Subject("evicted", "pyramidinfer_paper"),
        "pyramidinfer_hashhop.parquet",
        seed,
    )
    for backbone in config["hashhop"]["backbones"]
    for seed in seeds_of(config["hashhop"])
]
PROFILED = collect("<results>/language/{backbone}/{{file}}", backbone=LANGUAGE)
CACHES = collect(
    "<results>/caches/{backbone}/{{file}}", backbone=config["caches"]["backbones"]
)
LONGEST = collect(
    "<results>/caches/{backbone}/longest/beta-{beta}/{protocol}/memory.csv",
    backbone=config["caches"]["measured"],
    beta=config["betas"],
    protocol=["one_shot", "chunked"],
) + collect(
    "<results>/caches/{backbone}/longest/beta-0.0/pyramidinfer/memory.csv",
    backbone=config["caches"]["measured"],
)
MEASUREMENTS = {
    "cache": collect(CACHES, file="cache.csv"),
    "memory": collect(CACHES, file="memory.csv") + LONGEST,
    "cache_peak": collect(
        "<results>/device/{backbone}/cache_peak.csv",
        backbone=config["device_measurements"]["backbones"],
    ),
    "bench": collect(
        "<results>/device/{backbone}/bench.csv",
        backbone=config["device_measurements"]["timed"],
    ),
    "pyramidinfer": ["<results>/caches/pyramidinfer.csv"],
    "complexity": ["<results>/caches/complexity.csv"],
    "hashhop": HASHHOP,
    "pyramidinfer_hashhop": PYRAMIDINFER,
    # before its conversion; a backbone that meets the task only afterwards, trained likewise
    "baseline": [
        file_of(
            "hashhop", name, ORIGINALS[name not in LEARNS_HASHHOP], "baseline.parquet"
        )
        for name in config["hashhop"]["backbones"]
    ],
    "perplexity": papers_files("perplexity.csv"),
    "recovery": (
        papers_files("recovery.csv") + recovered_files("recovery.csv")
        if RECOVERY
        else []
    ),
    "compared_recovery": list(
        dict.fromkeys(
            papers_files("recovery.csv", ABLATIONS["language"]["backbones"])
            + measurements_of("language", trained_on_text, "recovery.csv")
            if RECOVERY and LEARNS_TEXT.issuperset(ABLATIONS["language"]["backbones"])
            else []
        )
    ),
    "layer_errors": recovered_files("layer_errors.csv", EQUAL_BYTES),
    "recovered_needle": measurements_of("language", recovering, "needle.csv"),
    "recovered_continuation": measurements_of(
        "language", recovering, "continuation.csv"
    ),
    "metrics": papers_files("metrics.jsonl"),
    "profile": collect(PROFILED, file="profile.parquet"),
    "sink": collect(PROFILED, file="sink.parquet"),
    "contribution": collect(PROFILED, file="contribution.csv"),
    "attention_map": collect(PROFILED, file="attention_map.parquet"),
    "influence": [
        file_of("language", name, papers(beta, config["seed"]), "influence.parquet")
        for name, block in LANGUAGE.items()
        for beta in nearest_to_common(block["betas"])
    ],
    "mqar": collect(
        "<results>/mqar/{training}/seed-{seed}/mqar.csv",
        training=dict.fromkeys(
            f"beta-{beta}/lr-{rate}"
            for beta, rate, *_ in [
                *product(config["betas"], config["mqar"]["learning_rates"]),
                *config["mqar"]["longer"],
            ]
        ),
        seed=seeds_of(config["mqar"]),
    ),
    "needle": measurements_of("language", partial(compared, "language"), "needle.csv"),
    "turns": (
        measurements_of("language", partial(compared, "language"), "turns.csv")
        if ABLATIONS["turns"]["lengths"]
        else []
    ),
    "continuation": measurements_of(
        "language", partial(compared, "language"), "continuation.csv"
    ),
    "written": (
        measurements_of("language", partial(compared, "language"), "written.csv")
        if ABLATIONS["written"]
        else []
    ),
    "long_continuation": (
        measurements_of("language", read_long, "long_continuation.csv")
        if ABLATIONS["long_inputs"]
        else []
    ),
    "positions": (
        [
            *papers_files("positions.parquet", COMES_BACK),
            *measurements_of("language", read_by_position, "positions.parquet"),
        ]
        if ABLATIONS["positions"]
        else []
    ),
    "compared_hashhop": measurements_of(
        "hashhop", partial(compared, "hashhop"), "hashhop.parquet"
    ),
    "hashhop_sizes": measurements_of(
        "hashhop", of_other_sizes, "hashhop_sizes.parquet"
    ),
    "ablation_lm_eval": lm_eval_of(trained_on_text),
    "papers_ablation_lm_eval": lm_eval_of(asked_by_lm_eval, LANGUAGE),
    "head_scores": collect(
        "<results>/language/{backbone}/head_scores.parquet",
        backbone=(
            ABLATIONS["language"]["backbones"]
            if MEASURED_SCORES.intersection(ABLATIONS["language"]["selectors"])
            else []
        ),
    ),
    "mixer_prices": collect(
        "<results>/language/{backbone}/mixer_prices.parquet",
        backbone=(
            ABLATIONS["language"]["backbones"]
            if ABLATIONS["language"]["priced"]
            else []
        ),
    ),
    "ra_i_settings": collect(
        "<results>/language/{backbone}/ra_i_settings.csv",
        backbone=ABLATIONS["language"]["backbones"],
    ),
}
PARTS = {
    "paper": True,
    "tasks": any(block["tasks"]["names"] for block in LANGUAGE.values()),
    "recovery": RECOVERY,
    "equal_bytes": recovered_files("", EQUAL_BYTES),
    "prices": ABLATIONS["language"]["priced"],
    "positions": ABLATIONS["positions"]
    and papers_files("positions.parquet", COMES_BACK),
    "priced_positions": ABLATIONS["positions"] and ABLATIONS["language"]["priced"],
    "tradeoff": MEASUREMENTS["compared_recovery"],
    "long_inputs": ABLATIONS["long_inputs"],
    "speed": MEASUREMENTS["bench"],
    "ablations": True,
}


def shown(group, *parts):
    """The tables or figures of some parts, as far as the study has these."""
    return {
        name: entry
        for name, entry in REGISTRY[group].items()
        if entry.part in parts and PARTS[entry.part]
    }


def tables_of(*parts):
    """The files of the tables of some parts by which a target asks for them."""
    return collect(
        "<results>/tables/{table}.{format}",
        table=shown("tables", *parts),
        format=["csv", "html"],
    )


def figures_of(*parts):
    """The files of the figures of some parts by which a target asks for them."""
    return collect("<figures>/{figure}.svg", figure=shown("figures", *parts))


def used_by(*parts):
    """What the tables and figures of some parts rest on."""
    used = [entry for group in REGISTRY for entry in shown(group, *parts).values()]
    return files_of(sorted({kind for entry in used for kind in entry.kinds}))


def files_of(kinds):
    return [file for kind in kinds for file in MEASUREMENTS[kind]]


def measurements_behind(group):
    """The measurements behind a table or figure, of the kinds that are the parameters of its function; `papers_` or
    `recovered_` before a kind says whose they are.
    """

    def of_one(wildcards):
        (name,) = wildcards
        entry = REGISTRY[group][name]
        if not PARTS[entry.part]:
            raise ValueError(
                f"study {config['study']} has no {name}: nothing of its part {entry.part!r} is asked for"
            )
        return files_of(entry.kinds)

    return of_one


def listed(group):
    """How the report lists a table or figure: its name and its subject."""

    def of_one(wildcards):
        (name,) = wildcards
        return {"Number": heading(name), "Subject": REGISTRY[group][name].label}

    return of_one
