use rule stage as memory with:
    output:
        rows="<results>/caches/{backbone}/memory.csv",
        record="<results>/caches/{backbone}/memory.run.json",
    log:
        "<logs>/memory/{backbone}.log",
    params:
        **stage("memory", settings="caches.sizes", betas=config["betas"]),


use rule memory as cache with:
    input:
        profile=profile_if_any,
    output:
        rows="<results>/caches/{backbone}/cache.csv",
        record="<results>/caches/{backbone}/cache.run.json",
    log:
        "<logs>/cache/{backbone}.log",
    params:
        **stage("cache", settings="caches.sizes", betas=config["betas"]),


use rule memory as longest_input with:
    output:
        rows="<results>/caches/{backbone}/longest/beta-{beta}/{protocol}/memory.csv",
        record="<results>/caches/{backbone}/longest/beta-{beta}/{protocol}/memory.run.json",
    log:
        "<logs>/longest_input/{backbone}/beta-{beta}/{protocol}.log",
    params:
        **stage("longest-input", settings="caches.sizes"),


use rule stage as complexity with:
    output:
        rows="<results>/caches/complexity.csv",
        record="<results>/caches/complexity.run.json",
    log:
        "<logs>/complexity.log",
    params:
        **stage("complexity", settings="caches.sizes"),


use rule complexity as pyramidinfer with:
    output:
        rows="<results>/caches/pyramidinfer.csv",
        record="<results>/caches/pyramidinfer.run.json",
    log:
        "<logs>/pyramidinfer.log",
    params:
        **stage("pyramidinfer", settings="caches.sizes"),


# What only the device itself tells: bytes of real caches. A study that names no backbone has no such job.
use rule memory as cache_peak with:
    output:
        rows="<results>/device/{backbone}/cache_peak.csv",
        record="<results>/device/{backbone}/cache_peak.run.json",
    log:
        "<logs>/device/{backbone}/cache_peak.log",
    threads: 4
    params:
        **stage("cache-peak", settings="caches.sizes", betas=config["betas"]),


# It takes the cores of a small machine alone: other work would change the times.
use rule stage as speed with:
    output:
        rows="<results>/device/{backbone}/bench.csv",
        record="<results>/device/{backbone}/bench.run.json",
    log:
        "<logs>/device/{backbone}/speed.log",
    threads: 2
    params:
        **stage("speed", settings="device_measurements.speed"),


rule device_measurements:
    input:
        MEASUREMENTS["cache_peak"],
        MEASUREMENTS["bench"],
