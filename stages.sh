cd /tmp/ci; export OMP_NUM_THREADS=1; B=.venv/bin
run(){ echo "== $*"; "$@" 2>&1 | tail -6; date; }
run $B/pytest -q -n 2 --dist worksteal tests/docs/typed tests/campaigns/test_kills.py tests/tools/mutation
MOMENTS=12 run $B/pytest -q tests/plugins/sync/test_kills.py tests/plugins/index/test_kills.py
DAMAGED=1500 run $B/pytest -q tests/registry/package/test_damaged.py
EXAMPLES=12 run $B/pytest -q tests/core/backbones/test_tiles.py
run $B/pytest -q tests/browser
run $B/pytest -q tests/ray
run $B/pytest -q tests/onnx
run $B/pytest -q tests/architectures
run $B/pytest -q tests/interfaces
run $B/pytest -q tests/text
run $B/pytest -q -n 2 --dist worksteal tests/fleet
echo done
