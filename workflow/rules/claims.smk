rule claims:
    input:
        measurements=used_by("paper", "tasks", "recovery", "equal_bytes"),
        recorded=RECORDED,
    output:
        ledger=multiext("<results>/claims", ".json", ".csv", ".md"),
        page=report(
            "<results>/claims.html",
            category="Claims",
            labels={"Number": "All claims", "Subject": "verdicts, evidence and costs"},
        ),
        record="<results>/claims.run.json",
    log:
        "<logs>/claims.log",
    localrule: True
    resources:
        **NEEDS,
    params:
        study=config["study"],
        recorded=recorded_folder,
        code=code("claims"),
    shell:
        """
        recurformer claims {input.measurements:q} --recorded {params.recorded:q} --study {params.study:q} \
            --out {output.ledger:q} {output.page:q} --record {output.record:q} --threads {threads} 2>&1 | tee {log:q}
        """


use rule claims as ablation_claims with:
    input:
        measurements=used_by("ablations", "recovery", "equal_bytes"),
        recorded=RECORDED,
    output:
        ledger=multiext("<results>/ablations/claims", ".json", ".csv", ".md"),
        page="<results>/ablations/claims.html",
        record="<results>/ablations/claims.run.json",
    log:
        "<logs>/ablation_claims.log",
