use rule stage as profile_text with:
    input:
        checkpoint=text_checkpoint,
        articles="<results>/corpus/articles.parquet",
    output:
        profile="<results>/language/{backbone}/profile.parquet",
        record="<results>/language/{backbone}/profile.run.json",
    log:
        "<logs>/profile_text/{backbone}.log",
    threads: 2
    params:
        **stage("profile", settings="language.profiling"),


use rule profile_text as sink with:
    output:
        rows="<results>/language/{backbone}/sink.parquet",
        record="<results>/language/{backbone}/sink.run.json",
    log:
        "<logs>/sink/{backbone}.log",
    params:
        **stage("sink", settings="language.beginnings"),


use rule profile_text as contribution with:
    output:
        rows="<results>/language/{backbone}/contribution.csv",
        record="<results>/language/{backbone}/contribution.run.json",
    log:
        "<logs>/contribution/{backbone}.log",
    params:
        **stage("contribution", settings="language.maps"),


use rule profile_text as attention_map with:
    input:
        checkpoint=text_checkpoint,
        articles="<results>/corpus/articles.parquet",
        profile="<results>/language/{backbone}/profile.parquet",
    output:
        rows="<results>/language/{backbone}/attention_map.parquet",
        record="<results>/language/{backbone}/attention_map.run.json",
    log:
        "<logs>/attention_map/{backbone}.log",
    params:
        **stage("attention-map", settings="language.maps"),


use rule profile_text as influence with:
    input:
        checkpoint=text_checkpoint,
        articles="<results>/corpus/articles.parquet",
        profile="<results>/language/{backbone}/profile.parquet",
        trained="<results>/language/{backbone}/{change}/seed-{seed}/trained",
    output:
        rows="<results>/language/{backbone}/{change}/seed-{seed}/influence.parquet",
        record="<results>/language/{backbone}/{change}/seed-{seed}/influence.run.json",
    log:
        "<logs>/influence/{backbone}/{change}/seed-{seed}.log",
    wildcard_constraints:
        change=r"(heads|recovered)/.+",
    params:
        **stage("influence", settings="language.beginnings"),


use rule stage as profile_hashhop with:
    input:
        checkpoint=base_checkpoint,
    output:
        profile="<results>/hashhop/{backbone}/profile.parquet",
        record="<results>/hashhop/{backbone}/profile.run.json",
    log:
        "<logs>/profile_hashhop/{backbone}.log",
    params:
        **stage("profile-hashhop", settings="hashhop.profiling"),


use rule stage as select with:
    input:
        unpack(
            lambda wildcards: choosing(
                wildcards.task, wildcards.backbone, wildcards.by
            )
        ),
    output:
        heads="<results>/{task}/{backbone}/heads/{by}-{unit}-{choice}/beta-{beta}/heads.json",
        record="<results>/{task}/{backbone}/heads/{by}-{unit}-{choice}/beta-{beta}/heads.run.json",
    log:
        "<logs>/select/{task}/{backbone}/{by}-{unit}-{choice}/beta-{beta}.log",
    params:
        **stage(
            "select", settings=choice_of_heads, seed=lambda wildcards: wildcards.choice
        ),


use rule stage as convert with:
    input:
        checkpoint=base_checkpoint,
        heads="<results>/{task}/{backbone}/heads/{by}-{unit}-{choice}/beta-{beta}/heads.json",
    output:
        converted=temp(
            directory(
                "<results>/{task}/{backbone}/heads/{by}-{unit}-{choice}/beta-{beta}/{mixer}/seed-{seed}/converted"
            )
        ),
        record="<results>/{task}/{backbone}/heads/{by}-{unit}-{choice}/beta-{beta}/{mixer}/seed-{seed}/converted.run.json",
    log:
        "<logs>/convert/{task}/{backbone}/{by}-{unit}-{choice}/beta-{beta}/{mixer}/seed-{seed}.log",
    params:
        **stage("convert", window=window_of),


use rule stage as pool_kv with:
    input:
        checkpoint=base_checkpoint,
    output:
        pooled=temp(
            directory(
                "<results>/{task}/{backbone}/pooled/{kv_heads}/seed-{seed}/converted"
            )
        ),
        record="<results>/{task}/{backbone}/pooled/{kv_heads}/seed-{seed}/converted.run.json",
    log:
        "<logs>/pool_kv/{task}/{backbone}/{kv_heads}/seed-{seed}.log",
    params:
        **stage("pool-kv"),


use rule stage as head_scores with:
    input:
        checkpoint=base_checkpoint,
        profile=lambda wildcards: profile_for(wildcards.task, wildcards.backbone),
        articles=probed_text,
    output:
        rows="<results>/{task}/{backbone}/head_scores.parquet",
        record="<results>/{task}/{backbone}/head_scores.run.json",
    log:
        "<logs>/head_scores/{task}/{backbone}.log",
    threads: 2
    params:
        **stage("head-scores", settings=asked_scores, random_seeds=ABLATIONS["seeds"]),


use rule profile_text as ra_i_settings with:
    output:
        rows="<results>/language/{backbone}/ra_i_settings.csv",
        record="<results>/language/{backbone}/ra_i_settings.run.json",
    log:
        "<logs>/ra_i_settings/{backbone}.log",
    params:
        **stage("ra-i-settings", settings="language.profiling"),


use rule profile_text as prices with:
    output:
        rows="<results>/language/{backbone}/prices.parquet",
        record="<results>/language/{backbone}/prices.run.json",
    log:
        "<logs>/prices/{backbone}.log",
    params:
        **stage("prices", settings="ablations.prices"),


use rule profile_text as mixer_prices with:
    input:
        checkpoint=text_checkpoint,
        articles="<results>/corpus/articles.parquet",
        prices="<results>/language/{backbone}/prices.parquet",
    output:
        rows="<results>/language/{backbone}/mixer_prices.parquet",
        record="<results>/language/{backbone}/mixer_prices.run.json",
    log:
        "<logs>/mixer_prices/{backbone}.log",
    params:
        **stage(
            "mixer-prices",
            settings="ablations.mixer_prices",
            prices="ablations.prices",
            window="ablations.language.window",
        ),
