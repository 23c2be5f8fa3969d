rule head_scores:
    input:
        checkpoint=base_checkpoint,
        profile=ranking_profile,
        articles=probed_text,
    output:
        scores="<results>/ablations/{task}/{backbone}/head_scores.parquet",
        record="<results>/ablations/{task}/{backbone}/head_scores.run.json",
    log:
        "<logs>/head_scores/{task}/{backbone}.log",
    benchmark:
        "<results>/ablations/{task}/{backbone}/head_scores.benchmark.tsv"
    conda:
        "../../environment.yml"
    threads: 2
    resources:
        mem_mb=mem_mb,
        runtime=runtime,
        gpu=gpu,
    params:
        settings=flags("ablations", "scores"),
        task=flags("hashhop", "task", prefix="task-"),
        by=score_flags,
        random_seeds=ABLATIONS["seeds"],
        seed=config["seed"],
        code=code("head_scores"),
    shell:
        """
        recurformer head-scores {input.checkpoint:q} {output.scores:q} --profile {input.profile:q} \
            --name {wildcards.backbone:q} --seed {params.seed:q} --random-seeds {params.random_seeds:q} \
            {params.settings:q} {params.task:q} {params.by:q} \
            --record {output.record:q} --threads {threads} 2>&1 | tee {log:q}
        """


rule ra_i_settings:
    input:
        checkpoint="<results>/backbones/{backbone}",
        articles="<results>/corpus/articles.parquet",
    output:
        settings="<results>/ablations/language/{backbone}/ra_i_settings.csv",
        record="<results>/ablations/language/{backbone}/ra_i_settings.run.json",
    log:
        "<logs>/ra_i_settings/language/{backbone}.log",
    benchmark:
        "<results>/ablations/language/{backbone}/ra_i_settings.benchmark.tsv"
    conda:
        "../../environment.yml"
    threads: 2
    resources:
        mem_mb=mem_mb,
        runtime=runtime,
        gpu=gpu,
    params:
        settings=flags("ablations", "recency"),
        profiling=flags("language", "profiling"),
        seed=config["seed"],
        code=code("ra_i_settings"),
    shell:
        """
        recurformer ra-i-settings {input.checkpoint:q} {output.settings:q} --articles {input.articles:q} \
            --name {wildcards.backbone:q} --seed {params.seed:q} {params.profiling:q} {params.settings:q} \
            --record {output.record:q} --threads {threads} 2>&1 | tee {log:q}
        """


rule select_other:
    input:
        unpack(chosen_by),
    output:
        heads="<results>/ablations/{task}/{backbone}/heads/{by}-{unit}-{choice}/beta-{beta}/heads.json",
        record="<results>/ablations/{task}/{backbone}/heads/{by}-{unit}-{choice}/beta-{beta}/heads.run.json",
    log:
        "<logs>/select_other/{task}/{backbone}/{by}-{unit}-{choice}/beta-{beta}.log",
    benchmark:
        "<results>/ablations/{task}/{backbone}/heads/{by}-{unit}-{choice}/beta-{beta}/heads.benchmark.tsv"
    conda:
        "../../environment.yml"
    threads: 1
    resources:
        mem_mb=mem_mb,
        runtime=runtime,
    params:
        scope=config["selection"]["scope"],
        scores=scores_flag,
        code=code("select"),
    shell:
        """
        recurformer select {input.profile:q} {output.heads:q} --beta {wildcards.beta:q} --by {wildcards.by:q} \
            --unit {wildcards.unit:q} --scope {params.scope:q} --seed {wildcards.choice:q} {params.scores:q} \
            --record {output.record:q} --threads {threads} 2>&1 | tee {log:q}
        """


rule convert_to_mixer:
    input:
        checkpoint=base_checkpoint,
        heads="<results>/ablations/{task}/{backbone}/heads/{by}-{unit}-{choice}/beta-{beta}/heads.json",
    output:
        converted=temp(
            directory(
                "<results>/ablations/{task}/{backbone}/heads/{by}-{unit}-{choice}/beta-{beta}/{mixer}/converted/model"
            )
        ),
        record="<results>/ablations/{task}/{backbone}/heads/{by}-{unit}-{choice}/beta-{beta}/{mixer}/converted/model.run.json",
    log:
        "<logs>/convert_to_mixer/{task}/{backbone}/{by}-{unit}-{choice}/beta-{beta}/{mixer}.log",
    benchmark:
        "<results>/ablations/{task}/{backbone}/heads/{by}-{unit}-{choice}/beta-{beta}/{mixer}/converted/model.benchmark.tsv"
    conda:
        "../../environment.yml"
    threads: 1
    resources:
        mem_mb=mem_mb,
        runtime=runtime,
    params:
        mamba=flags("mamba"),
        window=window_flags,
        seed=config["seed"],
        code=code("convert"),
    shell:
        """
        recurformer convert {input.checkpoint:q} {output.converted:q} --heads {input.heads:q} \
            --mixer {wildcards.mixer:q} --seed {params.seed:q} {params.mamba:q} {params.window:q} \
            --record {output.record:q} --threads {threads} 2>&1 | tee {log:q}
        """


