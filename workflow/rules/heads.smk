rule profile_text:
    input:
        checkpoint="<results>/backbones/{backbone}",
        articles="<results>/corpus/articles.parquet",
    output:
        profile="<results>/language/{backbone}/profile.parquet",
        record="<results>/language/{backbone}/profile.run.json",
    log:
        "<logs>/profile_text/{backbone}.log",
    benchmark:
        "<results>/language/{backbone}/profile.benchmark.tsv"
    conda:
        "../../environment.yml"
    threads: 2
    resources:
        mem_mb=mem_mb,
        runtime=runtime,
        gpu=gpu,
    params:
        settings=flags("language", "profiling"),
        seed=config["seed"],
        code=code("profile"),
    shell:
        """
        recurformer profile {input.checkpoint:q} {output.profile:q} --articles {input.articles:q} \
            --name {wildcards.backbone:q} --seed {params.seed:q} {params.settings:q} \
            --record {output.record:q} --threads {threads} 2>&1 | tee {log:q}
        """


rule profile_hashhop:
    input:
        checkpoint=base_checkpoint,
    output:
        profile="<results>/hashhop/{backbone}/profile.parquet",
        record="<results>/hashhop/{backbone}/profile.run.json",
    log:
        "<logs>/profile_hashhop/{backbone}.log",
    benchmark:
        "<results>/hashhop/{backbone}/profile.benchmark.tsv"
    conda:
        "../../environment.yml"
    threads: 1
    resources:
        mem_mb=mem_mb,
        runtime=runtime,
        gpu=gpu,
    params:
        settings=flags("hashhop", "profiling"),
        task=flags("hashhop", "task", prefix="task-"),
        seed=config["seed"],
        code=code("profile_hashhop"),
    shell:
        """
        recurformer profile-hashhop {input.checkpoint:q} {output.profile:q} \
            --name {wildcards.backbone:q} --seed {params.seed:q} {params.settings:q} {params.task:q} \
            --record {output.record:q} --threads {threads} 2>&1 | tee {log:q}
        """


rule select:
    input:
        profile=ranking_profile,
    output:
        heads="<results>/{task}/{backbone}/beta-{beta}/heads.json",
        record="<results>/{task}/{backbone}/beta-{beta}/heads.run.json",
    log:
        "<logs>/select/{task}/{backbone}/beta-{beta}.log",
    benchmark:
        "<results>/{task}/{backbone}/beta-{beta}/heads.benchmark.tsv"
    conda:
        "../../environment.yml"
    threads: 1
    resources:
        mem_mb=mem_mb,
        runtime=runtime,
    params:
        settings=flags("selection"),
        seed=config["seed"],
        code=code("select"),
    shell:
        """
        recurformer select {input.profile:q} {output.heads:q} --beta {wildcards.beta:q} \
            --seed {params.seed:q} {params.settings:q} \
            --record {output.record:q} --threads {threads} 2>&1 | tee {log:q}
        """


rule convert:
    input:
        checkpoint=base_checkpoint,
        heads="<results>/{task}/{backbone}/beta-{beta}/heads.json",
    output:
        converted=directory(
            "<results>/{task}/{backbone}/beta-{beta}/seed-{seed}/converted"
        ),
        record="<results>/{task}/{backbone}/beta-{beta}/seed-{seed}/converted.run.json",
    log:
        "<logs>/convert/{task}/{backbone}/beta-{beta}/seed-{seed}.log",
    benchmark:
        "<results>/{task}/{backbone}/beta-{beta}/seed-{seed}/converted.benchmark.tsv"
    conda:
        "../../environment.yml"
    threads: 1
    resources:
        mem_mb=mem_mb,
        runtime=runtime,
    params:
        settings=flags("mamba"),
        code=code("convert"),
    shell:
        """
        recurformer convert {input.checkpoint:q} {output.converted:q} --heads {input.heads:q} \
            --seed {wildcards.seed:q} {params.settings:q} \
            --record {output.record:q} --threads {threads} 2>&1 | tee {log:q}
        """


