use rule select as select_other with:
    input:
        unpack(chosen_by),
    output:
        heads="<results>/ablations/{task}/{backbone}/heads/{by}-{unit}-{choice}/beta-{beta}/heads.json",
        record="<results>/ablations/{task}/{backbone}/heads/{by}-{unit}-{choice}/beta-{beta}/heads.run.json",
    log:
        "<logs>/select_other/{task}/{backbone}/{by}-{unit}-{choice}/beta-{beta}.log",
    params:
        seed=lambda wildcards: wildcards.choice,
        scores=files("scores"),
        settings=settings(choice_of_heads),


use rule convert as convert_to_mixer with:
    input:
        checkpoint=base_checkpoint,
        heads="<results>/ablations/{task}/{backbone}/heads/{by}-{unit}-{choice}/beta-{beta}/heads.json",
    output:
        converted=temp(
            directory(
                "<results>/ablations/{task}/{backbone}/heads/{by}-{unit}-{choice}/beta-{beta}/{mixer}/converted/model"
            )
        ),
        record="<results>/ablations/{task}/{backbone}/heads/{by}-{unit}-{choice}/beta-{beta}/{mixer}/converted/model.run.json",
    log:
        "<logs>/convert_to_mixer/{task}/{backbone}/{by}-{unit}-{choice}/beta-{beta}/{mixer}.log",
    params:
        mixer=lambda wildcards: wildcards.mixer,
        settings=settings(
            mamba="mamba",
            window=lambda wildcards: ABLATIONS[wildcards.task]["window"],
        ),


rule pool_kv:
    input:
        checkpoint=base_checkpoint,
    output:
        pooled=temp(
            directory(
                "<results>/ablations/{task}/{backbone}/pooled/{kv_heads}/converted/model"
            )
        ),
        record="<results>/ablations/{task}/{backbone}/pooled/{kv_heads}/converted/model.run.json",
    log:
        "<logs>/pool_kv/{task}/{backbone}/{kv_heads}.log",
    resources:
        **NEEDS,
    params:
        code=code("pool_kv"),
    shell:
        """
        recurformer pool-kv {input.checkpoint:q} {output.pooled:q} --kv-heads {wildcards.kv_heads:q} \
            --record {output.record:q} --threads {threads} 2>&1 | tee {log:q}
        """


use rule train_text as train_changed_on_text with:
    input:
        converted="<results>/ablations/language/{backbone}/{change}/converted/model",
        articles="<results>/corpus/articles.parquet",
    output:
        trained=directory(
            "<results>/ablations/language/{backbone}/{change}/trained/model"
        ),
        metrics="<results>/ablations/language/{backbone}/{change}/trained/metrics.jsonl",
        record="<results>/ablations/language/{backbone}/{change}/trained/model.run.json",
    log:
        "<logs>/train_changed_on_text/language/{backbone}/{change}.log",
    params:
        original=[],
        curve=[],


use rule train_hashhop as train_changed_on_hashhop with:
    input:
        checkpoint="<results>/ablations/hashhop/{backbone}/{change}/converted/model",
    output:
        trained=directory(
            "<results>/ablations/hashhop/{backbone}/{change}/trained/model"
        ),
        metrics="<results>/ablations/hashhop/{backbone}/{change}/trained/metrics.jsonl",
        record="<results>/ablations/hashhop/{backbone}/{change}/trained/model.run.json",
    log:
        "<logs>/train_changed_on_hashhop/hashhop/{backbone}/{change}.log",


rule needle:
    input:
        unpack(measured("language", "needle.csv")),
        articles="<results>/corpus/articles.parquet",
    output:
        rows="<results>/ablations/language/{backbone}/{subject}/needle.csv",
        record="<results>/ablations/language/{backbone}/{subject}/needle.run.json",
    log:
        "<logs>/needle/language/{backbone}/{subject}.log",
    resources:
        **NEEDS,
    params:
        stage="needle",
        text=files("articles"),
        settings=settings("ablations.needle", change=change_of("language")),
        subject=subject_words,
        code=code("needle"),
    shell:
        """
        recurformer {params.stage:q} {input.checkpoint:q} {output.rows:q} --original {input.original:q} \
            {params.text:q} {params.subject:q} --settings {params.settings:q} \
            --record {output.record:q} --threads {threads} 2>&1 | tee {log:q}
        """


use rule needle as continuation with:
    input:
        unpack(measured("language", "continuation.csv")),
        articles="<results>/corpus/articles.parquet",
    output:
        rows="<results>/ablations/language/{backbone}/{subject}/continuation.csv",
        record="<results>/ablations/language/{backbone}/{subject}/continuation.run.json",
    log:
        "<logs>/continuation/language/{backbone}/{subject}.log",
    params:
        stage="continuation",
        settings=settings("ablations.continuation", change=change_of("language")),
        code=code("continuation"),


use rule needle as ablation_lm_eval with:
    input:
        unpack(measured("language", "ablation_lm_eval.csv")),
        articles="<results>/corpus/articles.parquet",
    output:
        rows="<results>/ablations/language/{backbone}/{subject}/tasks/{evaluated}/ablation_lm_eval.csv",
        record="<results>/ablations/language/{backbone}/{subject}/tasks/{evaluated}/ablation_lm_eval.run.json",
    log:
        "<logs>/ablation_lm_eval/language/{backbone}/{subject}/{evaluated}.log",
    params:
        stage="ablation-lm-eval",
        settings=settings(
            lm_eval_task, hashhop=hashhop_if_asked, change=change_of("language")
        ),
        code=code("ablation_lm_eval"),


use rule needle as ablation_hashhop with:
    input:
        unpack(measured("hashhop", "ablation_hashhop.parquet")),
    output:
        rows="<results>/ablations/hashhop/{backbone}/{subject}/ablation_hashhop.parquet",
        record="<results>/ablations/hashhop/{backbone}/{subject}/ablation_hashhop.run.json",
    log:
        "<logs>/ablation_hashhop/hashhop/{backbone}/{subject}.log",
    params:
        stage="ablation-hashhop",
        text=[],
        settings=settings(
            "hashhop.evaluation", task="hashhop.task", change=change_of("hashhop")
        ),
        code=code("ablation_hashhop"),


use rule ablation_hashhop as hashhop_sizes with:
    output:
        rows="<results>/ablations/hashhop/{backbone}/{subject}/hashhop_sizes.parquet",
        record="<results>/ablations/hashhop/{backbone}/{subject}/hashhop_sizes.run.json",
    log:
        "<logs>/hashhop_sizes/hashhop/{backbone}/{subject}.log",
    params:
        stage="hashhop-sizes",
        settings=settings(
            "ablations.sizes", task="hashhop.task", change=change_of("hashhop")
        ),
        code=code("hashhop_sizes"),


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


rule ablations:
    input:
        collect("<figures>/{figure}.svg", figure=shown("figures", "ablations")),
        collect(
            "<results>/tables/{table}.{format}",
            table=shown("tables", "ablations"),
            format=["csv", "html"],
        ),
        multiext("<results>/ablations/claims", ".json", ".html"),
