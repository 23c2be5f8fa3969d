rule memory:
    output:
        rows="<results>/caches/{backbone}/memory.csv",
        record="<results>/caches/{backbone}/memory.run.json",
    log:
        "<logs>/memory/{backbone}.log",
    resources:
        **NEEDS,
    params:
        stage="memory",
        what=as_flags({"betas": config["betas"], "seed": config["seed"]}),
        settings=flags("caches", "sizes"),
        search=[],
        backbone=shape_flags,
        selection=[],
        mamba=flags("mamba", prefix="mamba-"),
        code=code("memory"),
    shell:
        """
        recurformer {params.stage:q} {output.rows:q} --name {wildcards.backbone:q} {params.what:q} {params.settings:q} \
            {params.search:q} {params.backbone:q} {params.selection:q} {params.mamba:q} \
            --record {output.record:q} --threads {threads} 2>&1 | tee {log:q}
        """


use rule memory as cache with:
    input:
        profile=profile_if_any,
    output:
        rows="<results>/caches/{backbone}/cache.csv",
        record="<results>/caches/{backbone}/cache.run.json",
    log:
        "<logs>/cache/{backbone}.log",
    params:
        stage="cache",
        what=ranked_shares,
        selection=flags("selection", prefix="selection-"),
        code=code("cache"),


use rule memory as longest_input with:
    output:
        rows="<results>/caches/{backbone}/longest/beta-{beta}/{protocol}/memory.csv",
        record="<results>/caches/{backbone}/longest/beta-{beta}/{protocol}/memory.run.json",
    log:
        "<logs>/longest_input/{backbone}/beta-{beta}/{protocol}.log",
    resources:
        **NEEDS,
    params:
        stage="longest-input",
        what=one_search,
        search=flags("caches", "search", prefix="search-"),
        code=code("longest_input"),


rule complexity:
    output:
        rows="<results>/caches/complexity.csv",
        record="<results>/caches/complexity.run.json",
    log:
        "<logs>/complexity.log",
    resources:
        **NEEDS,
    params:
        stage="complexity",
        settings=flags("caches", "sizes"),
        mamba=flags("mamba", prefix="mamba-"),
        code=code("complexity"),
    shell:
        """
        recurformer {params.stage:q} {output.rows:q} {params.settings:q} {params.mamba:q} \
            --record {output.record:q} --threads {threads} 2>&1 | tee {log:q}
        """


use rule complexity as pyramidinfer with:
    output:
        rows="<results>/caches/pyramidinfer.csv",
        record="<results>/caches/pyramidinfer.run.json",
    log:
        "<logs>/pyramidinfer.log",
    params:
        stage="pyramidinfer",
        mamba=[],
        code=code("pyramidinfer"),
