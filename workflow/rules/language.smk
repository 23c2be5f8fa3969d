use rule stage as train_text with:
    input:
        checkpoint=before_training("language"),
        articles="<results>/corpus/articles.parquet",
        original="<results>/backbones/{backbone}" if RECOVERY else [],
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
    wildcard_constraints:
        change="|".join(re.escape(str(subject)) for subject in PAPERS_ON_TEXT),
    threads: 4
    params:
        **stage(
            "train",
            settings="language.training",
            tokens=config["language"]["tokens"],
            arm=arm_of,
            beta=changed_beta,
            **CURVE,
        ),


# The same of models whose curves nothing shows.
use rule train_text as ablation_train_text with:
    input:
        checkpoint=before_training("language"),
        articles="<results>/corpus/articles.parquet",
    output:
        trained=directory("<results>/language/{backbone}/{change}/seed-{seed}/trained"),
        metrics="<results>/language/{backbone}/{change}/seed-{seed}/metrics.jsonl",
        record="<results>/language/{backbone}/{change}/seed-{seed}/trained.run.json",
    wildcard_constraints:
        change=r"(?:heads|pooled)/.+",
    params:
        **stage(
            "train",
            settings="language.training",
            tokens=config["language"]["tokens"],
            arm=arm_of,
            beta=changed_beta,
        ),


ruleorder: train_text > ablation_train_text


use rule stage as recover with:
    input:
        checkpoint="<results>/backbones/{backbone}",
        heads=papers_heads,
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
    threads: 4
    params:
        **stage(
            "recover",
            settings="language.training",
            recipe=recipe_of,
            tokens=config["language"]["tokens"],
            **CURVE,
        ),


use rule stage as perplexity with:
    input:
        before="<results>/backbones/{backbone}",
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
            mixer=changed_mixer,
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
            hashhop=hashhop_if_asked,
            change=change_of("language"),
        ),


if RECOVERY:

    rule recovery:
        input:
            collect(
                "<figures>/{figure}.svg",
                figure=[*shown("figures", "recovery", "equal_bytes"), "figure3"],
            ),
            collect(
                "<results>/tables/{table}.{format}",
                table=[*shown("tables", "recovery"), "table3"],
                format=["csv", "html"],
            ),
            measurements_of("language", recovering(), *LM_EVAL),
