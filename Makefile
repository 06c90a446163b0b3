# The front door: each word calls a script, which says what it does.
# Steps share the environment and the build: make -j runs them one by one, each with all processors.
.NOTPARALLEL:
.PHONY: build setup demo test test-sanitizers test-full test-gpu bench wheel format lint clean
build:
	@scripts/build
setup:
	@scripts/setup
demo:
	@scripts/demo
test:
	@scripts/test
test-sanitizers:
	@scripts/test sanitizers
test-full:
	@scripts/test full
test-gpu:
	@scripts/test-gpu
bench:
	@scripts/bench $(NAME)
wheel:
	@scripts/wheel
format:
	@scripts/format
lint:
	@scripts/lint
clean:
	rm -rf build
