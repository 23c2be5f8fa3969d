from snakemake.utils import min_version

min_version("9.27")

if not workflow.overwrite_configfiles:

    configfile: "config/default.yaml"


include: "workflow/rules/common.smk"
include: "workflow/rules/progress.smk"


pathvars:
    results=below("results"),
    figures=below("figures"),
    logs=below("results", "logs"),


report: "workflow/report/workflow.rst"


# Read by `--sdm apptainer` alone: the image that docs/clusters.md builds. All other runs use the installed package.
container: "recurformer.sif"


wildcard_constraints:
    backbone="|".join(map(re.escape, config["backbones"])),
    beta=r"\d\.\d+",
    seed=r"\d+",
    task="language|hashhop",
    subject=f"original|(?:{'|'.join(SUBJECT_FOLDERS)})/.+",
    change=r"original/trained|(?:heads|pooled)/.+",
    by=r"\w+",
    unit="kv_group|head|layer",
    choice=r"\d+",
    mixer=r"\w+",
    kv_heads=r"\d+",
    protocol="one_shot|chunked|pyramidinfer",
    arm=r"[\w.-]+",
    evaluated=r"[\w.-]+",
    figure="|".join(REGISTRY["figures"]),
    table="|".join(REGISTRY["tables"]),


include: "workflow/rules/prepare.smk"
include: "workflow/rules/heads.smk"
include: "workflow/rules/language.smk"
include: "workflow/rules/synthetic.smk"
include: "workflow/rules/caches.smk"
include: "workflow/rules/rendered.smk"


rule all:
    default_target: True
    input:
        rules.tables.input,
        rules.figures.input,
        rules.device_measurements.input,
        multiext("<results>/claims", ".json", ".html"),


rule ablations:
    input:
        figures_of("ablations", "prices", "priced_positions", "tradeoff"),
        tables_of("ablations"),
        multiext("<results>/ablations/claims", ".json", ".html"),
