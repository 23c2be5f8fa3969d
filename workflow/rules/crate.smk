rule crate:
    input:
        rules.figures.input,
        rules.tables.input,
        "<results>/claims.json",
        workflow=os.path.relpath(ROOT / "Snakefile"),
        config=workflow.configfiles,
        citation=os.path.relpath(ROOT / "CITATION.cff"),
        parts=[os.path.relpath(ROOT / part) for part in DESCRIBED],
    output:
        archive="<results>/run.crate.zip",
        record="<results>/run.crate.run.json",
    log:
        "<logs>/crate.log",
    benchmark:
        "<results>/run.crate.benchmark.tsv"
    localrule: True
    resources:
        **BESIDE_CARDS,
    params:
        results=subpath(output.archive, parent=True),
        figures=subpath(input[0], parent=True),
        code=code("crate"),
    shell:
        """
        recurformer crate {params.results:q} {params.figures:q} {output.archive:q} --workflow {input.workflow:q} \
            --configfile {input.config:q} --citation {input.citation:q} --parts {input.parts:q} \
            --record {output.record:q} --threads {threads} 2>&1 | tee {log:q}
        """
