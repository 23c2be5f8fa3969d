rule cache:
    input:
        profile=profile_if_any,
    output:
        cache="<results>/caches/{backbone}/cache.csv",
        record="<results>/caches/{backbone}/cache.run.json",
    log:
        "<logs>/cache/{backbone}.log",
    benchmark:
        "<results>/caches/{backbone}/cache.benchmark.tsv"
    conda:
        "../../environment.yml"
    threads: 1
    resources:
        mem_mb=mem_mb,
        runtime=runtime,
    params:
        betas=config["betas"],
        settings=flags("caches", "sizes"),
        selection=flags("selection", prefix="selection-"),
        backbone=shape_flags,
        mamba=flags("mamba", prefix="mamba-"),
        seed=config["seed"],
        code=code("cache"),
    shell:
        """
        recurformer cache {output.cache} --name {wildcards.backbone} \
            --profile {input.profile} --betas {params.betas} --seed {params.seed} \
            {params.settings} {params.backbone} {params.selection} {params.mamba} \
            --record {output.record} --threads {threads} 2>&1 | tee {log}
        """


rule memory:
    output:
        memory="<results>/caches/{backbone}/memory.csv",
        record="<results>/caches/{backbone}/memory.run.json",
    log:
        "<logs>/memory/{backbone}.log",
    benchmark:
        "<results>/caches/{backbone}/memory.benchmark.tsv"
    conda:
        "../../environment.yml"
    threads: 1
    resources:
        mem_mb=mem_mb,
        runtime=runtime,
    params:
        betas=config["betas"],
        settings=flags("caches", "sizes"),
        backbone=shape_flags,
        mamba=flags("mamba", prefix="mamba-"),
        seed=config["seed"],
        code=code("memory"),
    shell:
        """
        recurformer memory {output.memory} --name {wildcards.backbone} --betas {params.betas} \
            --seed {params.seed} {params.settings} {params.backbone} {params.mamba} \
            --record {output.record} --threads {threads} 2>&1 | tee {log}
        """


rule longest_input:
    output:
        memory="<results>/caches/{backbone}/longest/beta-{beta}/{protocol}/memory.csv",
        record="<results>/caches/{backbone}/longest/beta-{beta}/{protocol}/memory.run.json",
    log:
        "<logs>/longest_input/{backbone}/beta-{beta}/{protocol}.log",
    benchmark:
        "<results>/caches/{backbone}/longest/beta-{beta}/{protocol}/memory.benchmark.tsv"
    conda:
        "../../environment.yml"
    threads: 1
    resources:
        mem_mb=mem_mb,
        runtime=runtime,
        gpu=gpu,
    params:
        trials=subpath(output.memory, parent=True),
        settings=flags("caches", "sizes"),
        search=flags("caches", "search", prefix="search-"),
        backbone=shape_flags,
        mamba=flags("mamba", prefix="mamba-"),
        seed=config["seed"],
        code=code("longest_input"),
    shell:
        """
        recurformer longest-input {output.memory} --name {wildcards.backbone} \
            --beta {wildcards.beta} --protocol {wildcards.protocol} --seed {params.seed} \
            --trials {params.trials}/trials.jsonl \
            {params.settings} {params.search} {params.backbone} {params.mamba} \
            --record {output.record} --threads {threads} 2>&1 | tee {log}
        """


rule complexity:
    output:
        complexity="<results>/caches/complexity.csv",
        record="<results>/caches/complexity.run.json",
    log:
        "<logs>/complexity.log",
    benchmark:
        "<results>/caches/complexity.benchmark.tsv"
    conda:
        "../../environment.yml"
    threads: 1
    resources:
        mem_mb=mem_mb,
        runtime=runtime,
    params:
        settings=flags("caches", "sizes"),
        mamba=flags("mamba", prefix="mamba-"),
        code=code("complexity"),
    shell:
        """
        recurformer complexity {output.complexity} {params.settings} {params.mamba} \
            --record {output.record} --threads {threads} 2>&1 | tee {log}
        """


rule pyramidinfer:
    output:
        pyramidinfer="<results>/caches/pyramidinfer.csv",
        record="<results>/caches/pyramidinfer.run.json",
    log:
        "<logs>/pyramidinfer.log",
    benchmark:
        "<results>/caches/pyramidinfer.benchmark.tsv"
    conda:
        "../../environment.yml"
    threads: 1
    resources:
        mem_mb=mem_mb,
        runtime=runtime,
    params:
        settings=flags("caches", "sizes"),
        code=code("pyramidinfer"),
    shell:
        """
        recurformer pyramidinfer {output.pyramidinfer} {params.settings} \
            --record {output.record} --threads {threads} 2>&1 | tee {log}
        """
