rule train_hashhop:
    input:
        checkpoint="<results>/hashhop/{backbone}/beta-{beta}/seed-{seed}/converted",
    output:
        trained=directory(
            "<results>/hashhop/{backbone}/beta-{beta}/seed-{seed}/trained"
        ),
        metrics="<results>/hashhop/{backbone}/beta-{beta}/seed-{seed}/metrics.jsonl",
        record="<results>/hashhop/{backbone}/beta-{beta}/seed-{seed}/trained.run.json",
    log:
        "<logs>/train_hashhop/{backbone}/beta-{beta}/seed-{seed}.log",
    resources:
        **NEEDS,
    params:
        run=run_words,
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
        settings=settings(
            "hashhop.pretraining", task="hashhop.task", distributed=processes
        ),


rule hashhop:
    input:
        checkpoint="<results>/hashhop/{backbone}/beta-{beta}/seed-{seed}/trained",
    output:
        rows="<results>/hashhop/{backbone}/beta-{beta}/seed-{seed}/hashhop.csv",
        record="<results>/hashhop/{backbone}/beta-{beta}/seed-{seed}/hashhop.run.json",
    log:
        "<logs>/hashhop/{backbone}/beta-{beta}/seed-{seed}.log",
    resources:
        **NEEDS,
    params:
        run=run_words,
        settings=settings("hashhop.evaluation", task="hashhop.task"),
        dtype=words({"dtype": config["evaluation_dtype"]}),
        code=code("hashhop"),
    shell:
        """
        recurformer hashhop {input.checkpoint:q} {output.rows:q} --name {wildcards.backbone:q} {params.run:q} \
            --settings {params.settings:q} {params.dtype:q} \
            --record {output.record:q} --threads {threads} 2>&1 | tee {log:q}
        """


use rule hashhop as baseline with:
    input:
        checkpoint=baseline_checkpoint,
    output:
        rows="<results>/hashhop/{backbone}/baseline.csv",
        record="<results>/hashhop/{backbone}/baseline.run.json",
    log:
        "<logs>/baseline/{backbone}.log",
    params:
        run=words({"beta": 0, "seed": config["seed"]}),
