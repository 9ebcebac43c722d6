# make            builds ./run
# make test       builds and runs the tests; GOLDEN=DIR adds the larger reference data
# make asan       the same under AddressSanitizer and UBSan
# make tsan       what threads share, under ThreadSanitizer
# make msan       the rooms' tests under MemorySanitizer; needs clang
# make valgrind   most rooms' tests under valgrind
# make fuzz       every parser on mutated input, FUZZ_SECONDS each
# make faults     every allocation and system call fails in turn; limits of memory, files, stack
# make mutants    changes json.c, safetensors*.c, tokenizer.c and counts what the tests catch
# make coverage   which lines and branches the tests reach
# make soak       thousands of rounds of every kind for SOAK_SECONDS
# make builds     other compilers, C libraries and machines, as far as they are installed
# make aarch64    the tests as 64-bit ARM programs under qemu
# make static     ./run without shared libraries
# make install    into PREFIX (/usr/local), below DESTDIR; uninstall takes it away
# make clean      removes what was built

CC ?= cc
PREFIX ?= /usr/local
BUILD ?= build
BIN ?= run
FUZZ_SECONDS ?= 10
SOAK_SECONDS ?= 60
WARNINGS = -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wstrict-prototypes
FLAGS = -std=c11 -O3 -g -ffp-contract=off -I. $(WARNINGS) $(EXTRA) $(CPPFLAGS) $(CFLAGS)
LIBS = -lm -lpthread

MODULES = $(filter-out run.c,$(wildcard *.c)) $(wildcard base/*.c kernels/*.c tokenizer/*.c generate/*.c checkpoint/*.c)
PROGRAM = run.c $(wildcard commands/*.c)
OBJECTS = $(patsubst %.c,$(BUILD)/%.o,$(MODULES) $(PROGRAM))
MODULE_OBJECTS = $(patsubst %.c,$(BUILD)/%.o,$(MODULES))
TESTS = $(patsubst tests/%.c,$(BUILD)/tests/%,$(wildcard tests/test_*.c))

all: $(BIN)

$(V).SILENT: # short lines; with V=1 this is a target that nobody asks for, and make prints whole commands

$(BIN): $(OBJECTS)
	@echo "  link $@"
	$(CC) $(FLAGS) $(LDFLAGS) -o $@ $(OBJECTS) $(LIBS)

$(BUILD)/%.o: %.c $(BUILD)/flags
	@mkdir -p $(@D)
	@echo "  cc $<"
	$(CC) $(FLAGS) -MMD -MP -c -o $@ $<

$(BUILD)/tests/%: $(BUILD)/tests/%.o $(MODULE_OBJECTS)
	@echo "  link $@"
	$(CC) $(FLAGS) $(LDFLAGS) -o $@ $(filter %.o,$^) $(LIBS)

# changes when the compiler or its flags do, so that everything is built again
$(BUILD)/flags: FORCE
	@mkdir -p $(@D)
	@echo '$(CC) $(FLAGS)' | cmp -s - $@ || echo '$(CC) $(FLAGS)' >$@

# KERNELS: flags for the files whose intrinsics sanitizers take minutes to compile
$(patsubst %.c,$(BUILD)/%.o,$(wildcard kernels/*.c)): FLAGS += $(KERNELS)

-include $(OBJECTS:.o=.d) $(TESTS:=.d)

test: $(BIN) $(TESTS)
	RUN=./$(BIN) tests/all.sh $(TESTS)

asan: # without download: that is a shell script
	WITHOUT=download $(MAKE) BUILD=build-asan BIN=run-asan EXTRA="-O1 -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer" test

# without the scripts: ThreadSanitizer holds signals back
SHARED = threads net attention matmul
tsan:
	$(MAKE) BUILD=build-tsan EXTRA="-O1 -fsanitize=thread" $(SHARED:%=build-tsan/tests/test_%)
	for t in $(SHARED); do build-tsan/tests/test_$$t || exit 1; done

# without json and safetensors, which have a malloc and an mmap of their own; the others use both rooms
TRACED = attention checkpoint matmul net ops sample threads tokenizer unicode
msan:
	$(MAKE) BUILD=build-msan CC=clang EXTRA="-O1 -fsanitize=memory -fno-sanitize-recover=all -fno-omit-frame-pointer" \
		$(TRACED:%=build-msan/tests/test_%)
	for t in $(TRACED); do build-msan/tests/test_$$t || exit 1; done

# the rooms that valgrind is done with in minutes; json and safetensors have a malloc of their own
LIGHT = json unicode checkpoint sample safetensors tokenizer ops threads
valgrind: $(LIGHT:%=$(BUILD)/tests/test_%)
	for t in $(LIGHT); do \
		case $$t in json | safetensors) own=--soname-synonyms=somalloc=nouserintercepts ;; *) own= ;; esac; \
		valgrind -q --error-exitcode=9 --leak-check=full $$own $(BUILD)/tests/test_$$t || exit 1; \
	done

FUZZ_OBJECTS = $(MODULE_OBJECTS) $(patsubst %,$(BUILD)/commands/%.o,input inspect model options output sampling session terminal)
$(BUILD)/tests/fuzz: $(BUILD)/tests/fuzz.o $(FUZZ_OBJECTS)
	$(CC) $(FLAGS) $(LDFLAGS) -Wl,--wrap=exit -o $@ $^ $(LIBS)

fuzz:
	FUZZ_SECONDS=$(FUZZ_SECONDS) MAKE="$(MAKE)" tests/fuzz.sh

faults: $(BIN)
	RUN=./$(BIN) CC="$(CC)" OBJECTS="$(MODULE_OBJECTS)" tests/faults.sh
	RUN=./$(BIN) tests/limits.sh

mutants:
	python3 tests/mutants.py

coverage:
	tests/coverage.sh

soak: $(BIN)
	RUN=./$(BIN) SOAK_SECONDS=$(SOAK_SECONDS) tests/soak.sh

builds: $(BIN)
	tests/builds.sh

# without the scripts that run no program; -O2: at -O3 gcc 12 for ARM ends in an internal error in test_net.c
aarch64:
	WITHOUT="rooms download" QEMU_LD_PREFIX=/usr/aarch64-linux-gnu \
		$(MAKE) CC=aarch64-linux-gnu-gcc EMULATOR=qemu-aarch64 BUILD=build-aarch64 BIN=run-aarch64 CFLAGS=-O2 test

static:
	$(MAKE) BUILD=build-static LDFLAGS=-static

install: $(BIN)
	install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(PREFIX)/share/run/demo
	install $(BIN) $(DESTDIR)$(PREFIX)/bin/run
	install -m 644 $(wildcard tests/demo/*.json) tests/demo/model.safetensors $(DESTDIR)$(PREFIX)/share/run/demo

uninstall:
	rm -f $(DESTDIR)$(PREFIX)/bin/run
	rm -rf $(DESTDIR)$(PREFIX)/share/run

clean:
	rm -rf build build-* run run-*

help:
	@sed -n 's/^# make/make/p' Makefile

.PHONY: all test asan tsan msan valgrind fuzz faults mutants coverage soak builds aarch64 static install uninstall clean help
FORCE:
.SECONDARY:
