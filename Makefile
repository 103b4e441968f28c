# Two commands do everything on a fresh Debian 12 (as root, or with sudo):
#   make run     builds Calla and talks to Bud, the built-in model (PROMPT="…" asks one question)
#   make test    builds and passes the tests
# The rest is for contributors; AGENTS.md says when to use what.

BUILD := build/release
JOBS := $(shell nproc)
say = @printf '\n== %s\n' $(1)

.PHONY: run test web check work test-neon sanitize fuzz tidy bench format install clean deps deps-test deps-web deps-neon

run: deps
	$(call say,"building calla (the first time takes about three minutes on two cores)")
	@cmake --preset release -DCALLA_BUILD_TESTS=OFF -Wno-dev > build/configure.log 2>&1 || (cat build/configure.log; exit 1)
	@cmake --build --preset release --target calla
	$(call say,"starting Bud")
	@if [ -z "$(PROMPT)" ] && [ -t 0 ] && [ -t 1 ]; then exec $(BUILD)/calla chat; \
	 else exec $(BUILD)/calla run "$${PROMPT:-Tell me a story that begins: Once upon a time, a little fox found a red kite.}"; fi

test: deps-test
	@$(MAKE) --no-print-directory web || { [ -z "$(CI)" ] && echo "-- the page could not be built: it will be missing, and CTest will report its tests as skipped"; }
	$(call say,"building calla and its tests")
	@cmake --preset release -DCALLA_BUILD_TESTS=ON -DCALLA_WERROR=ON -Wno-dev > build/configure.log 2>&1 || (cat build/configure.log; exit 1)
	@cmake --build --preset release
	$(call say,"fetching the oracles and the clients that the tests run (npm)")
	@for folder in oracle conformance; do npm install --no-package-lock --no-fund --no-audit --loglevel=error --prefix tests/$$folder || \
	 { [ -z "$(CI)" ] && echo "-- some could not be fetched: CTest will report their tests as skipped"; } || exit 1; done
	$(call say,"running the tests")
	@ctest --preset release -j $(JOBS)

# The chat page, from npm packages, into web/dist; a build that comes after it puts that into the program.
web: deps-web
	$(call say,"building the page (npm)")
	@npm install --no-package-lock --no-fund --no-audit --loglevel=error --prefix web
	@npm run --silent build --prefix web -- --logLevel warn

# Rules that no compiler checks: the order of the libraries, self-contained headers, ISA files without weak symbols, the format.
check: deps-test
	$(call say,"checking the order of the libraries")
	@tools/check_layers.sh
	$(call say,"checking that every header compiles alone")
	@tools/check_headers.sh
	$(call say,"checking the symbols of the ISA files")
	@tools/check_weak_symbols.sh $(BUILD)
	$(call say,"checking the format")
	@git ls-files '*.h' '*.cc' | xargs clang-format --dry-run -Werror

# Work, not time: instructions of Bud's passes and steps against bench/work.tsv. After make test, which builds the program.
work: deps-test
	$(call say,"counting instructions (about a minute)")
	@tools/work.py $(BUILD)

# The kernels for AArch64, from a cross compiler, on three emulated processors: with I8MM, with dot products only, with neither. The plain kernels
# and the rest are `make test`'s.
QEMU := qemu-aarch64 -L /usr/aarch64-linux-gnu -cpu
NEON_TESTS := build/aarch64/test_backend_cpu --gtest_brief=1
test-neon: deps-neon
	$(call say,"building the tests of the kernels for AArch64")
	@cmake --preset aarch64 -Wno-dev > build/configure.log 2>&1 || (cat build/configure.log; exit 1)
	@cmake --build --preset aarch64
	@tools/check_weak_symbols.sh build/aarch64
	$(call say,"running them on emulated processors")
	@$(QEMU) max $(NEON_TESTS) --gtest_filter='-*/neon:*/scalar'
	@$(QEMU) cortex-a76 $(NEON_TESTS) --gtest_filter='-*/scalar'
	@$(QEMU) cortex-a72 $(NEON_TESTS) --gtest_filter='Select.*'

# Under AddressSanitizer and UndefinedBehaviorSanitizer: the tests of all libraries but those that only measure, without what takes minutes there and is plain
# arithmetic (whole models in f64, the scalar kernels) or kills its own processes. The threads under ThreadSanitizer.
SANITIZED := base text grammar formats quant model backend_reference backend_cpu engine convert api store server
empty :=
sanitize: deps-test
	$(call say,"building and testing with AddressSanitizer and UndefinedBehaviorSanitizer")
	@cmake --preset asan -Wno-dev > /dev/null && cmake --build --preset asan --target $(SANITIZED:%=test_%)
	@GTEST_FILTER='-*/*Reference:*/scalar:*HundredKills' ctest --preset asan -j $(JOBS) -R '^($(subst $(empty) ,|,$(SANITIZED)))$$'
	$(call say,"building and testing the threads with ThreadSanitizer")
	@cmake --preset tsan -Wno-dev > /dev/null && cmake --build --preset tsan --target test_base test_backend_cpu test_grammar test_engine test_server
	@build/tsan/test_base --gtest_brief=1
	@build/tsan/test_server --gtest_brief=1 --gtest_filter='HttpTest.*:RouterTest.*'
	@build/tsan/test_backend_cpu --gtest_brief=1 --gtest_filter='*ProjectSeveralMatrices*:*MoeAgrees*'
	@build/tsan/test_grammar --gtest_brief=1 --gtest_filter='*Threads*'
	@build/tsan/test_engine --gtest_brief=1 --gtest_filter='Service.*:ServiceOnDisk.*:SnapshotStore.FindsItsFilesAgain-*FewPages*:*AGrammar*'

# SECONDS of libFuzzer for each target, under ASan and UBSan.
SECONDS ?= 20
fuzz: deps-test
	$(call say,"building the fuzzers")
	@cmake --preset fuzz -Wno-dev > /dev/null && cmake --build --preset fuzz --target fuzzers
	@tools/run_fuzzers.sh build/fuzz $(SECONDS)

tidy: deps-test
	@cmake --preset dev -Wno-dev > /dev/null && git ls-files 'src/*.cc' | xargs -P $(JOBS) -n 4 clang-tidy-19 -p build/dev --quiet

bench: deps-test
	@cmake --preset release -DCALLA_BUILD_BENCH=ON -Wno-dev > /dev/null && cmake --build --preset release
	@for b in $(BUILD)/*_bench; do $$b; done

format:
	@git ls-files '*.h' '*.cc' | xargs clang-format -i

install: deps
	@cmake --preset release -Wno-dev > /dev/null && cmake --build --preset release --target calla && cmake --install $(BUILD)

deps:
	@mkdir -p build && tools/install_deps.sh run

deps-test:
	@mkdir -p build && tools/install_deps.sh run test web

deps-web:
	@mkdir -p build && tools/install_deps.sh web

deps-neon:
	@mkdir -p build && tools/install_deps.sh run neon

clean:
	rm -rf build
