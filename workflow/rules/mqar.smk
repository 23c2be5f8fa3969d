rule mqar:
    output:
        mqar="<results>/mqar/beta-{beta}/lr-{learning_rate}/seed-{seed}/mqar.csv",
        metrics="<results>/mqar/beta-{beta}/lr-{learning_rate}/seed-{seed}/metrics.jsonl",
        record="<results>/mqar/beta-{beta}/lr-{learning_rate}/seed-{seed}/run.json",
    log:
        "<logs>/mqar/beta-{beta}/lr-{learning_rate}/seed-{seed}.log",
    resources:
        **NEEDS,
    params:
        settings=settings(recall_task, mamba="mamba"),
        code=code("mqar"),
    shell:
        """
        recurformer mqar {output.mqar:q} --metrics {output.metrics:q} \
            --beta {wildcards.beta:q} --rate {wildcards.learning_rate:q} --seed {wildcards.seed:q} \
            --settings {params.settings:q} \
            --record {output.record:q} --threads {threads} 2>&1 | tee {log:q}
        """
