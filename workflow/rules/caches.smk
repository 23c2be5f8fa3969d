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
        what=["--betas", *map(str, config["betas"]), "--seed", str(config["seed"])],
        settings=settings("caches.sizes", backbone=backbone_block, mamba="mamba"),
        code=code("memory"),
    shell:
        """
        recurformer {params.stage:q} {output.rows:q} --name {wildcards.backbone:q} {params.what:q} \
            --settings {params.settings:q} --record {output.record:q} --threads {threads} 2>&1 | tee {log:q}
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
        what=ranked_betas,
        settings=settings(
            "caches.sizes",
            backbone=backbone_block,
            selection="selection",
            mamba="mamba",
        ),
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
        settings=settings(
            "caches.sizes",
            backbone=backbone_block,
            search="caches.search",
            mamba="mamba",
        ),
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
        settings=settings("caches.sizes", mamba="mamba"),
        code=code("complexity"),
    shell:
        """
        recurformer {params.stage:q} {output.rows:q} --settings {params.settings:q} \
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
        settings=settings("caches.sizes"),
        code=code("pyramidinfer"),
