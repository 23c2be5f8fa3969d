# Every rule with a command is made of this one: inputs, outputs, a log, and its stage.
rule stage:
    log:
        "<logs>/stage.log",
    resources:
        **NEEDS,
    shell:
        """
        {params.command:q} --threads {threads} 2>&1 | tee {log:q}
        """


use rule stage as corpus with:
    output:
        rows="<results>/corpus/articles.parquet",
        record="<results>/corpus/run.json",
    log:
        "<logs>/corpus.log",
    params:
        **stage("corpus", settings="corpus", downloads=DOWNLOADS),


use rule stage as backbone with:
    input:
        articles=words_learned,
    output:
        checkpoint=directory("<results>/backbones/{backbone}"),
        record="<results>/backbones/{backbone}.run.json",
    log:
        "<logs>/backbone/{backbone}.log",
    params:
        **stage("backbone", settings="backbones.{backbone}", downloads=DOWNLOADS),
