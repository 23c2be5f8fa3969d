use rule stage as train_text with:
    input:
        checkpoint=before_training("language"),
        articles="<results>/corpus/articles.parquet",
        original=text_checkpoint if RECOVERY else [],
    output:
        trained=directory("<results>/language/{backbone}/{change}/seed-{seed}/trained"),
        recovery=(
            "<results>/language/{backbone}/{change}/seed-{seed}/recovery.csv"
            if RECOVERY
            else []
        ),
        metrics="<results>/language/{backbone}/{change}/seed-{seed}/metrics.jsonl",
        record="<results>/language/{backbone}/{change}/seed-{seed}/trained.run.json",
    log:
        "<logs>/train_text/{backbone}/{change}/seed-{seed}.log",
    threads: threads_of_training
    params:
        **stage(
            "train",
            settings="language.training",
            tokens=on_text("tokens"),
            arm=arm_of,
            beta=changed_beta,
            held_out=of_curve("held_out"),
            halvings=of_curve("halvings"),
        ),


use rule stage as train_copying with:
    input:
        checkpoint="<results>/backbones/{backbone}",
        articles="<results>/corpus/articles.parquet",
    output:
        trained=directory("<results>/language/{backbone}/copying"),
        metrics="<results>/language/{backbone}/copying.metrics.jsonl",
        record="<results>/language/{backbone}/copying.run.json",
    log:
        "<logs>/train_copying/{backbone}.log",
    params:
        **stage("train-copying", settings="language.copying"),


use rule train_text as pretrain_text with:
    input:
        checkpoint=before_text,
        articles="<results>/corpus/articles.parquet",
    output:
        trained=directory("<results>/language/{backbone}/base"),
        metrics="<results>/language/{backbone}/base.metrics.jsonl",
        record="<results>/language/{backbone}/base.run.json",
    log:
        "<logs>/pretrain_text/{backbone}.log",
    params:
        **stage("train", settings="language.pretraining", tokens=on_text("tokens")),


use rule stage as recover with:
    input:
        checkpoint=text_checkpoint,
        heads=lambda wildcards: heads_of(
            wildcards.backbone, papers(float(wildcards.beta), int(wildcards.seed))
        ),
        articles="<results>/corpus/articles.parquet",
    output:
        trained=directory(
            "<results>/language/{backbone}/recovered/{arm}/beta-{beta}/seed-{seed}/trained"
        ),
        recovery="<results>/language/{backbone}/recovered/{arm}/beta-{beta}/seed-{seed}/recovery.csv",
        layer_errors="<results>/language/{backbone}/recovered/{arm}/beta-{beta}/seed-{seed}/layer_errors.csv",
        metrics="<results>/language/{backbone}/recovered/{arm}/beta-{beta}/seed-{seed}/metrics.jsonl",
        record="<results>/language/{backbone}/recovered/{arm}/beta-{beta}/seed-{seed}/trained.run.json",
    log:
        "<logs>/recover/{backbone}/{arm}/beta-{beta}/seed-{seed}.log",
    threads: threads_of_training
    params:
        **stage(
            "recover",
            settings="language.training",
            recipe=recipe_of,
            tokens=on_text("tokens"),
            held_out=of_curve("held_out"),
            halvings=of_curve("halvings"),
        ),


use rule stage as perplexity with:
    input:
        before=text_checkpoint,
        heads=replaced_heads,
        trained="<results>/language/{backbone}/{change}/seed-{seed}/trained",
        articles="<results>/corpus/articles.parquet",
    output:
        rows="<results>/language/{backbone}/{change}/seed-{seed}/perplexity.csv",
        record="<results>/language/{backbone}/{change}/seed-{seed}/perplexity.run.json",
    log:
        "<logs>/perplexity/{backbone}/{change}/seed-{seed}.log",
    wildcard_constraints:
        change=r"original/trained|heads/.+",
    threads: 2
    params:
        **stage(
            "perplexity",
            settings="language.perplexity",
            window=window_of,
            mixer=lambda wildcards: Subject.parse(wildcards.change).name or None,
            beta=changed_beta,
        ),


use rule stage as needle with:
    input:
        unpack(measured("language", "needle.csv")),
        articles="<results>/corpus/articles.parquet",
    output:
        rows="<results>/language/{backbone}/{subject}/seed-{seed}/needle.csv",
        record="<results>/language/{backbone}/{subject}/seed-{seed}/needle.run.json",
    log:
        "<logs>/needle/{backbone}/{subject}/seed-{seed}.log",
    params:
        **stage("needle", settings="ablations.needle", change=change_of("language")),


