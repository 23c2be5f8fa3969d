# What only the device itself tells. A study that names none of it has no such jobs; each is estimated at less than ten
# minutes on a card of the 80 GB class and keeps no checkpoint.


rule device_tests:
    output:
        tests="<results>/device/tests.csv",
        record="<results>/device/tests.run.json",
    log:
        "<logs>/device/tests.log",
    benchmark:
        "<results>/device/tests.benchmark.tsv"
    threads: 4
    resources:
        **ON_CARD,
    params:
        tests=os.path.relpath(ROOT / "workflow/run_tests.py"),
        markers=lambda wildcards: DEVICE["tests"],
        code=code_beside("tests", "workflow"),
    shell:
        """
        python {params.tests:q} {output.tests:q} --markers {params.markers:q} \
            --record {output.record:q} 2>&1 | tee {log:q}
        """


use rule memory as cache_peak with:
    output:
        rows="<results>/device/{backbone}/cache_peak.csv",
        record="<results>/device/{backbone}/cache_peak.run.json",
    log:
        "<logs>/device/{backbone}/cache_peak.log",
    benchmark:
        "<results>/device/{backbone}/cache_peak.benchmark.tsv"
    threads: 4
    resources:
        **ON_CARD,
    params:
        stage="cache-peak",
        what=as_flags(
            {
                "device": DEVICE["device"],
                "betas": config["betas"],
                "seed": config["seed"],
            }
        ),
        code=code("cache_peak"),


rule speed:
    output:
        speed="<results>/device/{topic}/bench.csv",
        record="<results>/device/{topic}/bench.run.json",
    log:
        "<logs>/device/{topic}/bench.log",
    benchmark:
        "<results>/device/{topic}/bench.benchmark.tsv"
    threads: 16  # or all there are: nothing else may run while something is timed
    resources:
        **ON_CARD,
    params:
        device=DEVICE["device"],
        seconds=DEVICE["speed_seconds"],
        results=subpath(output.speed, parent=True),
        code=code_beside("benchmarks"),
    shell:
        """
        python -m benchmarks {wildcards.topic:q} --device {params.device:q} --seconds {params.seconds:q} \
            --threads {threads} --results {params.results:q} --figures {params.results:q} 2>&1 | tee {log:q}
        """


rule device_measurements:
    input:
        MEASUREMENTS["tests"],
        MEASUREMENTS["cache_peak"],
        MEASUREMENTS["bench"],
