rule train_hashhop:
    input:
        checkpoint=before_training("hashhop"),
    output:
        trained=directory("<results>/hashhop/{backbone}/{change}/seed-{seed}/trained"),
        metrics="<results>/hashhop/{backbone}/{change}/seed-{seed}/metrics.jsonl",
        record="<results>/hashhop/{backbone}/{change}/seed-{seed}/trained.run.json",
    log:
        "<logs>/train_hashhop/{backbone}/{change}/seed-{seed}.log",
    resources:
        **NEEDS,
    params:
        run=hashhop_words,
        settings=settings(
            "hashhop.training", task="hashhop.task", distributed=processes
        ),
        code=code("train_hashhop"),
    shell:
        """
        recurformer train-hashhop {input.checkpoint:q} {output.trained:q} --metrics {output.metrics:q} \
            --name {wildcards.backbone:q} {params.run:q} --settings {params.settings:q} \
            --record {output.record:q} --threads {threads} 2>&1 | tee {log:q}
        """


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
        run=words({"seed": config["seed"]}),
        settings=settings(
            "hashhop.pretraining", task="hashhop.task", distributed=processes
        ),


use rule needle as hashhop with:
    input:
        unpack(measured("hashhop", "hashhop.parquet")),
    output:
        rows="<results>/hashhop/{backbone}/{subject}/seed-{seed}/hashhop.parquet",
        record="<results>/hashhop/{backbone}/{subject}/seed-{seed}/hashhop.run.json",
    log:
        "<logs>/hashhop/{backbone}/{subject}/seed-{seed}.log",
    params:
        stage="hashhop",
        text=[],
        settings=settings(
            "hashhop.evaluation", task="hashhop.task", change=change_of("hashhop")
        ),
        code=code("hashhop"),


# The same of the model that must have learned HashHop for a comparison.
use rule hashhop as baseline with:
    output:
        rows="<results>/hashhop/{backbone}/{subject}/seed-{seed}/baseline.parquet",
        record="<results>/hashhop/{backbone}/{subject}/seed-{seed}/baseline.run.json",
    log:
        "<logs>/baseline/{backbone}/{subject}/seed-{seed}.log",


use rule hashhop as hashhop_sizes with:
    output:
        rows="<results>/hashhop/{backbone}/{subject}/seed-{seed}/hashhop_sizes.parquet",
        record="<results>/hashhop/{backbone}/{subject}/seed-{seed}/hashhop_sizes.run.json",
    log:
        "<logs>/hashhop_sizes/{backbone}/{subject}/seed-{seed}.log",
    params:
        stage="hashhop-sizes",
        settings=settings(
            "ablations.sizes", task="hashhop.task", change=change_of("hashhop")
        ),
        code=code("hashhop_sizes"),