rule pool_kv:
    input:
        checkpoint=base_checkpoint,
    output:
        pooled=temp(
            directory(
                "<results>/ablations/{task}/{backbone}/pooled/{kv_heads}/converted/model"
            )
        ),
        record="<results>/ablations/{task}/{backbone}/pooled/{kv_heads}/converted/model.run.json",
    log:
        "<logs>/pool_kv/{task}/{backbone}/{kv_heads}.log",
    benchmark:
        "<results>/ablations/{task}/{backbone}/pooled/{kv_heads}/converted/model.benchmark.tsv"
    conda:
        "../../environment.yml"
    threads: 1
    resources:
        mem_mb=mem_mb,
        runtime=runtime,
    params:
        code=code("pool_kv"),
    shell:
        """
        recurformer pool-kv {input.checkpoint:q} {output.pooled:q} --kv-heads {wildcards.kv_heads:q} \
            --record {output.record:q} --threads {threads} 2>&1 | tee {log:q}
        """


rule train_changed_on_text:
    input:
        converted="<results>/ablations/language/{backbone}/{change}/converted/model",
        articles="<results>/corpus/articles.parquet",
    output:
        trained=directory(
            "<results>/ablations/language/{backbone}/{change}/trained/model"
        ),
        metrics="<results>/ablations/language/{backbone}/{change}/trained/metrics.jsonl",
        record="<results>/ablations/language/{backbone}/{change}/trained/model.run.json",
    log:
        "<logs>/train_changed_on_text/language/{backbone}/{change}.log",
    benchmark:
        "<results>/ablations/language/{backbone}/{change}/trained/model.benchmark.tsv"
    conda:
        "../../environment.yml"
    threads: 1
    resources:
        mem_mb=mem_mb,
        runtime=runtime,
        gpu=gpu,
    params:
        settings=training_flags("language"),
        tokens=config["language"]["tokens"],
        seed=config["seed"],
        code=training_code("train"),
    shell:
        """
        recurformer train {input.converted:q} {output.trained:q} --metrics {output.metrics:q} \
            --name {wildcards.backbone:q} --seed {params.seed:q} {params.settings:q} \
            --articles {input.articles:q} --tokens {params.tokens:q} \
            --record {output.record:q} --threads {threads} 2>&1 | tee {log:q}
        """


rule train_changed_on_hashhop:
    input:
        converted="<results>/ablations/hashhop/{backbone}/{change}/converted/model",
    output:
        trained=directory(
            "<results>/ablations/hashhop/{backbone}/{change}/trained/model"
        ),
        metrics="<results>/ablations/hashhop/{backbone}/{change}/trained/metrics.jsonl",
        record="<results>/ablations/hashhop/{backbone}/{change}/trained/model.run.json",
    log:
        "<logs>/train_changed_on_hashhop/hashhop/{backbone}/{change}.log",
    benchmark:
        "<results>/ablations/hashhop/{backbone}/{change}/trained/model.benchmark.tsv"
    conda:
        "../../environment.yml"
    threads: 1
    resources:
        mem_mb=mem_mb,
        runtime=runtime,
        gpu=gpu,
    params:
        settings=training_flags("hashhop"),
        task=flags("hashhop", "task", prefix="task-"),
        seed=config["seed"],
        code=training_code("train_hashhop"),
    shell:
        """
        recurformer train-hashhop {input.converted:q} {output.trained:q} --metrics {output.metrics:q} \
            --name {wildcards.backbone:q} --seed {params.seed:q} {params.settings:q} \
            {params.task:q} \
            --record {output.record:q} --threads {threads} 2>&1 | tee {log:q}
        """


rule needle:
    input:
        unpack(needle_models),
        articles="<results>/corpus/articles.parquet",
    output:
        needle="<results>/ablations/language/{backbone}/{subject}/needle.csv",
        record="<results>/ablations/language/{backbone}/{subject}/needle.run.json",
    log:
        "<logs>/needle/language/{backbone}/{subject}.log",
    benchmark:
        "<results>/ablations/language/{backbone}/{subject}/needle.benchmark.tsv"
    conda:
        "../../environment.yml"
    threads: 1
    resources:
        mem_mb=mem_mb,
        runtime=runtime,
        gpu=gpu,
    params:
        settings=flags("ablations", "needle"),
        identity=text_identity,
        code=code("needle"),
    shell:
        """
        recurformer needle {input.checkpoint:q} {output.needle:q} --original {input.original:q} \
            --articles {input.articles:q} {params.settings:q} {params.identity:q} \
            --record {output.record:q} --threads {threads} 2>&1 | tee {log:q}
        """


