# Tables, figures and claims. Which measurements each is made from: measurements.smk.
use rule stage as table with:
    input:
        measurements=measurements_behind("tables"),
        recorded=RECORDED,
    output:
        out=[
            *multiext("<results>/tables/{table}", ".csv", ".md", ".tex"),
            report(
                "<results>/tables/{table}.html",
                caption="../report/captions.rst",
                category="Tables",
                labels=listed("tables"),
            ),
        ],
        record="<results>/tables/{table}.run.json",
    log:
        "<logs>/table/{table}.log",
    localrule: True
    params:
        **stage("table", study=config["study"], recorded=RECORDED_FOLDER),
        caption=lambda wildcards: REGISTRY["tables"][wildcards.table].caption,


rule tables:
    input:
        tables_of("paper", "tasks", "recovery", "long_inputs"),


use rule stage as figure with:
    input:
        measurements=measurements_behind("figures"),
    output:
        out=[
            report(
                "<figures>/{figure}.svg",
                caption="../report/captions.rst",
                category="Figures",
                labels=listed("figures"),
            ),
            "<figures>/{figure}.png",
        ],
        record="<figures>/{figure}.run.json",
    log:
        "<logs>/figure/{figure}.log",
    localrule: True
    params:
        **stage("figure"),
        caption=lambda wildcards: REGISTRY["figures"][wildcards.figure].caption,


rule figures:
    input:
        figures_of(
            "paper", "recovery", "equal_bytes", "positions", "speed", "long_inputs"
        ),


use rule stage as claims with:
    input:
        measurements=used_by("paper", "tasks", "recovery", "equal_bytes", "positions"),
        recorded=RECORDED,
    output:
        out=[
            *multiext("<results>/claims", ".json", ".csv", ".md"),
            report(
                "<results>/claims.html",
                category="Claims",
                labels={
                    "Number": "All claims",
                    "Subject": "verdicts, evidence and costs",
                },
            ),
        ],
        record="<results>/claims.run.json",
    log:
        "<logs>/claims.log",
    localrule: True
    params:
        **stage("claims", study=config["study"], recorded=RECORDED_FOLDER),


use rule claims as ablation_claims with:
    input:
        measurements=used_by("ablations", "recovery", "equal_bytes", "positions"),
        recorded=RECORDED,
    output:
        out=multiext("<results>/ablations/claims", ".json", ".csv", ".md", ".html"),
        record="<results>/ablations/claims.run.json",
    log:
        "<logs>/ablation_claims.log",
