rule figure:
    input:
        measurements_behind("figures"),
    output:
        svg=report(
            "<figures>/{figure}.svg",
            caption="../report/captions.rst",
            category="Figures",
            labels=listed("figures"),
        ),
        png="<figures>/{figure}.png",
        record="<figures>/{figure}.run.json",
    log:
        "<logs>/figure/{figure}.log",
    localrule: True
    resources:
        **NEEDS,
    params:
        caption=caption("figures"),
        code=code("figure"),
    shell:
        """
        recurformer figure {wildcards.figure:q} {input:q} --out {output.svg:q} {output.png:q} \
            --record {output.record:q} --threads {threads} 2>&1 | tee {log:q}
        """


rule figures:
    input:
        collect(
            "<figures>/{figure}.svg",
            figure=shown("figures", "paper", "recovery", "equal_bytes"),
        ),
