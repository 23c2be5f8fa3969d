rule corpus:
    output:
        articles="<results>/corpus/articles.parquet",
        record="<results>/corpus/run.json",
    log:
        "<logs>/corpus.log",
    retries: 2
    resources:
        **NEEDS,
    params:
        downloads=DOWNLOADS,
        settings=settings("corpus"),
        seed=config["seed"],
        code=code("corpus"),
    shell:
        """
        recurformer corpus {output.articles:q} --downloads {params.downloads:q} --seed {params.seed:q} --settings {params.settings:q} \
            --record {output.record:q} --threads {threads} 2>&1 | tee {log:q}
        """


rule backbone:
    output:
        checkpoint=directory("<results>/backbones/{backbone}"),
        record="<results>/backbones/{backbone}.run.json",
    log:
        "<logs>/backbone/{backbone}.log",
    retries: 2
    resources:
        **NEEDS,
    params:
        downloads=DOWNLOADS,
        settings=settings(backbone_block),
        code=code("backbone"),
    shell:
        """
        recurformer backbone {output.checkpoint:q} --downloads {params.downloads:q} --settings {params.settings:q} \
            --record {output.record:q} --threads {threads} 2>&1 | tee {log:q}
        """
