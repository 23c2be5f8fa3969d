# What only the device itself tells: bytes of real caches. A study that names no backbone has no such job.
use rule memory as cache_peak with:
    output:
        rows="<results>/device/{backbone}/cache_peak.csv",
        record="<results>/device/{backbone}/cache_peak.run.json",
    log:
        "<logs>/device/{backbone}/cache_peak.log",
    threads: 4
    resources:
        **NEEDS,
    params:
        stage="cache-peak",
        what=["--device", DEVICE["device"], "--betas", *map(str, config["betas"])]
        + ["--seed", str(config["seed"])],
        code=code("cache_peak"),


rule device_measurements:
    input:
        MEASUREMENTS["cache_peak"],
