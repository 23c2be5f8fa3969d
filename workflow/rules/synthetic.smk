use rule stage as train_hashhop with:
    input:
        checkpoint=before_training("hashhop"),
    output:
        trained=directory("<results>/hashhop/{backbone}/{change}/seed-{seed}/trained"),
        metrics="<results>/hashhop/{backbone}/{change}/seed-{seed}/metrics.jsonl",
        record="<results>/hashhop/{backbone}/{change}/seed-{seed}/trained.run.json",
    log:
        "<logs>/train_hashhop/{backbone}/{change}/seed-{seed}.log",
    threads: processes_of
    params:
        **stage(
            "train-hashhop",
            settings="hashhop.training",
            arm=lambda wildcards: wildcards.change,
            beta=changed_beta,
        ),


use rule train_hashhop as pretrain_hashhop with:
    input:
        checkpoint="<results>/backbones/{backbone}",
    output:
        trained=directory("<results>/hashhop/{backbone}/base"),
        metrics="<results>/hashhop/{backbone}/base.metrics.jsonl",
        record="<results>/hashhop/{backbone}/base.run.json",
    log:
        "<logs>/pretrain_hashhop/{backbone}.log",
    params:
        **stage("train-hashhop", settings="hashhop.pretraining"),


use rule needle as hashhop with:
    input:
        unpack(measured("hashhop", "hashhop.parquet")),
    output:
        rows="<results>/hashhop/{backbone}/{subject}/seed-{seed}/hashhop.parquet",
        record="<results>/hashhop/{backbone}/{subject}/seed-{seed}/hashhop.run.json",
    log:
        "<logs>/hashhop/{backbone}/{subject}/seed-{seed}.log",
    params:
        **stage("hashhop", settings="hashhop.evaluation", change=change_of("hashhop")),


# The same of the model that must have learned HashHop for a comparison.
use rule hashhop as baseline with:
    output:
        rows="<results>/hashhop/{backbone}/{subject}/seed-{seed}/baseline.parquet",
        record="<results>/hashhop/{backbone}/{subject}/seed-{seed}/baseline.run.json",
    log:
        "<logs>/baseline/{backbone}/{subject}/seed-{seed}.log",
    wildcard_constraints:
        subject="original",


# Table 2's baseline in the setting that the paper gives it; the ablations have it at the caches of other methods.
use rule hashhop as pyramidinfer_hashhop with:
    input:
        unpack(measured("hashhop")),
    output:
        rows="<results>/hashhop/{backbone}/{subject}/seed-{seed}/pyramidinfer_hashhop.parquet",
        record="<results>/hashhop/{backbone}/{subject}/seed-{seed}/pyramidinfer_hashhop.run.json",
    log:
        "<logs>/pyramidinfer_hashhop/{backbone}/{subject}/seed-{seed}.log",
    wildcard_constraints:
        subject="evicted/pyramidinfer_paper",
    params:
        **stage(
            "hashhop",
            settings="hashhop.evaluation",
            change=lambda wildcards: {"as_printed": True},
        ),


# The original trained likewise is measured as one of the compared models: the same rows, of the same run.
rule baseline_after_training:
    input:
        rows="<results>/hashhop/{backbone}/original/trained/seed-{seed}/hashhop.parquet",
        record="<results>/hashhop/{backbone}/original/trained/seed-{seed}/hashhop.run.json",
    output:
        rows="<results>/hashhop/{backbone}/original/trained/seed-{seed}/baseline.parquet",
        record="<results>/hashhop/{backbone}/original/trained/seed-{seed}/baseline.run.json",
    log:
        "<logs>/baseline/{backbone}/original/trained/seed-{seed}.log",
    localrule: True
    shell:
        """
        cp {input.rows:q} {output.rows:q}
        sed -E 's/hashhop[.](parquet|run)/baseline.\\1/g' {input.record:q} >{output.record:q} 2>{log:q}
        """


use rule hashhop as hashhop_sizes with:
    input:
        unpack(measured("hashhop")),
    output:
        rows="<results>/hashhop/{backbone}/{subject}/seed-{seed}/hashhop_sizes.parquet",
        record="<results>/hashhop/{backbone}/{subject}/seed-{seed}/hashhop_sizes.run.json",
    log:
        "<logs>/hashhop_sizes/{backbone}/{subject}/seed-{seed}.log",
    params:
        **stage(
            "hashhop-sizes", settings="ablations.sizes", change=change_of("hashhop")
        ),


MQAR = config["mqar"]["task"]
# With more steps, where the study asks for them.
MQAR_LONGER = {
    f"beta-{beta}/lr-{rate}": MQAR
    | {"training": MQAR["training"] | {"steps": times * MQAR["training"]["steps"]}}
    for beta, rate, times in config["mqar"]["longer"]
}


use rule stage as mqar with:
    output:
        rows="<results>/mqar/beta-{beta}/lr-{learning_rate}/seed-{seed}/mqar.csv",
        metrics="<results>/mqar/beta-{beta}/lr-{learning_rate}/seed-{seed}/metrics.jsonl",
        record="<results>/mqar/beta-{beta}/lr-{learning_rate}/seed-{seed}/run.json",
    log:
        "<logs>/mqar/beta-{beta}/lr-{learning_rate}/seed-{seed}.log",
    params:
        **stage(
            "mqar",
            settings=lambda wildcards: MQAR_LONGER.get(
                f"beta-{wildcards.beta}/lr-{wildcards.learning_rate}", MQAR
            ),
            rate=lambda wildcards: wildcards.learning_rate,
        ),
