rule table:
    input:
        measurements=measurements_behind("tables"),
        recorded=RECORDED,
    output:
        tables=multiext("<results>/tables/{table}", ".csv", ".md", ".tex"),
        page=report(
            "<results>/tables/{table}.html",
            caption="../report/captions.rst",
            category="Tables",
            labels=listed("tables"),
        ),
        record="<results>/tables/{table}.run.json",
    log:
        "<logs>/table/{table}.log",
    localrule: True
    resources:
        **NEEDS,
    params:
        study=config["study"],
        recorded=recorded_folder,
        caption=caption("tables"),
        code=code("table"),
    shell:
        """
        recurformer table {wildcards.table:q} {input.measurements:q} --recorded {params.recorded:q} --study {params.study:q} \
            --out {output.tables:q} {output.page:q} --record {output.record:q} --threads {threads} 2>&1 | tee {log:q}
        """


rule tables:
    input:
        collect(
            "<results>/tables/{table}.{format}",
            table=shown("tables", "paper", "tasks", "recovery"),
            format=["csv", "html"],
        ),
