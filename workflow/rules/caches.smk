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
        recurformer cache {output.cache:q} --name {wildcards.backbone:q} \
            --profile {input.profile:q} --betas {params.betas:q} --seed {params.seed:q} \
            {params.settings:q} {params.backbone:q} {params.selection:q} {params.mamba:q} \
            --record {output.record:q} --threads {threads} 2>&1 | tee {log:q}
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
        recurformer memory {output.memory:q} --name {wildcards.backbone:q} --betas {params.betas:q} \
            --seed {params.seed:q} {params.settings:q} {params.backbone:q} {params.mamba:q} \
            --record {output.record:q} --threads {threads} 2>&1 | tee {log:q}
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
        recurformer longest-input {output.memory:q} --name {wildcards.backbone:q} \
            --beta {wildcards.beta:q} --protocol {wildcards.protocol:q} --seed {params.seed:q} \
            --trials {params.trials:q}/trials.jsonl \
            {params.settings:q} {params.search:q} {params.backbone:q} {params.mamba:q} \
            --record {output.record:q} --threads {threads} 2>&1 | tee {log:q}
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
        recurformer complexity {output.complexity:q} {params.settings:q} {params.mamba:q} \
            --record {output.record:q} --threads {threads} 2>&1 | tee {log:q}
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
        recurformer pyramidinfer {output.pyramidinfer:q} {params.settings:q} \
            --record {output.record:q} --threads {threads} 2>&1 | tee {log:q}
        """