rule continuation:
    input:
        unpack(continuation_models),
        articles="<results>/corpus/articles.parquet",
    output:
        continuation="<results>/ablations/language/{backbone}/{subject}/continuation.csv",
        record="<results>/ablations/language/{backbone}/{subject}/continuation.run.json",
    log:
        "<logs>/continuation/language/{backbone}/{subject}.log",
    benchmark:
        "<results>/ablations/language/{backbone}/{subject}/continuation.benchmark.tsv"
    conda:
        "../../environment.yml"
    threads: 1
    resources:
        mem_mb=mem_mb,
        runtime=runtime,
        gpu=gpu,
    params:
        settings=flags("ablations", "continuation"),
        identity=text_identity,
        code=code("continuation"),
    shell:
        """
        recurformer continuation {input.checkpoint:q} {output.continuation:q} --original {input.original:q} \
            --articles {input.articles:q} {params.settings:q} {params.identity:q} \
            --record {output.record:q} --threads {threads} 2>&1 | tee {log:q}
        """


rule ablation_hashhop:
    input:
        unpack(hashhop_models),
    output:
        ablation_hashhop="<results>/ablations/hashhop/{backbone}/{subject}/ablation_hashhop.csv",
        record="<results>/ablations/hashhop/{backbone}/{subject}/ablation_hashhop.run.json",
    log:
        "<logs>/ablation_hashhop/hashhop/{backbone}/{subject}.log",
    benchmark:
        "<results>/ablations/hashhop/{backbone}/{subject}/ablation_hashhop.benchmark.tsv"
    conda:
        "../../environment.yml"
    threads: 1
    resources:
        mem_mb=mem_mb,
        runtime=runtime,
        gpu=gpu,
    params:
        settings=flags("hashhop", "evaluation"),
        task=flags("hashhop", "task", prefix="task-"),
        identity=hashhop_identity,
        code=code("ablation_hashhop"),
    shell:
        """
        recurformer ablation-hashhop {input.checkpoint:q} {output.ablation_hashhop:q} --original {input.original:q} \
            {params.settings:q} {params.task:q} {params.identity:q} \
            --record {output.record:q} --threads {threads} 2>&1 | tee {log:q}
        """


rule hashhop_sizes:
    input:
        unpack(hashhop_models),
    output:
        hashhop_sizes="<results>/ablations/hashhop/{backbone}/{subject}/hashhop_sizes.csv",
        record="<results>/ablations/hashhop/{backbone}/{subject}/hashhop_sizes.run.json",
    log:
        "<logs>/hashhop_sizes/hashhop/{backbone}/{subject}.log",
    benchmark:
        "<results>/ablations/hashhop/{backbone}/{subject}/hashhop_sizes.benchmark.tsv"
    conda:
        "../../environment.yml"
    threads: 1
    resources:
        mem_mb=mem_mb,
        runtime=runtime,
        gpu=gpu,
    params:
        settings=flags("ablations", "sizes"),
        task=flags("hashhop", "task", prefix="task-"),
        identity=hashhop_identity,
        code=code("hashhop_sizes"),
    shell:
        """
        recurformer hashhop-sizes {input.checkpoint:q} {output.hashhop_sizes:q} --original {input.original:q} \
            {params.settings:q} {params.task:q} {params.identity:q} \
            --record {output.record:q} --threads {threads} 2>&1 | tee {log:q}
        """


rule ablation_lm_eval:
    input:
        unpack(lm_eval_models),
        articles="<results>/corpus/articles.parquet",
    output:
        lm_eval="<results>/ablations/language/{backbone}/{subject}/ablation_lm_eval.csv",
        record="<results>/ablations/language/{backbone}/{subject}/ablation_lm_eval.run.json",
    log:
        "<logs>/ablation_lm_eval/language/{backbone}/{subject}.log",
    benchmark:
        "<results>/ablations/language/{backbone}/{subject}/ablation_lm_eval.benchmark.tsv"
    conda:
        "../../environment.yml"
    threads: 1
    resources:
        mem_mb=mem_mb,
        runtime=runtime,
        gpu=gpu,
    params:
        settings=flags("language", "tasks"),
        hashhop=lm_eval_hashhop_flags(),
        identity=text_identity,
        code=code("ablation_lm_eval"),
    shell:
        """
        recurformer ablation-lm-eval {input.checkpoint:q} {output.lm_eval:q} --original {input.original:q} \
            --articles {input.articles:q} {params.settings:q} {params.hashhop:q} {params.identity:q} \
            --record {output.record:q} --threads {threads} 2>&1 | tee {log:q}
        """


use rule claims as ablation_claims with:
    input:
        measurements=ablation_measurements,
        recorded=RECORDED,
    output:
        ledger=multiext("<results>/ablations/claims", ".json", ".csv", ".md"),
        page="<results>/ablations/claims.html",
        record="<results>/ablations/claims.run.json",
    log:
        "<logs>/ablation_claims.log",
    benchmark:
        "<results>/ablations/claims.benchmark.tsv"


rule ablations:
    input:
        collect("<figures>/{figure}.svg", figure=ABLATION_FIGURES),
        collect(
            "<results>/tables/{table}.{format}",
            table=ABLATION_TABLES,
            format=["csv", "html"],
        ),
        multiext("<results>/ablations/claims", ".json", ".html"),
