rule profile_text:
    input:
        checkpoint="<results>/backbones/{backbone}",
        articles="<results>/corpus/articles.parquet",
    output:
        rows="<results>/language/{backbone}/profile.parquet",
        record="<results>/language/{backbone}/profile.run.json",
    log:
        "<logs>/profile_text/{backbone}.log",
    threads: 2
    resources:
        **NEEDS,
    params:
        stage="profile",
        files=[],
        settings=settings("language.profiling"),
        more=[],
        seed=config["seed"],
        code=code("profile"),
    shell:
        """
        recurformer {params.stage:q} {input.checkpoint:q} {output.rows:q} --articles {input.articles:q} {params.files:q} \
            --name {wildcards.backbone:q} --seed {params.seed:q} --settings {params.settings:q} {params.more:q} \
            --record {output.record:q} --threads {threads} 2>&1 | tee {log:q}
        """


use rule profile_text as sink with:
    output:
        rows="<results>/language/{backbone}/sink.parquet",
        record="<results>/language/{backbone}/sink.run.json",
    log:
        "<logs>/sink/{backbone}.log",
    params:
        stage="sink",
        settings=settings("language.maps", shown=sink_head),
        code=code("sink"),


use rule profile_text as contribution with:
    output:
        rows="<results>/language/{backbone}/contribution.csv",
        record="<results>/language/{backbone}/contribution.run.json",
    log:
        "<logs>/contribution/{backbone}.log",
    params:
        stage="contribution",
        settings=settings("language.maps"),
        code=code("contribution"),


use rule profile_text as attention_map with:
    input:
        checkpoint="<results>/backbones/{backbone}",
        articles="<results>/corpus/articles.parquet",
        profile="<results>/language/{backbone}/profile.parquet",
    output:
        rows="<results>/language/{backbone}/attention_map.parquet",
        record="<results>/language/{backbone}/attention_map.run.json",
    log:
        "<logs>/attention_map/{backbone}.log",
    params:
        stage="attention-map",
        files=files("profile"),
        settings=settings("language.maps"),
        code=code("attention_map"),


use rule profile_text as influence with:
    input:
        checkpoint="<results>/backbones/{backbone}",
        articles="<results>/corpus/articles.parquet",
        profile="<results>/language/{backbone}/profile.parquet",
        trained=trained_at_most,
    output:
        rows="<results>/language/{backbone}/influence.parquet",
        record="<results>/language/{backbone}/influence.run.json",
    log:
        "<logs>/influence/{backbone}.log",
    params:
        stage="influence",
        files=files("trained", "profile"),
        settings=settings("language.maps"),
        more=words({"dtype": config["evaluation_dtype"]}),
        code=code("influence"),


rule profile_hashhop:
    input:
        checkpoint=base_checkpoint,
    output:
        profile="<results>/hashhop/{backbone}/profile.parquet",
        record="<results>/hashhop/{backbone}/profile.run.json",
    log:
        "<logs>/profile_hashhop/{backbone}.log",
    resources:
        **NEEDS,
    params:
        settings=settings("hashhop.profiling", task="hashhop.task"),
        seed=config["seed"],
        code=code("profile_hashhop"),
    shell:
        """
        recurformer profile-hashhop {input.checkpoint:q} {output.profile:q} \
            --name {wildcards.backbone:q} --seed {params.seed:q} --settings {params.settings:q} \
            --record {output.record:q} --threads {threads} 2>&1 | tee {log:q}
        """


rule select:
    input:
        unpack(chosen_by),
    output:
        heads="<results>/{task}/{backbone}/heads/{by}-{unit}-{choice}/beta-{beta}/heads.json",
        record="<results>/{task}/{backbone}/heads/{by}-{unit}-{choice}/beta-{beta}/heads.run.json",
    log:
        "<logs>/select/{task}/{backbone}/{by}-{unit}-{choice}/beta-{beta}.log",
    resources:
        **NEEDS,
    params:
        scores=files("scores"),
        settings=settings(choice_of_heads),
        code=code("select"),
    shell:
        """
        recurformer select {input.profile:q} {output.heads:q} --beta {wildcards.beta:q} --seed {wildcards.choice:q} {params.scores:q} \
            --settings {params.settings:q} \
            --record {output.record:q} --threads {threads} 2>&1 | tee {log:q}
        """


rule convert:
    input:
        checkpoint=base_checkpoint,
        heads="<results>/{task}/{backbone}/heads/{by}-{unit}-{choice}/beta-{beta}/heads.json",
    output:
        converted=temp(
            directory(
                "<results>/{task}/{backbone}/heads/{by}-{unit}-{choice}/beta-{beta}/{mixer}/seed-{seed}/converted"
            )
        ),
        record="<results>/{task}/{backbone}/heads/{by}-{unit}-{choice}/beta-{beta}/{mixer}/seed-{seed}/converted.run.json",
    log:
        "<logs>/convert/{task}/{backbone}/{by}-{unit}-{choice}/beta-{beta}/{mixer}/seed-{seed}.log",
    resources:
        **NEEDS,
    params:
        settings=settings(mamba="mamba", window=window_of),
        code=code("convert"),
    shell:
        """
        recurformer convert {input.checkpoint:q} {output.converted:q} --heads {input.heads:q} --mixer {wildcards.mixer:q} \
            --seed {wildcards.seed:q} --settings {params.settings:q} \
            --record {output.record:q} --threads {threads} 2>&1 | tee {log:q}
        """


rule pool_kv:
    input:
        checkpoint=base_checkpoint,
    output:
        pooled=temp(
            directory(
                "<results>/{task}/{backbone}/pooled/{kv_heads}/seed-{seed}/converted"
            )
        ),
        record="<results>/{task}/{backbone}/pooled/{kv_heads}/seed-{seed}/converted.run.json",
    log:
        "<logs>/pool_kv/{task}/{backbone}/{kv_heads}/seed-{seed}.log",
    resources:
        **NEEDS,
    params:
        code=code("pool_kv"),
    shell:
        """
        recurformer pool-kv {input.checkpoint:q} {output.pooled:q} --kv-heads {wildcards.kv_heads:q} \
            --record {output.record:q} --threads {threads} 2>&1 | tee {log:q}
        """


rule head_scores:
    input:
        checkpoint=base_checkpoint,
        profile=ranking_profile,
        articles=probed_text,
    output:
        scores="<results>/{task}/{backbone}/head_scores.parquet",
        record="<results>/{task}/{backbone}/head_scores.run.json",
    log:
        "<logs>/head_scores/{task}/{backbone}.log",
    threads: 2
    resources:
        **NEEDS,
    params:
        settings=settings(asked_scores, task="hashhop.task"),
        text=files("articles"),
        random_seeds=ABLATIONS["seeds"],
        seed=config["seed"],
        code=code("head_scores"),
    shell:
        """
        recurformer head-scores {input.checkpoint:q} {output.scores:q} --profile {input.profile:q} \
            --name {wildcards.backbone:q} --seed {params.seed:q} --random-seeds {params.random_seeds:q} \
            --settings {params.settings:q} {params.text:q} \
            --record {output.record:q} --threads {threads} 2>&1 | tee {log:q}
        """


use rule profile_text as ra_i_settings with:
    output:
        rows="<results>/language/{backbone}/ra_i_settings.csv",
        record="<results>/language/{backbone}/ra_i_settings.run.json",
    log:
        "<logs>/ra_i_settings/{backbone}.log",
    params:
        stage="ra-i-settings",
        settings=settings("language.profiling", others="ablations.recency"),
        code=code("ra_i_settings"),
