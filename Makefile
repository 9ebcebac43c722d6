# make            builds ./run
# make test       builds and runs the tests; GOLDEN=DIR adds the larger reference data
# make asan       the same under AddressSanitizer and UBSan
# make tsan       the tests of what threads share, under ThreadSanitizer
# make msan       the modules' tests under MemorySanitizer; needs clang
# make valgrind   most modules' tests under valgrind
# make fuzz       every parser on mutated input, FUZZ_SECONDS each
# make faults     each allocation and system call fails in turn; limits of memory, files and stack
# make mutants    changes the code of json.c, safetensors.c, weights.c and the tokenizer; counts what the tests notice
# make coverage   lines and branches that the tests reach
# make soak       thousands of rounds of generate, tokenize, edit, split and merge, for SOAK_SECONDS
# make builds     other compilers, C libraries and machines, as far as they are installed
# make aarch64    the tests as 64-bit ARM programs under qemu
# make static     ./run without shared libraries
# make install    into PREFIX (/usr/local), below DESTDIR; make uninstall removes it
# make clean      removes what was built
#
# V=1 shows whole commands. CC, CFLAGS, CPPFLAGS and LDFLAGS are yours to set; when they change, all is built again.

CC ?= cc
PREFIX ?= /usr/local
STRIP ?= strip
BUILD ?= build
BIN ?= run
FUZZ_SECONDS ?= 10
SOAK_SECONDS ?= 60
WARNINGS = -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wstrict-prototypes
# EXTRA is what a target below adds.
FLAGS = -std=c11 -O3 -g -ffp-contract=off -I. $(WARNINGS) $(EXTRA) $(CPPFLAGS) $(CFLAGS)
LIBS = -lm -lpthread

MODULES = $(filter-out run.c,$(wildcard *.c)) $(wildcard base/*.c kernels/*.c tokenizer/*.c generate/*.c checkpoint/*.c)
PROGRAM = run.c $(wildcard commands/*.c)
OBJECTS = $(patsubst %.c,$(BUILD)/%.o,$(MODULES) $(PROGRAM))
MODULE_OBJECTS = $(patsubst %.c,$(BUILD)/%.o,$(MODULES))
TESTS = $(patsubst tests/%.c,$(BUILD)/tests/%,$(wildcard tests/test_*.c))

all: $(BIN)

# .SILENT makes make print nothing but what the recipes echo. With V=1 this is the target 1.SILENT, which means nothing.
$(V).SILENT:

$(BIN): $(OBJECTS)
	@echo "  link $@"
	$(CC) $(FLAGS) $(LDFLAGS) -o $@ $(OBJECTS) $(LIBS)

# KERNELS: more flags for kernels/, whose intrinsics take minutes to compile under some sanitizers.
$(BUILD)/%.o: %.c $(BUILD)/flags
	@mkdir -p $(@D)
	@echo "  cc $<"
	$(CC) $(FLAGS) $(if $(filter kernels/%,$<),$(KERNELS)) -MMD -MP -c -o $@ $<

$(BUILD)/tests/%: $(BUILD)/tests/%.o $(MODULE_OBJECTS)
	@echo "  link $@"
	$(CC) $(FLAGS) $(LDFLAGS) -o $@ $(filter %.o,$^) $(LIBS)

# This file is written only when the compiler or its flags differ from the last time, and then all is built again.
$(BUILD)/flags: export BUILT_WITH = $(CC) $(FLAGS) $(KERNELS) $(LDFLAGS)
$(BUILD)/flags: FORCE
	@mkdir -p $(@D)
	@echo "$$BUILT_WITH" | cmp -s - $@ || echo "$$BUILT_WITH" >$@

-include $(wildcard $(BUILD)/*.d $(BUILD)/*/*.d $(BUILD)/*/*/*.d)

test: $(BIN) $(TESTS)
	RUN=./$(BIN) tests/all.sh $(TESTS)

CHECKED = -O1 -fno-sanitize-recover=all -fno-omit-frame-pointer

# Without scripts that run the program thousands of times, or not at all.
asan:
	WITHOUT="download growth outside" $(MAKE) BUILD=build-asan BIN=run-asan EXTRA="$(CHECKED) -fsanitize=address,undefined" test

# Without the scripts, because ThreadSanitizer holds signals back.
SHARED = threads net attention matmul
tsan:
	$(MAKE) BUILD=build-tsan EXTRA="$(CHECKED) -fsanitize=thread" $(SHARED:%=build-tsan/tests/test_%)
	for t in $(SHARED); do build-tsan/tests/test_$$t || exit 1; done

