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
    complexes = result("complexes_loader_h200")
    waits, work = complexes["waits"]["large"], complexes["work"]
    cpu = result("complexes_cpu")["rows"]
    kernels, plain = work["large, kernels"], work["large, plain torch"]
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
            "wait for a complex (crop 640, 508 + 2,048 rows) at a "
            f"{1e3 * waits['step_seconds']:.0f} ms step",
            f"{waits['data_wait_ms']['p50']:.2f} ms p50, {waits['data_wait_ms']['p99']:.2f} ms p99",
            "",
            "complexes_loader_h200",
        ),
        (
            "... its CPU in the reader, two real entries",
            ", ".join(f"{row['evofeed_read_ms']['median']:.1f}" for row in cpu) + " ms",
            "OpenFold's multimer data path "
            + ", ".join(f"{row['openfold_cpu_ms']['median'] / 1e3:.1f}" for row in cpu)
            + " s, parsing included, same run",
            "complexes_cpu",
        ),
        (
            "... its features",
            f"{kernels['device_busy_ms_a_sample']:.1f} ms of the GPU, "
            f"{kernels['kernels_a_sample']:.0f} kernels",
            f"the same in plain torch {plain['device_busy_ms_a_sample']:.1f} ms, "
            f"{plain['kernels_a_sample']:.0f} kernels, same run",
            "complexes_loader_h200",
        ),
    ]
