"""From text to the GPU: featurizing, the store, the loader."""

from __future__ import annotations

from benchmarks.claims.results import Row, result


def featurize() -> list[Row]:
    """Text to arrays."""
    found = result("featurize")
    every = found["alignments"].values()
    # One small file pays a fixed cost; it is kept apart.
    large = [each for each in every if each["characters"] > 100_000]
    small = [each for each in every if each["characters"] < 10_000]
    ours = sorted(each["ours_ns_per_character"] for each in large)
    fixed = sorted(each["ours_ns_per_character"] for each in small)
    theirs = sorted(each["openfold_parse_only_ns_per_character"] for each in every)
    structures = found["structures"].values()
    times = sorted(each["times_biopython"] for each in structures if "times_biopython" in each)
    return [
        (
            "alignments to unique rows and profile, CPU",
            f"{ours[0]:.0f}-{ours[-1]:.0f} ns a character; {fixed[0]:.0f}-{fixed[-1]:.0f} for a "
            "file of 20 sequences",
            f"OpenFold's parser alone {theirs[0]:.0f}-{theirs[-1]:.0f}, same run",
            "featurize",
        ),
        (
            "mmCIF to atom37, CPU",
            f"{times[0]:.0f}x to {times[-1]:.0f}x Biopython's parser",
            "same run",
            "featurize",
        ),
    ]


def store() -> list[Row]:
    """Bytes, and time to read a crop, beside other formats."""
    found = result("store")
    ratio = {name: f"{value:.2f}" for name, value in found["ratio"].items()}
    times = result("store_crop")["crop_us"]
    ms = {name: f"{one['cpu_mean'] / 1e3:.2f}" for name, one in times.items()}
    return [
        (
            f"dataset size, {found['workload']['chains']:,} chains",
            f"{ratio['evofeed']} of the raw arrays ({ratio['evofeed zstd']} with zstd)",
            f"Arrow zstd {ratio['Arrow IPC zstd']}, lz4 {ratio['Arrow IPC lz4']}",
            "store",
        ),
        (
            "one crop of 1152 x 256 with templates by `Dataset.read`, CPU",
            f"{ms['evofeed']} ms, checksum included (training on a GPU decodes there instead)",
            f"raw Arrow {ms['Arrow IPC raw']}, MosaicML MDS {ms['MosaicML MDS']}, "
            f"Arrow lz4 {ms['Arrow IPC lz4']}, zstd {ms['Arrow IPC zstd']}, "
            f"Lance {ms['Lance']} ms, same run",
            "store_crop",
        ),
    ]


def loader() -> list[Row]:
    """A sample on its way to the GPU."""
    here = result("loader_h200")["presets"]["initial_training"]
    tuning = result("loader_h200")["presets"]["finetuning"]
    cpu = result("complexes_cpu")["rows"]
    ours, peer = here["step_50_ms"], here["step_50_ms_openfold_dataloader"]
    wait, peer_wait = ours["data_wait_ms"], peer["data_wait_ms"]
    tensors = tuning["step_50_ms_openfold_dataloader"]["mb_per_sample"]
    busy = here["featurize"]["queued"]["device_busy_ms_a_sample"]
    return [
        (
            "sample to the GPU",
            f"{ours['mb_per_sample']:.1f} MB",
            f"{peer['mb_per_sample']:.0f} MB as padded tensors ({tensors:.0f} MB for finetuning)",
            "loader_h200",
        ),
        (
            "wait for data at a 50 ms step",
            f"{wait['p50']:.2f} ms p50, {wait['p99']:.2f} ms p99, {ours['cores']:.2f} core",
            f"{peer['workers']} DataLoader workers with OpenFold's transforms: "
            f"{peer_wait['p50']:.1f} ms p50, {peer_wait['p99']:.0f} ms p99, "
            f"{peer['cores']:.1f} cores",
            "loader_h200",
        ),
        (
            "features of a sample",
            f"{busy:.2f} ms of the GPU, {ours['cpu_ms_a_sample']:.1f} ms of CPU with everything "
            "else the loader does",
            f"{peer['cpu_ms_a_sample']:.0f} ms of CPU in OpenFold's transforms, same run",
            "loader_h200",
        ),
        (
            "a sample of a complex, CPU in the reader, two real entries",
            ", ".join(f"{row['evofeed_read_ms']['median']:.1f}" for row in cpu) + " ms",
            "OpenFold's multimer data path "
            + ", ".join(f"{row['openfold_cpu_ms']['median'] / 1e3:.1f}" for row in cpu)
            + " s, parsing included, same run",
            "complexes_cpu",
        ),
    ]


def service() -> list[Row]:
    """CPU of the service's answers, beside a plain FastAPI route."""
    found, load = result("service"), result("service_load")
    answers = found["answers"]
    ratios = ", ".join(
        f"{name} {answers[name]['ratio']:.2f}"
        for name in ("ref", "manifest", "manifest 304", "one chain")
    )
    page, count = (
        answers[name]["cpu_us"] / 1000 for name in ("filtered page, new", "its exact count, new")
    )
    dearest, memory = load["dearest"]["cpu_seconds"], load["memory"]
    return [
        (
            "answers of the service, CPU of its process",
            f"rates beside a plain FastAPI route: {ratios}; of {found['rows']:,} rows a filtered "
            f"page {page:.1f} ms, its exact count {count:.0f}",
            f"a plain `def` route {found['plain_us']:.0f} µs, same run, "
            f"load {found['load_average']:.0f}",
            "service",
        ),
        (
            f"{load['dearest']['questions']} dearest questions of {load['rows']:,} rows; memory",
            f"CPU p99 {dearest['p99']:.2f} s, median {dearest['median']:.2f}; resident after "
            f"{memory['requests']:,} requests {memory['each_tenth'][-1] / 1e6:.0f} MB, "
            f"{memory['each_tenth'][0] / 1e6:.0f} after a tenth of them",
            f"bytes by X-Accel-Redirect {load['nginx']['ratio']:.2f} of nginx alone, "
            f"load {load['load_average']:.0f}",
            "service_load",
        ),
    ]