# Without the tests that have a malloc() and an mmap() of their own: json, safetensors, weights. The others use these
# modules as well.
TRACED = attention base checkpoint edit matmul net number sample sha256 slice split threads tokenizer unicode
msan:
	$(MAKE) BUILD=build-msan CC=clang EXTRA="$(CHECKED) -fsanitize=memory" $(TRACED:%=build-msan/tests/test_%)
	for t in $(TRACED); do build-msan/tests/test_$$t || exit 1; done

# The tests that take valgrind no more than minutes. Those with a malloc() of their own must keep it.
OWN_MALLOC = json safetensors weights
LIGHT = base checkpoint edit number sample sha256 slice split threads tokenizer unicode $(OWN_MALLOC)
valgrind: $(LIGHT:%=$(BUILD)/tests/test_%)
	for t in $(LIGHT); do \
		case " $(OWN_MALLOC) " in *" $$t "*) own=--soname-synonyms=somalloc=nouserintercepts ;; *) own= ;; esac; \
		valgrind -q --error-exitcode=9 --leak-check=full $$own $(BUILD)/tests/test_$$t || exit 1; \
	done

# fuzz.c stands for run.c and has some files of commands/ in it. FUZZER: -fsanitize=fuzzer where clang has it.
FUZZ_INCLUDES = $(shell sed -n 's/^.include "\(commands\/.*\)\.c"/\1.o/p' tests/fuzz.c)
FUZZ_OBJECTS = $(filter-out $(BUILD)/run.o $(FUZZ_INCLUDES:%=$(BUILD)/%),$(OBJECTS))
$(BUILD)/tests/fuzz: $(BUILD)/tests/fuzz.o $(FUZZ_OBJECTS)
	@echo "  link $@"
	$(CC) $(FLAGS) $(LDFLAGS) $(FUZZER) -Wl,--wrap=exit -o $@ $^ $(LIBS)

fuzz:
	FUZZ_SECONDS=$(FUZZ_SECONDS) MAKE="$(MAKE)" tests/fuzz.sh

faults: $(BIN)
	RUN=./$(BIN) CC="$(CC)" OBJECTS="$(MODULE_OBJECTS)" tests/fault_injection.sh
	RUN=./$(BIN) tests/resource_limits.sh

mutants:
	python3 tests/mutants.py

coverage:
	tests/coverage.sh

soak: $(BIN)
	RUN=./$(BIN) SOAK_SECONDS=$(SOAK_SECONDS) tests/soak.sh

builds: $(BIN)
	MAKE="$(MAKE)" tests/builds.sh

# Without the scripts that do not run the program, or compare times. -O2, because at -O3 gcc 12 for ARM ends in an internal error in
# test_net.c.
aarch64:
	WITHOUT="rooms download growth" QEMU_LD_PREFIX=/usr/aarch64-linux-gnu \
		$(MAKE) CC=aarch64-linux-gnu-gcc EMULATOR=qemu-aarch64 BUILD=build-aarch64 BIN=run-aarch64 CFLAGS=-O2 test

static:
	$(MAKE) BUILD=build-static LDFLAGS=-static

install: $(BIN)
	@echo "  install $(DESTDIR)$(PREFIX)/bin/run"
	install -d "$(DESTDIR)$(PREFIX)/bin" "$(DESTDIR)$(PREFIX)/share/run/demo"
	install $(BIN) "$(DESTDIR)$(PREFIX)/bin/run"
	! command -v $(STRIP) >/dev/null || $(STRIP) "$(DESTDIR)$(PREFIX)/bin/run"
	install download.sh "$(DESTDIR)$(PREFIX)/bin/run-download"
	install -m 644 $(wildcard tests/demo/*.json) tests/demo/model.safetensors "$(DESTDIR)$(PREFIX)/share/run/demo"

uninstall:
	rm -f "$(DESTDIR)$(PREFIX)/bin/run" "$(DESTDIR)$(PREFIX)/bin/run-download"
	rm -rf "$(DESTDIR)$(PREFIX)/share/run"

clean:
	rm -rf build build-* run run-*

help:
	@sed -n 's/^# make /make /p' Makefile

.PHONY: all test asan tsan msan valgrind fuzz faults mutants coverage soak builds aarch64 static
.PHONY: install uninstall clean help
FORCE:
# Keep the object files of the tests. Not a bare .SECONDARY, which would keep FORCE from forcing anything.
.SECONDARY: $(patsubst %.c,$(BUILD)/%.o,$(wildcard tests/*.c tests/*/*.c))