use rule needle as turns with:
    input:
        unpack(measured("language", "turns.csv")),
        articles="<results>/corpus/articles.parquet",
    output:
        rows="<results>/language/{backbone}/{subject}/seed-{seed}/turns.csv",
        record="<results>/language/{backbone}/{subject}/seed-{seed}/turns.run.json",
    log:
        "<logs>/turns/{backbone}/{subject}/seed-{seed}.log",
    params:
        **stage("turns", settings="ablations.turns", change=change_of("language")),


use rule needle as continuation with:
    input:
        unpack(measured("language", "continuation.csv")),
        articles="<results>/corpus/articles.parquet",
    output:
        rows="<results>/language/{backbone}/{subject}/seed-{seed}/continuation.csv",
        record="<results>/language/{backbone}/{subject}/seed-{seed}/continuation.run.json",
    log:
        "<logs>/continuation/{backbone}/{subject}/seed-{seed}.log",
    params:
        **stage(
            "continuation",
            settings="ablations.continuation",
            change=change_of("language"),
        ),


use rule needle as written with:
    input:
        unpack(measured("language", "written.csv")),
        articles="<results>/corpus/articles.parquet",
    output:
        rows="<results>/language/{backbone}/{subject}/seed-{seed}/written.csv",
        record="<results>/language/{backbone}/{subject}/seed-{seed}/written.run.json",
    log:
        "<logs>/written/{backbone}/{subject}/seed-{seed}.log",
    params:
        **stage("written", settings="ablations.written", change=change_of("language")),


# Of long prompts, with a price list of their length.
if ABLATIONS["long_inputs"]:

    use rule continuation as long_continuation with:
        input:
            unpack(measured("language", prices="long_prices.parquet")),
            articles="<results>/corpus/articles.parquet",
        output:
            rows="<results>/language/{backbone}/{subject}/seed-{seed}/long_continuation.csv",
            record="<results>/language/{backbone}/{subject}/seed-{seed}/long_continuation.run.json",
        log:
            "<logs>/long_continuation/{backbone}/{subject}/seed-{seed}.log",
        params:
            **stage(
                "continuation",
                settings="ablations.long_inputs.continuation",
                change=change_of("language", ABLATIONS["long_inputs"]),
            ),

    use rule prices as long_prices with:
        output:
            rows="<results>/language/{backbone}/long_prices.parquet",
            record="<results>/language/{backbone}/long_prices.run.json",
        log:
            "<logs>/long_prices/{backbone}.log",
        params:
            **stage("prices", settings=prices_after_long_prompts),


# Of windows longer than those of the training.
use rule continuation as positions with:
    output:
        rows="<results>/language/{backbone}/{subject}/seed-{seed}/positions.parquet",
        record="<results>/language/{backbone}/{subject}/seed-{seed}/positions.run.json",
    log:
        "<logs>/positions/{backbone}/{subject}/seed-{seed}.log",
    params:
        **stage(
            "continuation",
            settings="ablations.positions",
            change=change_of("language"),
        ),


use rule needle as ablation_lm_eval with:
    input:
        unpack(measured("language", "ablation_lm_eval.csv")),
        articles="<results>/corpus/articles.parquet",
    output:
        rows="<results>/language/{backbone}/{subject}/seed-{seed}/tasks/{evaluated}/ablation_lm_eval.csv",
        record="<results>/language/{backbone}/{subject}/seed-{seed}/tasks/{evaluated}/ablation_lm_eval.run.json",
    log:
        "<logs>/ablation_lm_eval/{backbone}/{subject}/seed-{seed}/{evaluated}.log",
    params:
        **stage(
            "ablation-lm-eval",
            settings=lm_eval_task,
            hashhop=lambda wildcards: (
                config["hashhop"]["task"] if wildcards.evaluated == "hashhop" else {}
            ),
            change=change_of("language"),
        ),


if RECOVERY:

    rule recovery:
        input:
            figures_of("recovery", "equal_bytes"),
            "<figures>/figure3.svg",
            tables_of("recovery"),
            multiext("<results>/tables/table3", ".csv", ".html"),
            lm_eval_of(recovering),
