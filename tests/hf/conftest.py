"""Without the library's tests (`make test-hf` brings them) there is nothing to collect here."""

from importlib.util import find_spec

MARKS = ("accelerate_tests", "flash_attn_test", "flash_attn_3_test", "flash_attn_4_test", "torch_compile_test")

if find_spec("transformers_tests") is None:
    collect_ignore_glob = ["test_*"]


def pytest_configure(config):
    for name in MARKS:
        config.addinivalue_line("markers", f"{name}: of the library's tests")
