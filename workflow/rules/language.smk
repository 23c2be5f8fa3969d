rule train_text:
    input:
        converted="<results>/language/{backbone}/beta-{beta}/seed-{seed}/converted",
        articles="<results>/corpus/articles.parquet",
        original="<results>/backbones/{backbone}" if RECOVERY else [],
    output:
        trained=directory(
            "<results>/language/{backbone}/beta-{beta}/seed-{seed}/trained"
        ),
        recovery=(
            "<results>/language/{backbone}/beta-{beta}/seed-{seed}/recovery.csv"
            if RECOVERY
            else []
        ),
        metrics="<results>/language/{backbone}/beta-{beta}/seed-{seed}/metrics.jsonl",
        record="<results>/language/{backbone}/beta-{beta}/seed-{seed}/trained.run.json",
    log:
        "<logs>/train_text/{backbone}/beta-{beta}/seed-{seed}.log",
    threads: 4
    resources:
        **NEEDS,
    params:
        original=files("original"),
        curve=curve_words,
        run=run_words,
        tokens=config["language"]["tokens"],
        settings=settings("language.training", distributed=processes),
        code=code("train"),
    shell:
        """
        recurformer train {input.converted:q} {output.trained:q} --articles {input.articles:q} \
            --metrics {output.metrics:q} {params.original:q} {params.curve:q} \
            --name {wildcards.backbone:q} {params.run:q} --tokens {params.tokens:q} --settings {params.settings:q} \
            --record {output.record:q} --threads {threads} 2>&1 | tee {log:q}
        """


rule recover:
    input:
        checkpoint="<results>/backbones/{backbone}",
        heads="<results>/language/{backbone}/beta-{beta}/heads.json",
        articles="<results>/corpus/articles.parquet",
    output:
        trained=directory(
            "<results>/recovered/{backbone}/{arm}/beta-{beta}/seed-{seed}/trained"
        ),
        recovery="<results>/recovered/{backbone}/{arm}/beta-{beta}/seed-{seed}/recovery.csv",
        layer_errors="<results>/recovered/{backbone}/{arm}/beta-{beta}/seed-{seed}/layer_errors.csv",
        metrics="<results>/recovered/{backbone}/{arm}/beta-{beta}/seed-{seed}/metrics.jsonl",
        record="<results>/recovered/{backbone}/{arm}/beta-{beta}/seed-{seed}/trained.run.json",
    log:
        "<logs>/recover/{backbone}/{arm}/beta-{beta}/seed-{seed}.log",
    threads: 4
    resources:
        **NEEDS,
    params:
        settings=settings("language.training", arm=arm_block, mamba="mamba"),
        tokens=config["language"]["tokens"],
        curve=curve_words,
        code=code("recover"),
    shell:
        """
        recurformer recover {input.checkpoint:q} {output.trained:q} --heads {input.heads:q} \
            --articles {input.articles:q} --metrics {output.metrics:q} {params.curve:q} \
            --layer-errors {output.layer_errors:q} --arm {wildcards.arm:q} \
            --name {wildcards.backbone:q} --beta {wildcards.beta:q} --seed {wildcards.seed:q} \
            --tokens {params.tokens:q} --settings {params.settings:q} \
            --record {output.record:q} --threads {threads} 2>&1 | tee {log:q}
        """


rule perplexity:
    input:
        checkpoint="<results>/backbones/{backbone}",
        converted="<results>/language/{backbone}/beta-{beta}/seed-{seed}/converted",
        trained="<results>/language/{backbone}/beta-{beta}/seed-{seed}/trained",
        articles="<results>/corpus/articles.parquet",
    output:
        perplexity="<results>/language/{backbone}/beta-{beta}/seed-{seed}/perplexity.csv",
        record="<results>/language/{backbone}/beta-{beta}/seed-{seed}/perplexity.run.json",
    log:
        "<logs>/perplexity/{backbone}/beta-{beta}/seed-{seed}.log",
    threads: 2
    resources:
        **NEEDS,
    params:
        settings=settings("language.perplexity"),
        dtype=words({"dtype": config["evaluation_dtype"]}),
        code=code("perplexity"),
    shell:
        """
        recurformer perplexity {output.perplexity:q} --before {input.checkpoint:q} --converted {input.converted:q} \
            --trained {input.trained:q} --articles {input.articles:q} --name {wildcards.backbone:q} \
            --beta {wildcards.beta:q} --seed {wildcards.seed:q} --settings {params.settings:q} {params.dtype:q} \
            --record {output.record:q} --threads {threads} 2>&1 | tee {log:q}
        """


if RECOVERY:

    rule recovery:
        input:
            collect(
                "<figures>/{figure}.svg",
                figure=[*shown("figures", "recovery", "equal_bytes"), "figure3"],
            ),
            collect(
                "<results>/tables/{table}.{format}",
                table=[*shown("tables", "recovery"), "table3"],
                format=["csv", "html"],
            ),
            of_recovered(LM_EVAL),
