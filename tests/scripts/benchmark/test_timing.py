import torch

from benchmark.timing import peak_memory

MEGABYTE = 1 << 20


def test_peak_memory_counts_what_is_held_at_once():
    def run():
        first = torch.zeros(MEGABYTE, dtype=torch.uint8)
        del first
        second, third = (torch.zeros(MEGABYTE, dtype=torch.uint8) for _ in range(2))
        return second, third

    assert 2 * MEGABYTE <= peak_memory(run) < 3 * MEGABYTE


def test_peak_memory_is_not_lowered_by_what_a_run_frees_of_the_run_before():
    kept = {}

    def run():
        kept.clear()
        kept["gradient"] = torch.zeros(MEGABYTE, dtype=torch.uint8)

    run()
    assert MEGABYTE <= peak_memory(run) < 2 * MEGABYTE
