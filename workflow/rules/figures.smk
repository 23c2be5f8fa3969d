rule figure:
    input:
        figure_measurements,
    output:
        svg=report(
            "<figures>/{figure}.svg",
            caption="../report/{figure}.rst",
            category="Figures",
        ),
        png="<figures>/{figure}.png",
    log:
        "<logs>/figure/{figure}.log",
    localrule: True
    conda:
        "../../environment.yml"
    params:
        code=code("figure"),
    shell:
        "recurformer figure {wildcards.figure} {input} --out {output} 2>&1 | tee {log}"


rule figures:
    input:
        collect("<figures>/{figure}.svg", figure=FIGURES),
