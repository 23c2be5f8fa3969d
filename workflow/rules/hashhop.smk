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
        **ON_CARD,
    params:
        run=run_flags,
        settings=training_flags("hashhop"),
        task=flags("hashhop", "task", prefix="task-"),
        code=code("train_hashhop"),
    shell:
        """
        recurformer train-hashhop {input.checkpoint:q} {output.trained:q} --metrics {output.metrics:q} \
            --name {wildcards.backbone:q} {params.run:q} {params.settings:q} {params.task:q} \
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
        settings=training_flags("hashhop", "pretraining"),


rule hashhop:
    input:
        checkpoint="<results>/hashhop/{backbone}/beta-{beta}/seed-{seed}/trained",
    output:
        rows="<results>/hashhop/{backbone}/beta-{beta}/seed-{seed}/hashhop.csv",
        record="<results>/hashhop/{backbone}/beta-{beta}/seed-{seed}/hashhop.run.json",
    log:
        "<logs>/hashhop/{backbone}/beta-{beta}/seed-{seed}.log",
    resources:
        **ON_CARD,
    params:
        run=run_flags,
        settings=flags("hashhop", "evaluation"),
        task=flags("hashhop", "task", prefix="task-"),
        dtype=as_measured(),
        code=code("hashhop"),
    shell:
        """
        recurformer hashhop {input.checkpoint:q} {output.rows:q} --name {wildcards.backbone:q} {params.run:q} \
            {params.settings:q} {params.task:q} {params.dtype:q} \
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
        run=as_flags({"beta": 0, "seed": config["seed"]}),
