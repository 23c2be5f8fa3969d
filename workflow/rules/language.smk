rule train_text:
    input:
        converted=before_training("language"),
        articles="<results>/corpus/articles.parquet",
        original="<results>/backbones/{backbone}" if RECOVERY else [],
    output:
        trained=directory("<results>/language/{backbone}/{change}/seed-{seed}/trained"),
        recovery=(
            "<results>/language/{backbone}/{change}/seed-{seed}/recovery.csv"
            if RECOVERY
            else []
        ),
        metrics="<results>/language/{backbone}/{change}/seed-{seed}/metrics.jsonl",
        record="<results>/language/{backbone}/{change}/seed-{seed}/trained.run.json",
    log:
        "<logs>/train_text/{backbone}/{change}/seed-{seed}.log",
    threads: 4
    resources:
        **NEEDS,
    params:
        original=files("original"),
        curve=curve_words,
        run=text_words,
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
        heads=papers_heads,
        articles="<results>/corpus/articles.parquet",
    output:
        trained=directory(
            "<results>/language/{backbone}/recovered/{arm}/beta-{beta}/seed-{seed}/trained"
        ),
        recovery="<results>/language/{backbone}/recovered/{arm}/beta-{beta}/seed-{seed}/recovery.csv",
        layer_errors="<results>/language/{backbone}/recovered/{arm}/beta-{beta}/seed-{seed}/layer_errors.csv",
        metrics="<results>/language/{backbone}/recovered/{arm}/beta-{beta}/seed-{seed}/metrics.jsonl",
        record="<results>/language/{backbone}/recovered/{arm}/beta-{beta}/seed-{seed}/trained.run.json",
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
        heads=replaced_heads,
        trained="<results>/language/{backbone}/{change}/seed-{seed}/trained",
        articles="<results>/corpus/articles.parquet",
    output:
        perplexity="<results>/language/{backbone}/{change}/seed-{seed}/perplexity.csv",
        record="<results>/language/{backbone}/{change}/seed-{seed}/perplexity.run.json",
    log:
        "<logs>/perplexity/{backbone}/{change}/seed-{seed}.log",
    wildcard_constraints:
        change=r"original/trained|heads/.+",
    threads: 2
    resources:
        **NEEDS,
    params:
        heads=replaced_words,
        run=run_words,
        settings=settings("language.perplexity", mamba="mamba", window=window_of),
        dtype=words({"dtype": config["evaluation_dtype"]}),
        code=code("perplexity"),
    shell:
        """
        recurformer perplexity {output.perplexity:q} --before {input.checkpoint:q} {params.heads:q} \
            --trained {input.trained:q} --articles {input.articles:q} --name {wildcards.backbone:q} \
            {params.run:q} --settings {params.settings:q} {params.dtype:q} \
            --record {output.record:q} --threads {threads} 2>&1 | tee {log:q}
        """


rule needle:
    input:
        unpack(measured("language", "needle.csv")),
        articles="<results>/corpus/articles.parquet",
    output:
        rows="<results>/language/{backbone}/{subject}/seed-{seed}/needle.csv",
        record="<results>/language/{backbone}/{subject}/seed-{seed}/needle.run.json",
    log:
        "<logs>/needle/{backbone}/{subject}/seed-{seed}.log",
    resources:
        **NEEDS,
    params:
        stage="needle",
        text=files("articles"),
        settings=settings("ablations.needle", change=change_of("language")),
        subject=subject_words,
        code=code("needle"),
    shell:
        """
        recurformer {params.stage:q} {input.checkpoint:q} {output.rows:q} --original {input.original:q} \
            {params.text:q} {params.subject:q} --settings {params.settings:q} \
            --record {output.record:q} --threads {threads} 2>&1 | tee {log:q}
        """


use rule needle as continuation with:
    input:
        unpack(measured("language", "continuation.csv")),
        articles="<results>/corpus/articles.parquet",
    output:
        rows="<results>/language/{backbone}/{subject}/seed-{seed}/continuation.csv",
        record="<results>/language/{backbone}/{subject}/seed-{seed}/continuation.run.json",
    log:
        "<logs>/continuation/{backbone}/{subject}/seed-{seed}.log",
    params:
        stage="continuation",
        settings=settings("ablations.continuation", change=change_of("language")),
        code=code("continuation"),


use rule needle as ablation_lm_eval with:
    input:
        unpack(measured("language", "ablation_lm_eval.csv")),
        articles="<results>/corpus/articles.parquet",
    output:
        rows="<results>/language/{backbone}/{subject}/seed-{seed}/tasks/{evaluated}/ablation_lm_eval.csv",
        record="<results>/language/{backbone}/{subject}/seed-{seed}/tasks/{evaluated}/ablation_lm_eval.run.json",
    log:
        "<logs>/ablation_lm_eval/{backbone}/{subject}/seed-{seed}/{evaluated}.log",
    params:
        stage="ablation-lm-eval",
        settings=settings(
            lm_eval_task, hashhop=hashhop_if_asked, change=change_of("language")
        ),
        code=code("ablation_lm_eval"),


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
            measurements_of("language", recovering(), *LM_EVAL),