rule sink:
    input:
        checkpoint="<results>/backbones/{backbone}",
        articles="<results>/corpus/articles.parquet",
    output:
        sink="<results>/language/{backbone}/sink.parquet",
        record="<results>/language/{backbone}/sink.run.json",
    log:
        "<logs>/sink/{backbone}.log",
    benchmark:
        "<results>/language/{backbone}/sink.benchmark.tsv"
    conda:
        "../../environment.yml"
    threads: 2
    resources:
        mem_mb=mem_mb,
        runtime=runtime,
        gpu=gpu,
    params:
        settings=flags("language", "maps"),
        head=sink_head_flags,
        seed=config["seed"],
        code=code("sink"),
    shell:
        """
        recurformer sink {input.checkpoint:q} {output.sink:q} --articles {input.articles:q} --name {wildcards.backbone:q} \
            --seed {params.seed:q} {params.settings:q} {params.head:q} \
            --record {output.record:q} --threads {threads} 2>&1 | tee {log:q}
        """


rule contribution:
    input:
        checkpoint="<results>/backbones/{backbone}",
        articles="<results>/corpus/articles.parquet",
    output:
        contribution="<results>/language/{backbone}/contribution.csv",
        record="<results>/language/{backbone}/contribution.run.json",
    log:
        "<logs>/contribution/{backbone}.log",
    benchmark:
        "<results>/language/{backbone}/contribution.benchmark.tsv"
    conda:
        "../../environment.yml"
    threads: 2
    resources:
        mem_mb=mem_mb,
        runtime=runtime,
        gpu=gpu,
    params:
        settings=flags("language", "maps"),
        seed=config["seed"],
        code=code("contribution"),
    shell:
        """
        recurformer contribution {input.checkpoint:q} {output.contribution:q} --articles {input.articles:q} \
            --name {wildcards.backbone:q} --seed {params.seed:q} {params.settings:q} \
            --record {output.record:q} --threads {threads} 2>&1 | tee {log:q}
        """


rule attention_map:
    input:
        checkpoint="<results>/backbones/{backbone}",
        articles="<results>/corpus/articles.parquet",
        profile="<results>/language/{backbone}/profile.parquet",
    output:
        attention_map="<results>/language/{backbone}/attention_map.parquet",
        record="<results>/language/{backbone}/attention_map.run.json",
    log:
        "<logs>/attention_map/{backbone}.log",
    benchmark:
        "<results>/language/{backbone}/attention_map.benchmark.tsv"
    conda:
        "../../environment.yml"
    threads: 2
    resources:
        mem_mb=mem_mb,
        runtime=runtime,
        gpu=gpu,
    params:
        settings=flags("language", "maps"),
        seed=config["seed"],
        code=code("attention_map"),
    shell:
        """
        recurformer attention-map {input.checkpoint:q} {output.attention_map:q} --articles {input.articles:q} \
            --profile {input.profile:q} --name {wildcards.backbone:q} --seed {params.seed:q} {params.settings:q} \
            --record {output.record:q} --threads {threads} 2>&1 | tee {log:q}
        """


rule influence:
    input:
        checkpoint="<results>/backbones/{backbone}",
        articles="<results>/corpus/articles.parquet",
        profile="<results>/language/{backbone}/profile.parquet",
        trained=trained_at_most,
    output:
        influence="<results>/language/{backbone}/influence.parquet",
        record="<results>/language/{backbone}/influence.run.json",
    log:
        "<logs>/influence/{backbone}.log",
    benchmark:
        "<results>/language/{backbone}/influence.benchmark.tsv"
    conda:
        "../../environment.yml"
    threads: 2
    resources:
        mem_mb=mem_mb,
        runtime=runtime,
        gpu=gpu,
    params:
        settings=flags("language", "maps"),
        dtype=as_measured(),
        seed=config["seed"],
        code=code("influence"),
    shell:
        """
        recurformer influence {input.checkpoint:q} {output.influence:q} --articles {input.articles:q} \
            --trained {input.trained:q} --profile {input.profile:q} --name {wildcards.backbone:q} --seed {params.seed:q} \
            {params.settings:q} {params.dtype:q} \
            --record {output.record:q} --threads {threads} 2>&1 | tee {log:q}
        """
