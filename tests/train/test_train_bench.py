from patchwright.train.bench import bench_train


def test_the_benchmark_measures_all_three(tiny):
    result = bench_train(rows=6, rounds=1, model=tiny)
    assert min(result.sft, result.policy, result.plain) > 0
